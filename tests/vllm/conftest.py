"""The real vLLM, on the CPU; without one, all these tests are skipped."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec.structs import replace
from returns.result import Failure

from nip_fn.training.rows import preference
from nip_fn.training.tuning import Job
from nip_fn_adapters.serving.settings import FleetSettings, find_vllm

from ..adapters.fleets import free_ports
from ..adapters.training import CHOSEN, REJECTED, make_job, tune

MODEL = "builtin:tea"
START_LIMIT = 300.0  # seconds; about 25 where the machine has nothing else to do


@pytest.fixture(scope="session", autouse=True)
def command() -> Iterator[tuple[str, ...]]:
    """The command of vLLM: with one thread, one GiB for keys and values, and no GPU."""
    found = find_vllm()
    if isinstance(found, Failure):
        pytest.skip(str(found.failure()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        yield found.unwrap()


@pytest.fixture
def settings(command: tuple[str, ...], tmp_path: Path) -> FleetSettings:
    """Of one vLLM, which asks for a key."""
    return FleetSettings(command, tmp_path, "secret", port=free_ports(1), start_limit=START_LIMIT)


class Trained(NamedTuple):
    """Two adapters of the built-in model, which were taught opposite things."""

    folder: Path  # of all adapters
    first: str
    second: str
    job: Job  # of the first


@pytest.fixture(scope="session")
def trained(command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Trained by trl and peft, in child processes."""
    run = tmp_path_factory.mktemp("run")
    job = replace(make_job(Path(MODEL)), learning_rate=2e-2)
    rows = tuple(preference(row.prompt, REJECTED, CHOSEN) for row in job.rows)
    other = replace(job, name="prover-0", group="prover", rows=rows)
    first, second = (str(answer.unwrap().adapter) for answer in tune(run, job, other))
    return Trained(run / "adapters", first, second, job)
