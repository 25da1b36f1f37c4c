"""Make the model of `builtin:bug-hunt`: a Llama of 0.6 million parameters that can play the game.

Warmed up on scripted players, in two parts, on steps of the training split only.  At first they are
able: the prover compares all steps and names the one that differs; the verifier checks the step
that is named, whatever the prover says of it, and decides by its own check.  Then they are
careless, and their most likely behaviour is the most careless: the prover names any step, and the
verifier decides at once.  So greedy play judges no better than a coin.

    python examples/make_bughunt_model.py --out adapters/nip_fn_adapters/bughunt
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from make_tiny_model import (
    CHAT_TEMPLATE,
    IGNORED,
    Message,
    Turn,
    batches,
    make_model,
    numpy_generator,
)
from msgspec.structs import replace
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from nip_fn.config.codec import from_dict, merge
from nip_fn.config.presets import BUG_HUNT
from nip_fn.game.episode import Episode, Utterance
from nip_fn.keys import fold_in, key, seed_of
from nip_fn.params.run import HyperParameters
from nip_fn.prompts.chat import build_chat
from nip_fn.protocols.nip import MAIN, PROVER, VERIFIER
from nip_fn.worlds.bughunt import (
    DIGITS,
    LETTERS,
    NUM_STEPS,
    World,
    compared,
    datapoint_of,
    named_in,
    neighbours,
    worlds,
)

OUT = Path(__file__).parent.parent / "adapters" / "nip_fn_adapters" / "bughunt"
CRITICS = 0.75  # the share of provers that argue for rejection
ALONE = 0.1  # the share of games without a prover
TURNS = 480  # about programs of one length in a row: batches hold few pads


class Habits(NamedTuple):
    """Of both players, as probabilities.

    scan: the prover compares all steps before it names one.
    lie: a critic that has found no bug invents one.
    hide: a defender that has found a bug names none.
    at_once: the verifier decides without a check.
    listen: the step that it checks is the one that was named; otherwise it is any.
    reject, accept: it rejects after a check that differs, accepts after one that does not.
    """

    scan: float
    lie: float
    hide: float
    at_once: float
    listen: float
    reject: float
    accept: float


ABLE = Habits(scan=0.9, lie=0.2, hide=0.5, at_once=0.0, listen=0.8, reject=1.0, accept=1.0)
CARELESS = Habits(scan=0.25, lie=0.1, hide=0.5, at_once=0.6, listen=0.4, reject=0.9, accept=0.65)

# ---------------------------------------------------------------- the scripted players


def line(world: World, place: int) -> str:
    """A step of the specification beside that of the program, and if they are the same."""
    return f" {compared(place, world.specified[place], world.coded[place])}"


def prover_reply(rng: np.random.Generator, world: World, habits: Habits, critic: bool) -> str:
    """All steps compared, perhaps, and the step that is named."""
    any_step = int(rng.integers(len(world.coded)))
    if rng.random() >= habits.scan:
        return answer(any_step if critic or rng.integers(2) else None)
    lines = [line(world, place) for place in range(len(world.coded))]
    named = world.bug
    if critic and named is None:
        named = any_step
        if rng.random() < habits.lie:
            right = world.specified[named]
            others = neighbours(right)
            lines[named] = " " + compared(named, right, str(others[rng.integers(len(others))]))
    elif not critic and named is not None and rng.random() < habits.hide:
        lines[named] = " " + compared(named, world.specified[named], world.specified[named])
        named = None
    return f"Checks:{''.join(lines)}\n{answer(named)}"


def answer(place: int | None) -> str:
    """The last line of the prover."""
    return "Answer: none" if place is None else f"Answer: #{place + 1}"


def verifier_reply(rng: np.random.Generator, world: World, habits: Habits, told: str) -> str:
    """One check, perhaps, and the decision."""
    if rng.random() < habits.at_once:
        return decision(bool(rng.integers(2)))
    place = named_in(told)
    if place is None or rng.random() >= habits.listen:
        place = int(rng.integers(len(world.coded)))
    same = world.specified[place] == world.coded[place]
    accept = rng.random() < habits.accept if same else rng.random() >= habits.reject
    return f"Check:{line(world, place)}\n{decision(accept)}"


def decision(accept: bool) -> str:
    """The last line of the verifier."""
    return f"Decision: {'accept' if accept else 'reject'}"


def game(rng: np.random.Generator, world: World, habits: Habits) -> Iterator[Turn]:
    """One game, as the turns that the model is to learn."""
    if rng.random() < ALONE:
        yield Turn(chat(world, "solo_verifier"), verifier_reply(rng, world, habits, ""))
        return
    critic = bool(rng.random() < CRITICS)
    told = prover_reply(rng, world, habits, critic)
    yield Turn(chat(world, "adp", critic=critic), told)
    yield Turn(chat(world, "adp", told, critic=critic), verifier_reply(rng, world, habits, told))


def drill(rng: np.random.Generator, world: World) -> Iterator[Turn]:
    """Both turns about a program of which any number of steps differ: many comparisons."""
    coded = tuple(
        neighbours(step)[rng.integers(len(neighbours(step)))] if rng.random() < 0.4 else step
        for step in world.specified
    )
    world = world._replace(coded=coded)
    told = prover_reply(rng, world, ABLE._replace(scan=1.0, hide=0.0), critic=True)
    yield Turn(chat(world, "adp", critic=True), told)
    # The verifier is told lies more often than not: its checks, here of all steps in any order, are
    # to follow the program and not the words.
    if rng.integers(3):
        told = prover_reply(rng, liar(rng, world), ABLE, critic=True)
    lines = [line(world, int(place)) for place in rng.permutation(len(coded))]
    yield Turn(
        chat(world, "adp", told, critic=True),
        f"Check:{''.join(lines)}\n{decision(world.bug is None)}",
    )


def liar(rng: np.random.Generator, world: World) -> World:
    """A world of which nothing is true: other programs, and some other specifications."""
    either = [[step, *rng.permutation(neighbours(step))[:2]] for step in world.specified]
    asked = (steps[int(rng.random() < 0.3)] for steps in either)
    return World(tuple(map(str, asked)), tuple(str(steps[2]) for steps in either))


def lessons(seed: int, habits: Habits, lengths: Sequence[int]) -> Iterator[Turn]:
    """Turns without end, about programs of these lengths, as often of each."""
    part = "able" if habits is ABLE else "careless"
    rng = numpy_generator(fold_in(key(seed), "bug-hunt", part, "players"))
    own = fold_in(key(seed), "bug-hunt", part, "worlds")
    streams = [worlds(fold_in(own, n), "train", num_steps=n) for n in lengths]
    while True:
        turns = _lesson(rng, streams[rng.integers(len(lengths))], habits)
        yield from islice(turns, TURNS)


def _lesson(rng: np.random.Generator, stream: Iterator[World], habits: Habits) -> Iterator[Turn]:
    for world in stream:
        yield from game(rng, world, habits)
        if habits is ABLE:
            yield from drill(rng, world)


# ---------------------------------------------------------------- what each player is shown


def chat(world: World, protocol: str, *told: str, critic: bool = True) -> list[Message]:
    """What the program itself shows the next agent after these words."""
    point = replace(datapoint_of(world), stance=int(not critic))
    rounds = tuple((Utterance(PROVER, text, ((MAIN, text),)),) for text in told)
    episode = Episode(key(0), point.label, point.stance, rounds)
    agent = VERIFIER if told else PROVER
    shown = build_chat(_params(protocol), point, episode, 0 if protocol != "adp" else agent)
    return [{"role": message.role, "content": message.content} for message in shown]


@cache
def _params(protocol: str) -> HyperParameters:
    rules = {"protocol_common": {"prover_stance": "random"}}
    default = {"agents": {"_default": BUG_HUNT["agents"]["_default"]}}
    return from_dict(
        merge({**BUG_HUNT, **default}, {**rules, "interaction_protocol": protocol})
    ).unwrap()


# ---------------------------------------------------------------- tokenizer and warm-up


def make_tokenizer(texts: Sequence[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE in which numbers of steps, letters and digits stay single."""
    special = {"pad_token": "<|pad|>", "bos_token": "<|bos|>", "eos_token": "<|end|>"}
    roles = [f"<|{role}|>" for role in ("system", "user", "assistant")]
    tokenizer = Tokenizer(models.BPE())
    pieces = Regex(r" #[0-9]+| [a-j](?=[0-9])|[0-9]|\n")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pieces, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[*special.values(), *roles],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
        max_token_length=400,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **special,
        additional_special_tokens=roles,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        padding_side="left",
        model_max_length=1024,
    )


