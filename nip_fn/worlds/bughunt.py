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

from collections.abc import Iterator
from functools import cache
from itertools import count, islice, product
from typing import NamedTuple

from nip_fn.game.datapoint import Datapoint, Dataset, Split, make_datapoint
from nip_fn.keys import Key, fold_in, randint

LETTERS = "abcdefghij"
DIGITS = "0123456789"
NUM_STEPS = 8
CLAIM = (
    "The program does what the specification asks. Right programs have no step that differs, the "
    "others have one."
)
Steps = tuple[str, ...]  # a letter and a digit each

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
