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
PARTS = 4  # of a batch
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}"
    "{% else %}{{ message['content'] + eos_token }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


APART = r"\d|\n"  # digits and line ends are tokens of their own


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
    """Batches of encoded turns, in parts of like length."""
    while some := [encode(tokenizer, turn) for turn in islice(turns, size)]:
        some.sort(key=lambda encoded: len(encoded[0]))
        part = -(-size // PARTS)
        yield [padded(some[i : i + part], tokenizer.pad_token_id) for i in range(0, size, part)]


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


def warm_up(
    model: LlamaForCausalLM,
    data: Iterator[Batch],
    steps: int,
    rate: float,
    *,
    every: int = 50,
    report: Callable[[], str] = str,
) -> None:
    """Supervised training with a one-cycle rate, in place; tells how it goes now and then."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=steps, pct_start=0.1
    )
    start = time.time()
    for step, batch in enumerate(islice(data, steps)):
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
        if step % every == 0 or step == steps - 1:
            told = f"step {step:5d}  loss {loss:.3f}  {time.time() - start:.0f} s"
            print(f"{told}  {report()}".rstrip(), flush=True)


def parser(description: str, stages: Sequence[Stage], batch_size: int) -> argparse.ArgumentParser:
    """The options of a script that makes a base model; takes its docstring and its stages."""
    options = argparse.ArgumentParser(description=description.partition("\n")[0])
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument(
        "--steps", type=int, nargs=len(stages), default=[stage.steps for stage in stages]
    )
    options.add_argument("--batch-size", type=int, default=batch_size)
    options.add_argument("--threads", type=int, default=2)
    return options


def make_base_model(
    args: argparse.Namespace,
    game: str,
    stages: Sequence[Stage],
    report: Callable[[LlamaForCausalLM, PreTrainedTokenizerFast], str],
    **tokenization: object,
) -> None:
    """Make a tokenizer and a model, train all stages, and save both, the weights in float16.

    `made.json` beside them says how they were made.

    Args:
        args: As `parser` reads them.
        game: Its name, from which all keys are derived, with the seed.
        stages: In their order.
        report: Says how good a model is.
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
        print(stage.name)
        data = batches(tokenizer, stage.turns(fold_in(own, stage.name)), args.batch_size)
        tell = partial(report, model, tokenizer)
        warm_up(model, data, steps, stage.rate, every=100, report=tell)
    model.eval().half().save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    made = {"script": Path(sys.argv[0]).name, "options": sys.argv[1:], "seed": args.seed}
    made |= {"steps": list(args.steps), "probabilities": report(model.float(), tokenizer)}
    (args.out / "made.json").write_text(json.dumps(made, indent=2) + "\n")


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
        batch = padded([encode(tokenizer, turn) for turn in some], tokenizer.pad_token_id)
        logits = torch.log_softmax(model(input_ids=batch["input_ids"]).logits[:, :-1].float(), -1)
        labels = batch["labels"][:, 1:]
        picked = logits.gather(2, labels.clamp(min=0)[..., None])[..., 0] * (labels != IGNORED)
        shown.append(f"{name} {picked.sum(1).exp().mean():.2f}")
    return "  ".join(shown)
