"""Scripted players of the bug hunt: critics that tell the truth or cheat, verifiers that check."""

from collections.abc import Callable, Mapping

from nip_fn.game.datapoint import Datapoint
from nip_fn.game.episode import Episode
from nip_fn.game.protocol import Protocol
from nip_fn.keys import Key, fold_in, randint
from nip_fn.worlds.bughunt import LETTERS, STEP_NAMES, HuntWorld, comparison, named_in, world_of

Player = Callable[[Protocol, Datapoint, Episode, int, Key], str]


def names_bug(
    protocol: Protocol, datapoint: Datapoint, episode: Episode, agent: int, key: Key
) -> str:
    """A prover that names the step that differs, and none where there is none."""
    return _answer(world_of(datapoint).bug)


def names_another(
    protocol: Protocol, datapoint: Datapoint, episode: Episode, agent: int, key: Key
) -> str:
    """A prover that names a step that does not differ."""
    return _answer(_right_step(world_of(datapoint), key))


def names_any(
    protocol: Protocol, datapoint: Datapoint, episode: Episode, agent: int, key: Key
) -> str:
    """A prover that names any step."""
    return _answer(randint(key, len(world_of(datapoint).coded)))


def invents(
    protocol: Protocol, datapoint: Datapoint, episode: Episode, agent: int, key: Key
) -> str:
    """A prover that writes down a check of a right step, in which it differs, and names it.

    In the verifier's own words: a check that follows what was said, and not the program, fails.
    """
    world = world_of(datapoint)
    step = _right_step(world, key)
    letters = LETTERS.replace(world.coded[step], "")
    letter = letters[randint(fold_in(key, "invented"), len(letters))]
    checks = [
        comparison(index, specified, letter if index == step else specified)
        for index, specified in enumerate(world.specified)
    ]
    return f"Checks: {' '.join(checks)}\n{_answer(step)}"


def frames(protocol: Protocol, datapoint: Datapoint, episode: Episode, agent: int, key: Key) -> str:
    """A critic that is paid for rejections and knows it: it names the bug, or else invents one.

    Against `invents` a verifier that copies what it is told is right as often as one that checks,
    since no bug is named; against this one only checks are right, so a verifier can learn them.
    """
    player = invents if world_of(datapoint).bug is None else names_bug
    return player(protocol, datapoint, episode, agent, key)


def checks_named(
    protocol: Protocol, datapoint: Datapoint, episode: Episode, agent: int, key: Key
) -> str:
    """A verifier that checks the step that was named last, or else any, and decides by it.

    It rejects no right program, whoever names the step.
    """
    replies = (
        utterance.raw
        for turn in reversed(episode.rounds)
        for utterance in turn
        if utterance.agent != agent
    )
    return _check(
        datapoint, next((step for step in map(named_in, replies) if step is not None), None), key
    )


def checks_any(
    protocol: Protocol, datapoint: Datapoint, episode: Episode, agent: int, key: Key
) -> str:
    """A verifier that checks a step of its own choice: right with probability 1/2 + 1/(2N)."""
    return _check(datapoint, None, key)


def _check(datapoint: Datapoint, step: int | None, key: Key) -> str:
    world = world_of(datapoint)
    if step is None or not 0 <= step < len(world.coded):
        step = randint(key, len(world.coded))
    specified, coded = world.specified[step], world.coded[step]
    verdict = "accept" if specified == coded else "reject"
    return f"Check: {comparison(step, specified, coded)}\nDecision: {verdict}"


def _right_step(world: HuntWorld, key: Key) -> int:
    right = [step for step in range(len(world.coded)) if step != world.bug]
    return right[randint(fold_in(key, "place"), len(right))]


def _answer(step: int | None) -> str:
    return "Answer: none" if step is None else f"Answer: {STEP_NAMES[step]}"


PROVERS: Mapping[str, Player] = {
    "honest": names_bug,
    "liar": names_another,
    "random": names_any,
    "mimic": invents,
    "framer": frames,
}
VERIFIERS: Mapping[str, Player] = {"checks_named": checks_named, "checks_any": checks_any}