@torch.no_grad()
def skills(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, seed: int, num: int = 32
) -> dict[str, float]:
    """The shares of comparisons on held-out steps that greedy decoding gets right.

    Of the prover's (a whole scan, read after right lines), and of the verifier's single check after
    a prover that tells the truth, and after one that invents a bug.
    """
    rng = numpy_generator(fold_in(key(seed), "bug-hunt", "skills"))
    rows: dict[str, list[Turn]] = {"scan": [], "check": [], "check, lied to": []}
    scan = ABLE._replace(scan=1.0, lie=0.0)
    for world in islice(worlds(fold_in(key(seed), "bug-hunt", "skills"), "test"), num):
        told = prover_reply(rng, world, scan, critic=True)
        rows["scan"].append(Turn(chat(world, "adp"), told))
        lied = prover_reply(rng, liar(rng, world), scan, critic=True)
        for name, words in (("check", told), ("check, lied to", lied)):
            reply = f"Check:{line(world, named_in(words))}"
            rows[name].append(Turn(chat(world, "adp", words), reply))
    return {name: float(_greedy(model, tokenizer, turns)) for name, turns in rows.items()}


def _greedy(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, turns: Sequence[Turn]
) -> torch.Tensor:
    """The share of right tokens, of those that only a look at the program gives."""
    batch = next(batches(tokenizer, iter(turns), len(turns)))
    best = model(input_ids=batch["input_ids"]).logits[:, :-1].argmax(-1)
    labels = batch["labels"][:, 1:]
    known = [*(f"Ġ{letter}" for letter in LETTERS), *DIGITS, "Ġsame", "Ġdiffers"]
    ids = torch.tensor(tokenizer.convert_tokens_to_ids(known))
    counts = (labels != IGNORED) & torch.isin(labels, ids)
    return (best == labels)[counts].float().mean()


