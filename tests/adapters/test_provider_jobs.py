"""The fake provider's files, fine-tuning jobs and batches, through the real openai client."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec
import pytest

from ..provider import Provider

openai = pytest.importorskip("openai")
pytest.importorskip("aiohttp")

Client = Any
Doing = Callable[[Client], Awaitable[Any]]
HI = [{"role": "user", "content": "hi"}]
SUPERVISED = {"messages": [*HI, {"role": "assistant", "content": "Hello."}]}
PREFERENCE = {
    "input": {"messages": HI},
    "preferred_output": [{"role": "assistant", "content": "Hello."}],
    "non_preferred_output": [{"role": "assistant", "content": "Go."}],
}


@pytest.fixture
def provider(running: Provider) -> Provider:
    running.reset()
    return running


def do(provider: Provider, doing: Doing) -> Any:
    """The value of `doing` with a client of the provider."""

    async def run() -> Any:
        # There is no TLS to verify, and certificates take 60 ms to load.
        http = openai.DefaultAsyncHttpxClient(verify=False)
        how: Any = {"max_retries": 0, "timeout": 5, "http_client": http}
        async with openai.AsyncOpenAI(base_url=provider.url, api_key="k", **how) as own:
            return await doing(own)

    return asyncio.run(run())


def lines(rows: list[Any]) -> bytes:
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)


async def train(client: Client, rows: list[Any], **fields: Any) -> Any:
    file = await client.files.create(file=("rows.jsonl", lines(rows)), purpose="fine-tune")
    settings = {"model": "base", "suffix": "Prover 1", "seed": 3} | fields
    return await client.fine_tuning.jobs.create(training_file=file.id, **settings)


def dpo(**chosen: Any) -> Any:
    return {"type": "dpo", "dpo": {"hyperparameters": chosen}}


async def listed(pages: Any) -> list[Any]:
    return [entry async for entry in pages]


def in_order(seen: Iterable[str], steps: list[str]) -> bool:
    """True if all that was seen are steps in their order, the first and the last among them."""
    found = list(seen)
    return found == [step for step in steps if step in found] and {steps[0], steps[-1]} <= {*found}


def test_files(provider: Provider) -> None:
    async def doing(client: Client) -> None:
        one = await client.files.create(file=("a.jsonl", b"1\n"), purpose="fine-tune")
        two = await client.files.create(file=("a.jsonl", b"1\n"), purpose="fine-tune")
        assert (one.bytes, one.filename, one.purpose) == (2, "a.jsonl", "fine-tune")
        assert one.id != two.id
        assert [file.id for file in await listed(client.files.list())] == [two.id, one.id]
        assert await listed(client.files.list(purpose="batch")) == []
        assert (await client.files.delete(one.id)).deleted
        assert (await client.files.content(two.id)).content == b"1\n"
        with pytest.raises(openai.NotFoundError):
            await client.files.retrieve(one.id)
        with pytest.raises(openai.BadRequestError, match="empty"):
            await client.files.create(file=("a.jsonl", b""), purpose="fine-tune")

    do(provider, doing)


def test_a_job_goes_from_status_to_status(provider: Provider) -> None:
    async def doing(client: Client) -> None:
        job = await train(client, [PREFERENCE] * 10, method=dpo(beta=0.2, n_epochs=2))
        seen = {job.status: None}
        while job.status not in ("succeeded", "failed"):
            await asyncio.sleep(0.01)
            job = await client.fine_tuning.jobs.retrieve(job.id)
            seen[job.status] = None
            assert (job.fine_tuned_model is None) == (job.status != "succeeded")
        assert in_order(seen, ["validating_files", "queued", "running", "succeeded"])
        assert job.fine_tuned_model == f"ft:base:org:prover-1:{job.id[-8:]}"
        assert (job.seed, job.method.dpo.hyperparameters.beta) == (3, 0.2)
        assert job.trained_tokens > 0
        answer = await client.chat.completions.create(model=job.fine_tuned_model, messages=HI)
        assert answer.model == job.fine_tuned_model
        names = [model.id for model in await listed(client.models.list())]
        assert job.fine_tuned_model in names
        table = (await client.files.content(job.result_files[0])).content
        assert table.startswith(b"step,train_loss")
        events = await listed(client.fine_tuning.jobs.list_events(job.id, limit=3))
        assert len(events) == 9
        assert "successfully" in events[0].message
        again = await train(client, [SUPERVISED] * 10, model=job.fine_tuned_model, suffix="second")
        assert again.model == job.fine_tuned_model

    provider.configure(job_seconds=0.6)
    do(provider, doing)
    assert provider.jobs()[-1]["_"]["model"].startswith("ft:base:org:second:")


@pytest.mark.parametrize("outcome", ["failed", "cancelled", "never", "vanishes"])
def test_how_else_a_job_ends(provider: Provider, outcome: str) -> None:
    async def doing(client: Client) -> Any:
        job = await train(client, [SUPERVISED] * 10)
        return await client.fine_tuning.jobs.retrieve(job.id)

    provider.configure(job_outcome=outcome)
    if outcome == "vanishes":
        with pytest.raises(openai.NotFoundError):
            do(provider, doing)
        assert do(provider, lambda client: listed(client.fine_tuning.jobs.list())) == []
        assert len(provider.jobs()) == provider.counters()["jobs_created"] == 1
        return
    job = do(provider, doing)
    assert job.status == ("running" if outcome == "never" else outcome)
    assert (job.error is not None) == (outcome == "failed")
    assert job.fine_tuned_model is None


def test_what_makes_a_job_fail_or_refused(provider: Provider) -> None:
    async def doing(client: Client) -> None:
        for rows, method in (
            ([SUPERVISED] * 9, None),
            ([PREFERENCE] * 10, None),
            ([SUPERVISED] * 10, dpo()),
            ([{**PREFERENCE, "input": {}}] * 10, dpo()),
        ):
            job = await train(client, rows, method=method or openai.omit)
            job = await client.fine_tuning.jobs.retrieve(job.id)
            assert (job.status, job.error.code) == ("failed", "invalid_training_file")
        for fields in (
            {"suffix": "s" * 65},
            {"model": "ft:base:org::nothing"},
            {"metadata": {"a": "b" * 513}},
            {"method": {"type": "other"}},
        ):
            with pytest.raises(openai.BadRequestError):
                await train(client, [SUPERVISED] * 10, **fields)
        with pytest.raises(openai.BadRequestError, match="no such file"):
            await client.fine_tuning.jobs.create(model="base", training_file="file-0")

    do(provider, doing)


def test_cancel_list_and_metadata(provider: Provider) -> None:
    async def doing(client: Client) -> None:
        jobs = [await train(client, [SUPERVISED] * 10, metadata={"run": str(i)}) for i in range(5)]
        api = client.fine_tuning.jobs
        assert len({job.id for job in jobs}) == 5
        first = await api.list(limit=2)
        assert [job.id for job in first.data] == [jobs[4].id, jobs[3].id]
        assert first.has_more
        everything = await listed(api.list(limit=2))
        assert [job.id for job in everything] == [job.id for job in reversed(jobs)]
        assert [job.id for job in await listed(api.list(metadata={"run": "2"}))] == [jobs[2].id]
        assert (await api.cancel(jobs[0].id)).status == "cancelled"
        assert (await api.retrieve(jobs[0].id)).status == "cancelled"
        with pytest.raises(openai.BadRequestError, match="already ended"):
            await api.cancel(jobs[0].id)

    provider.configure(job_seconds=60)
    do(provider, doing)
    provider.restart()
    assert [job["status"] for job in provider.jobs()] == ["cancelled"] + ["validating_files"] * 4


def test_a_job_whose_answer_was_lost_is_there(provider: Provider) -> None:
    async def doing(client: Client) -> Any:
        with pytest.raises(openai.APIConnectionError):
            await train(client, [SUPERVISED] * 10)
        found = await listed(client.fine_tuning.jobs.list())
        await asyncio.sleep(0.3)
        return found, await listed(client.fine_tuning.jobs.list())

    match = {"kind": "job", "method": "POST"}
    provider.configure(faults=[{"fault": "lost", "match": match, "times": 1}], list_lag=0.25)
    at_once, later = do(provider, doing)
    assert (len(at_once), len(later), len(provider.jobs())) == (0, 1, 1)
    provider.configure(faults=[{"fault": "reset", "match": match, "times": 1}])
    do(provider, doing)
    assert len(provider.jobs()) == 1  # this request was not carried out


def test_the_same_training_has_the_same_name(provider: Provider) -> None:
    def name_in(other: Provider) -> str:
        job = do(other, lambda client: train(client, [SUPERVISED] * 10))
        return str(job.id)

    with Provider(job_seconds=9) as other:
        do(other, lambda client: client.files.create(file=b"1\n", purpose="batch"))
        assert name_in(other) == name_in(provider)
    assert len({name_in(provider), *(job["id"] for job in provider.jobs())}) == 2


# ----------------------------------------------------------------------------------------- batches


def row(index: int, **fields: Any) -> dict[str, Any]:
    body = {"model": "m", "messages": HI, "seed": index, "n": 2} | fields
    url = "/v1/chat/completions"
    return {"custom_id": f"r{index}", "method": "POST", "url": url, "body": body}


async def submit(client: Client, rows: list[Any]) -> Any:
    file = await client.files.create(file=("rows.jsonl", lines(rows)), purpose="batch")
    return await client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )


async def rows_of(client: Client, file_id: str | None) -> dict[str, Any]:
    if file_id is None:
        return {}
    content = (await client.files.content(file_id)).content
    return {row["custom_id"]: row for row in map(msgspec.json.decode, content.splitlines())}


def test_a_batch_answers_as_chats_do(provider: Provider) -> None:
    async def doing(client: Client) -> None:
        batch = await submit(client, [row(i) for i in range(20)])
        seen = {batch.status: None}
        while batch.status != "completed":
            await asyncio.sleep(0.005)
            batch = await client.batches.retrieve(batch.id)
            seen[batch.status] = None
        assert in_order(seen, ["validating", "in_progress", "finalizing", "completed"])
        counts = batch.request_counts
        assert (counts.total, counts.completed, counts.failed) == (20, 20, 0)
        assert batch.error_file_id is None
        answers = await rows_of(client, batch.output_file_id)
        assert list(answers) != sorted(answers, key=lambda id: int(id[1:]))
        plain = await client.chat.completions.create(model="m", messages=HI, seed=7, n=2)
        body = answers["r7"]["response"]["body"]
        assert [choice["message"]["content"] for choice in body["choices"]] == [
            choice.message.content for choice in plain.choices
        ]
        assert [found.id for found in await listed(client.batches.list())] == [batch.id]

    provider.configure(batch_seconds=0.4)
    do(provider, doing)
    counters = provider.counters()
    assert counters["by_kind"]["batch-row"] == 20
    assert counters["batch_prompt_tokens"] == 20 * counters["prompt_tokens"]
    assert sum(entry["kind"] == "batch-row" for entry in provider.log()) == 20


def test_rows_that_fail(provider: Provider) -> None:
    async def doing(client: Client) -> tuple[Any, ...]:
        batch = await submit(client, [row(i) for i in range(4)])
        batch = await client.batches.retrieve(batch.id)
        good = await rows_of(client, batch.output_file_id)
        return batch, good, await rows_of(client, batch.error_file_id)

    match = {"kind": "batch-row", "contains": '"seed":2'}
    provider.configure(faults=[{"fault": "500", "match": match}])
    batch, good, bad = do(provider, doing)
    assert (sorted(good), list(bad)) == (["r0", "r1", "r3"], ["r2"])
    assert bad["r2"]["response"]["status_code"] == 500
    assert (batch.request_counts.completed, batch.request_counts.failed) == (3, 1)
    provider.configure(faults=[], batch_outcome="expired", batch_share=0.5)
    batch, good, bad = do(provider, doing)
    assert (batch.status, sorted(good), sorted(bad)) == ("expired", ["r0", "r1"], ["r2", "r3"])
    assert bad["r3"]["error"]["code"] == "batch_expired"


def test_batches_that_fail_as_a_whole(provider: Provider) -> None:
    async def doing(client: Client) -> Any:
        for rows in ([row(1), row(1)], [row(1), row(2, model="o")], [{"a": 1}]):
            batch = await client.batches.retrieve((await submit(client, rows)).id)
            assert (batch.status, batch.output_file_id) == ("failed", None)
            assert batch.errors.data[0].line == len(rows)

    do(provider, doing)
    provider.configure(batch_outcome="failed")
    batch = do(provider, lambda client: submit(client, [row(1)]))
    assert do(provider, lambda client: client.batches.retrieve(batch.id)).status == "failed"


def test_a_batch_that_is_cancelled_keeps_what_was_done(provider: Provider) -> None:
    async def doing(client: Client) -> Any:
        batch = await submit(client, [row(i) for i in range(4)])
        await asyncio.sleep(0.9)
        assert (await client.batches.cancel(batch.id)).status == "cancelling"
        return await client.batches.retrieve(batch.id)

    provider.configure(batch_seconds=3)
    began = time.monotonic()
    batch = do(provider, doing)
    assert batch.status == "cancelled"
    done = batch.request_counts.completed
    assert 1 <= done <= 4 * (time.monotonic() - began) / 3
    assert done + batch.request_counts.failed == 4
    provider.restart()
    assert do(provider, lambda client: client.batches.retrieve(batch.id)).status == "cancelled"
