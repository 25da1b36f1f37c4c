"""Whole runs without a world: a pure driver that answers effects in any order.

    setup  what is played, and how the agents behave
    play   the events of a run, in an order that the caller chooses, with every state in between

`python -m tests.core.games` prints the digest of one fixed run and the hash of its recording.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache
from hashlib import blake2b
from random import Random
from typing import Any, Literal, NamedTuple

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from nip_fn import __version__
from nip_fn.config.codec import from_dict, merge
from nip_fn.game.datapoint import Datapoint, Split, make_datapoint
from nip_fn.game.decision import SPECTRA
from nip_fn.game.protocol import has_answers
from nip_fn.game.reply import Completion, FinishReason
from nip_fn.keys import Key, fold_in, randint, uniform
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.registry import PROTOCOLS, agent_names
from nip_fn.run import checkpoint
from nip_fn.run.digest import digest
from nip_fn.run.events import (
    BatchFetched,
    CheckAnswer,
    Checked,
    CreateJob,
    DatasetInfo,
    Effect,
    EndStage,
    Event,
    FetchBatch,
    JobCreated,
    JobFinished,
    Publish,
    Published,
    Replied,
    RunStarted,
    SampleReplies,
    StageEnded,
    Train,
)
from nip_fn.run.request import Request, request, scripted_completions
from nip_fn.run.state import EMPTY, RunState
from nip_fn.run.step import pending, step

HOSTILE_CODE = """def f(x):
    if x < 3 & 5 > 2:  # {{ not_a_variable }} {% nor_a_tag %}
        return "<b>it's</b> &amp; 'so'"
    return """


def _datapoints(split: Split, num: int) -> tuple[Datapoint, ...]:
    return tuple(
        make_datapoint(
            f"{split}-{i // 2}", f'Is "{split} & {i // 2}" < 9?', f"{HOSTILE_CODE}{i}", i % 2
        )
        for i in range(num)
    )


def _to_answer(point: Datapoint) -> Datapoint:
    """The same question, whose answer is to be written; "1" is right, and "2" cannot be checked."""
    return make_datapoint(point.problem_id, point.question, "", None, reference=point.id)


DATA: dict[Split, tuple[Datapoint, ...]] = {
    "train": _datapoints("train", 7),
    "validation": _datapoints("validation", 2),
    "test": _datapoints("test", 3),
}
TO_ANSWER = {split: tuple(map(_to_answer, points)) for split, points in DATA.items()}
LABELS: dict[str, int | None] = {"0": 0, "1": 1, "2": None}
DATASET = DatasetInfo("games", "00", *(len(DATA[s]) for s in ("train", "validation", "test")))


class Setup(NamedTuple):
    """What is played, and how the agents behave."""

    params: HyperParameters
    decision_rate: float = 0.4
    invalid_rate: float = 0.1
    refusal_rate: float = 0.0  # of adapters that are to be served
    all_checked: bool = False  # every answer has a label


def make_params(*tables: Mapping[str, Any]) -> HyperParameters:
    """The parameters of nested tables, the later ones laid over the earlier ones.

    Every message is shown by itself and says who speaks, unless a table asks otherwise.
    """
    table: dict[str, Any] = {
        "text_rl": {"test_scheme": "all"},
        "agents": {
            "_default": {"name_speakers_in_content": True, "merge_same_role_messages": False}
        },
    }
    for other in tables:
        table = merge(table, other)
    return from_dict(table).unwrap()


# Both agents get enough pairs in each iteration for a job.
MANY_PAIRS: dict[str, Any] = {
    "rl": {"num_iterations": 2, "rollouts_per_iteration": 12},
    "malt": {
        "num_responses_per_timestep": 3,
        "pair_selection_method": "interval",
        "interval_threshold_proportion": 0.0,
    },
    "nip_protocol": {"max_message_rounds": 3, "min_message_rounds": 1},
}
RETRIES = {"agents": {"_default": {"num_invalid_generation_retries": 2}}}
BUSY = Setup(make_params(MANY_PAIRS, RETRIES), decision_rate=0.5)

# The prover writes the answer, "0", "1" or "2", so that many are equal.
WRITTEN: dict[str, Any] = {"protocol_common": {"answers": "written"}}
ANSWERING = Setup(
    make_params(MANY_PAIRS, RETRIES, WRITTEN, {"malt": {"num_responses_per_timestep": 2}}),
    decision_rate=0.5,
)

# Rounds and branching of which the fullest tree has 63 nodes.
SHAPES = [(2, 3), (1, 1), (1, 2), (1, 6), (2, 2), (2, 4), (2, 5), (3, 2), (3, 3)]

# Those with a prover that always argues for acceptance, unless sides are drawn.
STAND_BY = ["nip", "adp", "debate", "merlin_arthur", "mnip"]

# Those whose trees stay small.
SHORT = ["adp", "merlin_arthur", "solo_verifier", "pvg", "proposer_critic", "solo_judge"]

# The protocols whose length can be set, more often than the others.
LONG = ["nip", "debate", "mnip"]


def _length(draw: st.DrawFn, protocol: str, verifier_first: bool) -> tuple[int, dict[str, Any]]:
    """A branching factor, and the protocol's own parameters."""
    if protocol not in LONG:
        return (draw(st.integers(1, 3)) if protocol in SHORT else 1), {}
    sequential = protocol != "nip" and draw(st.booleans())
    turns = 3 if sequential else 2
    enough = [s for s in SHAPES if s[1] >= (1 if verifier_first else turns)]
    branching, rounds = draw(st.sampled_from(enough))
    length: dict[str, Any] = {"max_message_rounds": rounds}
    if protocol != "nip":
        length |= {
            "sequential": sequential,
            "prover0_first": draw(st.booleans()),
            "randomize_channel_order": draw(st.booleans()),
        }
    last = max(r for r in range(rounds) if r % turns == (0 if verifier_first else turns - 1))
    if last > 0 and draw(st.booleans()):
        length["min_message_rounds"] = draw(st.integers(1, last))
    return branching, {f"{protocol}_protocol": length}


