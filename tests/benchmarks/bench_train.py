"""The speed and memory of a training by trl, on packed rows, and at the limit.

Each way trains the same trees, shaped as MALT's, in processes that alternate:

plain         trl, which reads every row by itself
plain steps   its steps alone
packed        `train_packed`, with the reference policy's scores before and the log-ratios
              after it
packed steps  its steps alone
limit         for each step a pass over its distinct tokens, forward and backward, as texts of one
              length

The model is builtin:tea, and with --full a larger one, too.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from nip_fn.game.chat import Chat, Message
from nip_fn.keys import Key, fold_in, key, randint
from nip_fn.training.losses import DPO
from nip_fn.training.packing import TokenRow, pack
from nip_fn.training.rows import PREFERENCE, preference
from nip_fn.training.tuning import Job
from nip_fn_adapters.providers.local.jobs import JobFiles
from nip_fn_adapters.providers.local.loading import Folders, LoadedJob
from nip_fn_adapters.providers.local.models import (
    MODELS,
    context_of,
    exit_on_failure,
    load_tokenizer,
    model_directory,
    precision,
)
from nip_fn_adapters.providers.local.rows import Encoded
from nip_fn_adapters.providers.local.steps import batches
from nip_fn_adapters.providers.local.weights import load_trainable
from tests.benchmarks.memory import peak_megabytes

RANDOM = "random:60M"  # a Llama with random weights
WAYS = ("plain", "plain steps", "packed", "packed steps", "limit")
TREES = 4
PROMPT, REPLY = 600, 60  # tokens; shorter where the model's context is
ROUNDS = 3  # of a tree; in each, two branches grow


class Speed(NamedTuple):
    """The measurements of a way."""

    seconds: float  # of the processor; on a GPU, of the clock
    steps: int
    tokens: int  # of the rows, each as often as it stands in them
    gigabytes: float  # the most memory that the process, or its GPU, held


def run(*, full: bool) -> Iterator[tuple[str, str]]:
    """(measure, figure) of each measurement; of a larger model, too, if `full`."""
    for model in ("builtin:tea", RANDOM) if full else ("builtin:tea",):
        yield from _figures(model)


def _figures(model: str) -> Iterator[tuple[str, str]]:
    """In processor time; on a GPU, of the clock."""
    seconds = {}
    for way in WAYS:
        speed = _in_a_process(model, way)
        seconds[way] = speed.seconds
        yield (
            f"training, {model}, {way}",
            f"{speed.seconds:.1f} s for {speed.steps} steps, "
            f"{speed.tokens / speed.seconds:,.0f} tokens of rows/s, {speed.gigabytes:.2f} GB",
        )
    for part, way, baseline in (
        ("whole", "plain", "packed"),
        ("a step", "plain steps", "packed steps"),
        ("a step", "packed steps", "limit"),
    ):
        ratio = seconds[way] / seconds[baseline]
        yield f"training, {model}, {part}, {way} : {baseline}", f"{ratio:.2f}"


def _in_a_process(model: str, way: str) -> Speed:
    command = (sys.executable, "-m", "tests.benchmarks.bench_train", model, way)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return Speed(*json.loads(done.stdout.splitlines()[-1]))


def measure(model: str, way: str) -> Speed:
    """Train in one way, in this process."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    with TemporaryDirectory() as folder:
        base = _random_llama(Path(folder)) if model == RANDOM else None
        job = _job(str(base or model))
        files = JobFiles(Path(folder), job.name)
        files.folder.mkdir(parents=True)
        loaded = _load(job)
        train = _way(way, job, files, loaded)
        clock = time.perf_counter if torch.cuda.is_available() else time.process_time
        began = clock()
        train()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds = clock() - began
    rows = loaded.encoded.rows
    tokens = sum(len(sequence) for row in rows for sequence in row.sequences)
    return Speed(seconds, -(-len(rows) // job.batch_size), tokens, _gigabytes())


def _gigabytes() -> float:
    import torch

    if torch.cuda.is_available():
        return float(torch.cuda.max_memory_allocated()) / 1e9
    return peak_megabytes() / 1e3


def _way(way: str, job: Job, files: JobFiles, loaded: LoadedJob) -> Callable[[], object]:
    """The function that trains, all that is no part of a training done before."""
    import torch
    import trl.trainer.sft_trainer  # noqa: F401
    from accelerate import Accelerator

    from nip_fn_adapters.providers.local.attention import attend_in_blocks
    from nip_fn_adapters.providers.local.packed import backward, train_packed
    from nip_fn_adapters.providers.local.plain import rows_trainer, train_plain
    from nip_fn_adapters.providers.local.steps import Batch

    if way == "plain":
        return lambda: train_plain(job, files, loaded)
    if way == "plain steps":
        trainer = rows_trainer(job, files, loaded)
        return lambda: trainer.train()
    if way == "packed":
        attend_in_blocks(loaded.model)
        return lambda: train_packed(job, files, loaded)
    accelerator = Accelerator(mixed_precision=precision(), cpu=not torch.cuda.is_available())
    rows, model = loaded.encoded.rows, accelerator.prepare(loaded.model.train())
    members = [step for _, step in batches(job, loaded.encoded, job.batch_size)]
    steps = [[rows[row] for row in step] for step in members]
    if way == "limit":
        return lambda: _read_once(model, steps)
    attend_in_blocks(loaded.model)
    return lambda: [
        backward(job, model, accelerator, Batch.of(loaded.encoded, None, step)) for step in members
    ]


def _read_once(model: Any, steps: list[list[TokenRow]]) -> None:
    """For each step a pass over its rows' distinct tokens, as texts of a row's length."""
    import torch

    device = next(model.parameters()).device
    for rows in steps:
        sequences = [sequence for row in rows for sequence in row.sequences]
        (packed,) = pack(rows, sum(map(len, sequences)))
        texts = -(-len(packed.tokens) // max(map(len, sequences)))
        targets = sum(len(reply) for replies in packed.replies for reply in replies)
        ids = torch.zeros(texts, len(packed.tokens) // texts, dtype=torch.long, device=device)
        logits = model(input_ids=ids, logits_to_keep=targets // texts, use_cache=False).logits
        logits.logsumexp(-1).sum().backward()


def _load(job: Job) -> LoadedJob:
    """The model, and rows of tokens at random."""
    folders = Folders(exit_on_failure(model_directory(job.model)), None, None)
    model = load_trainable(job, folders.base, None)
    room = (context_of(model) or 8192) / (PROMPT + 2 * ROUNDS * REPLY * 1.2)
    lengths = tuple(int(length * min(1.0, room)) for length in (PROMPT, REPLY))
    vocabulary = model.config.get_text_config().vocab_size
    pairs = [
        pair
        for i in range(TREES)
        for pair in _tree(fold_in(key(0), i), *lengths, vocabulary=vocabulary)
    ]
    longest = max(len(sequence) for row, _ in pairs for sequence in row.sequences)
    rows, chats = (list(column) for column in zip(*pairs, strict=True))
    weights: list[tuple[float, ...]] = [PREFERENCE] * len(rows)
    unknown = [tuple(np.full(len(reply), np.nan) for reply in row.replies) for row in rows]
    encoded = Encoded(rows, chats, weights, unknown, longest, truncated=0, dropped=0)
    return LoadedJob(folders, model, load_tokenizer(folders.base), encoded)


def _tree(
    place: Key, prompt: int, reply: int, *, vocabulary: int
) -> Iterator[tuple[TokenRow, Chat]]:
    """Pairs of a tree of some rounds, in which two replies of each are gone on from."""

    def text(at: Key, length: int) -> list[int]:
        size = length * 4 // 5 + randint(fold_in(at, "length"), max(1, length * 2 // 5))
        return [randint(fold_in(at, i), vocabulary) for i in range(size)]

    def message(tokens: list[int]) -> Message:
        return Message("user", str(tokens))

    root = text(fold_in(place, "root"), prompt)
    fronts: list[tuple[list[int], Chat]] = [(root, (message(root),))]
    for turn in range(ROUNDS):
        grown = []
        for branch, (before, chat) in enumerate(fronts):
            at = fold_in(place, turn, branch)
            first, second = (text(fold_in(at, i), reply) for i in range(2))
            yield TokenRow(before, (first, second)), chat
            for i, own in enumerate((first, second)):
                answer = text(fold_in(at, "answer", i), reply)
                grown.append((before + own + answer, (*chat, message(own), message(answer))))
        fronts = grown[:2]


def _job(model: str) -> Job:
    """One epoch in steps of 8 pairs."""
    return Job(
        name="bench-0",
        group="bench",
        iteration=0,
        model=model,
        start=None,
        reference=None,
        learning_rate=1e-4,
        num_epochs=1,
        loss=DPO(),
        lora_rank=16,
        lora_alpha=32,
        lora_dropout=0.0,
        batch_size=8,
        seed=1,
        rows=(preference((), "", ""),),  # a preference: the rows to train on are tokens
    )


def _random_llama(folder: Path) -> Path:
    """A Llama of 60 million random weights, with a tokenizer that it does not need."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=12,
        num_attention_heads=16,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    for file in (MODELS / "tea").glob("*token*"):
        copyfile(file, folder / "model" / file.name)
    return folder / "model"


if __name__ == "__main__":
    with redirect_stdout(sys.stderr):
        speed = measure(*sys.argv[1:])
    print(json.dumps(speed))
