"""The child that trains one adapter.

    python -m nip_fn_adapters.providers.local.train RUN JOB THREADS

A fourth argument asks for trl, for comparison, although the rows might be packed.

Accelerate may start it several times, for one training on several devices or machines.  All of
these processes then do the same except for the batches that they train on, because a sharded model
computes only if all take part; the main one writes down the result.

A training that diverges (its loss is no number, or has grown) is a result like any other: it is
written down, and the job is not done again.  Whatever else goes wrong ends the process with one
line that says so.
"""

import math
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from nip_fn.training.canary import Score
from nip_fn.training.tuning import Job
from nip_fn_adapters.durable import replace_file
from nip_fn_adapters.extensions import load_loss
from nip_fn_adapters.providers.local.children import die_with_parent
from nip_fn_adapters.providers.local.jobs import (
    JobFiles,
    JobResult,
    job_hash,
    read_job,
    write_result,
)
from nip_fn_adapters.providers.local.loading import folders_of, load_job
from nip_fn_adapters.providers.local.models import context_of, exit_on_failure, first_line, require
from nip_fn_adapters.providers.local.packed import packing_problem, train_packed
from nip_fn_adapters.providers.local.plain import train_plain
from nip_fn_adapters.providers.local.policy import Defaults, LoadedPolicy, probe_scores
from nip_fn_adapters.providers.local.rows import Encoded
from nip_fn_adapters.providers.local.steps import EndedTraining, Figures, Step, bare
from nip_fn_adapters.providers.local.weights import are_finite, save

PACKAGES = ("torch", "transformers", "peft", "accelerate")
# A training has diverged when its last epoch's mean loss is more than this many times the first
# step's, and above this many nats.  The floor is for losses that begin near zero.  A DPO loss of 5
# means that the rejected reply has become 5 / beta nats likelier; a supervised loss of 5, that the
# next token is known no better than by a uniform guess among 150.
DIVERGED_FACTOR, DIVERGED_FLOOR = 3.0, 5.0
SMALLER = "try a smaller rl.lr"
TrainingReport = tuple[tuple[str, float], ...]


class Trained(NamedTuple):
    """A training that has ended."""

    model: Any
    weights: dict[str, Any]  # the whole model's, which may be in parts
    report: TrainingReport
    scores: tuple[Score, ...]  # of the job's probes
    problem: str  # why the model is of no use; "" if it is sound


def main() -> None:
    """Train the job that the arguments name, or write down why not, in one line."""
    run, name, threads, *plain = sys.argv[1:]
    die_with_parent()
    files = JobFiles(Path(run), name)
    try:
        _train_job(files, int(threads), bool(plain))
    except (Exception, SystemExit) as error:
        if not files.failure.exists():  # the first of several processes knows the cause
            error_type = "" if isinstance(error, SystemExit) else f"{type(error).__name__}: "
            replace_file(files.failure, f"{error_type}{first_line(error)}".encode())
        raise


def _train_job(files: JobFiles, threads: int, plain: bool) -> None:
    """Train, and write down the result."""
    began = time.monotonic()
    # Otherwise transformers' trainer would split each batch over all GPUs that it sees.
    if "LOCAL_RANK" not in os.environ:  # one process trains on one GPU
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[0]
    job = read_job(files)
    base, start, _ = folders_of(job, files)
    exit_on_failure(require(*PACKAGES))
    trained = train_job(job, files, threads=threads, plain=plain)
    if trained is None:
        return
    adapter = None
    if not trained.problem:
        adapter = save(trained.model, trained.weights, files, job, base, start)
    report = tuple(entry for entry in trained.report if math.isfinite(entry[1]))
    report = (*report, ("seconds", round(time.monotonic() - began, 3)))
    scores = () if adapter is None else trained.scores
    write_result(files, JobResult(job_hash(job), adapter, report, scores, trained.problem))


