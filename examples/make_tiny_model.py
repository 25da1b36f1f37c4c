"""Make the tiny model of the embedded default: a tokenizer and a Llama that can just play the game.

The model is warmed up on dialogues between two scripted players, on problems of the training split
only.  The scripted verifier compares what a step asks for with what the code does, and never errs
in a comparison; but it is careless (it looks at few steps) and credulous (it often believes what
Expert says).  So the model speaks the protocol's format and judges little better than chance.
Thoroughness is left for the game to teach.

    python examples/make_tiny_model.py --out adapters/nip_fn_adapters/tiny
"""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from msgspec.structs import replace
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from nip_fn.code.builtin.arithmetic import NUM_STEPS, Example, datapoint_of, examples, mutate
from nip_fn.code.builtin.philox import integers
from nip_fn.config.codec import from_dict
from nip_fn.config.presets import with_preset
from nip_fn.game.datapoint import Datapoint
from nip_fn.game.episode import Episode, Utterance
from nip_fn.keys import Key, fold_in, key, seed_of
from nip_fn.params.run import HyperParameters
from nip_fn.prompts.chat import build_chat, plain
from nip_fn.protocols.nip import MAIN, PROVER, VERIFIER

Message = dict[str, str]
OUT = Path(__file__).parent.parent / "adapters" / "nip_fn_adapters" / "tiny"
DRILLS = 0.65  # the share of the warm-up in which every other turn is a drill
IGNORED = -100  # the label of a token that carries no loss
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}"
    "{% else %}{{ message['content'] + eos_token }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

# ---------------------------------------------------------------- the scripted players

# How many further steps the verifier looks at in one turn: index = number, value = probability.
FIRST_LOOK = (0.40, 0.30, 0.15, 0.08, 0.07)
LATER_LOOK = (0.40, 0.25, 0.15, 0.10, 0.10)
ASK = 0.55  # to ask rather than decide, with steps left to look at
SUSPICION = 0.38  # to reject with nothing found but not all steps looked at
CREDULITY = 0.85  # to decide as Expert's last answer says
HONESTY = 0.45  # of Expert, where the truth is against its verdict
DETAIL = 0.6  # of Expert, to cite the step it was asked about
LONG_GAME = 0.25  # the share of dialogues with two questions instead of one


class Turn(NamedTuple):
    """A reply and the chat it replies to."""

    chat: list[Message]
    reply: str


def dialogue(rng: np.random.Generator, example: Example) -> Iterator[Turn]:
    """One game between the scripted players, as the turns that the model is to learn."""
    datapoint, told = datapoint_of(example), []
    stance = rng.random() < 0.8
    num_questions = 1 + int(rng.random() < LONG_GAME)
    looked, claim = 0, None
    for left in reversed(range(num_questions + 1)):
        reply, looked, asked = verifier_turn(rng, example, looked, claim, left)
        yield Turn(verifier_chat(datapoint, told, left), reply)
        if asked is None:
            return
        told.append(reply)
        answer, claim = prover_turn(rng, example, asked, stance)
        yield Turn(prover_chat(datapoint, told, stance), answer)
        told.append(answer)


def verifier_turn(
    rng: np.random.Generator, example: Example, looked: int, claim: bool | None, left: int
) -> tuple[str, int, int | None]:
    """Its reply, how many steps it has looked at, and the step it asks about, None if it decides.

    `claim` is what Expert's last answer says: True that the code is right, None before any answer.
    """
    bug = NUM_STEPS if example.bug is None else example.bug
    look = FIRST_LOOK if claim is None else LATER_LOOK
    until = min(NUM_STEPS, looked + int(rng.choice(len(look), p=look)))
    found = bug < until
    until = min(until, bug + 1)
    lines = [check(example, step) for step in range(looked, until)]
    asked = int(rng.integers(until, NUM_STEPS)) if until < NUM_STEPS else NUM_STEPS - 1
    unsure = not found and until < NUM_STEPS
    if left and rng.random() < (ASK if unsure else 0.1):
        lines.append(f"Question for Expert: Is step {asked + 1} right?")
        return "\n".join(lines), until, asked
    accept = not found
    if unsure:
        accept = rng.random() >= SUSPICION
        if claim is not None and rng.random() < CREDULITY:
            accept = claim
    lines.append(f"Decision: {'accept' if accept else 'reject'}")
    return "\n".join(lines), until, None


def check(example: Example, step: int) -> str:
    """One line that sets a step of the problem beside the same step of the code."""
    asked, done = example.specified[step], example.coded[step]
    verdict = "same" if asked == done else "different"
    return f"Step {step + 1}: {asked.words}, code {done.code}: {verdict}."


def prover_turn(
    rng: np.random.Generator, example: Example, asked: int, stance: bool
) -> tuple[str, bool]:
    """Its answer about a step, and whether the answer says that the step is right."""
    truth = example.bug != asked
    claim = truth if truth == stance or rng.random() < HONESTY else stance
    words, code = example.specified[asked].words, example.coded[asked].code
    verdict = "right" if claim else "wrong"
    if rng.random() < DETAIL and claim == truth:
        return f"Answer: Step {asked + 1} asks to {words}, code {code}, it is {verdict}.", claim
    return f"Answer: Step {asked + 1} is {verdict}, I am sure.", claim


