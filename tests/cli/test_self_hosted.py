"""The command with models at a language-model server: a fake one, over real HTTP."""

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nip_fn_adapters import cancel
from nip_fn_adapters.providers.api.ledger import identity
from nip_fn_cli.shown.exits import Exit

from ..adapters.fleets import free_ports
from ..adapters.hosted import FakeServer
from ..provider import Provider
from .conftest import Finished, RunCli

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def server() -> Iterator[FakeServer]:
    # Without cached tokens, which depend on earlier runs of the same server and are in the digest.
    with Provider(caching=False) as vllm, FakeServer(vllm.port) as server:
        yield server


def training(server: FakeServer, run: str, iterations: int = 1) -> tuple[object, ...]:
    """A run that trains both agents."""
    sets = (
        "agents._default.language_model_server_scheme_host=http://127.0.0.1",
        f"agents._default.language_model_server_port={server.port}",
        "agents.prover.freeze_agent=false",
        "rl.rollouts_per_iteration=12",
        "dataset_options.max_test_size=4",
        "malt.num_responses_per_timestep=3",
        "malt.pair_selection_method=interval",
        "malt.interval_threshold_proportion=0.0",
        "nip_protocol.max_message_rounds=3",
        "text_rl.fine_tune_poll_seconds=0.05",
        "code_validation.system_prompt_version=views",
    )
    options = (part for one in sets for part in ("--set", one))
    where = ("--provider", "self-hosted", "--model", "m")
    return ("train", *where, "--seed", 5, "--iterations", iterations, *options, "--run", run)


def digest(finished: Finished) -> str:
    assert finished.returncode == 0, finished.stderr
    (line,) = [line for line in finished.stdout.splitlines() if line.startswith("digest")]
    return line


def test_a_run_is_trained_and_replayed(run_cli: RunCli, server: FakeServer, tmp_path: Path) -> None:
    server.looks = 3
    done = run_cli(*training(server, "a", iterations=2))
    owner = identity(tmp_path / "runs" / "a")
    assert set(server.owners) == {f"{owner}-prover", f"{owner}-verifier"}
    assert "training verifier-0: step 3/3, loss 0.233" in done.stderr.splitlines()
    replayed = run_cli("replay", "runs/a")
    assert digest(done).split()[1] in replayed.stdout
    assert "all recorded digests match" in replayed.stdout


def test_a_refused_adapter_is_told_of_and_the_run_goes_on(
    run_cli: RunCli, server: FakeServer
) -> None:
    server.refused = {"verifier-0-": "a weight is no finite number"}
    skip = ("--set", "text_rl.refused_adapters=skip")
    done = run_cli(*training(server, "a"), *skip)
    assert done.returncode == Exit.SKIPPED, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if " is refused, " in line]
    assert line.endswith("keeps the base model m: a weight is no finite number")


def test_a_run_that_a_refused_adapter_has_stopped_is_resumed_without_it(
    run_cli: RunCli, server: FakeServer
) -> None:
    server.refused = {"verifier-0-": "a weight is no finite number"}
    stopped = run_cli(*training(server, "a"))
    assert stopped.returncode == Exit.ADAPTER
    skip = ("--set", "text_rl.refused_adapters=skip")
    assert f"resume with {' '.join(skip)}" in stopped.stderr
    resumed = run_cli("train", "--resume", "--run", "a", *skip)
    assert resumed.returncode == Exit.SKIPPED, resumed.stderr
    assert "all recorded digests match" in run_cli("replay", "runs/a").stdout


def test_a_run_that_is_killed_while_it_trains_finds_its_jobs_again(
    run_cli: RunCli, start: Start, server: FakeServer, tmp_path: Path
) -> None:
    expected = digest(run_cli(*training(server, "a")))
    jobs, looks = len(server.jobs), server.looks
    server.looks = 10**6
    server.looked.clear()
    process = start(*training(server, "b"))
    assert server.looked.wait(60)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    server.looks = looks  # a training reports it as its steps, which the digest covers
    resumed = run_cli("train", "--resume", "--run", "b")
    assert digest(resumed) == expected
    assert len(server.jobs) == 2 * jobs
    assert {id for id in server.jobs if id.startswith(identity(tmp_path / "runs" / "b"))}


def test_a_run_that_is_stopped_leaves_its_jobs_which_can_be_cancelled(
    run_cli: RunCli,
    start: Start,
    server: FakeServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.looks = 10**6
    process = start(*training(server, "a"))
    assert server.looked.wait(60)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == Exit.INTERRUPTED
    assert "is still trained there; resuming the run finds it" in said
    monkeypatch.setenv("HOME", str(tmp_path))  # where the command has remembered its server
    assert sorted(cancel(tmp_path / "runs/a").unwrap()) == sorted(server.jobs)
    assert {info.status for _, info in server.jobs.values()} == {"cancelled"}
    resumed = run_cli("train", "--resume", "--run", "a")
    assert resumed.returncode == Exit.SKIPPED, resumed.stderr
    assert "cancelled: as asked for" in resumed.stderr
    assert cancel(tmp_path / "runs/a").unwrap() == ()


def test_a_server_of_ones_own_needs_its_ports(run_cli: RunCli, server: FakeServer) -> None:
    done = run_cli(*training(server, "a"), "--serve")
    assert done.returncode == Exit.SYSTEM
    last = done.stderr.splitlines()[-1]
    assert f"port {server.port} is taken" in last
    assert "agents._default.language_model_server_port=PORT" in last


def test_a_server_of_ones_own_is_for_agents_that_are_at_one(run_cli: RunCli) -> None:
    done = run_cli("train", "--provider", "dummy", "--run", "a", "--serve")
    assert done.returncode == Exit.USAGE
    assert "it goes with provider self-hosted" in done.stderr.splitlines()[-1]


def test_a_server_of_ones_own_that_does_not_start_says_why(
    run_cli: RunCli, server: FakeServer
) -> None:
    server.port = free_ports(1)
    ports = ("--set", f"agents._default.vllm_server_port={free_ports(1)}")
    done = run_cli(*training(server, "a"), *ports, "--serve")  # "m" is no model
    assert done.returncode == Exit.ADAPTER
    last = done.stderr.splitlines()[-1]
    assert last.startswith("nip-fn: nip-fn serve has not started: nip-fn: ")
    assert last.endswith("see runs/a/server.log")
