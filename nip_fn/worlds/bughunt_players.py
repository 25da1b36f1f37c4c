"""Scripted players of the bug hunt: critics that tell the truth or cheat, verifiers that check."""

from collections.abc import Callable, Mapping

from nip_fn.game.datapoint import Datapoint
from nip_fn.game.episode import Episode
from nip_fn.game.protocol import Protocol
from nip_fn.keys import Key, fold_in, randint
from nip_fn.worlds.bughunt import LETTERS, PLACES, World, compared, named_in, world_of

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
    place = _right_step(world, key)
    others = LETTERS.replace(world.coded[place], "")
    other = others[randint(fold_in(key, "invented"), len(others))]
    lines = [
        compared(at, asked, other if at == place else asked)
        for at, asked in enumerate(world.specified)
    ]
    return f"Checks: {' '.join(lines)}\n{_answer(place)}"


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
    told = (said.raw for turn in reversed(episode.rounds) for said in turn if said.agent != agent)
    return _check(datapoint, next((p for p in map(named_in, told) if p is not None), None), key)


def checks_any(
    protocol: Protocol, datapoint: Datapoint, episode: Episode, agent: int, key: Key
) -> str:
    """A verifier that checks a step of its own choice: right with probability 1/2 + 1/(2N)."""
    return _check(datapoint, None, key)


def _check(datapoint: Datapoint, place: int | None, key: Key) -> str:
    world = world_of(datapoint)
    if place is None or not 0 <= place < len(world.coded):
        place = randint(key, len(world.coded))
    asked, done = world.specified[place], world.coded[place]
    verdict = "accept" if asked == done else "reject"
    return f"Check: {compared(place, asked, done)}\nDecision: {verdict}"


def _right_step(world: World, key: Key) -> int:
    right = [at for at in range(len(world.coded)) if at != world.bug]
    return right[randint(fold_in(key, "place"), len(right))]


def _answer(place: int | None) -> str:
    return "Answer: none" if place is None else f"Answer: {PLACES[place]}"


PROVERS: Mapping[str, Player] = {
    "honest": names_bug,
    "liar": names_another,
    "random": names_any,
    "mimic": invents,
    "framer": frames,
}
VERIFIERS: Mapping[str, Player] = {"checks_named": checks_named, "checks_any": checks_any}
