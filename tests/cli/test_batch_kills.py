"""The real command, killed again and again while it asks in batches at the fake provider."""

import json
import os
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from nip_fn_adapters.recording import store
from nip_fn_adapters.recording.store import CHECKPOINT

from ..core.games import one_by_one
from ..provider import Provider
from .conftest import COMMAND, Finished, RunCli

KEY = "sk-of-the-killed-batches-8d20"
EXPLORE = bool(os.environ.get("EXPLORE"))
KILLS = 30 if EXPLORE else 4
EVAL = (
    "eval", "--provider", "openai", "--model", "m", "--protocol", "nip",
    "--set", "dataset_options.max_test_size=6", "--set", "text_rl.fine_tune_poll_seconds=0.05",
    "--set", "nip_protocol.max_message_rounds=3",
    "--set", "code_validation.system_prompt_version=views", "--json",
)  # fmt: skip


def killed(command: list[str], folder: Path, environment: dict[str, str], moment: float) -> bool:
    """Kill the command so many seconds after a batch was created or replies were recorded.

    False where it was done before that.
    """
    mark = progress(folder)
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while process.poll() is None and progress(folder) == mark:
        time.sleep(0.001)
    try:
        process.wait(moment)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


def progress(folder: Path) -> tuple[int, ...]:
    """Changes when a batch was created or replies were recorded."""
    objects = folder / "provider" / "objects.jsonl"
    created = objects.read_bytes().count(b'"validating"') if objects.exists() else 0
    recorded = sorted((folder / "runs").rglob(CHECKPOINT))
    return (created, *(file.stat().st_size for file in recorded))


@pytest.mark.parametrize("seed", range(3) if EXPLORE else [1])
@pytest.mark.parametrize("kills_wanted", [2, pytest.param(KILLS, marks=pytest.mark.exhaustive)])
def test_nothing_recorded_is_asked_again_and_no_batch_is_created_twice(
    run_cli: RunCli, environment: dict[str, str], tmp_path: Path, seed: int, kills_wanted: int
) -> None:
    random, kills, number = Random(seed), 0, 0
    keyed = {**environment, "OPENAI_API_KEY": KEY}
    with Provider(tmp_path / "provider", key=KEY, batch_seconds=0.15, caching=False) as provider:
        while kills < kills_wanted:
            name, number = f"batched-{number}", number + 1
            where = (*EVAL, "--base-url", provider.url, "--seed", str(number))
            whole = run_cli(*where, "--run", f"whole-{number}", OPENAI_API_KEY=KEY)
            command = [str(COMMAND), *where, "--batch", "--run", name]
            while kills < kills_wanted and killed(
                command, tmp_path, keyed, random.choice([0.0, 0.0, 0.01, random.uniform(0.0, 1.5)])
            ):
                kills += 1
            done = run_cli(*command[1:], OPENAI_API_KEY=KEY)
            assert done.returncode == 0, done.stderr
            assert result(done) == result(whole)
            check(provider, tmp_path / "runs" / name)


def result(done: Finished) -> object:
    """What a test came to, but for its price."""
    (test,) = json.loads(done.stdout)["tests"]
    return {key: test[key] for key in test if key != "dollars"}


def check(provider: Provider, run: Path) -> None:
    """Each batch was created once, no request is in two, and what is recorded came of them."""
    notes = {file.stem for file in run.rglob("batches/*.json")}
    log = provider.log()
    tags = Counter(
        entry["body"]["metadata"]["nip_fn"]
        for entry in log
        if (entry["kind"], entry["method"], entry["status"]) == ("batch", "POST", 200)
    )
    assert set(tags.values()) == {1}
    assert notes
    assert notes <= set(tags)
    rows = [entry for entry in log if entry["kind"] == "batch-row"]
    assert set(Counter(str(row["body"]) for row in rows).values()) == {1}
    (checkpoint,) = run.rglob(CHECKPOINT)
    events = store.read_recording(checkpoint).unwrap().events
    recorded = {reply.completion.request_id for reply in one_by_one(events)}
    assert recorded <= {f"chatcmpl-{int(row['request_id'].removeprefix('req_')):x}" for row in rows}
