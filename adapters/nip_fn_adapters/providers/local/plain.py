"""Training by trl, every row by itself: for models that cannot read packed rows.

It is also what packed training is tested against.
"""

import math
import os
import shutil
from typing import Any

from nip_fn.training.tuning import Job
from nip_fn_adapters.providers.local.dpo import dpo_trainer
from nip_fn_adapters.providers.local.jobs import JobFiles
from nip_fn_adapters.providers.local.loading import LoadedJob
from nip_fn_adapters.providers.local.models import exit_on_failure, is_sharded, precision, require
from nip_fn_adapters.providers.local.progress import progress_writer
from nip_fn_adapters.providers.local.sft import sft_trainer
from nip_fn_adapters.providers.local.steps import (
    EndedTraining,
    Figures,
    Step,
    bare,
    chosen_rows,
    evenly,
    log_ratios,
    plain_scores,
)


def trl_trainer(job: Job, files: JobFiles, loaded: LoadedJob) -> Any:
    """trl's trainer for the job."""
    options = _options(job, files)
    if job.method == "sft":
        return sft_trainer(job, loaded.model, loaded.tokenizer, loaded.encoded, options)
    return dpo_trainer(job, loaded, options)


def train_plain(job: Job, files: JobFiles, loaded: LoadedJob) -> EndedTraining:
    """Train by trl."""
    from transformers import TrainerCallback

    class Follow(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.is_world_process_zero:
                self.write = progress_writer(files, state.max_steps)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any, **_: Any) -> None:
            # The log at the end is a summary without a loss.
            if state.is_world_process_zero and "loss" in logs:
                self.write(state.global_step, float(logs["loss"]))

    exit_on_failure(require("datasets", "trl"))
    trainer = trl_trainer(job, files, loaded)
    trainer.add_callback(Follow())
    trainer.train()
    shutil.rmtree(files.folder / "trainer", ignore_errors=True)
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    ratios: tuple[float, ...] = ()
    if job.method == "dpo":
        rows, model = chosen_rows(loaded.encoded), bare(trainer.accelerator, trainer.model)
        if is_sharded():
            reference = plain_scores(bare(trainer.accelerator, trainer.ref_model), rows)
        else:
            reference = evenly(trainer.reference)
        ratios = log_ratios(plain_scores(model, rows), reference)
    steps = _steps(job, logs)
    return EndedTraining(trainer.model, trainer.model_wrapped, trainer.accelerator, steps, ratios)


def _steps(job: Job, logs: list[dict[str, float]]) -> tuple[Step, ...]:
    """The steps that trl has logged."""
    accuracy = "mean_token_accuracy" if job.method == "sft" else "rewards/accuracies"
    counts = [0, *(int(entry["num_tokens"]) for entry in logs)]
    return tuple(
        Step(
            # In fractions of a step: rounding must not add the last step of an epoch to the next.
            epoch=math.ceil(entry["epoch"] - 1e-6) - 1,
            tokens=after - before,
            forwarded=after - before,
            figures=Figures(
                float(entry["loss"]), float(entry[accuracy]), entry.get("rewards/margins", 0.0)
            ),
        )
        for entry, before, after in zip(logs, counts[:-1], counts[1:], strict=True)
    )


def _options(job: Job, files: JobFiles) -> dict[str, Any]:
    """The options of trl that both methods share."""
    import torch

    has_gpu, numbers = torch.cuda.is_available(), precision()
    # Otherwise accelerate's own configuration would decide, for the options that are not set below.
    os.environ["ACCELERATE_MIXED_PRECISION"] = numbers
    return {
        "output_dir": str(files.folder / "trainer"),
        "learning_rate": job.learning_rate,
        "num_train_epochs": job.num_epochs,
        "per_device_train_batch_size": job.batch_size,
        "seed": job.seed,
        "use_cpu": not has_gpu,
        "bf16": numbers == "bf16",
        "fp16": numbers == "fp16",
        "gradient_checkpointing": False,
        "dataloader_pin_memory": has_gpu,
        "logging_steps": 1,
        # The filter would hide the very losses that tell of a divergence.
        "logging_nan_inf_filter": False,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
