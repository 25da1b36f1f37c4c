"""The child that trains one adapter: `python -m nip_fn_adapters.local.train RUN JOB THREADS`.

Accelerate may start it several times, for one training on several devices or machines.  All of
these processes then do the same except for the batches that they train on, because a sharded model
computes only if all take part; the main one writes down the result.

A training that diverges (its loss is no number, or has grown) is a result like any other: it is
written down, and the job is not done again.  Whatever else goes wrong ends the process with one
line that says so.
"""

import math
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Literal, NamedTuple

from nip_fn.training.jobs import Job, Score
from nip_fn_adapters.local.children import die_with_parent
from nip_fn_adapters.local.dpo import dpo_trainer, kl_per_reply
from nip_fn_adapters.local.jobs import JobFiles, JobResult, job_hash, read_job, write_result
from nip_fn_adapters.local.models import (
    Defaults,
    Policy,
    adapter_directory,
    check_tokenizer,
    context_of,
    exit_on_failure,
    first_line,
    is_lora,
    load_tokenizer,
    log_probability,
    model_directory,
    require,
)
from nip_fn_adapters.local.progress import progress_callback
from nip_fn_adapters.local.rows import Encoded, encode_rows
from nip_fn_adapters.local.sft import sft_trainer
from nip_fn_adapters.local.weights import are_finite, load_reference, load_trainable, save, scale_of
from nip_fn_adapters.store import replace_file

PACKAGES = ("torch", "transformers", "datasets", "peft", "trl")
# A training has diverged when its last epoch's mean loss is more than this many times the first
# step's, and above this many nats.  The floor is for losses that begin near zero.  A DPO loss of 5
# means that the rejected reply has become 5 / beta nats likelier; a supervised loss of 5, that the
# next token is known no better than by a uniform guess among 150.
DIVERGED_FACTOR, DIVERGED_FLOOR = 3.0, 5.0
SMALLER = "try a smaller rl.lr"
Report = tuple[tuple[str, float], ...]


class Trained(NamedTuple):
    """A training that has ended."""

    model: Any
    weights: dict[str, Any]  # the whole model's, which may be in parts
    report: Report
    scores: tuple[Score, ...]  # of the job's probes
    problem: str  # why the model is of no use; "" if it is sound


def main() -> None:
    """Train the job that the arguments name, or write down why not, in one line."""
    run, name, threads = sys.argv[1:]
    die_with_parent()
    files = JobFiles(Path(run), name)
    try:
        _train_job(files, int(threads))
    except (Exception, SystemExit) as error:
        if not files.failure.exists():  # the first of several processes knows the cause
            kind = "" if isinstance(error, SystemExit) else f"{type(error).__name__}: "
            replace_file(files.failure, f"{kind}{first_line(error)}".encode())
        raise


def _train_job(files: JobFiles, threads: int) -> None:
    """Train, and write down the result."""
    began = time.monotonic()
    # Otherwise transformers' trainer would split each batch over all GPUs that it sees.
    if "LOCAL_RANK" not in os.environ:  # one process trains on one GPU
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[0]
    job = read_job(files)
    base, start, _ = folders_of(job, files)
    exit_on_failure(require(*PACKAGES))
    trained = train(job, files, threads=threads)
    if trained is None:
        return
    adapter = None
    if not trained.problem:
        adapter = save(trained.model, trained.weights, files, job, base, start)
    shutil.rmtree(files.folder / "trainer", ignore_errors=True)
    report = tuple(entry for entry in trained.report if math.isfinite(entry[1]))
    report = (*report, ("seconds", round(time.monotonic() - began, 3)))
    scores = () if adapter is None else trained.scores
    write_result(files, JobResult(job_hash(job), adapter, report, scores, trained.problem))


class Folders(NamedTuple):
    """The folders of a job's models; None: the base model."""

    base: Path
    start: Path | None
    reference: Path | None


def folders_of(job: Job, files: JobFiles) -> Folders:
    """The folders of the job's models.

    Ends the process with a line if one is missing: before the imports, which take seconds.
    """
    base = exit_on_failure(model_directory(job.model))
    start, reference = (
        exit_on_failure(adapter_directory(files.adapters, name))
        for name in (job.start, job.reference)
    )
    if not job.rows:
        sys.exit(f"{job.name} has no rows")
    if job.use_lora and job.stack and start is not None and is_lora(start):
        exit_on_failure(scale_of(start))
    return Folders(base, start, reference)


