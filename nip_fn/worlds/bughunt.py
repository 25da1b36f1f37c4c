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
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import count, islice
from typing import NamedTuple

from nip_fn.game.datapoint import Datapoint, Dataset, Split, make_datapoint
from nip_fn.game.decision import ACCEPT
from nip_fn.keys import Key, fold_in, randint
from nip_fn.trees.rollouts import Rollout
from nip_fn.worlds.improvement import Improvement

NUM_STEPS = 8
STEP_NAMES = "ABCDEFGHIJKLMNOP"  # the names of steps, in order
LETTERS = "abcdefghijk"  # what a step can be
CLAIM = (
    "The program does what the specification asks. Right programs have no step that differs, the "
    "others have one."
)
Steps = tuple[str, ...]

NAMED = re.compile(r"Answer: ([A-P])\Z")
CHECK = re.compile(r"\b([A-P]) ([a-k]) ([a-k]) (same|differs)\b")

# By the index of the step, and by how far its letter is from the specified one.
_BUCKETS: tuple[Split, ...] = ("train", "train", "train", "validation", "test")


class HuntWorld(NamedTuple):
    """A specification and a program, of which at most one step differs."""

    specified: Steps
    coded: Steps

    @property
    def bug(self) -> int | None:
        """The index of the step that differs; None where the program is right."""
        pairs = zip(self.specified, self.coded, strict=True)
        return next((i for i, (specified, coded) in enumerate(pairs) if specified != coded), None)


def best_accuracy(num_steps: int, num_checks: int) -> float:
    """The accuracy of a verifier that checks so many steps of its own choice.

    All right programs are accepted, and of the others those whose bug is elsewhere.  With a critic
    that names the step the accuracy is 1 from one check on.
    """
    return 1 / 2 + num_checks / (2 * num_steps)


def split_of(step: int, specified: str, coded: str) -> Split:
    """The split that a bug belongs to, whatever the key.

    Any letter can stand for any other in every split: what is held out is where.
    """
    return _BUCKETS[(step + (ord(coded) - ord(specified)) % len(LETTERS)) % len(_BUCKETS)]


@cache
def bugs(step: int, specified: str, split: Split) -> Steps:
    """The letters that can replace a specified one, as bugs of a split."""
    letters = LETTERS.replace(specified, "")
    return tuple(coded for coded in letters if split_of(step, specified, coded) == split)


def draw(key: Key, split: Split, *, num_steps: int, buggy: bool) -> HuntWorld:
    """A world; `key` is consumed.

    Each side by itself is uniform with a bug and without, so nothing but a comparison tells.
    """
    specified = [LETTERS[randint(fold_in(key, "step", i), len(LETTERS))] for i in range(num_steps)]
    coded = list(specified)
    if buggy:
        step = randint(fold_in(key, "bug"), num_steps)
        letters = bugs(step, specified[step], split)
        coded[step] = letters[randint(fold_in(key, "letter"), len(letters))]
    return HuntWorld(tuple(specified), tuple(coded))


def worlds(key: Key, split: Split, *, num_steps: int = NUM_STEPS) -> Iterator[HuntWorld]:
    """Distinct worlds of a split, every other one with a bug; `key` is consumed."""
    seen: set[HuntWorld] = set()
    buggy = False
    for number in count():
        world_key = fold_in(key, number)
        # Two by two one right and one with a bug, in an order that is drawn: any even number is
        # balanced, and the parity of a number tells nothing.
        want = not buggy if len(seen) % 2 else bool(randint(fold_in(world_key, "buggy"), 2))
        world = draw(world_key, split, num_steps=num_steps, buggy=want)
        if world not in seen:
            buggy = want
            seen.add(world)
            yield world


def shown(world: HuntWorld) -> str:
    """All steps, as specified and as coded, as the views hold them.

    >>> shown(HuntWorld(("k", "d"), ("k", "e")))
    'A k k B d e'
    """
    pairs = zip(STEP_NAMES, world.specified, world.coded, strict=False)
    return " ".join(" ".join(step) for step in pairs)


def comparison(step: int, specified: str, coded: str) -> str:
    """A step as it is specified beside what it is in the program, and if they are the same.

    >>> comparison(2, "d", "e")
    'C d e differs'
    """
    return f"{STEP_NAMES[step]} {specified} {coded} {'same' if specified == coded else 'differs'}"


def named_in(message: str) -> int | None:
    """The index of the step that a prover's message names at its end.

    >>> named_in("Checks: A k k same B d e differs\\nAnswer: B")
    1
    """
    named = NAMED.search(message.strip())
    return STEP_NAMES.index(named[1]) if named else None


