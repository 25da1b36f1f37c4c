"""Training through a fine-tuning API: real requests to a fake provider."""

import asyncio
import itertools
import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from returns.result import Failure, Success

from nip_fn.run.ports import FailedTraining, Tuned
from nip_fn.training.losses import DPO, SFT
from nip_fn.training.tuning import Job
from nip_fn_adapters.providers.api import jobs, uploads
from nip_fn_adapters.providers.api.jobs import Intent, error_line, remote_of
from nip_fn_adapters.providers.api.ledger import identity
from nip_fn_adapters.providers.api.tuner import api_tuner, cancel_jobs, delete_files

from ..provider import Provider
from .tuning import (
    QUICK,
    created,
    groups,
    imitations,
    is_readable,
    make_job,
    preferences,
    tune,
    uploaded,
)

# ----------------------------------------------------------------------------------- what is asked


@pytest.mark.parametrize("method", ["dpo", "supervised"])
def test_a_training_is_uploaded_created_and_awaited(
    provider: Provider, tmp_path: Path, method: str
) -> None:
    about = f"{method} end to end,"
    is_dpo = method == "dpo"
    rows = preferences(12, about) if is_dpo else imitations(10, about)
    provider.configure(job_seconds=0.3)
    before = len(provider.log())
    job = make_job(name="Group A_1-3", rows=rows, loss=DPO(beta=0.2) if is_dpo else SFT())
    (tuned,) = tune(tmp_path, provider.url, job)
    (made,) = created(provider, tmp_path)
    tag = made["user_provided_suffix"]
    assert tag.startswith("group-a-1-3-")
    assert made["fine_tuned_model"] == f"ft:gpt-4.1-nano-2025-04-14:org:{tag}:{made['id'][-8:]}"
    report = (("rows", float(len(rows))), ("train_tokens", float(made["trained_tokens"])))
    assert tuned.unwrap()._replace(report=tuned.unwrap().report[:2]) == Tuned(
        made["fine_tuned_model"], report
    )
    asked = [(e["kind"], e["method"]) for e in provider.log()[before:]]
    assert asked[:4] == [("job", "GET"), ("file", "GET"), ("file", "POST"), ("job", "POST")]
    assert set(asked[4:]) == {("job", "GET")}
    assert 3 <= len(asked[4:]) < 30
    body = provider.log()[before + 3]["body"]
    numbers = {"n_epochs": 2, "batch_size": 8} | ({"beta": 0.2} if is_dpo else {})
    assert body == {
        "model": "gpt-4.1-nano-2025-04-14",
        "training_file": made["training_file"],
        "method": {"type": method, method: {"hyperparameters": numbers}},
        "seed": 7,
        "suffix": tag,
        "metadata": {"nip_fn": tag, "nip_fn_run": identity(tmp_path)},
    }


def test_what_the_job_does_not_say_is_asked_for_where_it_is_set() -> None:
    job = make_job(start="ft:gpt:org:x:1", rows=imitations(10), loss=SFT())
    fields = jobs.creation(Intent(job, "00", 0.5, "my-project"), "file-1")
    assert fields["model"] == "ft:gpt:org:x:1"
    assert fields["method"]["supervised"]["hyperparameters"]["learning_rate_multiplier"] == 0.5
    (integration,) = fields["integrations"]
    assert integration["type"] == "wandb"
    assert integration["wandb"]["project"] == "my-project"
    assert integration["wandb"]["name"] == fields["suffix"]


def test_a_training_goes_on_from_the_model_that_the_last_one_left(
    provider: Provider, tmp_path: Path, job: Job
) -> None:
    (first,) = tune(tmp_path, provider.url, job)
    name = first.unwrap().adapter
    further = make_job(name="verifier-1", start=name, reference=name, rows=job.rows)
    (second,) = tune(tmp_path, provider.url, further)
    assert second.unwrap().adapter not in (None, name)
    one, other = created(provider, tmp_path)
    assert other["model"] == name
    assert other["training_file"] == one["training_file"]  # the same rows are not uploaded twice
    assert len(uploaded(provider, tmp_path)) == 1


