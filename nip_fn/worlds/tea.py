"""The lady tasting tea (Fisher 1935, "The Design of Experiments") as an interactive proof.

Six cups stand on a table; into three of them tea was poured first, into the others milk.  The
verifier has poured them and knows which is which.  The prover has not, and tastes them.  The claim
is that she can tell.  The verifier names cups, the prover says what each is, and the verifier
accepts if every answer is right.

If she can tell, she is always believed: completeness 1.  If she cannot, nothing that she or anybody
says in her place is right about all of k named cups more often than by Fisher's p-value, which is
the soundness error.  The verifier's private coins are its own pouring.  In the public variant the
saucers, which the prover sees, tell how the cups were poured, and the proof is worth nothing.

>>> [round(blind_guess(k), 2) for k in range(7)]
[1.0, 0.5, 0.3, 0.15, 0.1, 0.05, 0.05]
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import count, islice
from math import comb
from typing import NamedTuple

from nip_fn.game.datapoint import Datapoint, Dataset, Split, make_datapoint, text_hash
from nip_fn.game.decision import ACCEPT
from nip_fn.keys import Key, fold_in, permutation, randint
from nip_fn.trees.rollouts import Rollout
from nip_fn.worlds.improvement import Improvement

CUP_NAMES = "0123456789"
TEA, MILK = "T", "M"
NUM_EACH = 3
NUM_CUPS = 2 * NUM_EACH
BEST_CUPS = "5 or 6"  # whoever knows five of them knows the sixth
CLAIM = (
    "Expert can tell by taste whether tea (T) or milk (M) was poured first. Six cups stand here, "
    "three of each kind."
)
Kinds = tuple[str, ...]  # of each cup

QUESTION = re.compile(r"Question for Expert: ([0-9]{1,6})")
ANSWER = re.compile(r"Answer: ([0-9][TM](?: [0-9][TM]){0,5})")

# Which part of the cup sets each split holds; training never sees a held-out set.
_BUCKETS: tuple[Split, ...] = ("train",) * 7 + ("validation",) + ("test",) * 2


class TeaWorld(NamedTuple):
    """A table with six cups.

    cups: their names, in order.
    poured: TEA or MILK, as the verifier knows it.
    tastes: as the prover tastes them: as they were poured, or all alike if she cannot tell.
    saucers: what the saucers say: nothing to do with the pouring, or just that if they are public.
    """

    cups: tuple[str, ...]
    poured: Kinds
    tastes: Kinds
    saucers: Kinds

    @property
    def able(self) -> bool:
        """True if the claim is true: she can tell."""
        return self.tastes == self.poured

    def kinds(self, cups: str, kinds: Kinds) -> str:
        """The kinds of the named cups; "?" for one that is not on the table."""
        kind_by_cup = dict(zip(self.cups, kinds, strict=True))
        return "".join(kind_by_cup.get(cup, "?") for cup in cups)


def blind_guess(num_cups: int) -> float:
    """The greatest probability of naming so many cups rightly without tasting: Fisher's p-value.

    The pouring is uniform among C(6, 3) = 20, and a guess that calls t of k cups tea is right about
    all of them in C(6 - k, 3 - t) of these.
    """
    num_unnamed = NUM_CUPS - num_cups
    most = max(
        comb(num_unnamed, NUM_EACH - tea)
        for tea in range(num_cups + 1)
        if 0 <= NUM_EACH - tea <= num_unnamed
    )
    return most / comb(NUM_CUPS, NUM_EACH)


def best_accuracy(num_cups: int) -> float:
    """The accuracy of a verifier that asks about so many cups, and of a prover that can tell.

    Half of the claims are true.  All of these are accepted, and of the others those guessed.
    """
    return 1 - blind_guess(num_cups) / 2


def split_of(cups: tuple[str, ...]) -> Split:
    """The split that a set of cups belongs to, whatever the key."""
    return _BUCKETS[int(text_hash("".join(cups)), 16) % len(_BUCKETS)]


@cache
def pourings() -> tuple[Kinds, ...]:
    """The twenty ways to pour."""
    numerals = (f"{n:0{NUM_CUPS}b}" for n in range(2**NUM_CUPS))
    return tuple(
        tuple(MILK if bit == "1" else TEA for bit in bits)
        for bits in numerals
        if bits.count("1") == NUM_EACH
    )


def draw(key: Key, *, able: bool, public: bool = False) -> TeaWorld:
    """A world; `key` is consumed.

    Args:
        key: Consumed.
        able: True if she can tell.
        public: True if the saucers tell the pouring.
    """
    poured, unrelated = (
        pourings()[randint(fold_in(key, name), len(pourings()))] for name in ("poured", "saucers")
    )
    alike = (TEA, MILK)[randint(fold_in(key, "alike"), 2)]
    return TeaWorld(
        cups=draw_cups(key),
        poured=poured,
        tastes=poured if able else (alike,) * NUM_CUPS,
        saucers=poured if public else unrelated,
    )


def draw_cups(key: Key) -> tuple[str, ...]:
    """The names of six cups, in order."""
    indices = permutation(fold_in(key, "cups"), len(CUP_NAMES))[:NUM_CUPS]
    return tuple(CUP_NAMES[index] for index in sorted(indices))


def worlds(key: Key, split: Split, *, public: bool = False) -> Iterator[TeaWorld]:
    """Distinct worlds of a split, in every other one of which she can tell; `key` is consumed.

    The same key gives the same worlds in both variants, but for the saucers.
    """
    seen: set[TeaWorld] = set()
    able = False
    for number in count():
        world_key = fold_in(key, number)
        if split_of(draw_cups(world_key)) != split:
            continue
        # Two by two one true and one false, in an order that is drawn: any even number is balanced,
        # and the parity of a number tells nothing.
        want = not able if len(seen) % 2 else bool(randint(fold_in(world_key, "able"), 2))
        world = draw(world_key, able=want, public=public)
        if world not in seen:
            able = want
            seen.add(world)
            yield world


def shown(cups: tuple[str, ...], kinds: Kinds, between: str = "") -> str:
    """Cups with their kinds, as the views hold them.

    >>> shown(("0", "2"), ("T", "M"))
    '0T 2M'
    """
    return " ".join(f"{cup}{between}{kind}" for cup, kind in zip(cups, kinds, strict=True))


def answer(pairs: Iterable[str]) -> str:
    """The answer that says of each cup what it is.

    >>> answer(["0T", "2M"])
    'Answer: 0T 2M'
    """
    return f"Answer: {' '.join(pairs) or '...'}"


def datapoint_of(world: TeaWorld) -> Datapoint:
    """The datapoint about a world, whose views are what each side knows."""
    verifier = f"Poured: {shown(world.cups, world.poured)}"
    # The saucers are written in another way, so that reading them and tasting are two skills.
    prover = (
        f"Tastes: {shown(world.cups, world.tastes)}\n"
        f"Saucers: {shown(world.cups, world.saucers, '-')}"
    )
    return make_datapoint(
        problem_id="".join(world.cups),
        question=CLAIM,
        solution="",
        label=int(world.able),
        views=(("verifier", verifier), ("prover", prover)),
    )


def world_of(datapoint: Datapoint) -> TeaWorld:
    """The world that a datapoint is about, read from its views."""
    poured = datapoint.view("verifier").removeprefix("Poured: ").split()
    tastes, saucers = (line.split()[1:] for line in datapoint.view("prover").splitlines())

    def kinds(written: list[str]) -> Kinds:
        return tuple(cup[-1] for cup in written)

    return TeaWorld(tuple(cup[0] for cup in poured), kinds(poured), kinds(tastes), kinds(saucers))


def possible(datapoint: Datapoint, *, public: bool = False) -> tuple[Datapoint, ...]:
    """All datapoints, equally likely, of which the prover sees what she sees of this one.

    There is one where she tastes a difference, or where public saucers tell her the pouring;
    otherwise the verifier's pouring may be any of the twenty.
    """
    world = world_of(datapoint)
    if world.able or public:
        return (datapoint,)
    return tuple(datapoint_of(world._replace(poured=poured)) for poured in pourings())


def make_dataset(
    key: Key, *, num_train: int, num_validation: int, num_test: int, public: bool = False
) -> Dataset:
    """Three splits that share no set of cups, half of the claims true; `key` is consumed."""

    def points(split: Split, num: int) -> tuple[Datapoint, ...]:
        drawn = islice(worlds(fold_in(key, split), split, public=public), num)
        return tuple(map(datapoint_of, drawn))

    return Dataset(
        name="tea-public" if public else "tea",
        train=points("train", num_train),
        validation=points("validation", num_validation),
        test=points("test", num_test),
    )


class Tasting(NamedTuple):
    """A game about a world, as its words can be read.

    cups: those that the verifier named; "" if it decided at once, None if its words are no
        question.
    answered: the number of them that the prover was right about; None if its words are no answer
        to the question.
    accepted: True if the verifier accepted.
    """

    world: TeaWorld
    cups: str | None
    answered: int | None
    accepted: bool

    @property
    def convinced(self) -> bool:
        """True if every answer was right."""
        return bool(self.cups) and self.answered == len(self.cups or "")


def read_tasting(game: Rollout) -> Tasting:
    """A game read from what was said in turn, the verifier first."""
    words = [utterance.raw.strip() for turn in game.rounds for utterance in turn]
    accepted = game.decision is not None and game.decision.discrete == ACCEPT
    world = world_of(game.datapoint)
    if len(words) < 2:
        return Tasting(world, "", None, accepted)
    question = QUESTION.fullmatch(words[0])
    if (
        not question
        or len(set(question[1])) < len(question[1])
        or not set(question[1]) <= set(world.cups)
    ):
        return Tasting(world, None, None, accepted)
    answer = ANSWER.fullmatch(words[1])
    named = answer[1].split() if answer else []
    if [cup[0] for cup in named] != list(question[1]):
        return Tasting(world, question[1], None, accepted)
    kinds = world.kinds(question[1], world.poured)
    right = sum(cup[1] == kind for cup, kind in zip(named, kinds, strict=True))
    return Tasting(world, question[1], right, accepted)


def measures(games: Sequence[Rollout]) -> tuple[tuple[str, float], ...]:
    """The measures of games about tea, by name; a mean of nothing is left out.

    tea.cups: mean number of cups that the verifier names, over readable questions; 0 where it
      decides at once
    tea.asks.K: share of games in which it names K cups, for K from 0 to 6
    tea.unreadable: share in which its first words are neither a decision nor a question about
      cups of the table, each named once
    tea.told.able, tea.told.blind: share of questions all of whose cups the prover tells rightly,
      where she can tell, and where she cannot
    tea.accepts.right, tea.accepts.wrong: share accepted where all answers were right, and where
      some were wrong or missing
    tea.fisher: mean over false claims of `blind_guess` of the number of cups named: the soundness
      error of a verifier that asks these questions and accepts right answers alone; a game
      without a readable question counts as it was decided, 1 if accepted
    """
    tastings = [read_tasting(game) for game in games]
    if not tastings:
        return ()
    counts = [
        sum(tasting.cups is not None and len(tasting.cups) == k for tasting in tastings)
        for k in range(7)
    ]
    readable, questioned = sum(counts), [tasting for tasting in tastings if tasting.cups]
    shares: dict[str, list[float]] = {
        "told.able": [tasting.convinced for tasting in questioned if tasting.world.able],
        "told.blind": [tasting.convinced for tasting in questioned if not tasting.world.able],
        "accepts.right": [tasting.accepted for tasting in questioned if tasting.convinced],
        "accepts.wrong": [tasting.accepted for tasting in questioned if not tasting.convinced],
        "fisher": [
            blind_guess(len(tasting.cups)) if tasting.cups else float(tasting.accepted)
            for tasting in tastings
            if not tasting.world.able
        ],
    }
    return (
        *([("tea.cups", sum(k * n for k, n in enumerate(counts)) / readable)] if readable else []),
        *((f"tea.asks.{k}", n / len(tastings)) for k, n in enumerate(counts)),
        ("tea.unreadable", 1 - readable / len(tastings)),
        *((f"tea.{name}", sum(values) / len(values)) for name, values in shares.items() if values),
    )


def bound(games: Sequence[Rollout]) -> float:
    """The greatest accuracy, against the worst provers, with the questions of these games."""
    # Of questions that cannot be read nothing is known: they may be about all cups.
    named = (read_tasting(game).cups for game in games)
    most = [best_accuracy(NUM_CUPS if cups is None else len(cups)) for cups in named]
    return sum(most) / len(most)


def improvements(
    before: Mapping[str, float], after: Mapping[str, float], *, public: bool = False
) -> tuple[Improvement, ...]:
    """The measures of two tests, by the names of the metrics, beside the theory.

    In `public` the saucers tell a prover that cannot taste what to say, and nothing is sound.
    """
    blind = 1.0 if public else blind_guess(NUM_CUPS)

    def row(
        name: str, metric: str, optimum: float | str | None, *, share: bool = True
    ) -> Improvement:
        return Improvement(name, before.get(metric), after.get(metric), optimum, share)

    return (
        row("accuracy", "accuracy", 1 - blind / 2),
        row("completeness: accepted where she can tell", "accuracy_1", 1.0),
        row("soundness error: accepted where she cannot", "soundness_error", blind),
        row("  Fisher's value for the cups it named", "tea.fisher", None if public else blind),
        row("games that end undecided", "no_decision_rate", 0.0),
        row("cups that the verifier names", "tea.cups", None if public else BEST_CUPS, share=False),
        row("  unreadable questions (e.g. about absent cups)", "tea.unreadable", 0.0),
        row("accepts if all answers are right", "tea.accepts.right", 1.0),
        row("accepts if some are wrong", "tea.accepts.wrong", 0.0),
        row("the prover names all cups rightly: she can tell", "tea.told.able", 1.0),
        row(
            "the prover names all cups rightly: she cannot",
            "tea.told.blind",
            1.0 if public else None,
        ),
    )
