"""Make a model of `builtin:tea`: a Llama of 0.6 million parameters that can just play the game.

    python examples/make_tea_model.py --seed 2 --out adapters/nip_fn_adapters/base_models/tea

It learns from scripted players, on cups of the training split only, in three stages.  Drills with
cups of ten kinds teach it to look things up: with two kinds alone it counts instead.  Games of able
players teach it the rest: the verifier asks about some cups and compares every answer, so that it
misses none that is wrong, left out or one too many; the prover says what she tastes, or what the
saucers say where there is nothing to taste.  Games of careless players then spread its behaviour,
and make the most careless the most likely: the verifier often decides without asking, or asks about
a cup that is not there, and mostly believes whatever it hears, or compares only what it was
answered; the prover says anything, or leaves answers out, repeats them, or evades the question.  So
greedy play judges no better than a coin, and nothing is to be had from sharpening; and whatever a
prover may try, training can meet it.

The same seed makes the same model on one machine, and another one where numbers round otherwise.
Not every seed learns to look things up: look at the skills that are printed.  That of seed 1 does
not; those of seed 2, which are in `made.json`, are nearly perfect before the last stage.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import count, islice, zip_longest
from typing import NamedTuple, TypeVar

import numpy as np
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from warming_up import (
    Message,
    Stage,
    Turn,
    likely,
    make_base_model,
    numpy_generator,
    parser,
)

from nip_fn.config.codec import from_dict
from nip_fn.config.presets import with_preset
from nip_fn.game.chat import plain
from nip_fn.game.episode import Episode, Utterance
from nip_fn.keys import Key, fold_in, key
from nip_fn.params.run import HyperParameters
from nip_fn.prompts.chat import build_chat
from nip_fn.protocols.nip import MAIN, PROVER, VERIFIER
from nip_fn.protocols.registry import protocol_of
from nip_fn.worlds.tea import (
    CUP_NAMES,
    MILK,
    NUM_CUPS,
    TEA,
    Kinds,
    TeaWorld,
    answer,
    datapoint_of,
    worlds,
)

KINDS = TEA + MILK
MANY = "BCDFHKPRTM"  # the kinds of the drills
# Tokens that nothing is merged with: a cup, a cup on its saucer, a kind, the end of a line.
SYMBOLS = r"\d-?|\n|(?<![A-Za-z])[A-Z](?![A-Za-z])"
PER_KEY = 500  # worlds that are drawn at a time
T = TypeVar("T")


class Habits(NamedTuple):
    """The habits of both players.

    ask: probability of a question about 0 (the verifier decides at once), 1, ... 6 cups.
    absent_cup: probability that one of the cups in a question is not on the table.
    compare: probability that the verifier compares the answers with its question, cup by cup.
    trust: probability that it compares only what it was answered, and misses what it was not.
    believe: probability that it accepts where it compares nothing.
    taste: probability that the prover says what she tastes, if there is anything to taste.
    read: probability that she says what the saucers say.
    alike: probability that she says one kind throughout; otherwise she says anything.
    evade: probability that her words are no answer to the question (`evasions`).
    """

    ask: tuple[float, ...]
    absent_cup: float
    compare: float
    trust: float
    believe: float
    taste: float
    read: float
    alike: float
    evade: float


ABLE = Habits((0, 0.1, 0.1, 0.2, 0.2, 0.2, 0.2), 0.0, 1.0, 0.0, 0.5, 1.0, 0.0, 0.0, 0.0)
CARELESS = Habits(
    ask=(0.40, 0.20, 0.13, 0.10, 0.08, 0.05, 0.04),
    absent_cup=0.08,
    compare=0.30,
    trust=0.10,
    believe=0.75,
    taste=0.35,
    read=0.15,
    alike=0.30,
    evade=0.30,
)

# ---------------------------------------------------------------- words


def question(cups: str) -> str:
    """A question about cups."""
    return f"Question for Expert: {cups}"


def paired(cups: str, kinds: str) -> list[str]:
    """Each cup with its kind."""
    return list(map("".join, zip(cups, kinds, strict=True)))


def verdict(cups: str, poured: str, pairs: Sequence[str]) -> str:
    """The comparison of each answer with what was asked, and the decision that follows.

    Args:
        cups: Those that were asked about.
        poured: Their kinds; "?" for one that is not on the table.
        pairs: The answers; of those that are too many one is compared.
    """
    lines = [
        f"{true}{said}: {'same' if true == said else 'different'}."
        for true, said in zip_longest(paired(cups, poured), pairs[: len(cups) + 1], fillvalue="--")
    ]
    accept = all(line.endswith("same.") for line in lines)
    return "\n".join([*lines, decision(accept)])


def trusting_verdict(world: TeaWorld, pairs: Sequence[str]) -> str:
    """The comparison of what was answered alone."""
    cups = "".join(pair[0] for pair in pairs)
    return verdict(cups, world.kinds(cups, world.poured), pairs)


def decision(accept: bool) -> str:
    """A decision without a comparison."""
    return f"Decision: {'accept' if accept else 'reject'}"


@cache
def _params() -> HyperParameters:
    return from_dict(with_preset({"dataset": "builtin:tea"})).unwrap()


def chat(world: TeaWorld, agent: int, *told: str) -> list[Message]:
    """What the program itself shows the agent after these words."""
    point = datapoint_of(world)
    rounds = tuple(
        (Utterance((VERIFIER, PROVER)[i % 2], text, ((MAIN, text),)),)
        for i, text in enumerate(told)
    )
    episode = Episode(key(0), point.label, point.stance, rounds)
    return plain(build_chat(_params(), protocol_of(_params()), point, episode, agent))


# ---------------------------------------------------------------- the scripted players


def game(rng: np.random.Generator, world: TeaWorld, habits: Habits) -> Iterator[Turn]:
    """One game, as the turns that the model is to learn."""
    num = int(rng.choice(NUM_CUPS + 1, p=habits.ask))
    if not num:
        yield Turn(chat(world, VERIFIER), decision(bool(rng.integers(2))))
        return
    # The first cups: which they are does not matter, since any three may be those with the tea, and
    # a model of this size would name some at random that are not on the table, or one twice.
    cups = "".join(world.cups[:num])
    if rng.random() < habits.absent_cup:
        cups = with_absent_cup(rng, world, cups)
    asked = question(cups)
    yield Turn(chat(world, VERIFIER), asked)
    pairs = paired(cups, says(rng, world, cups, habits))
    told = answer(pairs)
    if rng.random() < habits.evade:
        pairs, told = some(rng, evasions(rng, world, cups, pairs))
    yield Turn(chat(world, PROVER, asked), told)
    how = rng.random()
    if how < habits.compare:
        reply = verdict(cups, world.kinds(cups, world.poured), pairs)
    elif how - habits.compare < habits.trust:
        reply = trusting_verdict(world, pairs)
    else:
        reply = decision(bool(rng.random() < habits.believe))
    yield Turn(chat(world, VERIFIER, asked, told), reply)


def says(rng: np.random.Generator, world: TeaWorld, cups: str, habits: Habits) -> str:
    """The kinds that the prover says the cups are."""
    anything, how = some_kinds(rng, KINDS, len(cups)), rng.random()
    if how < habits.taste:
        if world.able:
            kinds = world.kinds(cups, world.tastes)
        else:
            kinds = world.kinds(cups, world.saucers) if habits is ABLE else anything
    elif how - habits.taste < habits.read:
        kinds = world.kinds(cups, world.saucers)
    else:
        alike = how - habits.taste - habits.read < habits.alike
        kinds = TEA * len(cups) if alike else anything
    # Whoever is asked about a cup that is not there says anything.
    return kinds.replace("?", some(rng, KINDS))


def evasions(
    rng: np.random.Generator, world: TeaWorld, cups: str, pairs: list[str]
) -> list[tuple[list[str], str]]:
    """Words that do not answer the question, and the answers to be read in them."""
    num = len(pairs)
    left = sorted(rng.permutation(num)[: int(rng.integers(1, max(2, num)))])
    elsewhere = list(pairs)
    elsewhere[int(rng.integers(num))] = some(rng, CUP_NAMES) + some(rng, KINDS)
    lists = [
        [pairs[i] for i in left],  # some answers alone
        pairs[:1],
        pairs[::-1],
        [pairs[i] for i in rng.permutation(num)],
        pairs[:1] * num,
        (pairs + pairs)[: int(rng.integers(num + 1, NUM_CUPS + 2))],  # too many
        elsewhere,  # about another cup, on the table or not
        [],
    ]
    return [*((some_pairs, answer(some_pairs)) for some_pairs in lists), ([], question(cups))]


def with_absent_cup(rng: np.random.Generator, world: TeaWorld, cups: str) -> str:
    """The cups, one of them replaced by one that is not on the table."""
    absent = some(rng, [cup for cup in CUP_NAMES if cup not in world.cups])
    return "".join(sorted(cups.replace(some(rng, cups), absent)))


def some(rng: np.random.Generator, choices: Sequence[T]) -> T:
    """One of the choices."""
    return choices[int(rng.integers(len(choices)))]


def some_kinds(rng: np.random.Generator, kinds: str, num: int) -> str:
    """So many kinds at random."""
    return "".join(some(rng, kinds) for _ in range(num))


def drills(rng: np.random.Generator, world: TeaWorld, repeats: int) -> Iterator[Turn]:
    """Look-ups of all six cups, `repeats` times over, of kinds of many sorts."""

    def many() -> Kinds:
        return tuple(some_kinds(rng, MANY, NUM_CUPS))

    strange = world._replace(poured=many(), tastes=many(), saucers=many())
    if rng.integers(2):  # Nothing to taste: read the saucers.
        strange = strange._replace(tastes=(strange.tastes[0],) * NUM_CUPS)
    by = strange.saucers if len(set(strange.tastes)) == 1 else strange.tastes
    cups = "".join("".join(rng.permutation(world.cups)) for _ in range(repeats))
    asked, true = question(cups), strange.kinds(cups, strange.poured)
    yield Turn(chat(strange, PROVER, asked), answer(paired(cups, strange.kinds(cups, by))))
    wrong = some_kinds(rng, MANY, len(cups))
    said = "".join(a if rng.random() < 0.6 else b for a, b in zip(true, wrong, strict=True))
    pairs = paired(cups, said)
    yield Turn(chat(strange, VERIFIER, asked, answer(pairs)), verdict(cups, true, pairs))


def checks(rng: np.random.Generator, world: TeaWorld) -> Iterator[Turn]:
    """The same of tea and milk, answers that are none, and questions about any number of cups."""
    cups = "".join(rng.permutation(world.cups)[: 1 + int(rng.integers(NUM_CUPS))])
    if rng.integers(8) == 0:
        cups = with_absent_cup(rng, world, cups)
    asked, true = question(cups), world.kinds(cups, world.poured)
    right = paired(cups, true)
    wrong = paired(cups, some_kinds(rng, KINDS, len(cups)))
    evaded = [some(rng, evasions(rng, world, cups, right)) for _ in range(2)]
    for pairs, told in ((right, answer(right)), (wrong, answer(wrong)), *evaded):
        yield Turn(chat(world, VERIFIER, asked, told), verdict(cups, true, pairs))
    by = world.tastes if world.able else world.saucers
    cups = "".join(rng.permutation(world.cups))
    told = answer(paired(cups, world.kinds(cups, by)))
    yield Turn(chat(world, PROVER, question(cups)), told)
    for _ in range(2):
        first = "".join(world.cups[: 1 + int(rng.integers(NUM_CUPS))])
        yield Turn(chat(world, VERIFIER), question(first))


Lessons = Callable[[np.random.Generator, TeaWorld], Iterator[Turn]]


def look_up(rng: np.random.Generator, world: TeaWorld) -> Iterator[Turn]:
    """The first stage, about one world."""
    yield from drills(rng, world, 2)
    yield from drills(rng, world, 1)
    yield from checks(rng, world)


def able(rng: np.random.Generator, world: TeaWorld) -> Iterator[Turn]:
    """The second stage."""
    yield from drills(rng, world, 1)
    yield from checks(rng, world)
    yield from game(rng, world, ABLE)


def careless(rng: np.random.Generator, world: TeaWorld) -> Iterator[Turn]:
    """The last stage."""
    yield from game(rng, world, CARELESS)


def turns(lessons: Lessons, own: Key) -> Iterator[Turn]:
    """Turns about worlds of the training split, without end; `own` is consumed."""
    rng = numpy_generator(fold_in(own, "players"))
    for part in count():
        for world in islice(worlds(fold_in(own, "worlds", part), "train"), PER_KEY):
            yield from lessons(rng, world)


# ---------------------------------------------------------------- training


def likelihoods(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> dict[str, float]:
    """The mean probability of whole right replies about four cups, on held-out ones."""
    rows: dict[str, list[Turn]] = {
        name: [] for name in ("tastes", "saucers", "right", "wrong", "some", "reversed", "none")
    }
    for world in islice(worlds(fold_in(key(0), "report"), "test"), 48):
        cups = "".join(world.cups[:4])
        true, asked = world.kinds(cups, world.poured), question(cups)
        by = world.tastes if world.able else world.saucers
        told = answer(paired(cups, world.kinds(cups, by)))
        rows["tastes" if world.able else "saucers"].append(Turn(chat(world, PROVER, asked), told))
        right, wrong = (paired(cups, kinds) for kinds in (true, world.kinds(cups, world.saucers)))
        answers = {
            "right": right, "wrong": wrong, "some": right[:2], "reversed": right[::-1], "none": [],
        }  # fmt: skip
        for name, pairs in answers.items():
            seen = chat(world, VERIFIER, asked, answer(pairs))
            rows[name].append(Turn(seen, verdict(cups, true, pairs)))
    return likely(model, tokenizer, rows)


def main() -> None:
    """Train the three stages, and save the model after the last one."""
    stages = [
        Stage("look up", partial(turns, look_up), 3e-3, 2200),
        Stage("able", partial(turns, able), 1.5e-3, 600),
        Stage("careless", partial(turns, careless), 7.5e-4, 200),
    ]
    args = parser(__doc__ or "", stages, batch_size=44).parse_args()
    make_base_model(args, "tea", stages, likelihoods, apart=SYMBOLS)


if __name__ == "__main__":
    main()
