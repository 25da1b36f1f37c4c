"""Scripted players of the lady's tea: provers that taste, guess or cheat, verifiers that check."""

from collections.abc import Callable, Mapping
from functools import partial
from math import comb

from nip_fn.game.datapoint import Datapoint
from nip_fn.game.episode import Episode
from nip_fn.game.protocol import Protocol
from nip_fn.keys import Key, fold_in, permutation, randint
from nip_fn.worlds.tea import MILK, NUM_CUPS, NUM_EACH, TEA, TeaWorld, answer, world_of

# (the world, the cups asked about, key) -> what the prover says each of them is.
Says = Callable[[TeaWorld, str, Key], str]
Player = Callable[[Protocol, Datapoint, Episode, int, Key], str]


def tastes(world: TeaWorld, cups: str, key: Key) -> str:
    """The kinds that she tastes."""
    return world.kinds(cups, world.tastes)


def saucers(world: TeaWorld, cups: str, key: Key) -> str:
    """The kinds that the saucers say: the truth, in the public variant."""
    return world.kinds(cups, world.saucers)


def anything(world: TeaWorld, cups: str, key: Key) -> str:
    """Any kinds."""
    return "".join((TEA, MILK)[randint(fold_in(key, index), 2)] for index in range(len(cups)))


def blind(world: TeaWorld, cups: str, key: Key) -> str:
    """A guess that is as good as any without tasting: right with probability `blind_guess`."""
    num = len(cups)
    # Of all numbers of cups to call tea, one that the most pourings agree with.
    likely = max(range(num + 1), key=lambda tea: _agreeing(num, tea))
    called = set(permutation(key, num)[:likely])
    return "".join(TEA if index in called else MILK for index in range(num))


def _agreeing(num: int, tea: int) -> int:
    """The number of pourings in which a given `tea` of `num` cups are tea and the others milk."""
    rest = NUM_EACH - tea
    return comb(NUM_CUPS - num, rest) if rest >= 0 else 0


def opposite(world: TeaWorld, cups: str, key: Key) -> str:
    """The wrong kinds where she can tell, so that she is not believed; else the best guess."""
    opposites = {TEA: MILK, MILK: TEA}
    tasted = world.kinds(cups, world.tastes)
    return (
        "".join(opposites.get(kind, kind) for kind in tasted)
        if world.able
        else blind(world, cups, key)
    )


def tastes_or_guesses(world: TeaWorld, cups: str, key: Key) -> str:
    """The truth where she can tell, else the best guess: optimal if right answers are checked."""
    return (tastes if world.able else blind)(world, cups, key)


def answers(
    says: Says,
    protocol: Protocol,
    datapoint: Datapoint,
    episode: Episode,
    agent: int,
    key: Key,
    *,
    most: int = NUM_CUPS,
) -> str:
    """A prover's answer, cup by cup, in the order of the question; about the first `most` alone."""
    world = world_of(datapoint)
    cups = _named(world, _last_said(protocol, episode, "verifier"))[:most]
    pairs = zip(cups, says(world, cups, key), strict=True)
    return answer(map("".join, pairs))


def forges_checks(
    protocol: Protocol, datapoint: Datapoint, episode: Episode, agent: int, key: Key
) -> str:
    """The best guess, with forged checks."""
    return with_checks(answers(blind, protocol, datapoint, episode, agent, key))


def evades(protocol: Protocol, datapoint: Datapoint, episode: Episode, agent: int, key: Key) -> str:
    """The truth where she can tell; otherwise a guess that answers another question, or nothing.

    Some of the guesses alone, or backwards, or the first of them for all cups, or with forged
    checks; the question; silence.
    """
    if world_of(datapoint).able:
        return answers(tastes, protocol, datapoint, episode, agent, key)
    guess = answers(blind, protocol, datapoint, episode, agent, key)
    pairs = guess.removeprefix("Answer: ").split()
    num = 1 + randint(fold_in(key, "number"), len(pairs))
    drawn = sorted(permutation(fold_in(key, "some"), len(pairs))[:num])
    evasions = (
        answer(pairs[index] for index in drawn),
        answer(reversed(pairs)),
        answer(pairs[:1] * len(pairs)),
        with_checks(guess),
        _last_said(protocol, episode, "verifier") or "...",
        "...",
    )
    return evasions[randint(fold_in(key, "evasion"), len(evasions))]


def with_checks(guess: str) -> str:
    """The answer, with the verifier's comparison and verdict written for it."""
    named = guess.removeprefix("Answer: ").split()
    checks = [f"{pair}{pair}: same." for pair in named if len(pair) == 2]
    return "\n".join([guess, *checks, "Decision: accept"])


def asks(
    number: int, protocol: Protocol, datapoint: Datapoint, episode: Episode, agent: int, key: Key
) -> str:
    """A verifier that asks about so many cups and accepts if every answer is right.

    It is as sound as Fisher's test: no prover that cannot tell is accepted more often than with
    probability `blind_guess(number)`.
    """
    world = world_of(datapoint)
    cups = _named(world, _last_said(protocol, episode, "verifier"))
    if not cups:
        order = permutation(key, NUM_CUPS)
        return f"Question for Expert: {''.join(world.cups[index] for index in order[:number])}"
    heard = _last_said(protocol, episode, "prover")
    pairs = zip(cups, world.kinds(cups, world.poured), strict=True)
    right = all(_told(heard, cup) == kind for cup, kind in pairs)
    return f"Decision: {'accept' if right else 'reject'}"


def believes(
    protocol: Protocol, datapoint: Datapoint, episode: Episode, agent: int, key: Key
) -> str:
    """A verifier that asks about one cup and accepts, whatever it hears."""
    question = asks(1, protocol, datapoint, episode, agent, key)
    return question if question.startswith("Question") else "Decision: accept"


def _last_said(protocol: Protocol, episode: Episode, role: str) -> str:
    messages = (
        text
        for turn in reversed(episode.rounds)
        for utterance in turn
        if protocol.agents[utterance.agent].role == role
        for _, text in utterance.messages
    )
    return next(messages, "")


def _named(world: TeaWorld, question: str) -> str:
    """The cups of the table that a question names, each once."""
    return "".join(dict.fromkeys(cup for cup in question if cup in world.cups))


def _told(words: str, cup: str) -> str:
    """The kind that an answer says a cup is: the letter after its first mention."""
    return words.partition(cup)[2][:1]


PROVERS: Mapping[str, Player] = {
    "honest": partial(answers, tastes),
    "liar": partial(answers, opposite),
    "random": partial(answers, anything),
    "blind": partial(answers, blind),
    "tastes_or_guesses": partial(answers, tastes_or_guesses),
    "answers_one": partial(answers, anything, most=1),
    "saucers": partial(answers, saucers),
    "evades": evades,
    "mimic": forges_checks,
}
VERIFIERS: Mapping[str, Player] = {
    **{f"asks_{number}": partial(asks, number) for number in range(1, NUM_CUPS + 1)},
    "believes": believes,
}
