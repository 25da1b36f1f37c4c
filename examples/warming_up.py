"""How the embedded models are made: a tokenizer, a Llama with fresh weights, and its warm-up.

`make_tea_model.py` and `make_bughunt_model.py` warm models up on dialogues of scripted players.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from nip_fn.keys import Key, fold_in, key, seed_of

Message = dict[str, str]
IGNORED = -100  # the label of a token that carries no loss
APART = r"\d|\n"  # digits and line ends are tokens of their own
PARTS = 4  # of a batch
TOLD = 100  # batches between two lines
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}"
    "{% else %}{{ message['content'] + eos_token }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


class Turn(NamedTuple):
    """A reply and the chat it replies to."""

    chat: list[Message]
    reply: str


class Stage(NamedTuple):
    """A part of a warm-up.

    name: shown while it runs.
    turns: what is learnt, without end; consumes a key.
    rate: the highest learning rate.
    steps: the number of batches.
    """

    name: str
    turns: Callable[..., Iterator[Turn]]
    rate: float
    steps: int


# ---------------------------------------------------------------- tokenizer and model


def make_tokenizer(
    texts: Sequence[str], vocab_size: int, *, apart: str = APART, words: bool = False
) -> PreTrainedTokenizerFast:
    """Byte-level BPE: lossless on any text.

    Args:
        texts: What it is trained on.
        vocab_size: The most tokens.
        apart: A pattern of what is never merged with anything else.
        words: True if no token is to reach beyond a word; phrases are merged, too, otherwise.
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
            pre_tokenizers.Split(Regex(apart), behavior="isolated"),
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
        # So narrow a model learns to look things up several times sooner than from the usual 0.02.
        initializer_range=0.06,
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


Batch = list[dict[str, torch.Tensor]]  # in parts


def batches(
    tokenizer: PreTrainedTokenizerFast, turns: Iterator[Turn], size: int
) -> Iterator[Batch]:
    """Batches of turns, which have no end, encoded, in parts of like length."""
    part = -(-size // PARTS)
    while True:
        rows = [encode(tokenizer, turn) for turn in islice(turns, size)]
        rows.sort(key=lambda row: len(row[0]))
        yield [padded(rows[i : i + part], tokenizer.pad_token_id) for i in range(0, size, part)]


def padded(rows: Sequence[tuple[list[int], list[int]]], pad: int) -> dict[str, torch.Tensor]:
    """Tokens and labels, padded on the right: what is causal needs no mask then."""
    length = max(len(tokens) for tokens, _ in rows)
    return {
        "input_ids": torch.tensor([t + [pad] * (length - len(t)) for t, _ in rows]),
        "labels": torch.tensor([v + [IGNORED] * (length - len(v)) for _, v in rows]),
    }


def numpy_generator(key: Key) -> np.random.Generator:
    """NumPy's Philox: the model is made once and shipped, so its stream may change one day."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))


# (a model, its tokenizer) -> the mean probability of whole right replies, by the name of a skill.
Report = Callable[[LlamaForCausalLM, PreTrainedTokenizerFast], dict[str, float]]


def warm_up(
    model: LlamaForCausalLM,
    data: Iterator[Batch],
    stage: Stage,
    report: Callable[[], dict[str, float]],
) -> None:
    """Supervised training with a one-cycle rate, in place; tells how it goes now and then."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=stage.rate, betas=(0.9, 0.95), weight_decay=0.01
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, stage.rate, total_steps=stage.steps, pct_start=0.1
    )
    start = time.time()
    for step, batch in enumerate(islice(data, stage.steps)):
        num_tokens = sum(int((part["labels"] != IGNORED).sum()) for part in batch)
        loss = 0.0
        for part in batch:
            share = model(**part, num_items_in_batch=num_tokens).loss
            share.backward()
            loss += share.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % TOLD == 0 or step == stage.steps - 1:
            seconds = time.time() - start
            skills = written(report())
            print(f"batch {step:5d}  loss {loss:.3f}  {seconds:.0f} s  {skills}", flush=True)


def written(skills: Mapping[str, float]) -> str:
    """The probabilities in a line."""
    return "  ".join(f"{name} {probability:.2f}" for name, probability in skills.items())


def parser(description: str, stages: Sequence[Stage], batch_size: int) -> argparse.ArgumentParser:
    """The options of a script that makes a base model; takes its docstring and its stages."""
    options = argparse.ArgumentParser(description=description.partition("\n")[0])
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument(
        "--steps",
        type=int,
        nargs=len(stages),
        default=[stage.steps for stage in stages],
        help="of each stage; 0 leaves it out",
    )
    options.add_argument("--batch-size", type=int, default=batch_size)
    options.add_argument("--threads", type=int, default=2)
    return options


def make_base_model(
    args: argparse.Namespace,
    game: str,
    stages: Sequence[Stage],
    report: Report,
    **tokenization: object,
) -> None:
    """Make a tokenizer and a model, train all stages, and save both, the weights in float16.

    `made.json` beside them says how they were made.

    Args:
        args: As `parser` reads them.
        game: Its name, from which all keys are derived, with the seed.
        stages: In their order.
        report: The skills of a model.
        **tokenization: Options of `make_tokenizer`.
    """
    own = fold_in(key(args.seed), game)
    torch.manual_seed(seed_of(fold_in(own, "weights")))
    torch.set_num_threads(args.threads)
    texts = [
        text
        for stage in stages[1:]
        for turn in islice(stage.turns(fold_in(own, "words", stage.name)), 2000)
        for text in (*(message["content"] for message in turn.chat), turn.reply)
    ]
    tokenizer = make_tokenizer(texts, vocab_size=640, **tokenization)
    model = make_model(tokenizer, width=128, layers=3)
    for stage, steps in zip(stages, args.steps, strict=True):
        if not steps:
            continue
        print(stage.name)
        data = batches(tokenizer, stage.turns(fold_in(own, stage.name)), args.batch_size)
        tell = partial(report, model, tokenizer)
        warm_up(model, data, stage._replace(steps=steps), tell)
    model.eval().half().save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    made = {
        "game": game,
        "script": Path(sys.argv[0]).name,
        "seed": args.seed,
        "batch_size": args.batch_size,
        "steps": args.steps,
        "skills": {name: round(p, 3) for name, p in report(model.float(), tokenizer).items()},
    }
    (args.out / "made.json").write_text(json.dumps(made, indent=2) + "\n")


# ---------------------------------------------------------------- what came out


@torch.no_grad()
def likely(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    rows: Mapping[str, Sequence[Turn]],
) -> dict[str, float]:
    """The mean probability of whole replies, by the name of their kind."""
    probabilities = {}
    for name, some in rows.items():
        batch = padded([encode(tokenizer, turn) for turn in some], tokenizer.pad_token_id)
        logits = torch.log_softmax(model(input_ids=batch["input_ids"]).logits[:, :-1].float(), -1)
        labels = batch["labels"][:, 1:]
        picked = logits.gather(2, labels.clamp(min=0)[..., None])[..., 0] * (labels != IGNORED)
        probabilities[name] = float(picked.sum(1).exp().mean())
    return probabilities
