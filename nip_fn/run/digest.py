"""The digest of a state: a hash of the facts that were derived from the recorded events.

It covers facts by value: whatever was drawn, said, heard, decided, rewarded, selected, trained and
paid for, and through `past` every earlier stage.  It leaves out times, and the metrics, which are
functions of these facts: a later version may compute more of them, or give its records more fields,
and still derive the digests of an older run.

Format 1 (nip-fn 0.1) left out parameters, tokens, the contents of datapoints, and the settings and
reports of trainings.  Format 2 (nip-fn 0.2) left out the name and the sizes of the data, the
attempts at a reply that failed, and the records of adapters but for their names; it knew no
editions of the rules, and is always replayed under the second.  All are written out here, so that a
recording of any replays.
"""

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from nip_fn.game.datapoint import Datapoint
from nip_fn.game.episode import Utterance
from nip_fn.game.protocol import Status
from nip_fn.game.reply import Completion
from nip_fn.params.agent import AgentParameters
from nip_fn.params.run import HyperParameters
from nip_fn.run.events import DatasetInfo
from nip_fn.run.stages import Growing, JobState
from nip_fn.run.state import RunState
from nip_fn.training.groups import Adapter, Group
from nip_fn.training.trainer import Selection
from nip_fn.trees.grow import Forest, GameTree, Node, Path

Facts = tuple[object, ...]

_encode = msgspec.msgpack.Encoder().encode


def digest(state: RunState) -> str:
    """A hash of the state's facts (32 hexadecimal digits), in the format of its recording."""
    # MessagePack writes floats bit for bit: equal digests mean equal rewards, not nearly equal
    # ones.
    hashed = blake2b(digest_size=16)
    for part in _encoded(_FACTS[state.format](state)):
        hashed.update(part)
    return hashed.hexdigest()


class _Many(NamedTuple):
    """An array of facts that are never held all at once, since they may be of millions of nodes."""

    number: int
    facts: Iterable[object]


def _encoded(facts: Facts) -> Iterator[bytes]:
    """The encoding of the facts, part by part; `_Many` of them like a tuple."""
    yield _head(len(facts))
    for fact in facts:
        if isinstance(fact, _Many):
            yield _head(fact.number)
            yield from map(_encode, fact.facts)
        else:
            yield _encode(fact)


def _head(number: int) -> bytes:
    """The beginning of an array of so many, which comes before its elements."""
    return _encode((None,) * number)[: -number or None]  # each None takes a byte


def _trees(forest: Forest, facts: Callable[[GameTree], object]) -> _Many:
    return _Many(len(forest), map(facts, forest))


def _facts_3(state: RunState) -> Facts:
    return (
        "facts-3",
        *_facts(state, _changed(state.params)),
        _dataset_facts(state.dataset),
        tuple(tuple(map(_adapter_facts, group.lineage)) for group in state.groups),
        tuple(
            (tree, *attempts)
            for tree, game in enumerate(state.forest)
            for attempts in _failed_attempts(game.root)
        ),
    )


def _facts_2(state: RunState) -> Facts:
    return "facts-2", *_facts(
        state, _changed(replace(state.params, edition=HyperParameters().edition))
    )


# With its meaning the tag before it must change, and an older one keep what it had.
def _facts(state: RunState, params: Facts) -> Facts:
    sampled = state.sampled or _NOTHING
    return (
        state.past,
        params,
        state.dataset.hash,
        state.iteration,
        state.stage.name,
        tuple(map(_datapoint_facts, sampled.datapoints)),
        # Nodes are hashed as they hang in the tree.  A node's path is its place in this nesting, so
        # it need not be written out.
        _trees(sampled.forest, lambda game: (game.datapoint, _node_facts_2(game.root))),
        _selection_facts(sampled.selection),
        tuple(map(_group_facts, state.groups)),
        tuple(map(_job_facts_2, state.jobs)),
    )


def _changed(params: HyperParameters) -> Facts:
    """(name, value) for every parameter that is not at its default, in the order of names.

    Defaults are left out, so that a parameter that a later version adds changes no older digest.
    """
    # A default, once released, must not change: older recordings hold every value, and one that was
    # at the old default would then be hashed as a difference.
    changed = dict(_differences(msgspec.to_builtins(params), _DEFAULTS, ""))
    # It only says when the run stops: a run that is extended equals one that was asked for at once,
    # as long as the test scheme does not look at the number.
    changed.pop(".rl.num_iterations", None)
    return tuple(sorted(changed.items()))


def _differences(value: Any, default: Any, name: str) -> list[tuple[str, str]]:
    if isinstance(value, dict) and isinstance(default, dict):
        return [
            found
            for field, own in value.items()
            for found in _differences(own, default.get(field), f"{name}.{field}")
        ]
    if name == ".agents":
        return [
            found
            for index, agent in enumerate(value)
            for found in _differences(agent, _AGENT_DEFAULTS, f"{name}.{index}")
        ]
    return [] if value == default else [(name, msgspec.json.encode(value).decode())]