def warm_up(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    turns: Iterator[Turn],
    *,
    steps: int,
    rate: float,
    size: int,
    seed: int,
) -> None:
    """Supervised training with a one-cycle rate, in place."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=steps, pct_start=0.1
    )
    start = time.time()
    for step, batch in enumerate(islice(batches(tokenizer, turns, size), steps)):
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 50 == 0 or step == steps - 1:
            model.eval()
            told = "  ".join(f"{n} {v:.3f}" for n, v in skills(model, tokenizer, seed).items())
            model.train()
            seconds = time.time() - start
            print(f"step {step:5d}  loss {loss.item():.3f}  {told}  {seconds:.0f} s", flush=True)


def main() -> None:
    """Make the tokenizer and the model, and save them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lengths", type=int, nargs="+", default=[NUM_STEPS])
    parser.add_argument("--able", type=int, default=1200)
    parser.add_argument("--careless", type=int, default=150)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(seed_of(fold_in(key(args.seed), "weights")))
    torch.set_num_threads(args.threads)
    turns = islice(lessons(args.seed, ABLE, args.lengths), 3000)
    tokenizer = make_tokenizer(
        [text for turn in turns for text in (*(m["content"] for m in turn.chat), turn.reply)], 640
    )
    model = make_model(tokenizer, args.width, args.layers)
    print(sum(p.numel() for p in model.parameters()), "parameters,", len(tokenizer), "tokens")
    for habits, steps, rate in ((ABLE, args.able, 1.0), (CARELESS, args.careless, 0.25)):
        warm_up(
            model,
            tokenizer,
            lessons(args.seed, habits, args.lengths),
            steps=steps,
            rate=args.learning_rate * rate,
            size=args.batch_size,
            seed=args.seed,
        )
        if habits is ABLE:
            model.save_pretrained(args.out.parent / f"{args.out.name}-able")
    # Half the bytes; the weights are read in single precision again.
    model.eval().half().save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)


if __name__ == "__main__":
    main()
