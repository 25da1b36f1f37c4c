"""Whole games as plain records, to be read by people or written to files."""

from math import fsum
from typing import Any

from nip_fn.game.episode import Round, Utterance
from nip_fn.game.protocol import Protocol
from nip_fn.trees.rollouts import Rollout


def transcript(protocol: Protocol, rollout: Rollout) -> dict[str, Any]:
    """One game: its datapoint, its rounds as written and as heard, its end and its rewards.

    `rounds` has each agent's words as its model wrote them, `messages` what was heard of them, by
    "AGENT@CHANNEL", or the decision, by "AGENT.decision".
    """
    point = rollout.datapoint
    names = [agent.name for agent in protocol.agents]
    totals = [fsum(rewards) for rewards in zip(*rollout.rewards, strict=True)]
    return {
        "datapoint": point.id,
        "question": point.question,
        "solution": point.solution,
        "label": "right" if point.label else "buggy",
        # Written and heard side by side: a reply that was misread shows in the difference.
        "rounds": [words(protocol, turn) for turn in rollout.rounds],
        "messages": [_heard(protocol, turn) for turn in rollout.rounds],
        "end": rollout.status,
        # A game that waits for its first reply has no rewards to add up.
        "rewards": dict(zip(names, totals or [0.0] * len(names), strict=True)),
    }


def words(protocol: Protocol, turn: Round) -> dict[str, str]:
    """The text of each agent in a round; in brackets, the reason why it is unusable."""
    return {protocol.agents[said.agent].name: _text(said) for said in turn}


def _text(said: Utterance) -> str:
    return said.raw if said.error is None else f"{said.raw} [{said.error}]"


def _heard(protocol: Protocol, turn: Round) -> dict[str, str]:
    heard = {}
    for said in turn:
        name = protocol.agents[said.agent].name
        for channel, text in said.messages:
            heard[f"{name}@{protocol.channels[channel]}"] = text
        if said.decision is not None:
            heard[f"{name}.decision"] = said.decision.text
    return heard