def train(job: Job, files: JobFiles, *, threads: int) -> Trained | None:
    """The training once it has ended; None in all processes but the main one."""
    import torch
    from transformers import set_seed

    torch.set_num_threads(max(1, threads // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
    set_seed(job.seed)
    trainer, encoded = make_trainer(job, files)
    trainer.add_callback(progress_callback(files))
    before = _probe(job, trainer.model, trainer.processing_class)
    trainer.train()
    after = _probe(job, _bare(trainer, trainer.model), trainer.processing_class)
    scores = tuple(map(Score, before, after))
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    # Epochs are counted in fractions of a step, and rounding must not add the last step of the
    # epoch before.
    last_epoch = [entry for entry in logs if entry["epoch"] > job.num_epochs - 1 + 1e-6]
    report = (
        ("rows", float(len(job.rows))),
        ("truncated", float(encoded.truncated)),
        ("dropped", float(encoded.dropped)),
        ("steps", float(len(logs))),
        ("train_tokens", float(logs[-1]["num_tokens"])),
        ("loss_first", float(logs[0]["loss"])),
        ("loss_last", float(logs[-1]["loss"])),
        *_method_report(job, trainer, encoded, last_epoch),
    )
    # All processes bring the parts of a model together, so none may leave before this.
    weights = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    trainer.accelerator.end_training()  # from here on, no process waits for another
    if not trainer.accelerator.is_main_process:
        return None
    losses = [float(entry["loss"]) for entry in logs]
    problem = loss_problem(losses, _mean(last_epoch, "loss"))
    problem = problem or _model_problem(job, weights, scores)
    model = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
    return Trained(model, weights, report, scores, problem)


def _method_report(
    job: Job, trainer: Any, encoded: Encoded, last_epoch: list[dict[str, float]]
) -> Report:
    """The figures of a report that only one of the methods has."""
    if job.method == "sft":
        return (("token_accuracy", _mean(last_epoch, "mean_token_accuracy")),)
    policy, reference = (_bare(trainer, model) for model in (trainer.model, trainer.ref_model))
    return (
        ("reward_accuracy", _mean(last_epoch, "rewards/accuracies")),
        ("reward_margin", _mean(last_epoch, "rewards/margins")),
        ("kl", kl_per_reply(policy, reference, encoded.rows)),
    )


def _mean(entries: list[dict[str, float]], name: str) -> float:
    """The mean over the steps of an epoch, each measured just before the step changed the model."""
    return float(sum(entry[name] for entry in entries) / len(entries))


def _bare(trainer: Any, model: Any) -> Any:
    """The model without the lower precision that it was trained with on a GPU, for evaluation.

    One in parts stays wrapped up, in what brings its parts together.
    """
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        return model.eval()
    return trainer.accelerator.unwrap_model(model, keep_fp32_wrapper=False).eval()


def _probe(job: Job, model: Any, tokenizer: Any) -> list[float]:
    """The log-probability, in nats, of each of the job's probes."""
    policy = Policy(model.eval(), tokenizer, context_of(model), stops=(), defaults=Defaults())
    return [log_probability(policy, chat, reply) for chat, reply in job.probes]


def loss_problem(losses: list[float], last_epoch: float) -> str:
    """The reason why a training with these losses, one a step, diverged; "" if it did not.

    `last_epoch` is their mean over the last epoch.
    """
    if not all(map(math.isfinite, losses)):
        return f"the loss is not a finite number; {SMALLER}"
    if last_epoch > max(DIVERGED_FACTOR * losses[0], DIVERGED_FLOOR):
        return f"the loss grew from {losses[0]:.3g} to {last_epoch:.3g}; {SMALLER}"
    return ""


def _model_problem(job: Job, weights: dict[str, Any], scores: tuple[Score, ...]) -> str:
    if not are_finite(job, weights):
        return f"a weight is not a finite number; {SMALLER}"
    if not all(math.isfinite(score.after) for score in scores):
        return f"the trained model gives a reply no finite probability; {SMALLER}"
    return ""


def make_trainer(job: Job, files: JobFiles) -> tuple[Any, Encoded]:
    """trl's trainer for the job, and the rows as it sees them."""
    base, start, reference = folders_of(job, files)
    tokenizer = load_tokenizer(base)
    exit_on_failure(check_tokenizer(base, tokenizer))
    policy = load_trainable(job, base, start)
    encoded = encode_rows(tokenizer, job.rows, context_of(policy))
    if not encoded.rows:
        sys.exit(f"{job.name} has no rows that {job.model} can hold")
    options = _options(job, files)
    if job.method == "sft":
        return sft_trainer(policy, tokenizer, encoded, options), encoded
    named = load_reference(base, reference)
    return dpo_trainer(job, policy, named, tokenizer, encoded, options), encoded


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


def precision() -> Literal["bf16", "fp16", "no"]:
    """The shortest floating-point format that the device multiplies fast; "no": float32."""
    import torch

    if not torch.cuda.is_available():
        return "no"
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return "bf16"
    return "fp16" if torch.cuda.get_device_capability() >= (7, 0) else "no"


if __name__ == "__main__":
    main()
