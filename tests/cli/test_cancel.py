"""Trainings of a run that is abandoned are cancelled, at the fake provider."""

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nip_fn_adapters import cancel
from nip_fn_cli.shown.exits import Exit

from ..provider import Provider
from .conftest import COMMAND, RunCli

KEY = "sk-to-be-cancelled-77"
TRAIN = (
    "train", "--provider", "openai", "--model", "m", "--seed", "5", "--iterations", "1",
    "--set", "rl.rollouts_per_iteration=24", "--set", "text_rl.test_scheme=none",
    "--set", "malt.num_responses_per_timestep=2", "--set", "text_rl.fine_tune_poll_seconds=0.05",
    "--set", "code_validation.system_prompt_version=views", "--run", "a",
)  # fmt: skip


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider(key=KEY, job_outcome="never", job_seconds=0.1) as provider:
        yield provider


def all_noted(provider: Provider, run: Path) -> bool:
    """True once the run knows the ids of its jobs; one without would be looked for at length."""
    notes = [file.read_bytes() for file in run.glob("jobs/*/remote.json")]
    return bool(notes) and all(b'"id":"' in note for note in notes) and bool(provider.jobs())


def test_jobs_are_cancelled_and_the_run_goes_on_without_them(
    run_cli: RunCli,
    provider: Provider,
    environment: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = {**environment, "OPENAI_API_KEY": KEY}
    command = [COMMAND, *TRAIN, "--base-url", provider.url]
    process = subprocess.Popen(command, cwd=tmp_path, env=keys, stderr=subprocess.DEVNULL)
    while process.poll() is None and not all_noted(provider, tmp_path / "runs" / "a"):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    under_way = {job["id"] for job in provider.jobs()}
    assert under_way
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("HOME", str(tmp_path))  # where the command has remembered its server
    assert set(cancel(tmp_path / "runs/a").unwrap()) == under_way
    assert {job["status"] for job in provider.jobs()} == {"cancelled"}
    files = {job["training_file"] for job in provider.jobs()}
    assert not files & {file["id"] for file in provider.files()}
    assert cancel(tmp_path / "runs/a").unwrap() == ()
    provider.configure(job_outcome="succeeded")
    skip = ("--set", "text_rl.failed_trainings=skip")
    resumed = run_cli("train", "--resume", "--run", "a", *skip, OPENAI_API_KEY=KEY)
    assert resumed.returncode == Exit.SKIPPED, resumed.stderr
    tags = [job["user_provided_suffix"] for job in provider.jobs()]
    assert len(set(tags)) == len(tags), "none was created again"
    assert provider.files() == []
    assert run_cli("replay", "runs/a").returncode == 0


def test_a_run_that_does_not_exist_cannot_be_cancelled(tmp_path: Path) -> None:
    assert "none" in str(cancel(tmp_path / "none").failure())
