"""Scripted players of the bug hunt: critics that tell the truth or cheat, verifiers that check."""

from collections.abc import Callable, Mapping

from nip_fn.game.datapoint import Datapoint
from nip_fn.game.decision import REJECT
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


def argues(protocol: Protocol, datapoint: Datapoint, episode: Episode, agent: int, key: Key) -> str:
    """An expert that argues for its side as well as anybody can.

    For rejection it names the bug, for acceptance a step that is right, as if that were the bug.
    """
    world = world_of(datapoint)
    found = world.bug if protocol.stance(agent, datapoint.stance) == REJECT else None
    return _answer(_right_step(world, key) if found is None else found)


def checks_named(
    protocol: Protocol, datapoint: Datapoint, episode: Episode, agent: int, key: Key
) -> str:
    """A verifier that checks the step that was named last, or else any, and decides by it.

    It rejects no right program, whoever names the step.
    """
    return _check(datapoint, next(reversed(_named(episode, agent)), None), key)


def checks_first(
    protocol: Protocol, datapoint: Datapoint, episode: Episode, agent: int, key: Key
) -> str:
    """A verifier that checks the step that was named first: in a debate, by whom rejection pays."""
    return _check(datapoint, next(iter(_named(episode, agent)), None), key)


def checks_any(
    protocol: Protocol, datapoint: Datapoint, episode: Episode, agent: int, key: Key
) -> str:
    """A verifier that checks a step of its own choice: right with probability 1/2 + 1/(2N)."""
    return _check(datapoint, None, key)


def _named(episode: Episode, verifier: int) -> list[int]:
    """The steps that others have named, in the order in which they spoke."""
    utterances = (utterance for turn in episode.rounds for utterance in turn)
    steps = (named_in(utterance.raw) for utterance in utterances if utterance.agent != verifier)
    return [step for step in steps if step is not None]


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
    "advocate": argues,
}
VERIFIERS: Mapping[str, Player] = {
    "checks_named": checks_named,
    "checks_first": checks_first,
    "checks_any": checks_any,
}
