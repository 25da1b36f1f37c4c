"""How the embedded models are made: a tokenizer, a Llama with fresh weights, and its warm-up.

`make_tea_model.py` and `make_bughunt_model.py` warm models up on dialogues of scripted players.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from nip_fn.keys import Key

Message = dict[str, str]
IGNORED = -100  # the label of a token that carries no loss
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
