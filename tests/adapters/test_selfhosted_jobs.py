"""Adapters and trainings at a language-model server: a fake one, over real HTTP."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from returns.result import Success

from nip_fn.run.events import Publish
from nip_fn.run.ports import FailedTraining, Served
from nip_fn_adapters.providers.api.ledger import identity
from nip_fn_adapters.providers.selfhosted.host import of_groups
from nip_fn_adapters.providers.selfhosted.tuner import cancel_jobs
from nip_fn_adapters.serving.wire import JobInfo

from ..provider import Provider
from .hosted import AFTER, FakeServer
from .selfhosting import Session, is_readable
from .tuning import make_job


@pytest.fixture(scope="module")
def vllm() -> Iterator[Provider]:
    # Cached tokens depend on earlier runs of the same server, and are in the digest.
    with Provider(caching=False) as provider:
        yield provider


@pytest.fixture
def server(vllm: Provider) -> Iterator[FakeServer]:
    with FakeServer(vllm.port) as server:
        yield server


# ------------------------------------------------------------------------------------ adapters


def lay_down(run: Path, adapter: str, rank: int) -> None:
    """An adapter in the run's folder."""
    folder = run / "adapters" / adapter
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(f'{{"r": {rank}}}')
    (folder / "adapter_model.safetensors").write_bytes(bytes(3_000_000))