def _training(draw: st.DrawFn) -> dict[str, Any]:
    """Where trainings run, start and refer to; OpenAI's refer to what they start from."""
    provider, scratch = draw(st.sampled_from(["local", "OpenAI"])), draw(st.booleans())
    free = provider == "local" or scratch
    return {
        "model_provider": provider,
        "fine_tune_from_scratch": scratch,
        "dpo_reference": draw(st.sampled_from(["previous", "base"] if free else ["previous"])),
    }


SCHEDULES = st.sampled_from(
    [
        *[{"_type": "ConstantUpdateSchedule"}] * 3,
        {"_type": "ContiguousPeriodicUpdateSchedule", "period": 2, "start": 1, "stop": 2},
    ]
)


def _branching(draw: st.DrawFn, name: str, most: int, pool_share: float | None) -> dict[str, Any]:
    """Perhaps numbers of replies of an agent's own, for each of its turns, and opponents."""
    numbers = st.lists(st.integers(1, most), min_size=1, max_size=3)
    own = st.sampled_from([None, None, None]) | st.integers(1, most) | numbers
    # Not both: the branching of a later tree would depend on which trainings take place, which no
    # forecast knows.
    if pool_share is not None:
        # Scripted verifiers would decide when they like, or never.
        scripts = [[], ["repeat"], ["mimic", "silent"]] if name == "verifier" else [[]]
        pool = {
            "opponent_pool": draw(st.sampled_from([0, 1, 2])),
            "opponent_scripts": draw(st.sampled_from(scripts)),
        }
        return {"num_responses": draw(own), **pool, "opponent_pool_share": pool_share}
    return {"num_responses": draw(own), "num_idle_responses": draw(own)}