@pytest.mark.parametrize("name", ["", "Ünï-0", "x" * 100, "a/b c_d-12", "-"])
def test_a_tag_is_a_short_plain_suffix(name: str) -> None:
    tag = Intent(make_job(name=name), "00", None).tag
    assert 12 <= len(tag) <= 40
    assert set(tag) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert tag[0] != "-"


def test_a_tag_depends_on_the_run_the_name_and_the_data() -> None:
    intents = [
        Intent(make_job(name=name, rows=preferences(12, about)), run, None)
        for name in ("a-0", "a-1")
        for about in ("it", "that")
        for run in ("00", "11")
    ]
    assert len({intent.tag for intent in intents}) == len(intents)
    assert intents[0]._replace(multiplier=2.0).tag == intents[0].tag


# ------------------------------------------------------------------------------------ created once


def test_a_job_that_was_asked_for_is_found(provider: Provider, tmp_path: Path, job: Job) -> None:
    """By its id, by its tag where the id was lost, and whatever other parameters now say."""
    first = tune(tmp_path, provider.url, job)
    assert tune(tmp_path, provider.url, job) == first
    (tmp_path / "jobs" / job.name / "remote.json").unlink()
    assert tune(tmp_path, provider.url, job) == first
    assert len(created(provider, tmp_path)) == 1


def test_equal_jobs_of_two_runs_are_two(provider: Provider, tmp_path: Path, job: Job) -> None:
    (one,), (other,) = (tune(tmp_path / name, provider.url, job) for name in "ab")
    assert one.unwrap().adapter != other.unwrap().adapter
    assert [len(created(provider, tmp_path / name)) for name in "ab"] == [1, 1]


def test_jobs_of_one_run_with_equal_rows_share_a_file(
    provider: Provider, tmp_path: Path, job: Job
) -> None:
    both = tune(tmp_path, provider.url, job, make_job(name="prover-0", rows=job.rows))
    assert len({tuned.unwrap().adapter for tuned in both}) == 2
    assert len(created(provider, tmp_path)) == 2
    assert len(uploaded(provider, tmp_path)) == 1


@pytest.mark.parametrize("fault", ["lost", "timeout-after", "malformed"])
def test_a_job_whose_answer_was_lost_is_found_although_the_list_lags(
    provider: Provider, tmp_path: Path, job: Job, fault: str
) -> None:
    match = {"kind": "job", "method": "POST", "nth": 1}
    provider.configure(list_lag=0.25, faults=[{"match": match, "fault": fault}])
    (tuned,) = tune(tmp_path, provider.url, job, timeouts=QUICK._replace(settle=2.0))
    (made,) = created(provider, tmp_path)
    assert tuned.unwrap().adapter == made["fine_tuned_model"]


def test_a_job_whose_id_is_noted_is_not_looked_for_in_a_list_that_lags(
    provider: Provider, tmp_path: Path, job: Job
) -> None:
    provider.configure(list_lag=60.0)
    first = tune(tmp_path, provider.url, job)
    assert tune(tmp_path, provider.url, job) == first
    assert len(created(provider, tmp_path)) == 1


def test_after_a_refusal_nothing_is_waited_for(
    provider: Provider, tmp_path: Path, job: Job
) -> None:
    match = {"kind": "job", "method": "POST"}
    provider.configure(faults=[{"match": match, "fault": "402"}])
    assert isinstance(tune(tmp_path, provider.url, job)[0], Failure)
    provider.configure(faults=[])
    # A list that is given time is asked again and again, until then.
    before = len(provider.log())
    (tuned,) = tune(tmp_path, provider.url, job, timeouts=QUICK._replace(settle=20.0))
    assert isinstance(tuned, Success)
    looks = [entry["path"] for entry in provider.log()[before:] if entry["kind"] == "job"]
    assert sum("/jobs?" in path for path in looks) == 1


