"""The embedded default, small: a real model sampled and trained, killed, resumed and replayed."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nip_fn_cli.shown.exits import Exit
from tests.adapters.forked import forked_trainings
from tests.cli.conftest import RunCli
from tests.cli.test_train import digest_of

# The worker whose server trainings are forked from.
pytestmark = pytest.mark.xdist_group("trainings")

Start = Callable[..., "subprocess.Popen[str]"]

SMALL = (
    "--seed", "1", "--iterations", "2",
    "--set", "rl.rollouts_per_iteration=12", "--set", "dataset_options.max_test_size=8",
)  # fmt: skip


def adapters_of(run: Path) -> list[str]:
    """The adapters that a run left."""
    return sorted(folder.name for folder in (run / "adapters").iterdir())


def test_the_embedded_default_trains_and_replays(run_cli: RunCli, tmp_path: Path) -> None:
    with forked_trainings():
        trained = run_cli("train", *SMALL, "--run", "a")
    assert trained.returncode == 0, trained.stderr
    replayed = json.loads(run_cli("replay", "runs/a", "--json").stdout)
    assert replayed["digest"] == digest_of(trained.stdout)
    assert replayed["digests_match"] is True
    lineage = replayed["lineage"]
    assert sorted(lineage["prover"] + lineage["verifier"]) == adapters_of(tmp_path / "runs/a")
    assert len(lineage["verifier"]) == 2
    for name in lineage["verifier"]:
        files = {file.name for file in (tmp_path / "runs/a/adapters" / name).iterdir()}
        assert "adapter_model.safetensors" in files
        assert not any(name.endswith((".bin", ".pt", ".pkl")) for name in files)


@pytest.mark.parametrize("package", ["torch", "trl"])
def test_a_missing_package_is_named_before_anything_is_begun(
    run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # type: ignore[arg-type]
    refused = run_cli("train", *SMALL, "--run", "a")
    assert refused.returncode == Exit.USAGE
    assert f'the local model needs {package}; pip install "nip-fn[local]"' in refused.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.exhaustive
def test_a_run_killed_while_it_trains_trains_once(
    run_cli: RunCli, start: Start, tmp_path: Path
) -> None:
    run = tmp_path / "runs/a"
    process = start("train", *SMALL, "--run", "a")
    deadline = time.monotonic() + 120
    while not list(run.glob("jobs/*/log.txt")):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    time.sleep(3.0)  # the child is importing or training
    process.send_signal(signal.SIGKILL)
    process.communicate()
    recorded = json.loads(_until_whole(run_cli))
    assert recorded["stage"] == "train"
    resumed = run_cli("train", "--resume", "--run", "a")
    assert resumed.returncode == 0, resumed.stderr
    replayed = json.loads(run_cli("replay", "runs/a", "--json").stdout)
    lineage = replayed["lineage"]
    assert sorted(lineage["prover"] + lineage["verifier"]) == adapters_of(run)
    assert [name.rsplit("-", 1)[0] for name in lineage["verifier"]] == ["verifier-0", "verifier-1"]


def _until_whole(run_cli: RunCli) -> str:
    """The run's JSON, of its whole events alone where the tail is torn."""
    told = run_cli("replay", "runs/a", "--json")
    if told.returncode:
        count = told.stderr.split("ends inside event ")[1].split(";")[0]
        told = run_cli("replay", "runs/a", "--json", "--until", count)
    return told.stdout