def train_job(job: Job, files: JobFiles, *, threads: int, plain: bool = False) -> Trained | None:
    """The training once it has ended; None in all processes but the main one.

    `plain` asks for trl, for comparison, although the rows might be packed.
    """
    import torch
    from transformers import set_seed

    torch.set_num_threads(max(1, threads // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
    set_seed(job.seed)
    exit_on_failure(load_loss(job.loss))
    loaded = load_job(job, files)
    before = _probe(job, loaded.model, loaded.tokenizer)
    reason = "as asked for" if plain else packing_problem(loaded.model, loaded.encoded)
    if reason:
        print(f"each row is trained on by itself, by trl: {reason}")
    training = (train_plain if reason else train_packed)(job, files, loaded)
    after = _probe(job, bare(training.accelerator, training.model), loaded.tokenizer)
    scores = tuple(map(Score, before, after))
    # All processes bring the parts of a model together, so none may leave before this.
    weights = training.accelerator.get_state_dict(training.wrapped)
    training.accelerator.end_training()  # from here on, no process waits for another
    if not training.accelerator.is_main_process:
        return None
    last_epoch = _last_epoch(training.steps)
    losses = [step.figures.loss for step in training.steps]
    problem = loss_problem(losses, last_epoch.loss, may_grow=not job.loss.is_nonnegative)
    problem = problem or _model_problem(job, weights, scores)
    model = training.accelerator.unwrap_model(training.model, keep_fp32_wrapper=False)
    return Trained(model, weights, _report(job, loaded.encoded, training), scores, problem)


def _report(job: Job, encoded: Encoded, training: EndedTraining) -> TrainingReport:
    """The figures of a training; those of its last epoch are means over its steps."""
    last_epoch = _last_epoch(training.steps)
    report: TrainingReport = (
        ("rows", float(len(job.rows))),
        ("truncated", float(encoded.truncated)),
        ("dropped", float(encoded.dropped)),
        ("retokenized", float(encoded.retokenized)),
        ("steps", float(len(training.steps))),
        ("train_tokens", float(sum(step.tokens for step in training.steps))),
        ("forwarded_tokens", float(sum(step.forwarded for step in training.steps))),
        ("loss_first", training.steps[0].figures.loss),
        ("loss_last", training.steps[-1].figures.loss),
    )
    if any(min(weights) <= 0 for weights in encoded.weights):  # otherwise there is no margin
        report += (
            ("reward_accuracy", last_epoch.reward_accuracy),
            ("log_ratio_margin", last_epoch.log_ratio_margin),
        )
    if training.log_ratios:
        report += (
            ("chosen_log_ratio", sum(training.log_ratios) / len(training.log_ratios)),
            ("chosen_log_ratio_min", min(training.log_ratios)),
        )
    return (*report, ("token_accuracy", last_epoch.token_accuracy))


def _last_epoch(steps: tuple[Step, ...]) -> Figures:
    """The means over the steps of the last epoch."""
    last = [step.figures for step in steps if step.epoch == steps[-1].epoch]
    return Figures(*(sum(values) / len(last) for values in zip(*last, strict=True)))


def _probe(job: Job, model: Any, tokenizer: Any) -> tuple[float, ...]:
    """The log-probabilities, in nats, of the tokens of the job's probes."""
    policy = LoadedPolicy(model.eval(), tokenizer, context_of(model), stops=(), defaults=Defaults())
    return probe_scores(policy, job.probes)


def loss_problem(losses: list[float], last_epoch: float, *, may_grow: bool = False) -> str:
    """The reason why a training with these losses, one a step, diverged; "" if it did not.

    Args:
        losses: Of the steps.
        last_epoch: Their mean over the last epoch.
        may_grow: True of losses that are no measure of a misfit, such as a policy gradient's.
    """
    if not all(map(math.isfinite, losses)):
        return f"the loss is not a finite number; {SMALLER}"
    if not may_grow and last_epoch > max(DIVERGED_FACTOR * losses[0], DIVERGED_FLOOR):
        return f"the loss grew from {losses[0]:.3g} to {last_epoch:.3g}; {SMALLER}"
    return ""


def _model_problem(job: Job, weights: dict[str, Any], scores: tuple[Score, ...]) -> str:
    if not are_finite(job, weights):
        return f"a weight is not a finite number; {SMALLER}"
    if not all(math.isfinite(score.after) for score in scores):
        return f"the trained model gives a reply no finite probability; {SMALLER}"
    return ""


if __name__ == "__main__":
    main()
