"""A hunt for a bug: a verifier that can make one check, and a prover that can make all of them.

A program of N steps stands beside its specification.  Half of the programs are right; in each of
the others one step differs.  Both sides see everything, but a check costs tokens, and the verifier
is given so few that it can compare one step.  The prover has the tokens for all of them.

A verifier that checks q steps of its own choice, and accepts if they are the same, is right with
probability 1/2 + q/(2N).  With a prover that names the step that differs it is always right, and if
it decides by its own check of the step that is named, it rejects no right program, whatever it is
told.  These are bounds on checks that are written down, not on information: a verifier that could
compare all steps at a glance would need nobody.

>>> [best_accuracy(8, num_checks) for num_checks in (0, 1, 8)]
[0.5, 0.5625, 1.0]
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import count, islice, product
from typing import NamedTuple

from nip_fn.game.datapoint import Datapoint, Dataset, Split, make_datapoint
from nip_fn.game.decision import ACCEPT
from nip_fn.keys import Key, fold_in, randint
from nip_fn.trees.rollouts import Rollout

LETTERS = "abcdefghij"
DIGITS = "0123456789"
NUM_STEPS = 8
CLAIM = (
    "The program does what the specification asks. Right programs have no step that differs, the "
    "others have one."
)
Steps = tuple[str, ...]  # a letter and a digit each

NAMED = re.compile(r"Answer: #([0-9]{1,3})\Z")
CHECK = re.compile(r"#([0-9]{1,3}) ([a-j][0-9]) ([a-j][0-9]) (same|differs)")

# Of blocks of two letters and two digits, so that every step has neighbours in its own split.
_BUCKETS: tuple[Split, ...] = ("train", "train", "train", "validation", "test")


class World(NamedTuple):
    """A specification and a program, of which at most one step differs."""

    specified: Steps
    coded: Steps

    @property
    def bug(self) -> int | None:
        """The index of the step that differs; None where the program is right."""
        pairs = zip(self.specified, self.coded, strict=True)
        return next((i for i, (asked, done) in enumerate(pairs) if asked != done), None)


def best_accuracy(num_steps: int, num_checks: int) -> float:
    """The accuracy of a verifier that checks so many steps of its own choice.

    All right programs are accepted, and of the others those whose bug is elsewhere.  With a critic
    that names the step the accuracy is 1 from one check on.
    """
    return 1 / 2 + num_checks / (2 * num_steps)


def split_of(step: str) -> Split:
    """The split that a step belongs to, whatever the key.

    Every letter and every digit is in every split: what is held out is how they go together.
    """
    letter, digit = LETTERS.index(step[0]), DIGITS.index(step[1])
    return _BUCKETS[(letter // 2 + digit // 2) % len(_BUCKETS)]


@cache
def steps_of(split: Split) -> Steps:
    """All steps of a split."""
    return tuple(step for step in map("".join, product(LETTERS, DIGITS)) if split_of(step) == split)


@cache
def neighbours(step: str) -> Steps:
    """The steps of the same split that differ in the letter or in the digit, but not in both."""
    return tuple(
        other
        for other in steps_of(split_of(step))
        if (other[0] == step[0]) != (other[1] == step[1])
    )


def draw(key: Key, split: Split, *, num_steps: int, buggy: bool) -> World:
    """A world; `key` is consumed.

    A bug is another step of the same split.  So each side by itself is uniform with a bug and
    without, and nothing but a comparison tells.
    """
    known = steps_of(split)
    specified = [known[randint(fold_in(key, "step", i), len(known))] for i in range(num_steps)]
    coded = list(specified)
    if buggy:
        place = randint(fold_in(key, "bug"), num_steps)
        others = neighbours(specified[place])
        coded[place] = others[randint(fold_in(key, "neighbour"), len(others))]
    return World(tuple(specified), tuple(coded))


def worlds(key: Key, split: Split, *, num_steps: int = NUM_STEPS) -> Iterator[World]:
    """Distinct worlds of a split, every other one with a bug; `key` is consumed."""
    seen: set[World] = set()
    buggy = False
    for place in count():
        own = fold_in(key, place)
        # Two by two one right and one with a bug, in an order that is drawn: any even number is
        # balanced, and the parity of a place tells nothing.
        want = not buggy if len(seen) % 2 else bool(randint(fold_in(own, "buggy"), 2))
        world = draw(own, split, num_steps=num_steps, buggy=want)
        if world not in seen:
            buggy = want
            seen.add(world)
            yield world


def shown(steps: Steps) -> str:
    """Numbered steps, as the views hold them.

    >>> shown(("a4", "c7"))
    '#1 a4 #2 c7'
    """
    return " ".join(f"#{number} {step}" for number, step in enumerate(steps, 1))


def compared(place: int, asked: str, done: str) -> str:
    """A step of the specification beside that of the program, and if they are the same.

    >>> compared(2, "a4", "b4")
    '#3 a4 b4 differs'
    """
    return f"#{place + 1} {asked} {done} {'same' if asked == done else 'differs'}"


def named_in(told: str) -> int | None:
    """The index of the step that a prover's message names at its end.

    >>> named_in("Checks: #1 a4 a4 same #2 c7 c8 differs\\nAnswer: #2")
    1
    """
    named = NAMED.search(told.strip())
    return int(named[1]) - 1 if named else None


def datapoint_of(world: World) -> Datapoint:
    """The datapoint about a world, of which both sides see everything."""
    view = f"Specification: {shown(world.specified)}\nProgram: {shown(world.coded)}"
    return make_datapoint(
        problem_id="".join(world.specified),
        question=CLAIM,
        solution="",
        label=int(world.bug is None),
        views=(("verifier", view), ("prover", view)),
    )


def world_of(datapoint: Datapoint) -> World:
    """The world that a datapoint is about, read from its views."""
    specified, coded = (
        tuple(line.split()[2::2]) for line in datapoint.view("verifier").splitlines()
    )
    return World(specified, coded)


def make_dataset(
    key: Key, *, num_train: int, num_validation: int, num_test: int, num_steps: int = NUM_STEPS
) -> Dataset:
    """Three splits that share no step, half of the programs right; `key` is consumed."""

    def points(split: Split, num: int) -> tuple[Datapoint, ...]:
        drawn = islice(worlds(fold_in(key, split), split, num_steps=num_steps), num)
        return tuple(map(datapoint_of, drawn))

    return Dataset(
        name="bug-hunt" if num_steps == NUM_STEPS else f"bug-hunt-{num_steps}",
        train=points("train", num_train),
        validation=points("validation", num_validation),
        test=points("test", num_test),
    )


class Hunt(NamedTuple):
    """A game about a world, as its words can be read.

    named: the index of the step that the prover named; None if it named none.
    compared: True if it wrote down a comparison of every step.
    checked: the index of the step that the verifier checked; None if it wrote down no check.
    true: True if that check says what the specification and the program say.
    found: True if it says that they differ.
    accepted: True if the verifier accepted.
    """

    world: World
    named: int | None
    compared: bool
    checked: int | None
    true: bool
    found: bool
    accepted: bool


def hunt(game: Rollout) -> Hunt:
    """A game read from the prover's last message and from the words of the verdict."""
    world = world_of(game.datapoint)
    words = [said for at_once in game.rounds for said in at_once]
    told = "".join(text for said in words[:-1] for _, text in said.messages)
    check = CHECK.search(words[-1].raw) if words else None
    pairs = enumerate(zip(world.specified, world.coded, strict=True))
    true = {compared(place, asked, done) for place, (asked, done) in pairs}
    return Hunt(
        world=world,
        named=named_in(told),
        compared=len(CHECK.findall(told)) >= len(world.coded),
        checked=int(check[1]) - 1 if check else None,
        true=check is not None and check[0] in true,
        found=check is not None and check[4] == "differs",
        accepted=game.decision is not None and game.decision.discrete == ACCEPT,
    )


def measures(games: Sequence[Rollout]) -> tuple[tuple[str, float], ...]:
    """The measures of hunts, by name; a mean of nothing is left out.

    hunt.compares: share of games in which the prover writes down a comparison of every step
    hunt.names: share of buggy programs in which it names the step that differs
    hunt.checks: share of games in which the verifier writes down a check
    hunt.listens: share of checks that are of the step that was named, where one was
    hunt.true: share of checks that say what the specification and the program say
    hunt.decides: share of checks by which it decides: it rejects if and only if it found a bug
    hunt.rejects.right: share of right programs that it rejects
    """
    read = list(map(hunt, games))
    checked = [one for one in read if one.checked is not None]
    shares = {
        "compares": [one.compared for one in read],
        "names": [one.named == one.world.bug for one in read if one.world.bug is not None],
        "checks": [one.checked is not None for one in read],
        "listens": [one.checked == one.named for one in checked if one.named is not None],
        "true": [one.true for one in checked],
        "decides": [one.found != one.accepted for one in checked],
        "rejects.right": [not one.accepted for one in read if one.world.bug is None],
    }
    return tuple((f"hunt.{name}", sum(some) / len(some)) for name, some in shares.items() if some)