def test_all_pages_are_looked_through(
    provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "PAGE", 2)
    provider.configure(job_outcome="never")
    given = [make_job(name=f"verifier-{i}", rows=preferences(10, "pages")) for i in range(5)]
    brief = QUICK._replace(limit=0.0)
    assert all(isinstance(t, Failure) for t in tune(tmp_path, provider.url, *given, timeouts=brief))
    cancelled = asyncio.run(cancel_jobs(tmp_path, groups(provider.url))).unwrap()
    assert len(cancelled) == 5


def test_a_server_without_pages_is_not_asked_for_ever() -> None:
    class Endless:
        data = ()

        def __await__(self) -> Iterator[Any]:
            yield from ()
            return self

        async def __aiter__(self) -> Any:
            for id in itertools.cycle("abc"):
                yield SimpleNamespace(id=id)

    async def ids() -> list[str]:
        return [item.id async for item in uploads.each(Endless())]

    assert asyncio.run(ids()) == ["a", "b", "c"]


def test_a_job_is_known_by_its_suffix_where_a_server_keeps_no_metadata() -> None:
    for told in (
        SimpleNamespace(metadata={"nip_fn": "tag-1"}),
        SimpleNamespace(metadata=None, user_provided_suffix="tag-1"),
        SimpleNamespace(metadata={}, suffix="tag-1"),
    ):
        assert jobs._marks(told) == {"tag-1"}


# ------------------------------------------------------------------------------------- how it ends


@pytest.mark.parametrize("outcome", ["failed", "cancelled"])
def test_a_training_that_is_left_out_is_not_created_again(
    provider: Provider, tmp_path: Path, job: Job, outcome: str
) -> None:
    provider.configure(job_outcome=outcome)
    first = tune(tmp_path, provider.url, job)[0].failure()
    assert f" {outcome}: " in str(first)
    assert tune(tmp_path, provider.url, job, again=False)[0].failure() == first
    assert len(created(provider, tmp_path)) == 1


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        ("failed", "failed: job_failed: The job failed due to"),
        ("expired", "the provider gives no reason"),
        ("cancelled", "was cancelled: the provider gives no reason"),
    ],
)
def test_a_job_that_the_provider_ends_is_a_failure_and_the_next_call_creates_another(
    provider: Provider, tmp_path: Path, job: Job, outcome: str, words: str
) -> None:
    provider.configure(job_outcome=outcome)
    failed = tune(tmp_path, provider.url, job)[0].failure()
    assert isinstance(failed, FailedTraining)
    assert words in str(failed)
    assert is_readable(failed)
    provider.configure(job_outcome="succeeded")
    (tuned,) = tune(tmp_path, provider.url, job)
    _, second = created(provider, tmp_path)
    assert tuned.unwrap().adapter == second["fine_tuned_model"]
    assert tune(tmp_path, provider.url, job)[0].unwrap().adapter == second["fine_tuned_model"]
    assert len(created(provider, tmp_path)) == 2


def test_fewer_rows_than_the_provider_takes_are_not_uploaded(
    provider: Provider, tmp_path: Path
) -> None:
    before = len(provider.log())
    (refused,) = tune(tmp_path, provider.url, make_job(rows=preferences(9, "too few,")))
    assert refused == Failure(
        FailedTraining(
            "it has 9 rows, and the provider takes no fewer than 10", "training verifier-0"
        )
    )
    assert len(provider.log()) == before


@pytest.mark.parametrize(
    ("match", "fault", "words"),
    [
        ({"kind": "file", "method": "POST"}, "413", "the server finds the file too large (413): "),
        ({"kind": "job", "method": "POST"}, "400", "the server refuses the request (400): "),
    ],
)
def test_what_the_provider_refuses_for_good_is_a_failed_training(
    provider: Provider, tmp_path: Path, match: dict[str, str], fault: str, words: str
) -> None:
    provider.configure(faults=[{"match": match, "fault": fault}])
    job = make_job(rows=preferences(10, f"refused with {fault}"))
    failed = tune(tmp_path, provider.url, job)[0].failure()
    assert isinstance(failed, FailedTraining)
    assert words in str(failed)
    assert is_readable(failed)
    if fault == "413":
        assert re.search(r"too large \(413\): [\d,]{5,} bytes\. Request entity", str(failed))
    else:
        assert len(created(provider, tmp_path)) == 0


