"""The real command, killed again and again while it samples and trains at the fake provider."""

import os
import signal
import subprocess
import time
from pathlib import Path
from random import Random

import pytest

from nip_fn.run.events import JobCreated
from nip_fn_adapters.recording import store
from nip_fn_adapters.recording.store import CHECKPOINT

from ..core.games import one_by_one
from ..provider import Provider
from .conftest import COMMAND, RunCli

KEY = "sk-of-the-killed-3b1f"
KILLS, ITERATIONS = (30, 6) if os.environ.get("EXPLORE") else (6, 2)
TRAIN = (
    "train", "--provider", "openai", "--model", "m", "--seed", "5", "--iterations", str(ITERATIONS),
    "--set", "rl.rollouts_per_iteration=16", "--set", "dataset_options.max_test_size=16",
    "--set", "malt.num_responses_per_timestep=2", "--set", "text_rl.fine_tune_poll_seconds=0.05",
    "--set", "code_validation.system_prompt_version=views", "--run", "a",
)  # fmt: skip


@pytest.mark.parametrize("kills_wanted", [2, pytest.param(KILLS, marks=pytest.mark.exhaustive)])
def test_nothing_recorded_is_asked_again_and_each_job_is_created_once(
    run_cli: RunCli, kills_wanted: int, environment: dict[str, str], tmp_path: Path
) -> None:
    random, kills = Random(11), 0
    run = tmp_path / "runs" / "a"
    settings = {"key": KEY, "latency": [0.05, 0.2], "job_seconds": 0.25, "caching": False}
    with Provider(**settings) as provider:
        where = ("--base-url", provider.url)
        while kills < kills_wanted:
            command = (
                TRAIN if not (run / CHECKPOINT).exists() else ("train", "--resume", *TRAIN[-2:])
            )
            process = subprocess.Popen(
                [COMMAND, *command, *where],
                cwd=tmp_path,
                env={**environment, "OPENAI_API_KEY": KEY},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            before = provider.counters()["requests"]
            while process.poll() is None and provider.counters()["requests"] == before:
                time.sleep(0.02)
            try:
                process.wait(random.uniform(0.0, 0.5))
                break
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                kills += 1
        ended = run_cli("train", "--resume", *TRAIN[-2:], *where, OPENAI_API_KEY=KEY)
        assert ended.returncode == 0, ended.stderr
        log, jobs = provider.log(), provider.jobs()
    assert kills == kills_wanted
    events = store.read_recording(run / CHECKPOINT).unwrap().events
    recorded = {reply.completion.request_id for reply in one_by_one(events)}
    chats = [entry for entry in log if entry["kind"] == "chat"]
    done: set[str] = set()
    for entry in chats:
        assert str(entry["body"]) not in done
        if entry["request_id"] in recorded:
            done.add(str(entry["body"]))
    assert recorded <= {entry["request_id"] for entry in chats}
    assert len(jobs) == sum(isinstance(event, JobCreated) for event in events) > 0
    assert run_cli("replay", "runs/a").returncode == 0