def test_an_adapter_that_the_run_has_is_sent_once_and_served(
    server: FakeServer, vllm: Provider, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    lay_down(run, "prover-7-abc", rank=48)
    before = len(vllm.log())
    assert len(Session(server, run).ask("prover-7-abc").unwrap()) == 2
    assert len(Session(server, run).ask("prover-7-abc").unwrap()) == 2
    assert len(server.files["prover-7-abc"]["adapter_model.safetensors"]) == 3_000_000
    assert len(server.paths("PUT")) == 2
    assert len(server.paths("POST", "publish")) == 3, "it was missing once, then served twice"
    assert server.owners == {f"{identity(run)}-prover": "prover-7-abc"}
    assert {needs.max_lora_rank for needs in server.needs} == {48}
    assert {entry["body"]["model"] for entry in vllm.log()[before:]} == {"prover-7-abc"}


def test_an_adapter_that_nobody_has_ends_the_run(server: FakeServer, tmp_path: Path) -> None:
    line = str(Session(server, tmp_path / "run").ask("prover-7-abc").failure())
    assert is_readable(line)
    assert line.startswith(f"{server.url} has no adapter prover-7-abc")


def test_a_training_begins_with_the_adapters_that_it_needs(
    server: FakeServer, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    lay_down(run, "verifier-0-abc", rank=4)
    job = replace(make_job(), start="verifier-0-abc", reference="verifier-0-abc")
    (tuned,) = Session(server, run).tune(job)
    assert tuned.unwrap().adapter is not None
    assert len(server.paths("PUT", "/adapters/verifier-0-abc/")) == 2


def test_probes_are_scored(server: FakeServer, tmp_path: Path) -> None:
    session, job = Session(server, tmp_path / "run"), make_job()
    tuned = session.tune(job)[0].unwrap()
    effect = Publish(job.group, job.model, str(tuned.adapter), job.probes, tuned.scores)
    session = Session(server, tmp_path / "run")
    assert session.publish(effect) == Success(Served((AFTER,) * len(job.probes)))
    server.refused = {job.name: "it has NaN"}
    poisoned = Session(server, tmp_path / "run").publish(effect)
    assert poisoned == Success(Served(problem="it has NaN"))


# ------------------------------------------------------------------------------------ trainings


def test_a_job_is_put_there_once_and_followed(server: FakeServer, tmp_path: Path) -> None:
    run, job = tmp_path / "run", make_job()
    server.looks = 3
    first, again = Session(server, run), Session(server, run)
    assert first.tune(job) == again.tune(job)
    assert first.followed == [(job.name, step) for step in (1, 2, 3)]
    assert list(server.jobs) == [f"{identity(run)}-{job.name}"]


def test_a_trained_adapter_comes_home_and_goes_to_another_server(
    server: FakeServer, vllm: Provider, tmp_path: Path
) -> None:
    [tuned] = Session(server, tmp_path / "run").tune(make_job())
    name = str(tuned.unwrap().adapter)
    home = tmp_path / "run" / "adapters" / name
    assert {file.name: file.read_bytes() for file in home.iterdir()} == server.files[name]
    assert [path.name for path in home.parent.iterdir()] == [name]
    (tmp_path / "run").rename(tmp_path / "moved")
    with FakeServer(vllm.port) as other:
        assert len(Session(other, tmp_path / "moved").ask(name).unwrap()) == 2
        assert other.files[name] == server.files[name]


def test_an_adapter_that_cannot_be_fetched_stops_the_run_which_finds_it_later(
    server: FakeServer, tmp_path: Path
) -> None:
    session, job = Session(server, tmp_path / "run"), make_job()
    server.outcome = {"adapter": "../verifier-0"}
    assert "names an adapter '../verifier-0'" in str(session.tune(job)[0].failure())
    server.outcome, server.jobs = {}, {}
    name = str(session.tune(job)[0].unwrap().adapter)
    kept = server.files.pop(name)
    (tmp_path / "run" / "adapters" / name).rename(tmp_path / "gone")
    assert f"of {name}" in str(session.tune(job)[0].failure())
    server.files[name] = kept
    assert session.tune(job)[0].unwrap().adapter == name
    assert len(server.paths("PUT", "jobs")) == 4


def test_a_group_with_any_name_has_a_job_and_an_owner(server: FakeServer, tmp_path: Path) -> None:
    job = replace(make_job(), name="die Prüfer/../x-0")
    tuned = Session(server, tmp_path / "run").tune(job)[0].unwrap()
    (id,) = server.jobs
    assert id.startswith(identity(tmp_path / "run"))
    assert "/" not in id + str(tuned.adapter)


@pytest.mark.parametrize(
    ("outcome", "problem"),
    [
        ({"status": "cancelled", "reason": "as asked for", "adapter": None}, "as asked for"),
        ({"adapter": None, "scores": (), "problem": "the loss grew"}, "the loss grew"),
    ],
)
def test_a_training_without_an_adapter_is_an_answer(
    server: FakeServer, tmp_path: Path, outcome: dict[str, Any], problem: str
) -> None:
    server.outcome = outcome
    tuned = Session(server, tmp_path / "run").tune(make_job())[0].unwrap()
    assert (tuned.adapter, tuned.scores) == (None, ())
    assert problem in tuned.problem


def test_a_failed_training_is_a_failure_and_is_put_there_again(
    server: FakeServer, tmp_path: Path
) -> None:
    server.outcome = {"status": "failed", "reason": "killed by SIGKILL", "adapter": None}
    failed = Session(server, tmp_path / "run").tune(make_job())[0].failure()
    assert isinstance(failed, FailedTraining)
    assert "killed by SIGKILL; see http" in str(failed)
    assert is_readable(str(failed))
    server.outcome = {}
    assert Session(server, tmp_path / "run").tune(make_job())[0].unwrap().adapter is not None
    assert len(server.jobs) == 1


def test_a_job_that_the_server_refuses_ends_the_run(server: FakeServer, tmp_path: Path) -> None:
    session, job = Session(server, tmp_path / "run"), make_job()
    session.tune(job)
    (line,) = (str(done.failure()) for done in session.tune(replace(job, seed=8)))
    assert is_readable(line)
    assert line.endswith("is another job")


def test_a_job_that_does_not_end_in_time_ends_the_run(server: FakeServer, tmp_path: Path) -> None:
    server.looks = 10**6
    line = str(Session(server, tmp_path / "run", limit=0.3).tune(make_job())[0].failure())
    assert is_readable(line)
    assert "still running after" in line


def test_a_job_survives_that_the_server_is_away(server: FakeServer, tmp_path: Path) -> None:
    server.looks = 4

    def be_away() -> None:
        assert server.looked.wait(60)
        server.stop()
        time.sleep(0.5)
        server.start()

    away = threading.Thread(target=be_away)
    away.start()
    session = Session(server, tmp_path / "run")
    (tuned,) = session.tune(make_job())
    away.join()
    assert tuned.unwrap().adapter is not None
    assert len(server.jobs) == 1
    assert len(server.paths("PUT", "/training/jobs/")) == 1


def test_a_server_that_stays_away_ends_the_run_which_finds_its_job_again(
    server: FakeServer, tmp_path: Path
) -> None:
    server.looks = 10**6
    threading.Thread(target=lambda: server.looked.wait(60) and server.stop()).start()
    line = str(Session(server, tmp_path / "run", away=1.0).tune(make_job())[0].failure())
    assert is_readable(line)
    assert line.startswith(f"{server.url}: training verifier-0: the server cannot be reached")
    server.looks = 3
    server.start()
    assert Session(server, tmp_path / "run").tune(make_job())[0].unwrap().adapter is not None
    assert len(server.jobs) == 1


def test_jobs_under_way_are_cancelled(server: FakeServer, tmp_path: Path) -> None:
    done, under_way = make_job(), replace(make_job(), name="verifier-1")
    never = replace(make_job(), name="verifier-2")
    session = Session(server, tmp_path / "run", limit=0.2)
    session.tune(done)
    server.looks = 10**6
    session.tune(under_way)
    groups = of_groups(session.params, Session(server, tmp_path / "run").hosts)
    cancelled = asyncio.run(cancel_jobs(groups, (under_way, never)))
    id = f"{identity(tmp_path / 'run')}-verifier-1"
    assert cancelled == Success([id])
    assert _info(server, id).status == "cancelled"


def _info(server: FakeServer, id: str) -> JobInfo:
    return server.jobs[id][1]
