"""The runs of an attack: which provers play against the frozen verifier, and how."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from nip_fn.config.attacks import frozen_table, with_search, with_strategy, with_training
from nip_fn.config.codec import merge, shape_problems, spread
from nip_fn.errors import Problem
from nip_fn.game.datapoint import Datapoint
from nip_fn.game.protocol import Protocol
from nip_fn.params.agent import is_scripted
from nip_fn.params.names import is_reference
from nip_fn.params.run import DEFAULT_AGENT, HyperParameters
from nip_fn.protocols.registry import protocol_of
from nip_fn.protocols.sides import (
    Attackers,
    only_label,
    sees_everything,
    sides,
    speak_alone,
)
from nip_fn.protocols.strategies import strategies_for
from nip_fn_adapters import extensions
from nip_fn_adapters.experiments.datasets import describe, opened_data
from nip_fn_adapters.experiments.loading import Loaded, version_name
from nip_fn_adapters.experiments.outcomes import refuse
from nip_fn_adapters.experiments.settings import named, resolve
from nip_fn_adapters.experiments.watching import NOBODY, Watch
from nip_fn_adapters.recording.runs import Run

OWN = "own"
WIDTHS = (1, 4, 16)  # of the searches, unless others are asked for


class AttackOptions(NamedTuple):
    """The options that say which runs an attack has.

    iteration: the models are those that were tested in this iteration; None for the last ones.
    strategies: the scripts of the provers; None for all that there are.
    best_of: the numbers of replies of the searches; () for none, None for 1, 4 and 16 if the
      provers see all that the verifier sees.  Otherwise a search is refused.
    starts: the number of trainings.
    iterations: of each training.
    trainer: malt or ei.
    games: about each datapoint, and continuations of each reply of a search.
    datapoints: held-out datapoints.
    seed: of all runs; None for that of the attacked one.
    changes: parameters that all runs have, as a table like that of a file.
    """

    iteration: int | None = None
    strategies: tuple[str, ...] | None = None
    best_of: tuple[int, ...] | None = None
    starts: int = 3
    iterations: int = 4
    trainer: str = "malt"
    games: int = 8
    datapoints: int = 100
    seed: int | None = None
    changes: Mapping[str, Any] = MappingProxyType({})


USUAL = AttackOptions()


class Case(NamedTuple):
    """A run of the attack.

    folder: its name.
    prover: what its provers are, in words.
    attackers: the provers that are not those of the attacked run; () if all are.
    table: its written configuration.
    loaded: the agents of the attacked run that play in it.
    games: about each datapoint, or the continuations of each reply of a search.
    best_of: of a search, the numbers of replies.
    """

    folder: str
    prover: str
    attackers: Attackers
    table: dict[str, Any]
    loaded: tuple[Loaded, ...]
    games: int
    best_of: tuple[int, ...] = ()


def cases_of(
    attacked: Run, choice: AttackOptions, *, apart: int = 1, watch: Watch = NOBODY
) -> Iterator[Case]:
    """The runs of the attack: the run's own provers first.

    Args:
        attacked: The run whose verifier is attacked.
        choice: The options.
        apart: The difference between the seeds of two trainings.
        watch: Told of what cannot be done, and of the data.
    """
    params, protocol = attacked.params, protocol_of(attacked.params)
    if choice.seed is not None:
        params = msgspec.structs.replace(params, seed=choice.seed)
    agents = {index: _agent(attacked, index, choice) for index in range(len(params.agents))}
    table = frozen_table(params, datapoints=choice.datapoints, games=choice.games)
    table = with_changes(table, choice.changes)
    points = _datapoints(table, watch)

    def case(
        folder: str, prover: str, attackers: Attackers, table: dict[str, Any], *, keep: bool
    ) -> Case:
        """A case in which all agents are loaded, but the attackers only to `keep` them."""
        loaded = tuple(own for at, own in agents.items() if own and (keep or at not in attackers))
        # The names of whoever was loaded, for people who read the configuration.
        known = {own.agent: own.fields for own in loaded}
        written = merge(table, {"agents": known})
        return Case(folder, prover, attackers, written, loaded, choice.games)

    def limited(table: dict[str, Any], attackers: Attackers) -> dict[str, Any]:
        """The table with those datapoints alone that the attackers can be wrong about."""
        label = only_label(protocol, attackers)
        if label is None:
            return table
        size = max(1, sum(point.label == label for point in points))
        return merge(table, {"dataset_options": {"only_label": label, "max_test_size": size}})

    yield case(OWN, OWN, (), table, keep=True)
    for attackers in sides(protocol):
        names = tuple(protocol.agents[at].name for at in attackers)
        # With provers on two sides, the runs against the one are not those against the other.
        of = f"-{names[0]}" if len(sides(protocol)) > 1 else ""
        for strategy in _strategies(params, choice):
            script = with_strategy(table, names, strategy)
            yield case(f"{_slug(strategy)}{of}", strategy, attackers, script, keep=False)
        if any(is_scripted(params.agents[at]) for at in attackers):
            watch.tell(
                f"{', '.join(names)} follows a script: there is nothing to search or to train"
            )
            continue
        if widths := _widths(choice, protocol, attackers, points, watch):
            most = max(widths)
            search = with_search(table, params, attackers, n=most, games=choice.games)
            search = limited(search, attackers)
            found = case(f"best-of-{most}{of}", "own, best", attackers, search, keep=True)
            yield found._replace(best_of=widths)
        training = with_training(
            table, params, attackers, trainer=choice.trainer, iterations=choice.iterations
        )
        for start in range(choice.starts):
            # Its own adapter and the base model in turn.
            keep = start % 2 == 0
            own = {**limited(training, attackers), "seed": params.seed + apart * start}
            words = f"trained from {'its own' if keep else 'the base'} model"
            yield case(f"trained-{start}{of}", words, attackers, own, keep=keep)


def with_changes(table: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The table with the changes laid over every agent that they are about."""
    agents = changes.get("agents", {})
    for problem in shape_problems(agents):
        refuse(problem)
    single = {name: own for name, own in agents.items() if name != DEFAULT_AGENT}
    # Each agent is written out, so what is meant for all of them has to be laid over each.
    every = spread(agents, tuple(table["agents"]))
    return merge(table, {**changes, "agents": {**single, **every}})


