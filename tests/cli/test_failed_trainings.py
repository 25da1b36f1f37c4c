"""A training that is killed stops the run, is tried again, or is skipped, and is always told of."""

from pathlib import Path

import pytest

from nip_fn_cli.shown.exits import Exit

from ..adapters.killing import killing_trainings
from .conftest import RunCli

# With a model in this process; `tests/adapters/test_failed_trainings.py` has none.
pytestmark = pytest.mark.exhaustive

SMALL = (
    "--seed", "1", "--iterations", "1", "--run", "a",
    "--set", "rl.rollouts_per_iteration=12", "--set", "dataset_options.max_test_size=8",
)  # fmt: skip


def test_a_killed_training_stops_the_run_unless_it_is_to_be_retried(run_cli: RunCli) -> None:
    with killing_trainings(100) as killed:
        done = run_cli("train", *SMALL, "--set", "text_rl.failed_trainings=retry")
    assert done.returncode == Exit.ADAPTER
    assert 3 <= len(killed) <= 6, "three tries of a job; another one may be under way"
    assert "failed (killed by SIGKILL" in done.stderr
    assert "resume with: nip-fn train --resume" in done.stderr
    with killing_trainings(100) as killed:
        again = run_cli("train", "--resume", "--run", "a")
    assert again.returncode == Exit.ADAPTER
    assert len(killed) >= 3, "the job that failed is taken up again"


def test_a_killed_training_that_is_skipped_is_in_the_table_and_in_the_exit_code(
    run_cli: RunCli,
) -> None:
    with killing_trainings(100) as killed:
        done = run_cli("train", *SMALL, "--set", "text_rl.failed_trainings=skip")
    assert done.returncode == Exit.SKIPPED, done.stderr
    assert len(killed) >= 1
    assert "its group keeps its model: " in done.stderr
    assert "failed trainings" in done.stdout
    *_, last = done.stderr.splitlines()
    assert last.startswith("nip-fn: the run is done, but went on without ")
    assert "failed trainings" in run_cli("replay", "runs/a").stdout


@pytest.mark.parametrize("policy", ["stop", "retry"])
def test_a_training_that_was_killed_once_is_trained(
    run_cli: RunCli, tmp_path: Path, policy: str
) -> None:
    with killing_trainings(1):
        done = run_cli("train", *SMALL, "--set", f"text_rl.failed_trainings={policy}")
    if policy == "stop":
        assert done.returncode == Exit.ADAPTER
        done = run_cli("train", "--resume", "--run", "a")
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "runs/a/adapters").iterdir())) >= 1
