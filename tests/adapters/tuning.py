"""Small fine-tuning jobs at the fake provider."""

import asyncio
from pathlib import Path
from typing import Any

from returns.result import Result

from nip_fn.errors import Problem
from nip_fn.game.chat import Chat, Message
from nip_fn.run.ports import Tuned
from nip_fn.training.losses import DPO
from nip_fn.training.rows import Row, imitated, preference
from nip_fn.training.tuning import Job
from nip_fn_adapters.providers.api.endpoints import Endpoint
from nip_fn_adapters.providers.api.ledger import identity
from nip_fn_adapters.providers.api.retries import RetryPolicy
from nip_fn_adapters.providers.api.tuner import Timeouts, TrainingServer, api_tuner

from ..provider import Provider

KEY = "sk-test-4f1c9a2e77"  # as the fake provider's `key`: to be in no file and no message
RETRIES = RetryPolicy(max_attempts=6, max_outage=5.0, first_wait=0.02, longest_wait=0.1)
QUICK = Timeouts(poll=0.02, limit=20.0, settle=0.4, answer=1.0, retries=RETRIES)


def chat(question: str) -> Chat:
    """A chat that ends with a question."""
    return Message("system", "Judge."), Message("user", question, name="prover")


def preferences(number: int, about: str = "it") -> tuple[Row, ...]:
    """Rows for DPO."""
    return tuple(preference(chat(f"Is {about} {i} right?"), "no", "yes") for i in range(number))


def imitations(number: int, about: str = "it") -> tuple[Row, ...]:
    """Rows for supervised fine-tuning."""
    return tuple(imitated(chat(f"Is {about} {i} right?"), "no") for i in range(number))


def make_job(**changes: Any) -> Job:
    """A training by DPO."""
    given: dict[str, Any] = {
        "name": "verifier-0",
        "group": "verifier",
        "iteration": 0,
        "model": "gpt-4.1-nano-2025-04-14",
        "start": None,
        "reference": None,
        "learning_rate": 1e-5,
        "num_epochs": 2,
        "loss": DPO(beta=0.2),
        "lora_rank": 4,
        "lora_alpha": 8,
        "lora_dropout": 0.0,
        "batch_size": 8,
        "seed": 7,
        "rows": preferences(12),
    }
    return Job(**{**given, **changes})


def groups(url: str, multiplier: float | None = None) -> dict[str, TrainingServer]:
    """Both groups at that address."""
    training = TrainingServer(Endpoint(url, KEY), multiplier)
    return {"verifier": training, "prover": training}


def tune(run: Path, url: str, *jobs: Job, **settings: Any) -> list[Result[Tuned, Problem]]:
    """All jobs, asked for at once, by a tuner with these settings."""

    async def ask() -> list[Result[Tuned, Problem]]:
        tuner = api_tuner(run, groups(url), **{"timeouts": QUICK, **settings})
        return list(await asyncio.gather(*map(tuner, jobs)))

    return asyncio.run(ask())


def created(provider: Provider, run: Path) -> list[dict[str, Any]]:
    """The jobs that the provider has made for a run, oldest first."""
    found = [job for job in provider.jobs() if identity(run) in job["metadata"].values()]
    return sorted(found, key=lambda job: job["_"]["created"])


def uploaded(provider: Provider, run: Path) -> list[str]:
    """The ids of all files at the provider that hold what the run's jobs were trained on."""
    content = {(provider.folder / "files" / job["training_file"]).read_bytes()
               for job in created(provider, run)}  # fmt: skip
    files = (provider.folder / "files").iterdir()
    return [file.name for file in files if file.read_bytes() in content]


def is_readable(told: object) -> bool:
    """True for one line for people, without the key."""
    line = str(told)
    return "\n" not in line and "Traceback" not in line and KEY not in line and len(line) < 400
