"""Sampling through the batch API: the real client, over real sockets, at the fake provider."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nip_fn.run.request import Request
from nip_fn_adapters.providers.api.batches import BatchApiSampler, Times, batch_sampler
from nip_fn_adapters.providers.api.endpoints import Endpoint
from nip_fn_adapters.providers.api.retries import RetryPolicy
from nip_fn_adapters.providers.api.sampler import ApiModel

from ..provider import Provider
from .sampling import KEY, QUICK, ask, make_request, make_sampler

# Batches take a twentieth of a second, and a request that fails is made again after about as long.
SETTINGS = QUICK._replace(policy=RetryPolicy(first_wait=0.02, longest_wait=0.1))
SHORT = Times(gather=0.02, poll=0.02, settle=0.3)


@pytest.fixture
def provider(running: Provider) -> Provider:
    running.reset(key=KEY, batch_seconds=0.05, caching=False)
    return running


def make_batches(run: Path, provider: Provider, how: Any = "auto") -> BatchApiSampler:
    run.mkdir(exist_ok=True)
    served = ApiModel((Endpoint(provider.url, KEY),), replies_per_request=how)
    agents = dict.fromkeys(("verifier", "prover"), served)
    return batch_sampler(run, agents, settings=SETTINGS, times=SHORT)


def wave(count: int, num: int = 2) -> list[Request]:
    return [make_request(f"q{place}", num=num) for place in range(count)]


def logged(provider: Provider, kind: str) -> list[dict[str, Any]]:
    return [entry for entry in provider.log() if entry["kind"] == kind]


def created(provider: Provider) -> list[dict[str, Any]]:
    return [
        entry
        for entry in logged(provider, "batch")
        if entry["method"] == "POST" and entry["path"].endswith("/batches")
    ]


def texts(answers: Any) -> list[list[str | None]]:
    return [[reply.text for reply in answer.unwrap()] for answer in answers]


def test_a_wave_is_one_batch_and_answers_as_single_requests_would(
    provider: Provider, tmp_path: Path
) -> None:
    answers = ask(make_batches(tmp_path / "run", provider), *wave(7))
    assert len(created(provider)) == 1
    assert len(logged(provider, "batch-row")) == 7
    assert logged(provider, "chat") == []
    alone = ask(make_sampler(provider.url), *wave(7))
    assert texts(answers) == texts(alone)
    for batched, single in zip(answers, alone, strict=True):
        for one, other in zip(batched.unwrap(), single.unwrap(), strict=True):
            assert (one.prompt_tokens, one.completion_tokens, one.model, one.finish_reason) == (
                other.prompt_tokens,
                other.completion_tokens,
                other.model,
                other.finish_reason,
            )
            assert one.request_id


def test_replies_are_asked_for_one_by_one_where_the_provider_makes_no_more(
    provider: Provider, tmp_path: Path
) -> None:
    provider.configure(supports_n="refused")
    answers = ask(make_batches(tmp_path / "run", provider), *wave(3))
    assert [len(answer.unwrap()) for answer in answers] == [2, 2, 2]
    assert len({text for group in texts(answers) for text in group}) == 6


def test_models_have_batches_of_their_own(provider: Provider, tmp_path: Path) -> None:
    requests = [make_request("a", model="m"), make_request("a", model="n")]
    answers = ask(make_batches(tmp_path / "run", provider), *requests)
    assert [answer.unwrap()[0].model for answer in answers] == ["m", "n"]
    assert len(created(provider)) == 2


@pytest.mark.parametrize("outcome", ["expired", "cancelled"])
def test_what_a_batch_left_undone_goes_into_another(
    provider: Provider, tmp_path: Path, outcome: str
) -> None:
    provider.configure(batch_outcome=outcome, batch_share=0.5)
    sampler = make_batches(tmp_path / "run", provider)

    async def sample() -> Any:
        asked = asyncio.gather(*(sampler(request) for request in wave(6)))
        while not created(provider):
            await asyncio.sleep(0.005)
        provider.configure(batch_outcome="completed")
        return await asked

    answers = asyncio.run(sample())
    assert texts(answers) == texts(ask(make_sampler(provider.url), *wave(6)))
    rows = [entry["body"] for entry in logged(provider, "batch-row")]
    assert len(created(provider)) == 2
    assert len(rows) == 6


def test_a_row_that_fails_is_asked_again_and_no_other(provider: Provider, tmp_path: Path) -> None:
    fault = {"fault": "500", "match": {"kind": "batch-row", "nth": [2, 4]}}
    provider.configure(faults=[fault])
    answers = ask(make_batches(tmp_path / "run", provider), *wave(5))
    assert texts(answers) == texts(ask(make_sampler(provider.url), *wave(5)))
    assert len(logged(provider, "batch-row")) == 7


def test_a_batch_that_is_refused_as_a_whole_ends_the_sampling_with_a_line(
    provider: Provider, tmp_path: Path
) -> None:
    provider.configure(batch_outcome="failed")
    answers = ask(make_batches(tmp_path / "run", provider), *wave(2))
    for answer in answers:
        assert "failed: The batch failed" in str(answer.failure())
        assert KEY not in str(answer.failure())
    provider.configure(batch_outcome="completed")
    again = ask(make_batches(tmp_path / "run", provider), *wave(2))
    assert all(len(answer.unwrap()) == 2 for answer in again)


@pytest.mark.parametrize("status", ["500", "503", "reset", "lost"])
@pytest.mark.parametrize("kind", ["file", "batch"])
def test_a_provider_that_stumbles_is_asked_again(
    provider: Provider, tmp_path: Path, status: str, kind: str
) -> None:
    provider.configure(faults=[{"fault": status, "match": {"kind": kind, "nth": [1, 2, 5]}}])
    answers = ask(make_batches(tmp_path / "run", provider), *wave(3))
    assert texts(answers) == texts(ask(make_sampler(provider.url), *wave(3)))
    assert len(logged(provider, "batch-row")) == 3


def test_a_wrong_key_is_told_of_and_not_shown(provider: Provider, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    served = ApiModel((Endpoint(provider.url, "sk-wrong-and-secret"),), key_variable="THE_KEY")
    sampler = batch_sampler(tmp_path / "run", {"prover": served}, settings=SETTINGS, times=SHORT)
    request = msgspec.structs.replace(make_request(), agent="prover")
    (answer,) = ask(sampler, request)
    assert "refuses the API key" in str(answer.failure())
    assert "sk-wrong" not in str(answer.failure())


@pytest.mark.parametrize("moment", ["noted", "created", "ended"])
def test_another_process_finds_the_batch_and_pays_nothing_twice(
    provider: Provider, tmp_path: Path, moment: str
) -> None:
    run = tmp_path / "run"
    first = make_batches(run, provider)
    fault = {"fault": "lost", "match": {"kind": "batch", "method": "POST"}}
    if moment == "noted":
        provider.configure(faults=[fault])

    async def until_then() -> None:
        asked = asyncio.gather(*(first(request) for request in wave(4)))
        while not created(provider):
            await asyncio.sleep(0.01)
        if moment == "ended":
            await asyncio.sleep(0.1)
        asked.cancel()

    asyncio.run(until_then())
    provider.configure(faults=[])
    answers = ask(make_batches(run, provider), *wave(3), make_request("new"))
    assert texts(answers[:3]) == texts(ask(make_sampler(provider.url), *wave(3)))
    assert len(created(provider)) == 2
    assert len(logged(provider, "batch-row")) == 5


def test_notes_that_cannot_be_read_end_the_sampling_with_a_line(
    provider: Provider, tmp_path: Path
) -> None:
    ask(make_batches(tmp_path / "run", provider), *wave(2))
    for note in (tmp_path / "run" / "batches").iterdir():
        note.write_bytes(b"{")
    answers = ask(make_batches(tmp_path / "run", provider), *wave(2))
    for answer in answers:
        assert str(answer.failure()).startswith(str(tmp_path / "run" / "batches"))
        assert "the notes of batches cannot be kept there (Input data was truncated)" in str(
            answer.failure()
        )


def test_no_note_holds_a_secret(provider: Provider, tmp_path: Path) -> None:
    ask(make_batches(tmp_path / "run", provider), *wave(2))
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert files
    assert not any(KEY.encode() in path.read_bytes() for path in files)
