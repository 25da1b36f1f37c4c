"""The child that trains one adapter: `python -m nip_fn_adapters.local.train RUN JOB THREADS`.

Real DPO by trl on a peft LoRA over all linear layers.  The reference policy is the one that the job
names, as a frozen model of its own: trl's own choice (the base model for a fresh adapter, a copy of
the adapter otherwise) is never used.
"""

import math
import os
import shutil
import sys
import threading
import time
from hashlib import blake2b
from pathlib import Path
from typing import Any

from nip_fn.finetune import Job
from nip_fn_adapters.local.jobs import JobFiles, JobResult, job_hash, read_job, write_result
from nip_fn_adapters.local.models import (
    context_of,
    load_adapter,
    load_base,
    load_tokenizer,
    model_directory,
)

WEIGHTS = "adapter_model.safetensors"
Report = tuple[tuple[str, float], ...]


def main() -> None:
    """Train the job that the arguments name."""
    run, name, threads = sys.argv[1:]
    threading.Thread(target=_die_with_parent, daemon=True).start()
    files = JobFiles(Path(run), name)
    job = read_job(files)
    began = time.monotonic()
    model, report = train(job, files, threads=int(threads))
    adapter = save(model, files, job)
    report = (*report, ("seconds", round(time.monotonic() - began, 3)))
    write_result(files, JobResult(job_hash(job), adapter, report))


def _die_with_parent() -> None:
    while os.read(0, 1):  # ends when the parent does
        pass
    os._exit(1)


def train(job: Job, files: JobFiles, *, threads: int) -> tuple[Any, Report]:
    """The trained peft model, and what the training came to."""
    import torch
    from transformers import set_seed

    torch.set_num_threads(threads)
    set_seed(job.seed)
    folder = model_directory(job.model).unwrap()
    trainer, truncated = make_trainer(job, folder, files)
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    if not all(math.isfinite(entry["loss"]) for entry in logs):
        sys.exit("the loss is not a finite number; try a smaller rl.lr")
    weights = (weight for weight in trainer.model.parameters() if weight.requires_grad)
    if not all(bool(torch.isfinite(weight).all()) for weight in weights):
        sys.exit("a weight is not a finite number; try a smaller rl.lr")
    report = (
        ("rows", float(len(job.rows))),
        ("truncated", float(truncated)),
        ("steps", float(len(logs))),
        ("loss_first", float(logs[0]["loss"])),
        ("loss_last", float(logs[-1]["loss"])),
        ("reward_accuracy", float(logs[-1]["rewards/accuracies"])),
        ("reward_margin", float(logs[-1]["rewards/margins"])),
    )
    return trainer.model, report


def make_trainer(job: Job, folder: Path, files: JobFiles) -> tuple[Any, int]:
    """trl's trainer for the job, and how many of its rows are longer than the model can hold."""
    import torch
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    tokenizer = load_tokenizer(folder)
    rows = [
        {
            "prompt": [{"role": said.role, "content": said.content} for said in row.prompt],
            "chosen": [{"role": "assistant", "content": row.chosen}],
            "rejected": [{"role": "assistant", "content": row.rejected}],
        }
        for row in job.rows
    ]
    lengths = [
        len(tokenizer.apply_chat_template(row["prompt"] + row[reply], return_dict=False))
        for row in rows
        for reply in ("chosen", "rejected")
    ]
    policy = load_policy(job, folder, files.adapters)
    context = context_of(policy) or max(lengths)
    config = DPOConfig(
        output_dir=str(files.folder / "trainer"),
        beta=job.beta,
        learning_rate=job.learning_rate,
        num_train_epochs=job.num_epochs,
        per_device_train_batch_size=job.batch_size,
        max_length=min(max(lengths), context),
        seed=job.seed,
        use_cpu=not torch.cuda.is_available(),
        bf16=torch.cuda.is_available(),
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = DPOTrainer(
        model=policy,
        ref_model=load_reference(job, folder, files.adapters),
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
    )
    return trainer, sum(length > context for length in lengths)


def load_policy(job: Job, folder: Path, adapters: Path) -> Any:
    """The model to train: the adapter that the job starts from, or a fresh one on the base."""
    from peft import LoraConfig, get_peft_model

    base = load_base(folder)
    if job.start is not None:
        return load_adapter(base, adapters / job.start, is_trainable=True)
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
    if job.reference is not None:
        reference = load_adapter(reference, adapters / job.reference).merge_and_unload()
    return reference.requires_grad_(False).eval()


def save(model: Any, files: JobFiles, job: Job) -> str:
    """Write the adapter, then give it its name in one step; the name is returned."""
    model.save_pretrained(files.unfinished, safe_serialization=True)
    for file in files.unfinished.iterdir():
        with file.open("rb") as written:
            os.fsync(written.fileno())
    digest = blake2b((files.unfinished / WEIGHTS).read_bytes(), digest_size=4).hexdigest()
    adapter = f"{job.name}-{digest}"
    shutil.rmtree(files.adapters / adapter, ignore_errors=True)
    files.unfinished.rename(files.adapters / adapter)
    shutil.rmtree(files.folder / "trainer", ignore_errors=True)
    return adapter


if __name__ == "__main__":
    main()