# -------------------------------------------------------------------------------------- its file


def there(provider: Provider, *jobs: dict[str, Any]) -> list[bool]:
    """True for each job whose file is at the provider."""
    files = {file["id"] for file in provider.files()}
    return [job["training_file"] in files for job in jobs]


def delete(run: Path, url: str, *awaited: Job) -> list[str]:
    told: list[str] = []
    asyncio.run(delete_files(run, groups(url), [job.name for job in awaited], told.append))
    return told


def test_a_file_is_deleted_once_nothing_waits_for_its_jobs(
    provider: Provider, tmp_path: Path
) -> None:
    shared, other = preferences(10, "shared"), preferences(10, "other")
    first, second, third = (
        make_job(name=name, group=name[:-2], rows=rows)
        for name, rows in (("prover-0", shared), ("verifier-0", shared), ("verifier-1", other))
    )
    tune(tmp_path, provider.url, first, second, third)
    elsewhere = tmp_path / "elsewhere"
    tune(elsewhere, provider.url, first)
    made = sorted(created(provider, tmp_path), key=lambda job: job["user_provided_suffix"])
    theirs = created(provider, elsewhere)
    assert delete(tmp_path, provider.url, first, third) == []
    assert there(provider, *made, *theirs) == [True, True, True, True]
    assert delete(tmp_path, provider.url, first) == []
    assert there(provider, *made, *theirs) == [True, True, False, True]
    assert delete(tmp_path, provider.url) == []
    assert there(provider, *made, *theirs) == [False, False, False, True]
    before = len(provider.log())
    assert delete(tmp_path, provider.url) == []
    assert len(provider.log()) == before


def test_the_file_of_a_failed_job_is_deleted_and_its_successor_has_another(
    provider: Provider, tmp_path: Path, job: Job
) -> None:
    provider.configure(job_outcome="failed")
    tune(tmp_path, provider.url, job)
    delete(tmp_path, provider.url, job)
    assert there(provider, *created(provider, tmp_path)) == [False]
    provider.configure(job_outcome="succeeded")
    assert isinstance(tune(tmp_path, provider.url, job)[0], Success)
    *_, successor = created(provider, tmp_path)
    assert there(provider, successor) == [True]


def test_a_file_that_cannot_be_deleted_is_told_and_tried_again(
    provider: Provider, tmp_path: Path, job: Job
) -> None:
    tune(tmp_path, provider.url, job)
    provider.configure(faults=[{"match": {"kind": "file", "method": "DELETE"}, "fault": "500"}])
    (line,) = delete(tmp_path, provider.url)
    assert "deleting files: the server fails (500)" in line
    assert is_readable(line)
    provider.configure(faults=[])
    assert delete(tmp_path, provider.url) == []
    assert there(provider, *created(provider, tmp_path)) == [False]


# ------------------------------------------------------------------------------------ patience


def test_a_job_that_vanishes_is_a_failure_and_the_next_sitting_creates_another(
    provider: Provider, tmp_path: Path, job: Job
) -> None:
    provider.configure(job_outcome="vanishes", job_seconds=0.1)
    (gone,) = tune(tmp_path, provider.url, job)
    (vanished,) = created(provider, tmp_path)
    assert f"the fine-tuning job {vanished['id']} of verifier-0" in str(gone.failure())
    assert "it has vanished; resume the run to create another" in str(gone.failure())
    assert is_readable(gone.failure())
    provider.configure(job_outcome="succeeded")
    (tuned,) = tune(tmp_path, provider.url, job)
    _, second = created(provider, tmp_path)
    assert tuned.unwrap().adapter == second["fine_tuned_model"]
    assert tune(tmp_path, provider.url, job)[0].unwrap().adapter == second["fine_tuned_model"]
    assert len(created(provider, tmp_path)) == 2


