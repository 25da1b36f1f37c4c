"""What goes wrong at a fine-tuning API: faults of a real server, met by real requests."""

import asyncio
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from returns.result import Result, Success

from nip_fn.errors import Problem
from nip_fn.run.events import Publish
from nip_fn.run.ports import Served
from nip_fn.training.tuning import Job
from nip_fn_adapters.providers.api.publisher import api_publisher

from ..provider import Provider
from .tuning import KEY, QUICK, created, groups, is_readable, make_job, tune, uploaded

PLACES = {
    "the list of jobs": {"kind": "job", "method": "GET", "nth": 1},
    "the list of files": {"kind": "file", "method": "GET", "nth": 1},
    "the upload": {"kind": "file", "method": "POST", "nth": 1},
    "the creation": {"kind": "job", "method": "POST", "nth": 1},
    "a look at the job": {"kind": "job", "method": "GET", "path": "jobs/", "nth": 1},
}
PASSING = (
    "429", "429-retry-after", "500", "502", "503", "reset", "lost", "reset-mid-body", "malformed",
    "timeout", "timeout-after",
)  # fmt: skip


FATAL = ("401", "402", "403", "413", "429-quota")


def sampled(faults: Iterable[str], at_every_place: str) -> list[Any]:
    """All faults at all places; in `make test`, one at all places and all where a job is created.

    That is the place where money is spent.
    """
    return [
        pytest.param(
            place,
            fault,
            marks=()
            if fault == at_every_place or place == "the creation"
            else pytest.mark.exhaustive,
        )
        for place in PLACES
        for fault in faults
    ]


@pytest.mark.parametrize(("place", "fault"), sampled(PASSING, "lost"))
def test_what_passes_leaves_one_job_and_one_file(
    provider: Provider, tmp_path: Path, job: Job, place: str, fault: str
) -> None:
    given = {"match": PLACES[place], "fault": fault, "retry_after": 0.05}
    provider.configure(job_seconds=0.05, faults=[given])
    before = len(provider.log())
    (tuned,) = tune(tmp_path, provider.url, job, timeouts=QUICK._replace(answer=0.6))
    (made,) = created(provider, tmp_path)
    assert tuned.unwrap().adapter == made["fine_tuned_model"]
    assert len(uploaded(provider, tmp_path)) == 1
    struck = [entry["fault"] for entry in provider.log()[before:] if entry["fault"]]
    assert struck == [fault]


@pytest.mark.parametrize(("place", "fault"), sampled(FATAL, "401"))
def test_what_does_not_pass_is_one_readable_line_and_can_be_resumed(
    provider: Provider, tmp_path: Path, job: Job, place: str, fault: str
) -> None:
    match = {**PLACES[place], "nth": None}
    provider.configure(job_seconds=0.05, faults=[{"match": match, "fault": fault}])
    (failed,) = tune(tmp_path, provider.url, job)
    assert str(failed.failure()).startswith(f"{provider.url}: training verifier-0: ")
    assert is_readable(failed.failure())
    provider.configure(faults=[])
    assert tune(tmp_path, provider.url, job)[0].unwrap().adapter is not None
    assert len(created(provider, tmp_path)) == 1
    assert len(uploaded(provider, tmp_path)) == 1


def test_a_job_is_gone_only_where_it_is_not_listed_either(
    provider: Provider, tmp_path: Path, job: Job
) -> None:
    given = {"match": PLACES["a look at the job"], "fault": "404"}
    provider.configure(job_seconds=0.05, faults=[given])
    (tuned,) = tune(tmp_path, provider.url, job)
    assert tuned.unwrap().adapter == created(provider, tmp_path)[0]["fine_tuned_model"]


def test_the_first_looks_come_sooner_than_the_later_ones(
    provider: Provider, tmp_path: Path, job: Job
) -> None:
    provider.configure(job_seconds=0.5)
    before = len(provider.log())
    tune(tmp_path, provider.url, job, timeouts=QUICK._replace(poll=3600.0))
    looks = [entry["at"] for entry in provider.log()[before:]]
    assert looks[-1] - looks[0] < 3600 / 2


def test_a_model_that_cannot_be_trained_is_named(
    provider: Provider, tmp_path: Path, job: Job
) -> None:
    further = make_job(start="ft:gpt:org:never-made:1", rows=job.rows)
    (failed,) = tune(tmp_path, provider.url, further)
    assert "ft:gpt:org:never-made:1 does not exist" in str(failed.failure())
    assert is_readable(failed.failure())


@pytest.mark.parametrize(("place", "fault"), sampled(("die", "die-after"), "none"))
def test_a_provider_that_dies_and_comes_back_has_one_job(
    tmp_path: Path, job: Job, place: str, fault: str
) -> None:
    faults = [{"match": PLACES[place], "fault": fault}]
    with Provider(key=KEY, job_seconds=0.1, faults=faults) as provider:
        death = threading.Thread(target=_revive, args=(provider,))
        death.start()
        (tuned,) = tune(tmp_path, provider.url, job)
        death.join()
        (made,) = created(provider, tmp_path)
        assert tuned.unwrap().adapter == made["fine_tuned_model"]
        assert len(uploaded(provider, tmp_path)) == 1


def _revive(provider: Provider) -> None:
    """Wait until the provider dies, then start it again without a fault."""
    deadline = time.monotonic() + 120
    while provider.pid is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    provider.restart(faults=[])


def test_a_provider_out_of_reach_is_a_readable_line(tmp_path: Path, job: Job) -> None:
    with Provider() as provider:
        url = provider.url
    brief = QUICK._replace(retries=QUICK.retries._replace(max_outage=0.3))
    (failed,) = tune(tmp_path, url, job, timeouts=brief)
    assert url in str(failed.failure())
    assert is_readable(failed.failure())


def test_a_server_that_is_no_provider_is_a_readable_line(tmp_path: Path, job: Job) -> None:
    """The address of a web page, say."""
    with _page_server() as url:
        (failed,) = tune(tmp_path, url, job)
    assert url in str(failed.failure())
    assert is_readable(failed.failure())


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<html><body>Welcome!</body></html>")

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@contextmanager
def _page_server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


# -------------------------------------------------------------------------------------- publishing


def publish(provider: Provider, model: str, **timeouts: float) -> Result[Served, Problem]:
    publisher = api_publisher(groups(provider.url), timeouts=QUICK._replace(**timeouts))
    return asyncio.run(publisher(Publish("verifier", "gpt", model, (), ())))


def test_a_model_that_was_trained_is_published(
    provider: Provider, tmp_path: Path, job: Job
) -> None:
    (tuned,) = tune(tmp_path, provider.url, job)
    assert publish(provider, str(tuned.unwrap().adapter)) == Success(Served())


def test_a_model_that_answers_without_being_listed_is_published(provider: Provider) -> None:
    before = provider.counters()
    assert publish(provider, "not-listed-but-there") == Success(Served())
    after = provider.counters()
    assert after["by_kind"]["chat"] - before["by_kind"].get("chat", 0) == 1
    assert after["completion_tokens"] - before["completion_tokens"] <= 1


def test_a_model_that_does_not_answer_is_waited_for_and_named(provider: Provider) -> None:
    unmade = "ft:gpt:org:never-made:1"
    failed = publish(provider, unmade, limit=0.2)
    assert f"{provider.url}: the server does not serve {unmade} after 0.2 s" in str(
        failed.failure()
    )
    assert is_readable(failed.failure())
