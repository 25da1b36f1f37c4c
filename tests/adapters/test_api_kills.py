"""Whenever a run is killed while it trains at a provider, each training is paid for once."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from nip_fn.run.events import JobCreated, JobFinished
from nip_fn.run.replay import replay
from nip_fn_adapters.providers.api.ledger import identity
from nip_fn_adapters.recording import store
from nip_fn_adapters.recording.store import CHECKPOINT

from ..provider import Provider
from .tuning import KEY

ROOT = Path(__file__).parents[2]
KILLS = 60 if os.environ.get("EXPLORE") else 10

# Every request about files and jobs takes a while, so that many kills fall into one.
SLOW = [{"match": {"kind": kind}, "fault": "slow", "seconds": 0.02} for kind in ("file", "job")]


def start(run: Path, url: str, output: Path) -> "subprocess.Popen[str]":
    """The run, started or resumed; once this returns it is about to work."""
    command = (sys.executable, "-m", "tests.adapters.tuning_run", str(run), url)
    with output.open("a") as errors:
        child = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "OPENAI_LOG": "debug"},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert child.stdout is not None
    assert child.stdout.readline().startswith("ready")
    return child


def wait_for_a_post(provider: Provider, seconds: float) -> None:
    """Return once one more file is uploaded or job created, or after so many seconds."""
    log = provider.folder / "objects.jsonl"
    size = log.stat().st_size if log.exists() else 0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and (log.stat().st_size if log.exists() else 0) == size:
        time.sleep(0.0005)


def killed(provider: Provider, run: Path, output: Path, draw: random.Random) -> bool:
    """Kill the run at a random time, or just when the provider has made something.

    False where it was done before that.
    """
    child = start(run, provider.url, output)
    if draw.random() < 0.5:
        wait_for_a_post(provider, 2.0)
        time.sleep(draw.choice([0.0, 0.0, 0.002, 0.01]))
    else:
        time.sleep(draw.uniform(0.05, 1.5))
    child.kill()
    return child.wait() == -signal.SIGKILL


def finish(provider: Provider, run: Path, output: Path) -> None:
    """Let the run go on to its end."""
    child = start(run, provider.url, output)
    assert child.stdout is not None
    assert child.stdout.read().strip() == "done"
    assert child.wait() == 0


@pytest.mark.parametrize("seed", [random.randrange(2**32) if os.environ.get("EXPLORE") else 1])
@pytest.mark.parametrize("wanted", [2, pytest.param(KILLS, marks=pytest.mark.exhaustive)])
def test_killed_at_random_each_job_is_created_once(tmp_path: Path, seed: int, wanted: int) -> None:
    draw, output = random.Random(seed), tmp_path / "output.txt"
    kills, number = 0, 0
    with Provider(key=KEY, job_seconds=0.1, faults=SLOW) as provider:
        while kills < wanted:
            run, number = tmp_path / f"run-{number}", number + 1
            while kills < wanted and killed(provider, run, output, draw):
                kills += 1
            finish(provider, run, output)
            check(provider, run)
        check_secrets(tmp_path, provider)


def check(provider: Provider, run: Path) -> None:
    """Exactly one job for each that was intended, no file twice for a run, nothing lost."""
    events = store.read_recording(run / CHECKPOINT).unwrap().events
    assert replay(events).unwrap().state.faults == ()
    intended = [event.job for event in events if isinstance(event, JobCreated)]
    trained = [event.adapter for event in events if isinstance(event, JobFinished)]
    made = [job for job in provider.jobs() if identity(run) in job["metadata"].values()]
    assert len(intended) == len(set(intended)) == len(made) == len(trained) == 6
    assert {job["fine_tuned_model"] for job in made} == set(trained)
    asked = Counter(
        entry["idempotency"]
        for entry in provider.log()
        if (entry["kind"], entry["method"], entry["status"]) == ("job", "POST", 200)
    )
    assert all(count == 1 for count in asked.values())
    # A name holds the run and the content.
    assert all(count == 1 for count in Counter(f["filename"] for f in provider.files()).values())


def check_secrets(folder: Path, provider: Provider) -> None:
    """The key is in no file: neither the runs', nor what the client logs when it tells all."""
    written = [file for file in folder.rglob("*") if file.is_file()]
    texts = {file: file.read_bytes() for file in written}
    assert any(b"DEBUG" in text for text in texts.values())  # it did tell
    assert not [file for file, text in texts.items() if KEY.encode() in text]
    assert all(entry["key_ok"] for entry in provider.log())