def test_a_job_that_does_not_end_in_time_is_a_failure_and_is_found_again(
    provider: Provider, tmp_path: Path, job: Job
) -> None:
    provider.configure(job_seconds=1.0)
    began = time.monotonic()
    (late,) = tune(tmp_path, provider.url, job, timeouts=QUICK._replace(limit=0.3, poll=30.0))
    assert time.monotonic() - began >= 0.3
    (made,) = created(provider, tmp_path)
    assert made["id"] in str(late.failure())
    line = (
        "it is still 'running' after 0.3 s, and keeps running there; resume the run to wait again"
    )
    assert line in str(late.failure())
    assert is_readable(late.failure())
    (tuned,) = tune(tmp_path, provider.url, job)
    (made,) = created(provider, tmp_path)
    assert tuned.unwrap().adapter == made["fine_tuned_model"]


def test_a_job_that_never_ends_can_be_cancelled(
    provider: Provider, tmp_path: Path, job: Job
) -> None:
    provider.configure(job_outcome="never")
    elsewhere = tmp_path / "other run"
    for run in (tmp_path, elsewhere):
        assert isinstance(
            tune(run, provider.url, job, timeouts=QUICK._replace(limit=0.1))[0], Failure
        )
    (made,) = created(provider, tmp_path)
    cancelled = asyncio.run(cancel_jobs(tmp_path, groups(provider.url)))
    assert cancelled == Success((made["id"],))
    assert asyncio.run(cancel_jobs(tmp_path, groups(provider.url))) == Success(())
    assert created(provider, elsewhere)[0]["status"] == "running"
    assert delete(tmp_path, provider.url, job) == []
    assert there(provider, made, *created(provider, elsewhere)) == [False, True]
    (tuned,) = tune(tmp_path, provider.url, job, again=False)
    assert str(tuned.failure()).startswith(f"the fine-tuning job {made['id']} was cancelled")


def test_stopping_leaves_the_job_running_says_so_and_finds_it_again(
    provider: Provider, tmp_path: Path, job: Job
) -> None:
    provider.configure(job_seconds=0.5)
    told: list[str] = []

    async def stop() -> None:
        tuning = asyncio.ensure_future(
            api_tuner(tmp_path, groups(provider.url), timeouts=QUICK, tell=told.append)(job)
        )
        while not (tmp_path / "jobs").exists() or not created(provider, tmp_path):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        tuning.cancel()
        await asyncio.gather(tuning, return_exceptions=True)

    asyncio.run(stop())
    (made,) = created(provider, tmp_path)
    assert all(made["id"] in line and is_readable(line) for line in told)
    assert told[0].endswith("/v1: validating_files")
    assert told[1].endswith("/v1 keeps running; resuming the run finds it again")
    assert len(told) == 2
    (tuned,) = tune(tmp_path, provider.url, job)
    assert tuned.unwrap().adapter == created(provider, tmp_path)[0]["fine_tuned_model"]


@pytest.mark.parametrize(
    ("word", "status"),
    [
        ("validating_files", "pending"), ("queued", "pending"), ("running", "running"),
        ("succeeded", "succeeded"), ("failed", "failed"), ("cancelled", "cancelled"),
        ("expired", "failed"),
        ("paused", "pending"), ("warming_up", "running"),
    ],
)  # fmt: skip
def test_every_status_is_one_of_six(word: str, status: str) -> None:
    remote = remote_of(SimpleNamespace(id="ftjob-1", status=word))
    assert (remote.status, remote.word, remote.model) == (status, word, None)


def test_an_error_is_one_line() -> None:
    error = SimpleNamespace(code="invalid_file", message="Line 3\n is cut", param="training_file")
    assert error_line(error) == "invalid_file: Line 3 is cut (training_file)"
    assert error_line(SimpleNamespace(code="c", message="m", param=None)) == "c: m"
    assert error_line(SimpleNamespace(code=None, message=None, param=None)) == ""
    assert error_line(None) == ""
