"""The child that trains one adapter: `python -m nip_fn_adapters.local.train RUN JOB THREADS`.

Real DPO by trl on a peft LoRA over all linear layers.  Three things are not left to trl:

- The reference policy is the one that the job names, as a frozen model of its own.  By itself trl
  would take the base model for an adapter that it makes, a copy of the adapter for one it is given.
- The tokens are those that the sampler reads and draws.  By itself trl would tokenize whole chats,
  and train on whatever the chat template writes after the end token (often a line end).
- The dropout is the job's.  By itself trl would turn it off in the LoRA layers too.
"""

import ctypes
import math
import os
import shutil
import signal
import sys
import threading
import time
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from returns.result import Failure, Result

from nip_fn.finetune import Job, PreferenceRow
from nip_fn_adapters.local.jobs import JobFiles, JobResult, job_hash, read_job, write_result
from nip_fn_adapters.local.models import (
    adapter_directory,
    context_of,
    encode_chat,
    encode_reply,
    load_adapter,
    load_base,
    load_tokenizer,
    model_directory,
    require,
)
from nip_fn_adapters.store import sync_path

PACKAGES = ("torch", "transformers", "datasets", "peft", "trl")
WEIGHTS = "adapter_model.safetensors"
PR_SET_PDEATHSIG = 1  # of Linux's prctl
Report = tuple[tuple[str, float], ...]
T = TypeVar("T")


class Encoded(NamedTuple):
    """The rows of a job as tokens."""

    rows: list[dict[str, list[int]]]  # prompt_ids, chosen_ids, rejected_ids
    max_length: int  # of a prompt with a reply
    truncated: int  # rows that the model cannot hold whole: cut, or left out with the prompt alone


def main() -> None:
    """Train the job that the arguments name."""
    run, name, threads = sys.argv[1:]
    _die_with_parent()
    began = time.monotonic()
    files = JobFiles(Path(run), name)
    job = read_job(files)
    _check(job, files)
    _or_exit(require(*PACKAGES))
    model, report = train(job, files, threads=int(threads))
    adapter = save(model, files, job)
    report = (*report, ("seconds", round(time.monotonic() - began, 3)))
    write_result(files, JobResult(job_hash(job), adapter, report))


