"""Whole games as plain records, to be read by people or written to files."""

from math import fsum
from typing import Any

from nip_fn.export.views import cut_remark, game_end, label_word
from nip_fn.game.chat import Chat
from nip_fn.game.episode import Episode, Round, Utterance, label_after
from nip_fn.game.protocol import Protocol
from nip_fn.params.run import HyperParameters
from nip_fn.prompts.chat import build_chat
from nip_fn.protocols.registry import protocol_of
from nip_fn.trees.rollouts import Rollout


def transcript(params: HyperParameters, rollout: Rollout) -> dict[str, Any]:
    """One game: its datapoint, its rounds as written and as heard, its end and its rewards.

    `rounds` has each agent's words as its model wrote them, `messages` what was heard of them, by
    "AGENT@CHANNEL", or the decision, by "AGENT.decision".  `outcome` says if the decision is right.
    """
    point, protocol = rollout.datapoint, protocol_of(params)
    names = [agent.name for agent in protocol.agents]
    totals = [fsum(rewards) for rewards in zip(*rollout.rewards, strict=True)]
    return {
        "datapoint": point.id,
        "question": point.question,
        "solution": point.solution,
        "label": label_word(point, rollout.label),
        # Written and heard side by side: a reply that was misread shows in the difference.
        "rounds": [words(params, turn) for turn in rollout.rounds],
        "messages": [_heard(protocol, turn) for turn in rollout.rounds],
        "end": rollout.status,
        "outcome": game_end(rollout)[1],
        # A game that waits for its first reply has no rewards to add up.
        "rewards": dict(zip(names, totals or [0.0] * len(names), strict=True)),
    }


def words(params: HyperParameters, turn: Round) -> dict[str, str]:
    """The text of each agent in a round; in brackets, if it was cut, and why it is unusable."""
    return {params.agents[utterance.agent].name: _text(params, utterance) for utterance in turn}


def _text(params: HyperParameters, utterance: Utterance) -> str:
    remarks = filter(None, (cut_remark(params, utterance), utterance.error))
    return " ".join((utterance.raw, *(f"[{remark}]" for remark in remarks)))


def chat_before(params: HyperParameters, rollout: Rollout, round_id: int, agent: int) -> Chat:
    """The chat that an agent's model was shown before its reply in a round of a game."""
    point = rollout.datapoint
    rounds = rollout.rounds[:round_id]
    before = Episode(rollout.key, label_after(point.label, rounds), point.stance, rounds)
    return build_chat(params, protocol_of(params), point, before, agent)


def _heard(protocol: Protocol, turn: Round) -> dict[str, str]:
    heard = {}
    for utterance in turn:
        name = protocol.agents[utterance.agent].name
        for channel, text in utterance.messages:
            heard[f"{name}@{protocol.channels[channel]}"] = text
        if utterance.decision is not None:
            heard[f"{name}.decision"] = utterance.decision.text
    return heard
