"""The digest of a state: a hash of the facts that were derived from the recorded events.

It covers facts by value: whatever was drawn, said, heard, decided, rewarded, selected, trained and
paid for, and through `past` every earlier stage.  It leaves out times and log-probabilities, which
are measured, and the metrics, which are functions of these facts: a later version may compute more
of them, or give its records more fields, and still derive the digests of an older run.  A tree is
digested when its last reply is in; the digest of a stage covers those of its trees in their order.
"""

from hashlib import blake2b
from typing import Any

import msgspec

from nip_fn.game.datapoint import Datapoint
from nip_fn.game.episode import Utterance
from nip_fn.game.reply import Completion
from nip_fn.game.tokens import SampledTokens
from nip_fn.params.agent import AgentParameters
from nip_fn.params.run import HyperParameters
from nip_fn.run.events import DatasetInfo
from nip_fn.run.forest import FinishedTree, Forest
from nip_fn.run.stages import Growing, JobState
from nip_fn.run.state import RunState
from nip_fn.training.groups import Adapter, Group
from nip_fn.training.trainer import Selection
from nip_fn.trees.node import GameTree, Node, Slot

Facts = tuple[object, ...]

_encode = msgspec.msgpack.Encoder().encode


def digest(state: RunState) -> str:
    """A hash of the state's facts (32 hexadecimal digits)."""
    # MessagePack writes floats bit for bit: equal digests mean equal rewards, not nearly equal
    # ones.
    return blake2b(_encode(_facts(state)), digest_size=16).hexdigest()


def tree_digest(game: GameTree) -> bytes:
    """A hash of the tree's facts (16 bytes), whatever the order in which its replies came."""
    # Nodes are hashed as they hang in the tree.  A node's path is its place in this nesting, so it
    # need not be written out.
    facts = (game.datapoint_index, _node_facts(game.root))
    return blake2b(_encode(facts), digest_size=16).digest()


def _facts(state: RunState) -> Facts:
    sampled = state.sampled or _NOTHING
    return (
        state.past,
        _changed(state.params),
        _dataset_facts(state.dataset),
        state.iteration,
        state.stage.name,
        tuple(map(_datapoint_facts, sampled.datapoints)),
        tuple(map(_kept_digest, sampled.forest.kept())),
        _selection_facts(sampled.selection),
        tuple(map(_group_facts, state.groups)),
        tuple(map(_job_facts, state.jobs)),
    )


def _kept_digest(tree: GameTree | FinishedTree) -> bytes:
    return tree_digest(tree) if isinstance(tree, GameTree) else tree.digest


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
            difference
            for field, field_value in value.items()
            for difference in _differences(field_value, default.get(field), f"{name}.{field}")
        ]
    if name == ".agents":
        return [
            difference
            for index, agent in enumerate(value)
            for difference in _differences(agent, _AGENT_DEFAULTS, f"{name}.{index}")
        ]
    return [] if value == default else [(name, msgspec.json.encode(value).decode())]


def _datapoint_facts(point: Datapoint) -> Facts:
    return (
        *(point.id, point.problem_id, point.question, point.solution),
        *(point.label, point.stance, point.views, point.reference),
    )


def _utterance_facts(utterance: Utterance) -> Facts:
    # The text alone: what it counts for follows from the spectrum.
    decision = utterance.decision and utterance.decision.text
    return (
        utterance.agent,
        utterance.raw,
        utterance.messages,
        decision,
        utterance.error,
        utterance.attempts,
        utterance.model,
        utterance.token_limit,
        utterance.prompt_tokens,
        utterance.completion_tokens,
        utterance.cached_tokens,
        _token_facts(utterance.tokens),
        utterance.answer,
        utterance.label,
    )


def _node_facts(node: Node) -> Facts:
    utterances = tuple(map(_utterance_facts, node.utterances))
    slots = tuple(map(_slot_facts, node.slots))
    return utterances, node.reward, node.status, slots, tuple(map(_node_facts, node.children))


def _slot_facts(slot: Slot) -> Facts:
    failed = tuple(map(_completion_facts, slot.failed))
    answered = slot.answered and _utterance_facts(slot.answered)
    return slot.agent, slot.attempts, slot.said is not None, failed, answered


def _completion_facts(completion: Completion) -> Facts:
    tokens = (completion.prompt_tokens, completion.completion_tokens, completion.cached_tokens)
    sampled = _token_facts(completion.tokens)
    return completion.text, completion.finish_reason, completion.model, tokens, sampled


# Without the log-probabilities, a measurement like the time that a reply took: the last bits of a
# sum of floating-point numbers depend on which chats were decoded at the same moment, so that no
# run of a real model would have the digest of another with the same replies.
def _token_facts(tokens: SampledTokens | None) -> bytes | None:
    return None if tokens is None else tokens.id_bytes


def _dataset_facts(data: DatasetInfo) -> Facts:
    return data.name, data.hash, data.train_size, data.validation_size, data.test_size


def _adapter_facts(adapter: Adapter) -> Facts:
    return (
        adapter.name,
        adapter.iteration,
        adapter.parent,
        adapter.reference,
        adapter.data_hash,
        adapter.loss,
    )


def _selection_facts(selection: Selection) -> Facts:
    pairs = tuple(
        ((p.tree, p.parent, p.agent, p.chosen, p.rejected), p.chosen_value, p.rejected_value)
        for p in selection.pairs
    )
    rollouts = tuple(
        (rollout.tree, rollout.agent, rollout.reward, rollout.replaced)
        for rollout in selection.rollouts
    )
    return *pairs, *rollouts


def _group_facts(group: Group) -> Facts:
    return group.name, group.model, tuple(map(_adapter_facts, group.lineage)), group.serving


def _job_facts(under_way: JobState) -> Facts:
    job = under_way.job
    requested = (job.name, job.data_hash, job.start, job.reference, job.seed)
    # A setting that is added here must be left out at its default, or it would change the digest of
    # every run that trains.
    settings = (
        *(job.learning_rate, job.num_epochs, job.loss, job.base_precision),
        *(job.lora_rank, job.lora_alpha, job.lora_dropout, job.batch_size, job.use_lora, job.stack),
    )
    outcome = (under_way.adapter, under_way.problem, under_way.published)
    scores = tuple((score.before, score.after) for score in under_way.scores)
    # The one entry of a report that is a time, and so differs each time.
    report = tuple(entry for entry in under_way.report if entry[0] != "seconds")
    progress = (under_way.created, under_way.ended, outcome)
    return requested, settings, *progress, report, scores, under_way.canary


# Stages without trees are hashed as if they had an empty forest, so that the facts always have the
# same shape.
_NOTHING = Growing("test", key=b"", datapoints=(), forest=Forest(), num_waiting=0)  # type: ignore[arg-type]
_DEFAULTS = msgspec.to_builtins(HyperParameters())
_AGENT_DEFAULTS = msgspec.to_builtins(AgentParameters())
