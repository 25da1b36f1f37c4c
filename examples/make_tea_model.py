"""Make a model of `builtin:tea`: a Llama of 0.6 million parameters that can just play the game.

    python examples/make_tea_model.py --seed 1 --out adapters/nip_fn_adapters/tea-1

It learns from scripted players, on cups of the training split only, in three stages.  Drills with
cups of ten kinds teach it to look things up: with two kinds alone it counts instead.  Games of able
players teach it the rest: the verifier asks about some cups and compares every answer, the prover
says what she tastes, or what the saucers say where there is nothing to taste.  Games of careless
players then spread its behaviour, and make the most careless the most likely: the verifier often
decides without asking, and mostly believes whatever it hears; the prover says anything.  So greedy
play judges no better than a coin, and nothing is to be had from sharpening.

The tokenizer is read from `--tokenizer`: two trainings of one may number its tokens otherwise.
The models that are shipped went through these stages in several sittings, with the drills mended
between them; a model made in one go is another one.  That of the public saucers is the first one
after more of the same, in which it learnt to read the saucers, too:

    python examples/make_tea_model.py --seed 3 --start adapters/nip_fn_adapters/tea-1 \\
        --steps 700 300 200 --threads 1 --out adapters/nip_fn_adapters/tea-public
"""

import argparse
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import count, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from warming_up import (
    Message,
    Turn,
    batches,
    likely,
    make_model,
    numpy_generator,
    warm_up,
)

from nip_fn.config.codec import from_dict
from nip_fn.config.presets import with_preset
from nip_fn.game.chat import plain
from nip_fn.game.episode import Episode, Utterance
from nip_fn.keys import Key, fold_in, key, seed_of
from nip_fn.params.run import HyperParameters
from nip_fn.prompts.chat import build_chat
from nip_fn.protocols.nip import MAIN, PROVER, VERIFIER
from nip_fn.protocols.registry import protocol_of
from nip_fn.worlds.tea import MILK, NUM_CUPS, TEA, Kinds, TeaWorld, datapoint_of, worlds

KINDS = TEA + MILK
MANY = "BCDFHKPRTM"  # the kinds of the drills
PACKAGE = Path(__file__).parent.parent / "adapters" / "nip_fn_adapters"
PER_KEY = 500  # worlds that are drawn at a time


class Habits(NamedTuple):
    """The habits of both players.

    ask: probability of a question about 0 (the verifier decides at once), 1, ... 6 cups.
    compare: probability that the verifier compares the answers.
    believe: probability that it accepts where it does not.
    taste: probability that the prover says what she tastes, if there is anything to taste.
    read: probability that she says what the saucers say.
    alike: probability that she says one kind throughout; otherwise she says anything.
    """

    ask: tuple[float, ...]
    compare: float
    believe: float
    taste: float
    read: float
    alike: float


ABLE = Habits((0, 0.1, 0.1, 0.2, 0.2, 0.2, 0.2), 1.0, 0.5, 1.0, 0.0, 0.0)
CARELESS = Habits((0.40, 0.20, 0.13, 0.10, 0.08, 0.05, 0.04), 0.35, 0.75, 0.35, 0.15, 0.30)

# ---------------------------------------------------------------- words


def question(cups: str) -> str:
    """A question about cups."""
    return f"Question for Expert: {cups}"


def answer(cups: str, kinds: str) -> str:
    """The answer that the cups are of these kinds."""
    return f"Answer: {' '.join(map(''.join, zip(cups, kinds, strict=True)))}"


def verdict(cups: str, poured: str, told: str) -> str:
    """The comparison of every answer, and the decision that follows."""
    lines = [
        f"{cup}{was}{said}: {'same' if was == said else 'different'}."
        for cup, was, said in zip(cups, poured, told, strict=True)
    ]
    return "\n".join([*lines, decision(poured == told)])


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
    asked = question(cups)
    yield Turn(chat(world, VERIFIER), asked)
    kinds = says(rng, world, cups, habits)
    told = answer(cups, kinds)
    yield Turn(chat(world, PROVER, asked), told)
    if rng.random() < habits.compare:
        reply = verdict(cups, world.kinds(cups, world.poured), kinds)
    else:
        reply = decision(bool(rng.random() < habits.believe))
    yield Turn(chat(world, VERIFIER, asked, told), reply)


def says(rng: np.random.Generator, world: TeaWorld, cups: str, habits: Habits) -> str:
    """The kinds that the prover says the cups are."""
    anything, how = some_kinds(rng, KINDS, len(cups)), rng.random()
    if how < habits.taste:
        if world.able:
            return world.kinds(cups, world.tastes)
        return world.kinds(cups, world.saucers) if habits is ABLE else anything
    how -= habits.taste
    if how < habits.read:
        return world.kinds(cups, world.saucers)
    return TEA * len(cups) if how - habits.read < habits.alike else anything