def _datapoint_facts(point: Datapoint) -> Facts:
    known = (point.id, point.problem_id, point.question, point.solution, point.label, point.stance)
    # Only where there are any: what has none keeps the digests of before there were views.
    return (*known, point.views) if point.views else known


def _utterance_facts(said: Utterance) -> Facts:
    # The text alone: what it counts for follows from the spectrum.
    decision = said.decision and said.decision.text
    return said.agent, said.raw, said.messages, decision, said.error, said.attempts, said.model


def _node_facts_2(node: Node) -> Facts:
    said = tuple(
        (*_utterance_facts(s), s.token_limit, s.prompt_tokens, s.completion_tokens, s.cached_tokens)
        for s in node.utterances
    )
    slots = tuple((slot.agent, slot.attempts, slot.said is not None) for slot in node.slots)
    return said, node.reward, node.status, slots, tuple(map(_node_facts_2, node.children))


def _failed_attempts(node: Node, path: Path = ()) -> Iterator[Facts]:
    """Path, slot and contents of the failed attempts at each reply, where there were any."""
    for place, slot in enumerate(node.slots):
        if slot.failed:
            yield path, place, tuple(map(_completion_facts, slot.failed))
    for rank, child in enumerate(node.children):
        yield from _failed_attempts(child, (*path, rank))


def _completion_facts(one: Completion) -> Facts:
    tokens = (one.prompt_tokens, one.completion_tokens, one.cached_tokens)
    return one.text, one.finish_reason, one.model, tokens


def _dataset_facts(data: DatasetInfo) -> Facts:
    return data.name, data.train_size, data.validation_size, data.test_size


def _adapter_facts(one: Adapter) -> Facts:
    return one.name, one.iteration, one.parent, one.reference, one.data_hash, one.method


def _selection_facts(selection: Selection) -> Facts:
    pairs = tuple(
        ((p.tree, p.parent, p.agent, p.chosen, p.rejected), p.chosen_value, p.rejected_value)
        for p in selection.pairs
    )
    rollouts = tuple((one.tree, one.agent, one.reward, one.replaced) for one in selection.rollouts)
    return *pairs, *rollouts


def _group_facts(group: Group) -> Facts:
    return group.name, group.model, tuple(a.name for a in group.lineage), group.serving


def _job_facts_2(under_way: JobState) -> Facts:
    job = under_way.job
    # A setting that is added here must be left out at its default, or it would change the digest of
    # every run that trains.
    settings = (
        *(job.learning_rate, job.num_epochs, job.beta, job.lora_rank, job.lora_alpha),
        *(job.lora_dropout, job.batch_size, job.use_lora, job.stack),
        *((("sft_weight", job.sft_weight),) if job.sft_weight else ()),
        *((("base_precision", job.base_precision),) if job.base_precision != "auto" else ()),
    )
    scores = tuple((score.before, score.after) for score in under_way.scores)
    # The one entry of a report that is a time, and so differs each time.
    report = tuple(entry for entry in under_way.report if entry[0] != "seconds")
    return *_job_facts_1(under_way), settings, report, scores, under_way.canary


# ---------------------------------------------------------------------------------------- format 1

# Format 1 called the ends of a game by other names.
_END_1: dict[Status, str] = {
    "open": "open",
    "decided": "decided",
    "truncated": "rounds",
    "aborted": "invalid",
}


def _facts_1(state: RunState) -> Facts:
    sampled = state.sampled or _NOTHING
    return (
        "facts-1",
        state.past,
        state.dataset.hash,
        state.iteration,
        state.stage.name,
        tuple(point.id for point in sampled.datapoints),
        _trees(sampled.forest, lambda game: _node_facts_1(game.root)),
        _selection_facts(sampled.selection),
        tuple(map(_group_facts, state.groups)),
        tuple(map(_job_facts_1, state.jobs)),
    )


def _node_facts_1(node: Node) -> Facts:
    said = tuple(map(_utterance_facts, node.utterances))
    slots = tuple((slot.agent, slot.attempts, slot.said is not None) for slot in node.slots)
    return said, node.reward, _END_1[node.status], slots, tuple(map(_node_facts_1, node.children))


def _job_facts_1(under_way: JobState) -> Facts:
    job = under_way.job
    asked = (job.name, job.data_hash, job.start, job.reference, job.seed)
    left = (under_way.adapter, under_way.problem, under_way.published)
    return asked, under_way.created, under_way.ended, left


# Stages without trees are hashed as if they had an empty forest, so that the facts always have the
# same shape.
_NOTHING = Growing("test", key=b"", datapoints=(), forest=Forest(), num_waiting=0)  # type: ignore[arg-type]
_DEFAULTS = msgspec.to_builtins(HyperParameters())
_AGENT_DEFAULTS = msgspec.to_builtins(AgentParameters())
_FACTS: dict[int, Callable[[RunState], Facts]] = {1: _facts_1, 2: _facts_2, 3: _facts_3}
