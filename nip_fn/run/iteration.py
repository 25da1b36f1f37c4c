"""The course of a run: how it starts, goes from iteration to iteration, is extended and forked."""

from collections.abc import Iterator

from msgspec.structs import replace

from nip_fn.config.groups import make_groups
from nip_fn.config.resolve import resolve
from nip_fn.errors import Problem, or_raise
from nip_fn.params.agent import group_name_problems
from nip_fn.params.names import name_problem
from nip_fn.params.run import HyperParameters
from nip_fn.run.digest import digest
from nip_fn.run.events import DatasetInfo, Extended, Forked, RunStarted, StageEnded
from nip_fn.run.reuse import fork_problem
from nip_fn.run.sampling import games_key
from nip_fn.run.sizes import data_problems
from nip_fn.run.stages import Done, Fetching
from nip_fn.run.state import Origin, RunState, is_tested


def start(event: RunStarted) -> RunState:
    """A run before its first stage, with the values that its parameters name.

    Raises:
        ValueError: No run can have these parameters, or that data.
    """
    params = event.params
    # Before the data are looked at, whose number depends on the game.  From here on nothing is
    # looked up in a registry again, so no script can change the run by changing one.
    resolved = or_raise(resolve(params))
    _refuse(_start_problems(event))
    # An adapter of an earlier run stands in the lineage as if it had been trained here: it samples,
    # and trainings start from it.
    loaded = dict(event.loaded)
    groups = tuple(
        replace(group, lineage=(loaded[group.name],), serving=loaded[group.name].name)
        if group.name in loaded
        else group
        for group in make_groups(params)
    )
    return RunState(
        params=params,
        resolved=resolved,
        dataset=event.dataset,
        groups=groups,
        trainer_state=resolved.trainer.init(groups),
    )


def _start_problems(event: RunStarted) -> Iterator[Problem | None]:
    yield from group_name_problems(event.params.agents)
    yield from data_problems(event.params, event.dataset)
    for _, adapter in event.loaded:
        yield name_problem(adapter.name, "adapter")


def _refuse(problems: Iterator[Problem | None]) -> None:
    """Raise `ValueError` if there is a problem."""
    for problem in filter(None, problems):
        raise ValueError(str(problem)) from problem


def extend(state: RunState, event: Extended) -> RunState:
    """A finished run, about to sample with the models that it ended with."""
    # Straight to sampling: if the scheme wanted this iteration's model tested, it has been, when
    # the run was done.
    rl = replace(state.params.rl, num_iterations=event.num_iterations)
    return replace(state, params=replace(state.params, rl=rl), stage=Fetching("sample"))


def fork(state: RunState, event: Forked) -> RunState:
    """A run with parameters of its own, about to be given the replies that another one sampled.

    Raises:
        ValueError: Other replies might have followed from these parameters.
    """
    params = event.params
    _refuse(_fork_problems(state.params, params, state.dataset))
    if params.rl.num_iterations <= state.iteration:
        raise ValueError(f"the run has no iteration {state.iteration}")
    # With the seed the key of the stage may change, but not those of the games: what the agents
    # were shown may depend on them.
    resolved = or_raise(resolve(params))
    # Another trainer begins anew: it cannot go on from the state of the one before.
    same = params.trainer == state.params.trainer
    return replace(
        state,
        params=params,
        resolved=resolved,
        trainer_state=state.trainer_state if same else resolved.trainer.init(state.groups),
        origin=Origin(event.run, state.iteration, games_key(state)),
        # All this was paid for, and waited for, by the other run.
        rows=tuple(replace(row, usage=()) for row in state.rows),
        seconds=tuple((iteration, name, 0.0) for iteration, name, _ in state.seconds),
    )


def _fork_problems(
    recorded: HyperParameters, requested: HyperParameters, dataset: DatasetInfo
) -> Iterator[Problem | None]:
    yield fork_problem(recorded, requested)
    yield from data_problems(requested, dataset)


def begin(state: RunState) -> RunState:
    """The state at the first stage of its iteration."""
    if is_tested(state.params, state.iteration):
        return replace(state, stage=Fetching("test"))
    return after_test(state)


def after_test(state: RunState) -> RunState:
    """The state at the stage after a test: sampling, or the end of the run."""
    is_last = state.iteration == state.params.rl.num_iterations
    return replace(state, stage=Done() if is_last else Fetching("sample"))


def seal(state: RunState, event: StageEnded) -> RunState:
    """The state with its digest as its past; a fault if the recorded digest is another one."""
    derived, name = digest(state), state.stage.name
    # A fault is noted and the scan continues, because a replay that stops would show nothing of the
    # stages after it, which may be what its user needs to see.
    fault = (
        f"iteration {event.iteration}, stage {event.stage}: recorded digest {event.digest}, "
        f"derived {derived} in iteration {state.iteration}, stage {name}"
    )
    agrees = (event.iteration, event.stage, event.digest) == (state.iteration, name, derived)
    return replace(
        state,
        # The derived digest, not the recorded one: whatever is built on a stage in doubt is in
        # doubt, too, and each later stage says so.
        past=derived,
        seconds=(*state.seconds, (state.iteration, name, event.seconds)),
        faults=state.faults if agrees else (*state.faults, fault),
    )
