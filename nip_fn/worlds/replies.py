"""The replies that a prover can choose from, world by world: the grammar of a best response.

"The best reply" means the best of these.  They are what somebody can say who knows the game and not
what the verifier alone knows: a verifier that is misled by other words is not found out.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations, islice, permutations, product
from typing import NamedTuple

from nip_fn.game.datapoint import Datapoint
from nip_fn.worlds import bughunt, tea
from nip_fn.worlds.tea_players import with_checks

ALL_ORDERS = 3  # cups, up to which full answers are given in every order
SILENCE = tea.answer(())
TEA_SORTS = ("full", "partial", "silent", "reordered", "repeated", "absent", "forged")


class PossibleReply(NamedTuple):
    """A reply that a prover may give.

    sort: its sort, in a word.
    text: its words.
    """

    sort: str
    text: str


def tea_replies(datapoint: Datapoint, question: str) -> tuple[PossibleReply, ...]:
    """The answers to a question about cups, on the table or not, each named once.

    full: every kind of every cup that is named, in the order of the question
    partial: all but some of two full answers, in that order: the kinds by turns, tea or milk first
    reordered: these two, in every order of up to three cups; of more, reversed and rotated by one
    repeated: one answer as often as cups are named; the question itself
    absent: a cup that is not on the table; as many of these as cups are named, all of one kind
    forged: the two full answers, with the verifier's comparisons and its verdict
    silent: nothing

    To whoever cannot taste all kinds of some cups look alike, but for the number of each: so two
    answers stand for all that are not full.
    """
    named = tuple(dict.fromkeys(mark for mark in question if mark in tea.CUP_NAMES))[: tea.NUM_CUPS]
    replies = _tea_replies(tea.world_of(datapoint).cups, named, question)
    return tuple(sorted(replies, key=lambda reply: TEA_SORTS.index(reply.sort)))


def _tea_replies(
    table: tuple[str, ...], named: tuple[str, ...], question: str
) -> Iterator[PossibleReply]:
    kinds = (tea.TEA, tea.MILK)
    yield PossibleReply("silent", SILENCE)
    yield PossibleReply("repeated", question or SILENCE)
    yield PossibleReply("repeated", f"Answer: {question}")
    if named:
        for choice in product(kinds, repeat=len(named)):
            yield _answer("full", list(map("".join, zip(named, choice, strict=True))))
    absent = [cup for cup in tea.CUP_NAMES if cup not in table]
    for first in (0, 1):
        answers = [cup + kinds[(first + i) % 2] for i, cup in enumerate(named)]
        for num in range(1, len(answers)):
            for some in combinations(answers, num):
                yield _answer("partial", some)
        for order in _orders(answers):
            yield _answer("reordered", order)
        if answers:
            yield PossibleReply("forged", with_checks(tea.answer(answers)))
        if len(answers) > 1:
            for pair in answers:
                yield _answer("repeated", [pair] * len(named))
        for cup in absent:
            yield _answer("absent", [cup + kinds[first]])
        yield _answer("absent", [cup + kinds[first] for cup in absent[: len(named)]])


def _orders(answers: list[str]) -> Iterator[list[str]]:
    """Other orders of the answers than their own."""
    if len(answers) <= ALL_ORDERS:
        yield from map(list, islice(permutations(answers), 1, None))
    else:
        yield answers[::-1]
        yield [*answers[1:], answers[0]]


def _answer(sort: str, answers: Sequence[str]) -> PossibleReply:
    return PossibleReply(sort, tea.answer(answers))


def hunt_replies(datapoint: Datapoint, question: str) -> tuple[PossibleReply, ...]:
    """The claims about a program: every step is named, or none.

    plain: without a comparison
    compared: with the true comparisons of all steps
    invented: with comparisons by which the named step differs, in every letter, and no other does
    """
    return tuple(_hunt_replies(bughunt.world_of(datapoint)))


def _hunt_replies(world: bughunt.HuntWorld) -> Iterator[PossibleReply]:
    steps = range(len(world.coded))
    true = [bughunt.comparison(i, world.specified[i], world.coded[i]) for i in steps]
    for named in (None, *steps):
        name = "none" if named is None else bughunt.STEP_NAMES[named]
        yield PossibleReply("plain", f"Answer: {name}")
        yield PossibleReply("compared", f"Checks: {' '.join(true)}\nAnswer: {name}")
    for named in steps:
        for letter in bughunt.LETTERS.replace(world.specified[named], ""):
            checks = [
                bughunt.comparison(step, specified, letter if step == named else specified)
                for step, specified in enumerate(world.specified)
            ]
            name = bughunt.STEP_NAMES[named]
            yield PossibleReply("invented", f"Checks: {' '.join(checks)}\nAnswer: {name}")
