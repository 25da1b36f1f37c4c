"""A fork takes over another run's replies, and goes on as if it had asked for them itself."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nip_fn.config.codec import from_dict, merge, nest, to_dict
from nip_fn.config.schema import parameters
from nip_fn.params.run import HyperParameters
from nip_fn.run.digest import digest
from nip_fn.run.events import Event, Forked, Replied, SampleReplies, StageEnded
from nip_fn.run.fork import fork_point
from nip_fn.run.replay import replay
from nip_fn.run.request import request
from nip_fn.run.reuse import fork_problem
from nip_fn.run.state import RunState
from nip_fn.training.tuning import Job

from .games import BUSY, MANY_PAIRS, Play, Setup, ends, events_of, make_params, play, resume, setups
from .walk import values

# On one worker, so that the plays are shared.
pytestmark = pytest.mark.xdist_group("runs")


def with_set(params: HyperParameters, address: str, value: object) -> HyperParameters:
    """The parameters with another value; `agents.AGENT` stands for all of them."""
    addresses = (
        [address.replace("AGENT", agent.name) for agent in params.agents]
        if address.startswith("agents.AGENT")
        else [address]
    )
    table = to_dict(params)
    for one in addresses:
        table = merge(table, nest(one, value))
    return from_dict(table).unwrap()


def forked(
    run: Play, params: HyperParameters, iteration: int | None = None, name: str = "other"
) -> tuple[Event, ...]:
    """The events that a fork of the run begins with."""
    point = fork_point(events_of(run), iteration).unwrap()
    return point.fork(params, run=name, version="0.3.0")


def after(events: tuple[Event, ...]) -> RunState:
    """The state that events lead to, their digests checked."""
    state = replay(events).unwrap().state
    assert not state.faults
    return state


def jobs(run: Play) -> list[tuple[Job, str | None]]:
    """The trainings of a run, and what they were called."""
    return [
        (one.job, one.adapter)
        for moment in run
        if isinstance(moment.event, StageEnded) and moment.event.stage == "train"
        for one in moment.state.jobs
    ]


@settings(max_examples=15)
@given(setups(), st.booleans())
def test_a_fork_that_changes_nothing_derives_the_digests_of_the_run(
    setup: Setup, first: bool
) -> None:
    run = play(setup)
    if not setup.params.rl.num_iterations:
        assert "no iteration" in str(fork_point(events_of(run)).failure())
        return
    fork = after(forked(run, setup.params, 0 if first else None))
    end = resume(setup, fork)
    assert digest(end[-1].state) == digest(run[-1].state)
    sampled = ends(run, "sample")[0 if first else -1]
    assert fork.past == sampled.past
    assert fork.stage == sampled.stage


@pytest.mark.parametrize(
    ("address", "value"),
    [
        ("malt.pair_selection_method", "best_worst"),
        ("malt.balance_pairs", "decisions"),
        ("malt.min_pair_margin", 0.4),
        ("protocol_common.verifier_no_guess_reward", -0.5),
        ("agents.AGENT.dpo_beta", 0.5),
        ("agents.AGENT.lora_rank", 4),
        ("rl.lr", 1e-3),
    ],
)
def test_a_fork_trains_as_a_run_that_has_its_parameters_from_the_start(
    address: str, value: object
) -> None:
    """Rows, jobs and adapters are the same, and so is every test and iteration after them."""
    base = play(BUSY)
    setup = BUSY._replace(params=with_set(BUSY.params, address, value))
    whole = play(setup)
    fork = after(forked(base, setup.params, 0))
    rest = resume(setup, fork)
    assert jobs(rest)
    assert jobs(rest) == jobs(whole)
    assert jobs(whole) != jobs(base)
    asked = [moment.event for moment in rest if isinstance(moment.event, Replied)]
    later = [event for event in events_of(whole) if isinstance(event, Replied)]
    assert asked == later[-len(asked) :]
    # The test before was scored by the parameters of the other run.
    measured = [[row.metrics for row in one[-1].state.rows[1:]] for one in (rest, whole)]
    assert measured[0] == measured[1]


def test_with_another_seed_the_draws_are_others_and_the_chats_are_those_that_were_shown() -> None:
    """In a game whose chats depend on the key of the game, which would follow from the seed."""
    table = {
        "interaction_protocol": "mnip",
        "mnip_protocol": {"max_message_rounds": 3, "randomize_channel_order": True},
    }
    setup = BUSY._replace(params=make_params(MANY_PAIRS, table))
    run, params = play(setup), with_set(setup.params, "seed", 5)
    fork = after(forked(run, params, 0))
    rest = resume(setup._replace(params=params), fork)
    shown = {
        request(moment.state, effect).chat
        for moment in run
        for effect in moment.emitted
        if isinstance(effect, SampleReplies)
    }
    first = [job for job, _ in jobs(rest) if job.iteration == 0]
    rows = [row for job in first for row in job.rows]
    assert len(rows) > 20
    assert all(row.is_preference and row.prompt in shown for row in rows)
    assert [job.seed for job, _ in jobs(run)][: len(first)] != [job.seed for job in first]


def test_a_fork_of_a_fork_holds_the_same_replies() -> None:
    other = with_set(BUSY.params, "seed", 5)
    once = forked(play(BUSY), other, 0)
    end = resume(BUSY._replace(params=other), after(once))
    recorded = (*once, *events_of(end))
    point = fork_point(recorded, 0).unwrap()
    assert point.params == other
    again = point.fork(BUSY.params, run="once", version="0.3.0")
    assert digest(after(again)) == digest(ends(play(BUSY), "sample")[0])
    assert after(again).origin == ("once", 0, after(once).origin.games)  # type: ignore[union-attr]
    later = fork_point(recorded, 1).unwrap().fork(other, run="once", version="0.3.0")
    assert digest(after(later)) == digest(ends(end, "sample")[-1])
    assert sum(isinstance(event, Forked) for event in later) == 2


def test_what_was_taken_over_is_not_paid_again() -> None:
    run = play(BUSY)
    fork = after(forked(run, BUSY.params, 1))
    assert [row.usage for row in fork.rows] == [()] * len(fork.rows)
    assert {seconds for *_, seconds in fork.seconds} == {0.0}
    rest = resume(BUSY, fork)[-1].state
    paid = [(row.iteration, row.stage) for row in rest.rows if row.usage]
    assert paid == [(1, "train"), (2, "test")]
    assert [row.metrics for row in rest.rows] == [row.metrics for row in run[-1].state.rows]


# ------------------------------------------------------------------------------------- parameters


def asked_for(params: HyperParameters) -> set[object]:
    """All that the agents are asked in the first iteration, but for the keys."""
    run = play(BUSY._replace(params=params))
    return {
        (asked.model, asked.adapter, asked.chat, asked.temperature, asked.top_p, asked.max_tokens)
        for moment in run
        for effect in moment.emitted
        if isinstance(effect, SampleReplies)
        and (moment.state.iteration, moment.state.stage.name) == (0, "sample")
        for asked in [request(moment.state, effect)]
    }


# At a provider that refuses none of them.
SHORT = make_params(
    MANY_PAIRS,
    {
        "rl": {"rollouts_per_iteration": 3},
        "text_rl": {"test_scheme": "none"},
        "agents": {"_default": {"model_provider": "local", "model_name": "m"}},
    },
)


FORKABLE = [
    address
    for address, parameter in parameters().items()
    if parameter.meaning.stage not in ("sampling", "session") and address != "seed"
]


def other_values(address: str) -> list[HyperParameters]:
    """The parameters with each other value that the checks allow."""
    made = []
    for value in values(address.replace("AGENT", "_default")):
        table = to_dict(SHORT)
        names = [agent.name for agent in SHORT.agents] if "AGENT" in address else [""]
        for name in names:
            table = merge(table, nest(address.replace("AGENT", name), value))
        made += [from_dict(table).value_or(SHORT)]
    return [params for params in made if params != SHORT and params.rl.num_iterations]


@pytest.mark.parametrize("address", FORKABLE)
def test_what_a_fork_may_change_changes_nothing_that_agents_are_asked(address: str) -> None:
    others = other_values(address)
    assert others
    for params in others:
        assert fork_problem(SHORT, params) is None
        assert asked_for(params) == asked_for(SHORT)


@pytest.mark.parametrize(
    ("address", "value"),
    [
        ("malt.num_responses_per_timestep", 4),
        ("nip_protocol.max_message_rounds", 2),
        ("agents.verifier.temperature", 0.3),
        ("agents.prover.model_name", "other"),
        ("rl.rollouts_per_iteration", 5),
        ("trainer", "ei"),
        ("protocol_common.prover_invalid_response_penalty", -1.0),
    ],
)
def test_what_shapes_the_replies_is_refused_with_its_address(address: str, value: object) -> None:
    params = with_set(BUSY.params, address, value)
    problem = fork_problem(BUSY.params, params)
    assert problem is not None
    assert problem.address == address
    # And a recording in which it stands all the same fits no run.
    failure = replay(forked(play(BUSY), params, 0)).failure()
    assert "(Forked) does not fit" in str(failure)
    assert address in str(failure)


def test_a_fork_stands_where_an_iteration_is_about_to_be_sampled_and_nowhere_else() -> None:
    run = events_of(play(BUSY))
    begin = fork_point(run, 0).unwrap()
    event = Forked(BUSY.params, "other", begin.digest, "0.3.0")
    for place in (0, 1, 2, len(begin.before) + 1, len(run)):
        assert "does not fit" in str(replay((*run[:place], event)).failure())
    # The run has two iterations, so none follows the second.
    short = with_set(BUSY.params, "rl.num_iterations", 1)
    last = forked(play(BUSY), short, 1)
    assert "the run has no iteration 1" in str(replay(last).failure())


def test_only_an_iteration_that_was_sampled_to_its_end_can_be_used() -> None:
    run = events_of(play(BUSY))
    end = next(at for at, e in enumerate(run) if isinstance(e, StageEnded) and e.stage == "sample")
    assert "no iteration has been sampled" in str(fork_point(run[:end]).failure())
    assert "choose from: 0" in str(fork_point(run[: end + 1], 1).failure())
    assert fork_point(run).unwrap().iteration == 1