def some_kinds(rng: np.random.Generator, kinds: str, num: int) -> str:
    """So many kinds at random."""
    return "".join(kinds[i] for i in rng.integers(len(kinds), size=num))


def drills(rng: np.random.Generator, world: TeaWorld, repeats: int) -> Iterator[Turn]:
    """Look-ups of all six cups, `repeats` times over, of kinds of many sorts."""

    def many() -> Kinds:
        return tuple(some_kinds(rng, MANY, NUM_CUPS))

    other = world._replace(poured=many(), tastes=many(), saucers=many())
    if rng.integers(2):  # Nothing to taste: read the saucers.
        other = other._replace(tastes=(other.tastes[0],) * NUM_CUPS)
    by = other.saucers if len(set(other.tastes)) == 1 else other.tastes
    cups = "".join("".join(rng.permutation(world.cups)) for _ in range(repeats))
    asked, true = question(cups), other.kinds(cups, other.poured)
    yield Turn(chat(other, PROVER, asked), answer(cups, other.kinds(cups, by)))
    wrong = some_kinds(rng, MANY, len(cups))
    told = "".join(a if rng.random() < 0.6 else b for a, b in zip(true, wrong, strict=True))
    yield Turn(chat(other, VERIFIER, asked, answer(cups, told)), verdict(cups, true, told))


def checks(rng: np.random.Generator, world: TeaWorld) -> Iterator[Turn]:
    """The same of tea and milk, and questions about any number of cups."""
    cups = "".join(rng.permutation(world.cups))
    asked, true = question(cups), world.kinds(cups, world.poured)
    told = true if rng.integers(4) == 0 else some_kinds(rng, KINDS, NUM_CUPS)
    yield Turn(chat(world, VERIFIER, asked, answer(cups, told)), verdict(cups, true, told))
    by = world.tastes if world.able else world.saucers
    yield Turn(chat(world, PROVER, asked), answer(cups, world.kinds(cups, by)))
    for _ in range(3):
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


def turns(own: Key, lessons: Lessons) -> Iterator[Turn]:
    """Turns about worlds of the training split, without end; `own` is consumed."""
    rng = numpy_generator(fold_in(own, "players"))
    for part in count():
        for world in islice(worlds(fold_in(own, "worlds", part), "train"), PER_KEY):
            yield from lessons(rng, world)


# ---------------------------------------------------------------- training


def likelihoods(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> str:
    """The mean probability of whole right replies about four cups, on held-out ones."""
    rows: dict[str, list[Turn]] = {"tastes": [], "saucers": [], "right": [], "wrong": []}
    for world in islice(worlds(fold_in(key(0), "report"), "test"), 48):
        cups = "".join(world.cups[:4])
        true, asked = world.kinds(cups, world.poured), question(cups)
        by = world.tastes if world.able else world.saucers
        told = answer(cups, world.kinds(cups, by))
        rows["tastes" if world.able else "saucers"].append(Turn(chat(world, PROVER, asked), told))
        for name, said in (("right", true), ("wrong", world.kinds(cups, world.saucers))):
            seen = chat(world, VERIFIER, asked, answer(cups, said))
            rows[name].append(Turn(seen, verdict(cups, true, said)))
    return likely(model, tokenizer, rows)


def main() -> None:
    """Train the three stages, and save the model after the last one, in float16."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tokenizer", type=Path, default=PACKAGE / "tea-1")
    parser.add_argument("--start", type=Path, help="a model to go on from, not a new one")
    parser.add_argument("--steps", type=int, nargs=3, default=(2600, 600, 200))
    parser.add_argument("--batch-size", type=int, default=44)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    own = fold_in(key(args.seed), "tea")
    torch.manual_seed(seed_of(fold_in(own, "weights")))
    torch.set_num_threads(args.threads)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(args.tokenizer)
    model = make_model(tokenizer, width=128, layers=3)
    if args.start is not None:
        model = LlamaForCausalLM.from_pretrained(args.start, dtype=torch.float32)
    stages: tuple[tuple[str, Lessons, float], ...] = (
        ("look up", look_up, 3e-3),
        ("able", able, 1.5e-3),
        ("careless", careless, 7.5e-4),
    )
    for (name, lessons, rate), steps in zip(stages, args.steps, strict=True):
        if not steps:
            continue
        print(name)
        data = batches(tokenizer, turns(fold_in(own, name), lessons), args.batch_size)
        told = partial(likelihoods, model, tokenizer)
        warm_up(model, data, steps, rate, every=100, report=told)
    model.eval().half().save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)


if __name__ == "__main__":
    main()
