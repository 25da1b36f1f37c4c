"""Training by trl, which reads every row by itself, and on packed rows, in processor time.

Both train the same job, of trees as MALT grows them, in processes that alternate.  The limit is one
forward and backward pass over the distinct tokens of each step, as texts of a row's length.
"""

import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from nip_fn.keys import Key, fold_in, key, randint
from nip_fn.prompts.chat import Chat, Message
from nip_fn.training.jobs import Job, PreferenceRow
from nip_fn.training.packing import TokenRow, pack

from ..adapters.tiny_llama import make_tiny_llama

MODULE = "tests.benchmarks.bench_train"
PROMPT, REPLY = 600, 60  # characters, which are tokens
ROUNDS = 2


class Size(NamedTuple):
    """A model, and how many trees it is trained on."""

    hidden: int
    layers: int
    vocabulary: int
    trees: int


SIZES = {"0.1 M": Size(64, 2, 512, 24), "60 M": Size(512, 12, 32000, 2)}


def run() -> list[tuple[str, str]]:
    """Name and figure of each measurement."""
    table = []
    for name in SIZES:
        seconds = dict.fromkeys(("plain", "packed", "limit"), 0.0)
        memory = dict.fromkeys(seconds, 0)
        for _ in range(ROUNDS):
            for way in seconds:
                printed = subprocess.run(
                    [sys.executable, "-m", MODULE, name, way],
                    stdout=subprocess.PIPE,
                    check=True,
                    cwd=Path(__file__).parents[2],
                    text=True,
                ).stdout
                spent, size = printed.splitlines()[-1].split()
                seconds[way] += float(spent)
                memory[way] = max(memory[way], int(size))
        plain, packed, limit = (seconds[way] / ROUNDS for way in seconds)
        table += [
            (f"training, {name} parameters, trl : packed", f"{plain / packed:.1f}"),
            (f"training, {name} parameters, packed : limit", f"{packed / limit:.2f}"),
            (
                f"training, {name} parameters, packed, peak memory against trl's",
                f"{memory['packed'] / 1e6:.2f} GB : {memory['plain'] / 1e6:.2f} GB",
            ),
        ]
    return table


def make_model(folder: Path, size: Size) -> Path:
    """A Llama with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    make_tiny_llama(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=size.hidden * 11 // 4,
        num_hidden_layers=size.layers,
        num_attention_heads=size.hidden // 32,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def tree(place: Key) -> Iterator[PreferenceRow]:
    """Pairs of a tree of three rounds, in which two replies of each round are gone on from."""
    fronts: list[Chat] = [(Message("user", text(fold_in(place, "root"), PROMPT)),)]
    for turn in range(3):
        grown: list[Chat] = []
        for branch, chat in enumerate(fronts):
            at = fold_in(place, turn, branch)
            first, second = (text(fold_in(at, i), REPLY) for i in range(2))
            yield PreferenceRow(chat, first, second)
            for i, reply in enumerate((first, second)):
                answer = Message("user", text(fold_in(at, "answer", i), REPLY))
                grown.append((*chat, Message("assistant", reply), answer))
        fronts = grown[:2]


def text(place: Key, length: int) -> str:
    """Random letters, of a length that is at random within a fifth of `length`."""
    size = length * 4 // 5 + randint(fold_in(place, "length"), length * 2 // 5)
    return "".join(chr(97 + randint(fold_in(place, i), 26)) for i in range(size))


def make_job(model: Path, trees: int) -> Job:
    """One epoch over some trees."""
    return Job(
        name="verifier-0",
        group="verifier",
        iteration=0,
        model=str(model),
        start=None,
        reference=None,
        learning_rate=1e-4,
        num_epochs=1,
        beta=0.1,
        lora_rank=16,
        lora_alpha=32,
        lora_dropout=0.0,
        batch_size=8,
        seed=1,
        rows=tuple(row for i in range(trees) for row in tree(fold_in(key(0), i))),
    )


def main(name: str, way: str) -> None:
    """Train in one way; print the processor seconds of the training and the peak memory in KB."""
    import torch

    from nip_fn_adapters.local.jobs import JobFiles, write_job
    from nip_fn_adapters.local.loading import load
    from nip_fn_adapters.local.packed import train_packed
    from nip_fn_adapters.local.plain import train_plain

    torch.set_num_threads(1)
    size = SIZES[name]
    with TemporaryDirectory() as folder:
        job = make_job(make_model(Path(folder) / "model", size), size.trees)
        files = JobFiles(Path(folder), job.name)
        write_job(files, job)
        loaded = load(job, files)
        import trl.trainer.dpo_trainer  # noqa: F401  # imports are no part of a step

        began = time.process_time()
        if way == "limit":
            size = job.batch_size
            for start in range(0, len(loaded.encoded.rows), size):
                read_once(loaded.model, loaded.encoded.rows[start : start + size])
        else:
            (train_plain if way == "plain" else train_packed)(job, files, loaded)
        print(time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def read_once(model: Any, rows: list[TokenRow]) -> None:
    """One forward and backward pass over the rows' distinct tokens, as texts of a row's length."""
    import torch

    (packed,) = pack(rows, sum(len(sequence) for row in rows for sequence in row.sequences))
    texts = -(-len(packed.tokens) // (PROMPT + REPLY))
    targets = sum(len(reply) for replies in packed.replies for reply in replies)
    ids = torch.zeros(texts, len(packed.tokens) // texts, dtype=torch.long)
    logits = model(input_ids=ids, logits_to_keep=targets // texts, use_cache=False).logits
    logits.logsumexp(-1).sum().backward()


if __name__ == "__main__":
    if sys.argv[1:]:
        main(*sys.argv[1:])
    for told, figure in [] if sys.argv[1:] else run():
        print(f"{told:70} {figure}")
