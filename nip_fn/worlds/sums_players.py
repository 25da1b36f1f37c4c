"""Scripted players of the sums: provers that help or deceive, verifiers that check, an oracle."""

import re
from collections.abc import Callable, Mapping

from nip_fn.game.datapoint import Datapoint
from nip_fn.game.episode import Episode, may_decide
from nip_fn.game.protocol import Protocol
from nip_fn.keys import Key, fold_in, randint
from nip_fn.worlds.sums import (
    MOST,
    NUMBERS,
    SumsWorld,
    explained,
    fits,
    read_totals,
    running_totals,
    world_of,
)

Player = Callable[[Protocol, Datapoint, Episode, int, Key], str]

_TOLD = re.compile(r"Number ([1-9]) is ([1-9])\.")
_ASKED = re.compile(r"number ([1-9])")


def helps(protocol: Protocol, datapoint: Datapoint, episode: Episode, agent: int, key: Key) -> str:
    """A prover that writes the right answer and every step to it."""
    return explained(running_totals(world_of(datapoint).numbers))


def errs_once(
    protocol: Protocol, datapoint: Datapoint, episode: Episode, agent: int, key: Key
) -> str:
    """A prover that writes a wrong answer with one wrong step, anywhere: no reply deceives more."""
    numbers = list(world_of(datapoint).numbers)
    index = randint(fold_in(key, "step"), NUMBERS)
    others = [number for number in range(1, MOST + 1) if number != numbers[index]]
    numbers[index] = others[randint(fold_in(key, "number"), len(others))]
    return explained(running_totals(numbers))


def answers_barely(
    protocol: Protocol, datapoint: Datapoint, episode: Episode, agent: int, key: Key
) -> str:
    """A prover that writes the right answer without any step."""
    return f"Final answer: {world_of(datapoint).total}"


def checks_steps(
    protocol: Protocol, datapoint: Datapoint, episode: Episode, agent: int, key: Key
) -> str:
    """A verifier that accepts what is explained, with every step right that it can check."""
    world = world_of(datapoint)
    known = {index: world.numbers[index] for index in world.seen} | _told(episode)
    return f"Decision: {'accept' if fits(known, _totals(episode)) else 'reject'}"


def asks_and_checks(
    protocol: Protocol, datapoint: Datapoint, episode: Episode, agent: int, key: Key
) -> str:
    """A verifier that asks the oracle about each number that it does not see, and then checks."""
    known = {*world_of(datapoint).seen, *_told(episode)}
    hidden = [index for index in range(NUMBERS) if index not in known]
    is_last = len(episode.rounds) == protocol.max_message_rounds - 1
    if not hidden or is_last or not may_decide(protocol, len(episode.rounds), agent):
        return checks_steps(protocol, datapoint, episode, agent, key)
    return f"Question for Oracle: number {hidden[0] + 1}?"


def tells_number(
    protocol: Protocol, datapoint: Datapoint, episode: Episode, agent: int, key: Key
) -> str:
    """An oracle that tells the number that it was asked about last."""
    world: SumsWorld = world_of(datapoint)
    asked = _ASKED.findall(" ".join(text for _, text in _messages(episode)))
    index = int(asked[-1]) - 1 if asked else NUMBERS
    known = index < len(world.numbers)
    return f"Result: Number {index + 1} is {world.numbers[index]}." if known else "Result: none"


def _messages(episode: Episode) -> list[tuple[int, str]]:
    """(agent, text) of every message so far."""
    return [(u.agent, text) for turn in episode.rounds for u in turn for _, text in u.messages]


def _totals(episode: Episode) -> tuple[int, ...] | None:
    """The running totals beside the answer."""
    answers = [u.raw for turn in episode.rounds for u in turn if u.answer is not None]
    return read_totals(answers[-1]) if answers else None


def _told(episode: Episode) -> dict[int, int]:
    """The numbers that an oracle has told, by index."""
    texts = (text for _, text in _messages(episode) if text.startswith("Result:"))
    return {int(place) - 1: int(number) for text in texts for place, number in _TOLD.findall(text)}


PROVERS: Mapping[str, Player] = {
    "honest": helps,
    "liar": errs_once,
    "helps": helps,
    "errs_once": errs_once,
    "answers_barely": answers_barely,
}
VERIFIERS: Mapping[str, Player] = {
    "checks_steps": checks_steps,
    "asks_and_checks": asks_and_checks,
}
TOOLS: Mapping[str, Player] = {"honest": tells_number}