def _strategies(params: HyperParameters, choice: AttackOptions) -> tuple[str, ...]:
    if choice.strategies is not None:
        named({"opponent_scripts": choice.strategies})
        return choice.strategies
    # One of a file is a configuration's own: it may be meant for the verifier.
    known = strategies_for(params.dataset, "prover")
    return tuple(name for name in known if not is_reference(name))


def _widths(
    choice: AttackOptions,
    protocol: Protocol,
    attackers: Attackers,
    points: Sequence[Datapoint],
    watch: Watch,
) -> tuple[int, ...]:
    """The numbers of replies among which the attackers search; () if they cannot."""
    names = ", ".join(protocol.agents[index].name for index in attackers)
    if choice.best_of == ():
        return ()
    if not speak_alone(protocol, attackers):
        watch.tell(f"no best of n: {names} speaks at the same time as others")
        return ()
    if not all(sees_everything(protocol, attackers, point) for point in points):
        # It would choose by continuations of a verifier that was shown the private view: with n
        # replies, even a perfect verifier of the tea is misled in 1 - (1 - error)^n of the games.
        problem = f"a search would choose the replies by what {names} cannot see"
        if choice.best_of is None:
            watch.tell(f"no best of n: {problem}")
            return ()
        refuse(Problem(problem, "`best_of`", "leave it out, and train provers (`starts`)"))
    if choice.games < 2:
        problem = "one continuation of a reply cannot both choose and value it"
        refuse(Problem(problem, "`games`", "ask for 2 or more, or for no search (`best_of`)"))
    return WIDTHS if choice.best_of is None else choice.best_of


def _slug(strategy: str) -> str:
    return "".join(letter if letter.isalnum() or letter == "_" else "-" for letter in strategy)


def _datapoints(table: dict[str, Any], watch: Watch) -> list[Datapoint]:
    """The datapoints that are played."""
    params = resolved(table)
    data, split = opened_data(params, watch), params.test_dataset_split
    watch.tell(describe(data, params))
    most = params.dataset_options.max_test_size or 0
    return list(data.source(split, range(min(most, data.info.size(split)))))


def _agent(attacked: Run, index: int, choice: AttackOptions) -> Loaded | None:
    """The agent as the run left it, or had it in an iteration; None for a base model."""
    spec, folder = attacked.params.agents[index], attacked.path.parent
    last = attacked.state.iteration
    if choice.iteration is not None and not 0 <= choice.iteration <= last:
        problem = f"the run has no iteration {choice.iteration}"
        refuse(Problem(problem, "`iteration`", f"choose one from 0 to {last}"))
    adapter = attacked.adapter(spec.name, choice.iteration)
    if adapter is None:
        return None
    own = version_name(attacked.lineage(spec.name), adapter)
    version = "latest" if choice.iteration is None else own
    fields = {
        "load_checkpoint_and_parameters": True,
        "checkpoint_run_id": folder.name,
        "checkpoint_version": version,
    }
    return Loaded(spec.name, adapter, folder, fields)


def resolved(table: dict[str, Any]) -> HyperParameters:
    """The parameters of a whole table, whose strategies are made known first."""
    extensions.register({"agents": table["agents"]}).unwrap()
    return resolve(table)