# ---------------------------------------------------------------- what each player is shown


def verifier_chat(datapoint: Datapoint, told: Sequence[str], left: int) -> list[Message]:
    """The chat before a turn of the verifier, which spoke first; `left` questions are left."""
    return _chat(datapoint, VERIFIER, told, rounds=len(told) + 1 + 2 * left)


def prover_chat(datapoint: Datapoint, told: Sequence[str], stance: bool = True) -> list[Message]:
    """The chat before a turn of the prover; `stance` True: it argues for accept."""
    return _chat(replace(datapoint, stance=int(stance)), PROVER, told, rounds=len(told) + 2)


def _chat(datapoint: Datapoint, agent: int, told: Sequence[str], rounds: int) -> list[Message]:
    """What the program itself shows the agent after these words, in a game of so many rounds."""
    turns = tuple(
        (Utterance((VERIFIER, PROVER)[i % 2], text, ((MAIN, text),)),)
        for i, text in enumerate(told)
    )
    episode = Episode(key(0), datapoint.label, datapoint.stance, turns)
    chat = build_chat(_params(rounds), datapoint, episode, agent)
    return plain(chat)


@cache
def _params(rounds: int) -> HyperParameters:
    """The embedded settings; the prover takes the datapoint's side."""
    rules = {
        "nip_protocol": {"max_message_rounds": rounds},
        "protocol_common": {"randomize_prover_stance": True},
    }
    return from_dict(with_preset({"dataset": "builtin:arithmetic", **rules})).unwrap()


# ---------------------------------------------------------------- tokenizer and model


def make_tokenizer(
    texts: Sequence[str], vocab_size: int, *, words: bool = False
) -> PreTrainedTokenizerFast:
    """Byte-level BPE: lossless on any text, digits and line ends single.

    Phrases are merged, too, unless no token is to reach beyond a word.
    """
    special = {
        "pad_token": "<|pad|>",
        "bos_token": "<|bos|>",
        "eos_token": "<|end|>",
    }
    roles = [f"<|{role}|>" for role in ("system", "user", "assistant")]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.Split("\n", behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[*special.values(), *roles],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
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


def make_model(tokenizer: PreTrainedTokenizerFast, width: int, layers: int) -> LlamaForCausalLM:
    """A Llama with fresh weights."""
    ids = {
        name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")
    }
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=width * 5 // 2,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        **ids,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(do_sample=True, temperature=1.0, top_k=0, **ids)
    return model


def encode(tokenizer: PreTrainedTokenizerFast, turn: Turn) -> tuple[list[int], list[int]]:
    """The tokens of a turn, and its labels: the reply's tokens alone carry a loss."""
    prompt = tokenizer.apply_chat_template(turn.chat, add_generation_prompt=True, return_dict=False)
    reply = [*tokenizer.encode(turn.reply, add_special_tokens=False), tokenizer.eos_token_id]
    return prompt + reply, [IGNORED] * len(prompt) + reply


def batches(
    tokenizer: PreTrainedTokenizerFast, turns: Iterator[Turn], size: int
) -> Iterator[dict[str, torch.Tensor]]:
    """Batches of encoded turns, padded on the right: what is causal needs no mask then."""
    while True:
        encoded = [encode(tokenizer, turn) for turn in islice(turns, size)]
        length = max(len(tokens) for tokens, _ in encoded)
        pad = tokenizer.pad_token_id
        yield {
            "input_ids": torch.tensor([t + [pad] * (length - len(t)) for t, _ in encoded]),
            "labels": torch.tensor([v + [IGNORED] * (length - len(v)) for _, v in encoded]),
        }


def numpy_generator(key: Key) -> np.random.Generator:
    """NumPy's Philox: the model is made once and shipped, so its stream may change one day."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))


def lessons(seed: int, drills: int) -> Iterator[Turn]:
    """Turns on problems of the training split, without end; at first every other one a drill."""
    rng = numpy_generator(fold_in(key(seed), "warm-up", "dialogues"))
    problems = examples(integers(fold_in(key(seed), "warm-up", "problems")), "train")
    games = (turn for example in problems for turn in dialogue(rng, example))
    for _ in range(drills):
        yield drill(rng, next(problems))
        yield next(games)
    yield from games


def drill(rng: np.random.Generator, example: Example) -> Turn:
    """Checks of all steps from some step on, half of them wrong: many comparisons in few words."""
    steps = example.specified

    def draw(size: int) -> int:
        return int(rng.integers(size))

    coded = tuple(mutate(draw, [step])[0] if rng.integers(2) else step for step in steps)
    example, first, told = Example(specified=steps, coded=coded), 0, list[str]()
    if rng.integers(2):
        first, asked = (int(step) for step in rng.integers(NUM_STEPS, size=2))
        lines = [check(example, step) for step in range(first)]
        told.append("\n".join([*lines, f"Question for Expert: Is step {asked + 1} right?"]))
        told.append(prover_turn(rng, example, asked, stance=True)[0])
    lines = [check(example, step) for step in range(first, NUM_STEPS)]
    verdict = f"Decision: {'accept' if steps == coded else 'reject'}"
    chat = verifier_chat(datapoint_of(example), told, 0 if told else 1)
    return Turn(chat, "\n".join([*lines, verdict]))


def warm_up(
    model: LlamaForCausalLM,
    data: Iterator[dict[str, torch.Tensor]],
    steps: int,
    rate: float,
    *,
    every: int = 50,
    report: Callable[[], str] = str,
) -> None:
    """Supervised training with a one-cycle rate, in place; tells how it goes now and then."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=steps, pct_start=0.1
    )
    start = time.time()
    for step, batch in enumerate(islice(data, steps)):
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % every == 0 or step == steps - 1:
            told = f"step {step:5d}  loss {loss.item():.3f}  {time.time() - start:.0f} s"
            print(f"{told}  {report()}".rstrip(), flush=True)


