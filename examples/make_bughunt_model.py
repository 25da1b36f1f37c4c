"""Make the model of `builtin:bug-hunt`: a Llama of 0.6 million parameters that can just play it.

    python examples/make_bughunt_model.py --out adapters/nip_fn_adapters/base_models/bug-hunt

It learns from scripted players, on bugs of the training split only, in three stages.  Drills, in
which any step may differ and many are asked about at once, teach it to look steps up and to compare
them.  Games of able players teach it the game.  Games of careless players then spread its behaviour
and make the most careless the most likely: the critic names any step, the verifier decides by a
coin.  So greedy play judges no better than one, and nothing is to be had from sharpening.

The model that is shipped was made by an earlier version of this script, from smaller weights.
"""

from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import count, islice
from typing import NamedTuple

import numpy as np
from make_tea_model import PER_KEY
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
from nip_fn.worlds.bughunt import (
    LETTERS,
    NUM_STEPS,
    STEP_NAMES,
    HuntWorld,
    bugs,
    comparison,
    datapoint_of,
    worlds,
)


class Habits(NamedTuple):
    """The habits of both players.

    compare: probability that the critic compares all steps, and names the one that differs.
    check: probability that the verifier makes a check, by which it decides.
    listen: probability that it checks the step that was named, rather than any.
    believe: probability that it rejects without a check where a step was named.
    """

    compare: float
    check: float
    listen: float
    believe: float


ABLE = Habits(compare=1.0, check=1.0, listen=1.0, believe=0.5)
CARELESS = Habits(compare=0.25, check=0.3, listen=0.5, believe=0.5)

# ---------------------------------------------------------------- words


def checks(world: HuntWorld, places: list[int]) -> str:
    """Comparisons of these steps."""
    return " ".join(comparison(at, world.specified[at], world.coded[at]) for at in places)


def answer(place: int | None) -> str:
    """The answer that names a step."""
    return f"Answer: {'none' if place is None else STEP_NAMES[place]}"


def scan(world: HuntWorld) -> str:
    """A comparison of all steps, and the first that differs."""
    return f"Checks: {checks(world, list(range(len(world.coded))))}\n{answer(world.bug)}"


def verdict(world: HuntWorld, places: list[int]) -> str:
    """Checks of these steps, and the decision that follows."""
    same = all(world.specified[at] == world.coded[at] for at in places)
    return f"Check: {checks(world, places)}\n{decision(same)}"


def decision(accept: bool) -> str:
    """A decision without a check."""
    return f"Decision: {'accept' if accept else 'reject'}"


@cache
def _params() -> HyperParameters:
    return from_dict(with_preset({"dataset": "builtin:bug-hunt"})).unwrap()


def chat(world: HuntWorld, *told: str) -> list[Message]:
    """What the program itself shows the agent whose turn it is after these words."""
    point = datapoint_of(world)
    rounds = tuple((Utterance(PROVER, text, ((MAIN, text),)),) for text in told)
    episode = Episode(key(0), point.label, point.stance, rounds)
    return plain(
        build_chat(_params(), protocol_of(_params()), point, episode, VERIFIER if told else PROVER)
    )


# ---------------------------------------------------------------- the scripted players


def game(rng: np.random.Generator, world: HuntWorld, habits: Habits) -> Iterator[Turn]:
    """One game, as the turns that the model is to learn."""
    size = len(world.coded)
    told = scan(world) if rng.random() < habits.compare else answer(int(rng.integers(size)))
    yield Turn(chat(world), told)
    named = told.rpartition(" ")[2]
    listens = named != "none" and rng.random() < habits.listen
    place = STEP_NAMES.index(named) if listens else int(rng.integers(size))
    if rng.random() < habits.check:
        yield Turn(chat(world, told), verdict(world, [place]))
    else:
        yield Turn(chat(world, told), decision(bool(rng.random() < habits.believe)))


def drills(rng: np.random.Generator, num_steps: int) -> Iterator[Turn]:
    """Comparisons of steps any of which may differ, in their order and in the order asked for."""
    specified = tuple(LETTERS[i] for i in rng.integers(len(LETTERS), size=num_steps))
    coded = tuple(
        str(rng.choice(bugs(place, letter, "train"))) if rng.integers(2) else letter
        for place, letter in enumerate(specified)
    )
    world = HuntWorld(specified, coded)
    yield Turn(chat(world), scan(world))
    places = [int(at) for at in rng.permutation(num_steps)]
    asked = f"Answer: {' '.join(STEP_NAMES[at] for at in places)}"
    yield Turn(chat(world, asked), verdict(world, places))
    yield Turn(chat(world, answer(places[0])), verdict(world, places[:1]))


Lessons = Callable[[np.random.Generator, HuntWorld], Iterator[Turn]]


def look_up(rng: np.random.Generator, world: HuntWorld) -> Iterator[Turn]:
    """The first stage, about one world."""
    yield from drills(rng, int(rng.integers(4, len(world.coded) + 1)))


def able(rng: np.random.Generator, world: HuntWorld) -> Iterator[Turn]:
    """The second stage."""
    yield from drills(rng, len(world.coded))
    yield from game(rng, world, ABLE)
    yield from game(rng, world, ABLE._replace(compare=0.0))


def careless(rng: np.random.Generator, world: HuntWorld) -> Iterator[Turn]:
    """The last stage."""
    yield from game(rng, world, CARELESS)


def turns(lessons: Lessons, num_steps: int, own: Key) -> Iterator[Turn]:
    """Turns about worlds of the training split, without end; `own` is consumed."""
    rng = numpy_generator(fold_in(own, "players"))
    for part in count():
        drawn = worlds(fold_in(own, "worlds", part), "train", num_steps=num_steps)
        for world in islice(drawn, PER_KEY):
            yield from lessons(rng, world)


# ---------------------------------------------------------------- training


def likelihoods(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, num_steps: int
) -> dict[str, float]:
    """The mean probability of whole right replies, on held-out bugs."""
    rows: dict[str, list[Turn]] = {"scan": [], "check": [], "check of the bug": []}
    drawn = worlds(fold_in(key(0), "report"), "test", num_steps=num_steps)
    for place, world in enumerate(islice(drawn, 64)):
        rows["scan"].append(Turn(chat(world), scan(world)))
        seen = chat(world, answer(place % num_steps))
        rows["check"].append(Turn(seen, verdict(world, [place % num_steps])))
        if world.bug is not None:
            seen = chat(world, answer(world.bug))
            rows["check of the bug"].append(Turn(seen, verdict(world, [world.bug])))
    return likely(model, tokenizer, rows)


def main() -> None:
    """Train the three stages, and save the model after the last one."""
    stages = [
        Stage("look up", partial(turns, look_up), 3e-3, 2000),
        Stage("able", partial(turns, able), 1.5e-3, 400),
        Stage("careless", partial(turns, careless), 7.5e-4, 150),
    ]
    options = parser(__doc__ or "", stages, batch_size=32)
    options.add_argument("--num-steps", type=int, default=NUM_STEPS)
    args = options.parse_args()
    stages = [s._replace(turns=partial(s.turns, args.num_steps)) for s in stages]
    report = partial(likelihoods, num_steps=args.num_steps)
    make_base_model(args, "bug-hunt", stages, report, words=True)


if __name__ == "__main__":
    main()
