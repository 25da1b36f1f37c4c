"""Laws of trainings on the server, with real ones of the tiny model: what is asked for is trained
once, whoever dies; what is cancelled is dead; and the server serves again afterwards.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nip_fn.training.canary import PROBE_TOKENS
from nip_fn.training.tuning import Job
from nip_fn_adapters.serving.wire import PublishAdapter

from ..lazily import needs
from .fleets import is_alive
from .serving import MODEL, Server, config, descendants, eventually, fake_vllm, lora
from .serving import write_adapter as write
from .training import make_job

pytestmark = needs("litestar", "accelerate", "peft", "trl")

SHORT: Job = replace(make_job(Path("m")), model=MODEL, num_epochs=1)
LONG = replace(SHORT, name="verifier-1", num_epochs=2000)
ACTIVE = ("starting", "running")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    options = ("--model", MODEL, *fake_vllm(folder / "vllm"))
    with Server(folder / "state", *options) as server:
        yield server


def trainings(server: Server) -> set[int]:
    """The processes that train."""
    assert server.process is not None

    def trains(pid: int) -> bool:
        try:
            return b"nip_fn_adapters.serving.training" in Path(f"/proc/{pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return False

    launchers = set(filter(trains, descendants(server.process.pid)))
    return launchers.union(*map(descendants, launchers))


def adapters(server: Server) -> list[str]:
    return [one["name"] for one in server.ask("/adapters").json()]


def test_a_job_is_trained_and_what_it_leaves_can_be_published(server: Server) -> None:
    created = server.put_job("run-verifier-0", SHORT)
    assert created.status == 200
    assert created.json()["status"] in ("pending", "starting")
    job = server.wait_for("run-verifier-0", "succeeded", "failed")
    assert job["status"] == "succeeded", job
    assert job["adapter"].startswith("verifier-0-")
    assert dict(job["report"])["steps"] == 3
    assert job["progress"]["step"] == job["progress"]["steps"] == 3
    probes = len(SHORT.probes)
    assert probes < len(job["scores"]) <= probes * PROBE_TOKENS
    assert job["adapter"] in adapters(server)
    again = server.put_job("run-verifier-0", SHORT)
    assert (again.status, again.json()) == (200, job)
    assert server.put_job("run-verifier-0", replace(SHORT, seed=2)).status == 409
    log = server.ask("/training/jobs/run-verifier-0/log")
    assert (log.status, log.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    asked = PublishAdapter("run-verifier")
    served = server.ask(f"/adapters/{job['adapter']}/publish", "POST", asked)
    assert served.status == 200, served.body


def test_a_cancelled_job_is_dead_and_stays_cancelled(server: Server) -> None:
    server.put_job("run-long", LONG)
    server.put_job("run-waits", replace(LONG, name="verifier-2"))
    processes = eventually(lambda: trainings(server), bool)
    assert server.job("run-waits")["place"] == 1
    assert server.ask("/training/jobs/run-waits", "DELETE").status == 204
    assert server.ask("/training/jobs/run-long", "DELETE").status == 204
    assert not any(map(is_alive, processes))
    assert [server.job(id)["status"] for id in ("run-long", "run-waits")] == ["cancelled"] * 2
    assert server.ask("/training/jobs/run-long", "DELETE").status == 409
    assert server.put_job("run-long", LONG).json()["status"] == "cancelled"


def test_the_jobs_are_listed_in_their_order(server: Server) -> None:
    ids = ["z-first", "a-second"]
    for id in ids:
        server.put_job(id, replace(LONG, name=id))
    listed = server.ask("/training/jobs").json()
    assert [job["id"] for job in listed if job["id"] in ids] == ids
    for id in reversed(ids):
        assert server.ask(f"/training/jobs/{id}", "DELETE").status == 204


@pytest.mark.exhaustive
def test_a_server_that_is_killed_in_a_training_trains_it_once(tmp_path: Path) -> None:
    job = replace(SHORT, num_epochs=4)
    options = ("--model", MODEL, "--parallel-jobs", "2", *fake_vllm(tmp_path / "vllm"))
    with Server(tmp_path / "state", *options) as server:
        server.put_job("run-verifier-0", job)
        server.put_job("run-cancelled", replace(job, name="cancelled"))
        assert server.ask("/training/jobs/run-cancelled", "DELETE").status == 204
        eventually(lambda: server.job("run-verifier-0")["progress"], bool)
        processes = trainings(server)
        assert processes
        server.kill()
        eventually(lambda: [*filter(is_alive, processes)], lambda alive: not alive)
        server.start()
        assert server.put_job("run-verifier-0", job).status == 200  # a client that asks again
        ended = server.wait_for("run-verifier-0", "succeeded", "failed")
        assert ended["status"] == "succeeded"
        assert dict(ended["report"])["steps"] == 12
        assert adapters(server) == [ended["adapter"]]
        assert server.job("run-cancelled")["status"] == "cancelled"
        server.kill()
        server.start()
        assert server.job("run-verifier-0") == ended


def test_vllm_makes_room_for_trainings_and_comes_back_with_its_adapters(tmp_path: Path) -> None:
    def status() -> dict[str, Any]:
        found: dict[str, Any] = server.ask("/vllm/status").json()
        return found

    options = ("--model", MODEL, "--no-keep-serving", *fake_vllm(tmp_path / "vllm"))
    with Server(tmp_path / "state", *options) as server:
        server.put_adapter("before", write(tmp_path / "before", lora(), config()))
        publishing = PublishAdapter("run-a")
        assert server.ask("/adapters/before/publish", "POST", publishing).status == 200
        server.put_job("run-long", LONG)
        eventually(lambda: server.job("run-long")["status"], lambda s: s in ACTIVE)
        assert (status()["status"], status()["model_name"]) == ("asleep", MODEL)
        assert server.ask("/vllm/start", "POST", {"model_name": MODEL}).status == 202
        assert status()["status"] == "asleep"
        assert server.ask("/training/jobs/run-long", "DELETE").status == 204
        # It waits until vLLM is back.
        assert server.ask("/adapters/before/publish", "POST", publishing).status == 200
        assert status()["status"] == "online"
        assert server.served() == [MODEL, "before"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": "org/other"}, "serves builtin:tea, not org/other"),
        ({"start": "nowhere"}, "there is no adapter nowhere"),
        ({"reference": "../../x"}, "there is no adapter ../../x"),
        ({"rows": ()}, "no rows"),
        ({"use_lora": False}, "cannot be loaded"),
        ({"name": "../../x"}, "cannot be a part of an adapter's name"),
        ({"name": "x" * 191}, "cannot be a part of an adapter's name"),
        ({"lora_rank": 513}, "no rank above 512"),
        ({"start": "stacked", "stack": True, "lora_rank": 509}, "it leaves has rank 513"),
        ({"num_epochs": 0}, "1 or more"),
        ({"seed": 1 << 70}, "no training can use"),
    ],
)
def test_a_job_that_cannot_be_served_afterwards_is_refused(
    server: Server, tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    if changes.get("start") == "stacked":
        server.put_adapter("stacked", write(tmp_path, lora(), config()))
    answer = server.put_job("run-refused", replace(SHORT, **changes))
    assert answer.status == 422
    assert why in answer.detail
    assert server.ask("/training/jobs/run-refused").status == 404


def test_what_a_waiting_job_starts_from_stays(server: Server, tmp_path: Path) -> None:
    server.put_adapter("needed", write(tmp_path, lora(), config()))
    server.put_job("run-first", LONG)
    server.put_job("run-needs", replace(LONG, name="verifier-3", start="needed"))
    answer = server.ask("/adapters/needed", "DELETE")
    assert (answer.status, "starts from needed" in answer.detail) == (409, True)
    for id in ("run-needs", "run-first"):
        assert server.ask(f"/training/jobs/{id}", "DELETE").status == 204
    assert server.ask("/adapters/needed", "DELETE").status == 204
