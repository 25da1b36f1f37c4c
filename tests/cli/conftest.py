"""The real command, in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

COMMAND = Path(sys.executable).parent / "nip-fn"

# A run of about a thousand replies that trains twice, without a model.
SMALL = (
    "--provider", "dummy", "--seed", "5", "--iterations", "2",
    "--set", "rl.rollouts_per_iteration=20", "--set", "malt.num_responses_per_timestep=2",
    "--set", "nip_protocol.max_message_rounds=5", "--set", "dataset_options.max_test_size=20",
)  # fmt: skip

Finished = subprocess.CompletedProcess[str]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A plain environment: no terminal, nothing of the developer's."""
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LANG": "C.UTF-8"}


@pytest.fixture
def nip_fn(tmp_path: Path, environment: dict[str, str]) -> Callable[..., Finished]:
    """`nip_fn("train", ...)` runs the command in an empty folder and waits for it."""

    def run(*arguments: object, **variables: str) -> Finished:
        return subprocess.run(
            [COMMAND, *map(str, arguments)],
            cwd=tmp_path,
            env={**environment, **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    return run


@pytest.fixture
def start(tmp_path: Path, environment: dict[str, str]) -> Callable[..., "subprocess.Popen[str]"]:
    """`start("train", ...)` starts the command in the same folder and returns at once."""

    def run(*arguments: object) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [COMMAND, *map(str, arguments)],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return run