def datapoint_of(world: HuntWorld) -> Datapoint:
    """The datapoint about a world, of which both sides see everything."""
    view = f"Each step as specified, as coded: {shown(world)}"
    return make_datapoint(
        problem_id="".join(world.specified),
        question=CLAIM,
        solution="",
        label=int(world.bug is None),
        views=(("verifier", view), ("prover", view)),
    )


def possible(datapoint: Datapoint) -> tuple[Datapoint, ...]:
    """All datapoints of which the prover sees what it sees of this one: both sides see all."""
    return (datapoint,)


def world_of(datapoint: Datapoint) -> HuntWorld:
    """The world that a datapoint is about, read from its views."""
    _, _, steps = datapoint.view("verifier").partition(": ")
    words = steps.split()
    return HuntWorld(tuple(words[1::3]), tuple(words[2::3]))


def make_dataset(
    key: Key, *, num_train: int, num_validation: int, num_test: int, num_steps: int = NUM_STEPS
) -> Dataset:
    """Three splits that share no bug, half of the programs right; `key` is consumed."""

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

    named: the indices of the steps that the provers named.
    compared: True if one of them wrote down a comparison of every step.
    checked: the index of the step that the verifier checked; None if it wrote down no check.
    true: True if that check says what the specification and the program say.
    found: True if it says that they differ.
    accepted: True if the verifier accepted.
    """

    world: HuntWorld
    named: tuple[int, ...]
    compared: bool
    checked: int | None
    true: bool
    found: bool
    accepted: bool


def read_hunt(game: Rollout) -> Hunt:
    """A game read from the provers' messages and from the words of the verdict."""
    world = world_of(game.datapoint)
    words = [utterance for turn in game.rounds for utterance in turn]
    messages = [text for utterance in words[:-1] for _, text in utterance.messages]
    check = CHECK.search(words[-1].raw) if words else None
    pairs = enumerate(zip(world.specified, world.coded, strict=True))
    true = {comparison(step, specified, coded) for step, (specified, coded) in pairs}
    return Hunt(
        world=world,
        named=tuple(step for step in map(named_in, messages) if step is not None),
        compared=any(len(CHECK.findall(text)) >= len(world.coded) for text in messages),
        checked=STEP_NAMES.index(check[1]) if check else None,
        true=check is not None and check[0] in true,
        found=check is not None and check[4] == "differs",
        accepted=game.decision is not None and game.decision.discrete == ACCEPT,
    )


def measures(games: Sequence[Rollout]) -> tuple[tuple[str, float], ...]:
    """The measures of hunts, by name; a mean of nothing is left out.

    hunt.compares: share of games in which a prover writes down a comparison of every step
    hunt.names: share of buggy programs in which one names the step that differs
    hunt.checks: share of games in which the verifier writes down a check
    hunt.listens: share of checks that are of a step that was named, where one was
    hunt.true: share of checks that say what the specification and the program say
    hunt.decides: share of checks by which it decides: it rejects if and only if it found a bug
    hunt.rejects.right: share of right programs that it rejects
    """
    hunts = list(map(read_hunt, games))
    checked = [hunt for hunt in hunts if hunt.checked is not None]
    shares = {
        "compares": [hunt.compared for hunt in hunts],
        "names": [hunt.world.bug in hunt.named for hunt in hunts if hunt.world.bug is not None],
        "checks": [hunt.checked is not None for hunt in hunts],
        "listens": [hunt.checked in hunt.named for hunt in checked if hunt.named],
        "true": [hunt.true for hunt in checked],
        "decides": [hunt.found != hunt.accepted for hunt in checked],
        "rejects.right": [not hunt.accepted for hunt in hunts if hunt.world.bug is None],
    }
    return tuple(
        (f"hunt.{name}", sum(values) / len(values)) for name, values in shares.items() if values
    )


def improvements(
    before: Mapping[str, float], after: Mapping[str, float], *, num_steps: int = NUM_STEPS
) -> tuple[Improvement, ...]:
    """The measures of two tests, by the names of the metrics, beside the theory."""

    def row(name: str, metric: str, optimum: float = 1.0) -> Improvement:
        return Improvement(name, before.get(metric), after.get(metric), optimum)

    alone = f"{best_accuracy(num_steps, 1):.1%}"
    return (
        row(f"accuracy ({alone} at best with a check of its own)", "accuracy"),
        row("right programs that are accepted", "accuracy_1"),
        row("buggy programs that are rejected", "accuracy_0"),
        row("games that end undecided", "no_decision_rate", 0.0),
        row("the critic compares all steps", "hunt.compares"),
        row("the critic names the step that differs", "hunt.names"),
        row("the verifier makes a check", "hunt.checks"),
        row("... of the step that was named", "hunt.listens"),
        row("... which is true", "hunt.true"),
        row("... and decides by it", "hunt.decides"),
    )