def _tables(draw: st.DrawFn, protocols: list[str]) -> dict[str, Any]:
    protocol = draw(st.sampled_from(protocols))
    names = agent_names(protocol)
    verifier_first = draw(st.booleans())
    branching, length = _length(draw, protocol, verifier_first)
    written = protocol in STAND_BY and branching < 3 and draw(st.booleans())
    reward = st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0, 2.0])
    shared: dict[str, Any] = {"shared_model_group": "all"} if draw(st.booleans()) else {}
    frozen = [draw(st.integers(0, 3)) == 3 for _ in names]
    pool_share = 0.9 / len(names) if draw(st.integers(0, 3)) == 3 else None
    if shared:
        frozen = frozen[:1] * len(names)
    return {
        "seed": draw(st.integers(0, 2**32)),
        "interaction_protocol": protocol,
        "agents": {
            "_default": {
                "num_invalid_generation_retries": draw(st.integers(1, 3)),
                **_training(draw),
                "update_schedule": draw(SCHEDULES),
                "name_speakers_in_content": draw(st.booleans()),
                "merge_same_role_messages": draw(st.booleans()),
                **shared,
            },
            **{
                name: {"freeze_agent": f, **_branching(draw, name, branching, pool_share)}
                for name, f in zip(names, frozen, strict=True)
            },
        },
        "rl": {
            "num_iterations": draw(st.integers(1, 2)),
            "rollouts_per_iteration": draw(st.sampled_from([12, 1, 3, None])),
            "num_test_iterations": draw(st.integers(1, 2)),
        },
        "trainer": draw(st.sampled_from(["malt", "malt", "ei"])),
        "ei": {
            "rollout_selection_method": draw(st.sampled_from(["threshold", "weighted_sampling"])),
            "reward_threshold": draw(st.sampled_from([-1.0, 0.0, 0.9])),
            "weighting_use_replacement": draw(st.booleans()),
        },
        "text_rl": {
            "fine_tune_on_all_previous_rollouts": draw(st.booleans()),
            "verifier_guess_replacement_proportion": draw(st.sampled_from([0.0, 0.0, 0.5])),
            "verifier_guess_replacement_annealing": draw(st.sampled_from(["none", "linear"])),
            "test_scheme": draw(st.sampled_from(["none", "all", "last", "first_and_last"])),
            "switch_adapters": draw(st.integers(0, 3)) < 3,
        },
        "malt": {
            "num_responses_per_timestep": branching,
            "frozen_agents_generate_one_response": draw(st.booleans()),
            "pair_selection_method": draw(st.sampled_from(["positive_negative", "interval"])),
            "interval_threshold_proportion": draw(st.sampled_from([0.0, 0.1, 0.5])),
            "value_backup": draw(st.sampled_from(["children", "leaves"])),
            "verdict": draw(st.sampled_from(["sampled", "probability"])),
            "num_initial_ei_iterations": draw(st.sampled_from([0, 0, 1, 2])),
        },
        "protocol_common": {
            "verifier_first": verifier_first,
            "answers": "written" if written else "given",
            "randomize_prover_stance": draw(st.booleans()) and not written,
            "prover_invalid_response_penalty": draw(st.none() | reward),
            "prover_reward": draw(reward),
            "verifier_reward": draw(reward),
            "verifier_incorrect_penalty": draw(reward),
            "verifier_terminated_penalty": draw(reward),
            "verifier_neither_accept_nor_reject_reward": draw(st.none() | reward),
            "verifier_no_guess_reward": draw(st.sampled_from([-0.5, 0.0, 0.1])),
            "verifier_decision_spectrum": draw(st.sampled_from(sorted(SPECTRA))),
            "force_guess": draw(st.sampled_from([None, None, None, "zero", "one", "y"])),
            "shared_reward": draw(st.booleans()),
        },
        **length,
        "dataset_options": {"max_test_size": draw(st.sampled_from([None, 1]))},
    }


def setups() -> st.SearchStrategy[Setup]:
    """Small random games of every kind; half of them train more likely than not.

    In the profile `fast` all tests draw the same few, so that they share one play of each.
    """
    is_fast = settings.get_current_profile_name() == "fast"
    return st.sampled_from(_shared()) if is_fast else _any_setup()


@cache
def _shared() -> tuple[Setup, ...]:
    drawn: list[Setup] = []

    @settings(max_examples=30, phases=[Phase.generate], database=None, derandomize=True)
    @given(_any_setup())
    def draw(setup: Setup) -> None:
        drawn.append(setup)

    draw()
    return tuple(drawn)