def _die_with_parent() -> None:
    """End with whoever asked for the training: by a signal on Linux, by the pipe's end anywhere."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_watch_pipe, daemon=True).start()


def _watch_pipe() -> None:
    while os.read(0, 1):  # ends when the parent does
        pass
    os._exit(1)


def _or_exit(result: Result[T, str]) -> T:
    """What a success holds; a failure ends the process with its one line."""
    if isinstance(result, Failure):
        sys.exit(result.failure())
    return result.unwrap()


def _check(job: Job, files: JobFiles) -> None:
    """Exit with what is missing, before the seconds that the imports take."""
    _or_exit(model_directory(job.model))
    for adapter in (job.start, job.reference):
        _or_exit(adapter_directory(files.adapters, adapter))
    if not job.rows:
        sys.exit(f"{job.name} has no rows")


def train(job: Job, files: JobFiles, *, threads: int) -> tuple[Any, Report]:
    """The trained peft model, and what the training came to."""
    import torch
    from transformers import set_seed

    torch.set_num_threads(threads)
    set_seed(job.seed)
    trainer, encoded = make_trainer(job, _or_exit(model_directory(job.model)), files)
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    if not all(math.isfinite(entry["loss"]) for entry in logs):
        sys.exit("the loss is not a finite number; try a smaller rl.lr")
    weights = (weight for weight in trainer.model.parameters() if weight.requires_grad)
    if not all(bool(torch.isfinite(weight).all()) for weight in weights):
        sys.exit("a weight is not a finite number; try a smaller rl.lr")
    last_epoch = [entry for entry in logs if entry["epoch"] > job.num_epochs - 1 + 1e-6]
    report = (
        ("rows", float(len(job.rows))),
        ("truncated", float(encoded.truncated)),
        ("steps", float(len(logs))),
        ("train_tokens", float(logs[-1]["num_tokens"])),
        ("loss_first", float(logs[0]["loss"])),
        ("loss_last", float(logs[-1]["loss"])),
        ("reward_accuracy", _mean(last_epoch, "rewards/accuracies")),
        ("reward_margin", _mean(last_epoch, "rewards/margins")),
    )
    return trainer.model, report


def _mean(entries: list[dict[str, float]], name: str) -> float:
    """The mean over the steps of an epoch, each measured just before the step changed the model."""
    return float(sum(entry[name] for entry in entries) / len(entries))


def encode_rows(tokenizer: Any, rows: tuple[PreferenceRow, ...], context: int | None) -> Encoded:
    """The rows as the tokens that the sampler reads and draws, nothing cut that fits `context`."""
    encoded = []
    for row in rows:
        prompt = encode_chat(tokenizer, row.prompt)
        chosen, rejected = (encode_reply(tokenizer, text) for text in (row.chosen, row.rejected))
        encoded.append({"prompt_ids": prompt, "chosen_ids": chosen, "rejected_ids": rejected})
    lengths = [
        len(row["prompt_ids"]) + max(len(row["chosen_ids"]), len(row["rejected_ids"]))
        for row in encoded
    ]
    max_length = min([max(lengths, default=0), *([context] if context is not None else [])])
    return Encoded(
        rows=[row for row in encoded if len(row["prompt_ids"]) < max_length],
        max_length=max_length,
        truncated=sum(length > max_length for length in lengths),
    )


def make_trainer(job: Job, folder: Path, files: JobFiles) -> tuple[Any, Encoded]:
    """trl's trainer for the job, and the rows as it sees them."""
    import torch
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    class TokensTrainer(DPOTrainer):  # type: ignore[misc]
        def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
            return dataset  # tokens already

    tokenizer = load_tokenizer(folder)
    policy = load_policy(job, folder, files.adapters)
    encoded = encode_rows(tokenizer, job.rows, context_of(policy))
    if not encoded.rows:
        sys.exit(f"{job.name} has no rows that {job.model} can hold")
    config = DPOConfig(
        output_dir=str(files.folder / "trainer"),
        beta=job.beta,
        learning_rate=job.learning_rate,
        num_train_epochs=job.num_epochs,
        per_device_train_batch_size=job.batch_size,
        max_length=encoded.max_length,
        disable_dropout=job.lora_dropout == 0,
        seed=job.seed,
        use_cpu=not torch.cuda.is_available(),
        bf16=torch.cuda.is_available(),
        gradient_checkpointing=False,
        dataloader_pin_memory=torch.cuda.is_available(),
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = TokensTrainer(
        model=policy,
        ref_model=load_reference(job, folder, files.adapters),
        args=config,
        train_dataset=Dataset.from_list(encoded.rows),
        processing_class=tokenizer,
    )
    return trainer, encoded


def load_policy(job: Job, folder: Path, adapters: Path) -> Any:
    """The model to train: the adapter that the job starts from, or a fresh one on the base."""
    from peft import LoraConfig, get_peft_model

    base = load_base(folder)
    start = _or_exit(adapter_directory(adapters, job.start))
    if start is not None:
        return load_adapter(base, start, is_trainable=True)
    lora = LoraConfig(
        task_type="CAUSAL_LM",
        target_modules="all-linear",
        r=job.lora_rank,
        lora_alpha=job.lora_alpha,
        lora_dropout=job.lora_dropout,
    )
    return get_peft_model(base, lora)


def load_reference(job: Job, folder: Path, adapters: Path) -> Any:
    """The DPO reference policy that the job names, frozen."""
    reference = load_base(folder)
    adapter = _or_exit(adapter_directory(adapters, job.reference))
    if adapter is not None:
        reference = load_adapter(reference, adapter).merge_and_unload()
    return reference.requires_grad_(False).eval()


def save(model: Any, files: JobFiles, job: Job) -> str:
    """Write the adapter, then give it its name in one step; the name is returned."""
    model.peft_config["default"].base_model_name_or_path = job.model  # not where it lies here
    model.save_pretrained(files.unfinished, safe_serialization=True)
    (files.unfinished / "README.md").unlink(missing_ok=True)
    for file in (*files.unfinished.iterdir(), files.unfinished):
        sync_path(file)
    digest = blake2b((files.unfinished / WEIGHTS).read_bytes(), digest_size=4).hexdigest()
    adapter = f"{job.name}-{digest}"
    if (files.adapters / adapter).exists():  # an earlier try came as far as this
        shutil.rmtree(files.unfinished)
    else:
        files.unfinished.rename(files.adapters / adapter)
    sync_path(files.adapters)
    shutil.rmtree(files.folder / "trainer", ignore_errors=True)
    return adapter


if __name__ == "__main__":
    main()