# ---------------------------------------------------------------- what came out


@torch.no_grad()
def likely(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    rows: Mapping[str, Sequence[Turn]],
) -> str:
    """The mean probability of whole replies, by the name of their kind."""
    shown = []
    for name, some in rows.items():
        batch = next(batches(tokenizer, iter(some), len(some)))
        logits = torch.log_softmax(model(input_ids=batch["input_ids"]).logits[:, :-1].float(), -1)
        labels = batch["labels"][:, 1:]
        picked = logits.gather(2, labels.clamp(min=0)[..., None])[..., 0] * (labels != IGNORED)
        shown.append(f"{name} {picked.sum(1).exp().mean():.2f}")
    return "  ".join(shown)


@torch.inference_mode()
def reply(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, chats: Sequence[list[Message]]
) -> list[str]:
    """One reply to each chat, sampled at temperature 1."""
    prompts = [
        tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        for chat in chats
    ]
    inputs = tokenizer(prompts, add_special_tokens=False, padding=True, return_tensors="pt")
    inputs.pop("token_type_ids", None)
    tokens = model.generate(**inputs, max_new_tokens=64)
    return tokenizer.batch_decode(
        tokens[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True
    )


def play(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, games: Sequence[Example]
) -> list[list[str]]:
    """One game of three rounds (verifier, prover, verifier) on each example."""
    told: list[list[str]] = [[] for _ in games]
    for round in range(3):
        open_games = [i for i, said in enumerate(told) if not decided(said)]
        chats = [
            prover_chat(datapoint_of(games[i]), told[i])
            if round == 1
            else verifier_chat(datapoint_of(games[i]), told[i], 1 - round // 2)
            for i in open_games
        ]
        for i, text in zip(open_games, reply(model, tokenizer, chats), strict=True):
            told[i].append(text)
    return told


def decided(said: Sequence[str]) -> bool:
    """Whether the last thing said in a game is a decision."""
    return bool(said) and said[-1].splitlines()[-1:] in (["Decision: accept"], ["Decision: reject"])


def report(games: Sequence[Example], told: Sequence[Sequence[str]]) -> dict[str, float]:
    """How well games went: the format kept, the verdict right, the checks right and how many."""
    ended = [decided(said) for said in told]
    right = [
        said[-1].endswith("accept" if game.bug is None else "reject")
        for game, said, end in zip(games, told, ended, strict=True)
        if end
    ]
    checks = [
        (game, line)
        for game, said in zip(games, told, strict=True)
        for text in said[::2]
        for line in text.splitlines()
        if line.startswith("Step ")
    ]
    good = [line in {check(game, step) for step in range(NUM_STEPS)} for game, line in checks]
    return {
        "format kept": sum(ended) / len(games),
        "verdict right": sum(right) / len(games),
        "accepted": sum(said[-1].endswith("accept") for said in told) / len(games),
        "checks right": sum(good) / max(1, len(good)),
        "checks per game": len(good) / len(games),
    }


def main() -> None:
    """Make the tokenizer and the model, save them, and say how the model plays."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    args = parser.parse_args()
    torch.manual_seed(seed_of(fold_in(key(args.seed), "weights")))
    torch.set_num_threads(2)
    texts = [
        text
        for turn in islice(lessons(args.seed, drills=0), 3000)
        for text in (*(message["content"] for message in turn.chat), turn.reply)
    ]
    tokenizer = make_tokenizer(texts, vocab_size=640)
    model = make_model(tokenizer, args.width, args.layers)
    turns = lessons(args.seed, drills=int(args.steps * DRILLS) * args.batch_size // 2)
    data = batches(tokenizer, turns, args.batch_size)
    warm_up(model, data, args.steps, args.learning_rate)
    model.eval()
    args.out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    draw = integers(fold_in(key(args.seed), "warm-up", "report"))
    games = list(islice(examples(draw, "validation"), 500))
    for name, value in report(games, play(model, tokenizer, games)).items():
        print(f"{name:16} {value:6.2f}")


if __name__ == "__main__":
    main()
