"""Trainings at a provider that come to nothing, and what a resumed run does about them."""

from collections.abc import Iterator

import pytest

from nip_fn_cli.shown.exits import Exit

from ..provider import Provider
from .conftest import Finished, RunCli

KEY = "sk-of-what-fails-31"
SKIP = ("--set", "text_rl.failed_trainings=skip")


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider(key=KEY) as provider:
        yield provider


def train(run_cli: RunCli, provider: Provider, *more: str) -> Finished:
    return run_cli(
        "train", "--provider", "openai", "--model", "m", "--base-url", provider.url, "--run", "a",
        "--dataset", "builtin:tea", "--seed", "5", "--iterations", "2",
        "--set", "rl.rollouts_per_iteration=16", "--set", "text_rl.test_scheme=none",
        "--set", "malt.num_responses_per_timestep=2", "--set", "malt.pair_selection_method=all",
        "--set", "text_rl.fine_tune_poll_seconds=0.05",
        "--set", "agents.prover.freeze_agent=true", *more, OPENAI_API_KEY=KEY,
    )  # fmt: skip


def resume(run_cli: RunCli, *more: str) -> Finished:
    return run_cli("train", "--resume", "--run", "a", *more, OPENAI_API_KEY=KEY)


@pytest.mark.parametrize("outcome", ["failed", "cancelled"])
def test_a_run_that_they_have_stopped_is_resumed_without_them(
    run_cli: RunCli, provider: Provider, outcome: str
) -> None:
    provider.configure(job_outcome=outcome)
    stopped = train(run_cli, provider)
    assert stopped.returncode == Exit.ADAPTER, stopped.stderr
    assert f"resume with {' '.join(SKIP)}" in stopped.stderr
    first = provider.jobs()
    assert {job["status"] for job in first} == {outcome}
    resumed = resume(run_cli, *SKIP)
    assert resumed.returncode == Exit.SKIPPED, resumed.stderr
    again = [job["user_provided_suffix"] for job in provider.jobs()]
    assert len(set(again)) == len(again), "none was created twice"
    assert provider.files() == []
    replayed = run_cli("replay", "runs/a")
    assert replayed.returncode == 0
    assert "all recorded digests match" in replayed.stdout
    assert "failed trainings" in replayed.stdout


def test_a_run_deletes_what_it_has_uploaded(run_cli: RunCli, provider: Provider) -> None:
    done = train(run_cli, provider)
    assert done.returncode == 0, done.stderr
    assert provider.jobs()
    assert provider.files() == []
    deleted = [e["path"] for e in provider.log() if e["method"] == "DELETE"]
    used = {job["training_file"] for job in provider.jobs()}
    assert {path.rpartition("/")[2] for path in deleted} == used


def test_files_that_cannot_be_deleted_end_no_run(run_cli: RunCli, provider: Provider) -> None:
    provider.configure(faults=[{"match": {"kind": "file", "method": "DELETE"}, "fault": "500"}])
    done = train(run_cli, provider)
    assert done.returncode == 0, done.stderr
    assert "files of trainings stay there" in done.stderr
    assert provider.files()
