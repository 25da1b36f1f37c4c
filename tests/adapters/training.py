"""Small trainings on a small model, in child processes."""

import asyncio
from pathlib import Path
from typing import Any

from returns.result import Result

from nip_fn.errors import Problem
from nip_fn.game.chat import Chat
from nip_fn.run.ports import Tuned
from nip_fn.training.losses import DPO
from nip_fn.training.rows import Row, imitated, preference
from nip_fn.training.tuning import Job
from nip_fn_adapters.providers.local.jobs import JobFiles
from nip_fn_adapters.providers.local.loading import load_job
from nip_fn_adapters.providers.local.plain import rows_trainer
from nip_fn_adapters.providers.local.policy import LoadedPolicy, log_probabilities
from nip_fn_adapters.providers.local.rows import Encoded
from nip_fn_adapters.providers.local.tuner import local_tuner
from nip_fn_adapters.serving.training import TrainingSettings

from .forked import forked_trainings
from .tiny_llama import chat

CPUS = """
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
use_cpu: true
num_processes: 2
num_machines: 1
machine_rank: 0
main_process_port: 0
mixed_precision: bf16
"""
IN_PARTS = """
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
  fsdp_state_dict_type: FULL_STATE_DICT
"""
CHOSEN, REJECTED = "bug: no.", "all is right"


def log_probability(policy: LoadedPolicy, chat: Chat, reply: str) -> float:
    """Of a reply and its end, in nats."""
    return sum(log_probabilities(policy, chat, reply))


def rows(number: int) -> tuple[Row, ...]:
    """Rows that all prefer the same reply."""
    return tuple(preference(chat("x" * i), CHOSEN, REJECTED) for i in range(number))


def make_job(model: Path) -> Job:
    """A training of six steps."""
    return Job(
        name="verifier-0",
        group="verifier",
        iteration=0,
        model=str(model),
        start=None,
        reference=None,
        learning_rate=5e-3,
        num_epochs=2,
        loss=DPO(),
        lora_rank=4,
        lora_alpha=8,
        lora_dropout=0.0,
        batch_size=8,
        seed=1,
        rows=rows(24),
    )


def tune(run: Path, *jobs: Job) -> list[Result[Tuned, Problem]]:
    """All jobs, asked for at once, in forked children."""

    async def ask() -> list[Result[Tuned, Problem]]:
        tuner = local_tuner(run)
        return list(await asyncio.gather(*map(tuner, jobs)))

    with forked_trainings():
        return asyncio.run(ask())


def supervised_rows(number: int) -> tuple[Row, ...]:
    """Rows that all have the same reply."""
    return tuple(imitated(chat("x" * i), CHOSEN) for i in range(number))


def make_trainer(job: Job, files: JobFiles) -> tuple[Any, Encoded]:
    """The trainer of single rows for the job, and the rows as it sees them."""
    loaded = load_job(job, files)
    return rows_trainer(job, files, loaded), loaded.encoded


def two_processes(folder: Path, *, in_parts: bool = False) -> TrainingSettings:
    """Two processes on the CPU, by a configuration of accelerate that asks for bf16.

    Each holds the whole model, or, `in_parts`, a half of it (FSDP2).
    """
    config = folder / "accelerate.yaml"
    config.write_text(CPUS.replace("MULTI_GPU", "FSDP") + IN_PARTS if in_parts else CPUS)
    return TrainingSettings(config, threads=2)