@st.composite
def _any_setup(draw: st.DrawFn) -> Setup:
    if draw(st.booleans()):
        rules = {
            "verifier_first": True,
            "verifier_reward": 1.0,
            "prover_reward": 1.0,
            "force_guess": None,
        }
        trainer = {"trainer": "malt", "malt": {"num_initial_ei_iterations": 0}}
        overlay = merge(merge(MANY_PAIRS, trainer), {"protocol_common": rules})
        refusal_rate = draw(st.sampled_from([0.0, 0.5]))
        params = make_params(_tables(draw, ["nip"]), overlay)
        return Setup(params, decision_rate=0.5, refusal_rate=refusal_rate)
    return Setup(
        params=make_params(_tables(draw, [*LONG, *PROTOCOLS])),
        decision_rate=draw(st.sampled_from([0.5, 0.0, 0.3, 0.7, 1.0])),
        invalid_rate=draw(st.sampled_from([0.0, 0.1, 0.4])),
    )


def last_verifier_round(max_rounds: int, verifier_first: bool) -> int:
    """The verifier's last turn: the last even round if it opens the game, else the last odd one."""
    return max(r for r in range(max_rounds) if r % 2 == (0 if verifier_first else 1))


# --------------------------------------------------------------------------------------- the world


def reply(asked: Request, key: Key, setup: Setup) -> Completion:
    """What an agent without a model writes: a pure function of the request and the reply's key."""

    def chance(what: str) -> float:
        return uniform(fold_in(key, what))

    invalid, decides = (
        chance("invalid") < setup.invalid_rate,
        chance("decides") < setup.decision_rate,
    )
    finish: FinishReason = "length" if chance("cut") < 0.1 else "stop"
    word = f"<{randint(fold_in(key, 'word'), 10**9)}> & é"
    start = "Question for Expert:" if asked.is_verifier else "Answer:"
    parts = enumerate(asked.headers or (start,))
    text: str | None = "\n".join(f"{header} {word} #{place}" for place, header in parts)
    if asked.answers:
        text = f"{text}\n**Final answer:** {randint(fold_in(key, 'answer'), 8) % 3}"
    if asked.decisions and decides:
        decision = asked.decisions[randint(fold_in(key, "decision"), len(asked.decisions))]
        text = f"I have seen {word}.\n**Decision:** {decision.capitalize()}."
    probabilities: tuple[float, ...] = ()
    if asked.decisions and chance("scored") < 0.5:  # by some of the servers of a model
        weights = [chance(f"weight {rank}") for rank in range(len(asked.decisions))]
        probabilities = tuple(weight / sum(weights) for weight in weights)
    if invalid:
        bad: tuple[tuple[str | None, FinishReason], ...] = (
            ("", "stop"),
            (None, "stop"),
            ("withheld", "content_filter"),
            ("cut", "other"),
            ("Decision: perhaps", "stop"),
        )
        text, finish = bad[randint(fold_in(key, "bad"), 5 if asked.decisions else 4)]
    return Completion(
        text=text,
        finish_reason=finish,
        model=asked.adapter or asked.model,
        prompt_tokens=sum(len(message.content.split()) for message in asked.chat),
        completion_tokens=len((text or "").split()),
        verdict_probabilities=probabilities,
    )


def perform(setup: Setup, state: RunState, effect: Effect) -> Event:
    """What comes back from the world for an effect that asks for one thing."""
    match effect:
        case FetchBatch(split, indices):
            data = TO_ANSWER if has_answers(state.protocol) else DATA
            return BatchFetched(tuple(data[split][index] for index in indices))
        case SampleReplies(tree, ask):
            asked = request(state, effect)
            if asked.script is None:
                completion = reply(asked, asked.keys[0], setup)
            else:
                (completion,) = scripted_completions(state.resolved, asked)
            return Replied(tree, ask.path, ask.agent, ask.indices[0], ask.attempt, completion)
        case CheckAnswer(tree, answer):
            label = LABELS.get(answer, 0)
            label = 0 if label is None and setup.all_checked else label
            return Checked(tree, answer, label, "it cannot be told" if label is None else "")
        case EndStage(iteration, stage):
            return StageEnded(iteration, stage, digest(state), 0.5)
        case CreateJob(job):
            return JobCreated(job.name, job.data_hash)
        case Train(job):
            seed = repr((job.name, job.start, job.reference, job.seed, job.data_hash))
            mark = blake2b(seed.encode(), digest_size=4).hexdigest()
            return JobFinished(job.name, f"{job.name}-{mark}", (("rows", float(len(job.rows))),))
        case Publish(group, _, adapter):
            # By what it is an adapter of: its whole name follows from the parameters, and changes.
            training = adapter.rpartition("-")[0]
            refused = Random(training).random() < setup.refusal_rate
            return Published(group, adapter, problem="it is poisoned" if refused else "")


