"""`nip-fn bench train`: the same training in several ways."""

import re
from pathlib import Path

import pytest

from nip_fn_adapters.providers.local.bench import WAYS

from .conftest import RunCli


@pytest.mark.exhaustive  # half a minute of imports, in five processes
def test_a_model_is_trained_in_every_way(run_cli: RunCli) -> None:
    told = run_cli("bench", "train", "--model", "builtin:tea", "--trees", "1")
    assert told.returncode == 0, told.stderr
    rows = [re.split(r" {2,}", line.strip()) for line in told.stdout.splitlines()[1:]]
    assert [(name, way) for name, way, *_ in rows] == [("builtin:tea", way) for way in WAYS]
    speeds = {way: [float(cell.replace(",", "")) for cell in cells] for _, way, *cells in rows}
    assert all(value > 0 for cells in speeds.values() for value in cells)
    steps, tokens, share, _ = speeds["packed"]
    plain_steps, plain_tokens, plain_share, _ = speeds["plain"]
    # The rows are the same, so that all three say which way is faster, and by how much.
    assert plain_share / share > 1.5
    assert abs(steps / plain_steps / (plain_share / share) - 1) < 0.1
    assert abs(tokens / plain_tokens / (plain_share / share) - 1) < 0.1
    assert speeds["limit"][2] == 1


def test_a_model_that_is_none_is_refused(run_cli: RunCli) -> None:
    told = run_cli("bench", "train", "--model", "no/such/folder")
    assert told.returncode == 9
    assert "no/such/folder is no model" in told.stderr


@pytest.mark.exhaustive  # two imports and two trainings
def test_the_trainings_of_a_run_are_done_again(run_cli: RunCli) -> None:
    small = ("--iterations", "1", "--set", "rl.rollouts_per_iteration=8")
    assert run_cli("train", "--trainer", "malt", *small, "--run", "r").returncode == 0
    told = run_cli("bench", "train", "--run", "runs/r")
    assert told.returncode == 0, told.stderr
    rows = [line.split() for line in told.stdout.splitlines()[1:]]
    (plain, trainings, *_), (packed, *_) = rows
    assert (plain, packed) == ("plain", "packed")
    assert int(trainings) > 0
    shares = [float(row[-1]) for row in rows]
    assert shares[0] > 1.5 > shares[1] >= 1


def test_a_run_without_trainings_is_refused(run_cli: RunCli, tmp_path: Path) -> None:
    told = run_cli("bench", "train", "--run", str(tmp_path))
    assert told.returncode == 3
    assert f"{tmp_path} has no trainings on this machine" in told.stderr