def singles(effects: Iterable[Effect]) -> tuple[Effect, ...]:
    """The effects, each request for several replies taken apart into requests for one."""
    return tuple(
        one
        for effect in effects
        for one in (
            [
                SampleReplies(effect.tree, effect.ask._replace(indices=(index,)))
                for index in effect.ask.indices
            ]
            if isinstance(effect, SampleReplies)
            else [effect]
        )
    )


# --------------------------------------------------------------------------------------- the order

Order = Callable[[int], int]  # how many things are in flight -> which of them is answered next


def fifo(num: int) -> int:
    """First asked, first answered."""
    return 0


def lifo(num: int) -> int:
    """Last asked, first answered."""
    return num - 1


def shuffled(seed: int) -> Order:
    """Any order."""
    return Random(seed).randrange


class Moment(NamedTuple):
    """One step of a run."""

    event: Event
    state: RunState  # after the event
    emitted: tuple[Effect, ...]  # by the event, one thing each
    waiting: tuple[Effect, ...]  # all that is emitted and not yet answered, one thing each


Play = tuple[Moment, ...]


def play(setup: Setup, order: Order = fifo) -> Play:
    """A whole run; in an order that is the same each time, it is played once."""
    return (_play_once if order in (fifo, lifo) else _play)(setup, order)


# About thirty runs of up to a megabyte each.
@lru_cache(maxsize=64)
def _play_once(setup: Setup, order: Order) -> Play:
    return _play(setup, order)


def _play(setup: Setup, order: Order) -> Play:
    event = RunStarted(setup.params, DATASET, __version__)
    state, effects = step(EMPTY, event)
    first = Moment(event, state, singles(effects), singles(effects))
    return (first, *_go_on(setup, state, first.waiting, order))


def resume(setup: Setup, state: RunState, order: Order = fifo) -> Play:
    """What is left of a run of which only the state is known."""
    return _go_on(setup, state, singles(pending(state)), order)


def _go_on(setup: Setup, state: RunState, waiting: tuple[Effect, ...], order: Order) -> Play:
    moments = []
    in_flight = list(waiting)
    while in_flight:
        event = perform(setup, state, in_flight.pop(order(len(in_flight))))
        state, effects = step(state, event)
        in_flight.extend(singles(effects))
        moments.append(Moment(event, state, singles(effects), tuple(in_flight)))
    return tuple(moments)


def one_by_one(events: Iterable[Event]) -> list[Replied]:
    """The replies among the events, each as an event of its own."""
    return [
        replace(event, index=index, completion=completion, others=())
        for event in events
        if isinstance(event, Replied)
        for index, completion in event.completions
    ]


def events_of(run: Play) -> tuple[Event, ...]:
    """What is recorded of a run."""
    return tuple(moment.event for moment in run)


def ends(run: Play, *stages: Literal["test", "sample", "train", "publish"]) -> list[RunState]:
    """The states in which a run's stages of some kinds ended, their trees fully grown."""
    return [
        moment.state
        for moment in run
        if moment.state.stage.name in stages
        and any(isinstance(effect, EndStage) for effect in moment.emitted)
    ]


if __name__ == "__main__":
    recorded = play(BUSY, shuffled(1))
    print(digest(recorded[-1].state))
    print(blake2b(checkpoint.write(events_of(recorded))).hexdigest())
