"""Answers of servers that are led elsewhere, endless, nested, compressed or wrapped, over real HTTP
on loopback.
"""

import asyncio
import gzip
import shlex
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web
from returns.result import Result

from nip_fn.errors import Problem
from nip_fn.game.reply import Completion
from nip_fn.training.tuning import Job
from nip_fn_adapters.providers.api.batches import Times, batch_sampler
from nip_fn_adapters.providers.api.clients import Chats
from nip_fn_adapters.providers.api.endpoints import Endpoint
from nip_fn_adapters.providers.api.problems import failure_of
from nip_fn_adapters.providers.api.replies import Answered, read_answer
from nip_fn_adapters.providers.api.retries import RequestFailure
from nip_fn_adapters.providers.api.sampler import ApiModel
from nip_fn_adapters.providers.selfhosted.client import Client
from nip_fn_adapters.serving.wire import ServerVersion

from ..provider import Provider
from .sampling import KEY, ask, is_readable, make_request, make_sampler, patient
from .tuning import KEY as TUNING_KEY
from .tuning import tune

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

REPLY = b'{"choices": [{"message": {"content": "Yes."}, "finish_reason": "stop"}]}'
DEEP = b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
BRIEF = patient(max_attempts=2)
AT_ONCE = Times(gather=0.01, poll=0.01, settle=0.05)


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    """The address of a server whose every path has that handler."""
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def sampled(
    handler: Handler, base: str = "/v1"
) -> tuple[Result[tuple[Completion, ...], Problem], str]:
    """A sampler's answer about one reply from a server with that handler, and its address."""

    async def sample() -> tuple[Any, str]:
        async with serving(handler) as url:
            sampler = make_sampler(f"{url}{base}", settings=BRIEF, replies_per_request="one")
            return await sampler(make_request(num=1)), url

    return asyncio.run(sample())


def answering(body: bytes, status: int = 200, **headers: str) -> Handler:
    """A handler with one answer."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=body, status=status, headers=headers)

    return answer


def read(body: bytes, status: int = 200) -> Answered | RequestFailure:
    return read_answer(body, {}, make_request(num=1), 1, status)


# ------------------------------------------------------------------------------------ redirects


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_prompt_is_not_sent_where_nobody_named(status: int) -> None:
    asked: list[str] = []

    async def take(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(body=REPLY)

    async def sample() -> tuple[str, str]:
        async with serving(take) as elsewhere:
            location = f"{elsewhere}/v2/chat/completions?token=open-sesame"
            async with serving(answering(b"", status, Location=location)) as url:
                sampler = make_sampler(f"{url}/v1", settings=BRIEF)
                return str((await sampler(make_request())).failure()), elsewhere

    said, elsewhere = asyncio.run(sample())
    assert asked == []
    assert said.endswith(
        f"the server sends requests to another address ({status}): "
        f"{elsewhere}/v2/chat/completions; if you trust it, run or resume with "
        f"--base-url {elsewhere}/v2"
    )
    assert is_readable(said)


def test_a_redirect_within_the_server_is_followed_unless_it_loses_the_prompt() -> None:
    def moving(status: int) -> Handler:
        async def answer(request: web.Request) -> web.Response:
            if request.path.startswith("/new/"):
                assert request.headers["Authorization"] == f"Bearer {KEY}"
                assert (await request.json())["messages"]
                return web.Response(body=REPLY)
            return web.Response(status=status, headers={"Location": f"/new{request.path}"})

        return answer

    for status in (307, 308):
        answer, _ = sampled(moving(status))
        assert [reply.text for reply in answer.unwrap()] == ["Yes."]
    for status in (301, 302, 303):
        answer, url = sampled(moving(status))
        assert f"--base-url {url}/new/v1" in str(answer.failure())


def test_an_address_that_is_pasted_runs_nothing() -> None:
    answer, _ = sampled(
        answering(b"", 307, Location="http://a.invalid/;$(touch x);'/chat/completions")
    )
    _, _, pasted = str(answer.failure()).partition(" --base-url ")
    (address,) = shlex.split(pasted)
    assert address.startswith("http://a.invalid/;$(")
    assert pasted == shlex.quote(address)


LONG = "https://a.invalid/" + "x" * 10_000 + "/chat/completions"


@pytest.mark.parametrize("location", ["http://[", "mailto:a@b", "/v1/chat/completions", LONG])
def test_a_redirect_to_nowhere_is_a_readable_line(location: str) -> None:
    answer, _ = sampled(answering(b"", 307, Location=location))
    assert "another address" in str(answer.failure())
    assert is_readable(answer.failure())


def test_trainings_and_batches_are_not_led_elsewhere_either(job: Job, tmp_path: Path) -> None:
    asked: list[str] = []

    async def take(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.json_response({"object": "list", "data": []})

    async def ask_both() -> list[str]:
        async with serving(take) as elsewhere:

            async def lead(request: web.Request) -> web.Response:
                return web.Response(status=307, headers={"Location": elsewhere + request.path_qs})

            async with serving(lead) as url:
                served = ApiModel((Endpoint(f"{url}/v1", KEY),))
                batches = batch_sampler(tmp_path, {"verifier": served}, times=AT_ONCE)
                batch = await batches(make_request())
                trained = await asyncio.to_thread(tune, tmp_path, f"{url}/v1", job)
                return [str(batch.failure()), str(trained[0].failure())]

    for said in asyncio.run(ask_both()):
        assert "if you trust it, run or resume with --base-url http://127.0.0.1:" in said
        assert is_readable(said)
    assert asked == []


# ------------------------------------------------------------------------------------ sizes


def test_an_answer_that_does_not_end_is_cut_off() -> None:
    sent = 0

    async def flood(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" " * (1 << 16))
            sent += 1 << 16

    answer, _ = sampled(flood)
    assert "answer is longer than 1,048,576 bytes; given up after 2 attempts" in str(
        answer.failure()
    )
    assert sent < 2 * 16 << 20, "but for what the sockets hold"


def test_an_answer_that_inflates_takes_no_more_memory_than_it_may() -> None:
    bomb = gzip.compress(b" " * (64 << 20), compresslevel=1)
    assert len(bomb) < 1 << 20

    async def explode(client: bool) -> tuple[RequestFailure, int]:
        handler = answering(
            bomb, **{"Content-Encoding": "gzip", "Content-Type": "application/json"}
        )
        async with serving(handler) as url:
            endpoint = Endpoint(f"{url}/v1", KEY)
            chats = Chats(endpoint, timeout=60.0, connections=1)
            tracemalloc.start()
            try:
                if client:
                    await chats.client_for(1 << 20).models.list()
                else:
                    await chats.post(b"{}", 1 << 20)
            except (openai.OpenAIError, aiohttp.ClientError) as error:
                failure = failure_of(error)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            await chats.aclose()
            return failure, peak

    for client in (False, True):
        failure, peak = asyncio.run(explode(client))
        assert failure.kind == "malformed"
        assert "longer than 1,048,576 bytes" in failure.message
        assert peak < 8 << 20


def test_an_answer_may_be_as_long_as_what_was_asked_for() -> None:
    text = "\\ud83d\\ude00" * 200_000  # 2.4 MB for a million tokens
    body = REPLY.replace(b"Yes.", text.encode())

    async def sample(tokens: int) -> Any:
        async with serving(answering(body)) as url:
            sampler = make_sampler(f"{url}/v1", settings=BRIEF)
            return await sampler(make_request(num=1, max_tokens=tokens))

    (reply,) = asyncio.run(sample(1_000_000)).unwrap()
    assert len(reply.text or "") == 200_000
    assert "longer than" in str(asyncio.run(sample(1_000)).failure())


def test_what_is_nested_too_deeply_is_malformed(job: Job, tmp_path: Path) -> None:
    for body in (DEEP, REPLY[:-1] + b', "x": ' + DEEP + b"}"):
        failure = read(body)
        assert isinstance(failure, RequestFailure)
        assert failure.kind == "malformed"
    for status in (200, 400):
        answer, _ = sampled(answering(DEEP, status))
        assert is_readable(answer.failure())

    async def train() -> tuple[Problem, Problem]:
        async with serving(answering(DEEP, **{"Content-Type": "application/json"})) as url:
            trained = await asyncio.to_thread(tune, tmp_path, f"{url}/v1", job)
            client = Client(Endpoint(url, KEY), "NIP_FN_SERVER_TOKEN")
            asked = await client.call("asking for its version", "get", "/version", ServerVersion)
            return trained[0].failure(), asked.failure()

    trained, asked = asyncio.run(train())
    assert "does not answer in the JSON" in str(trained)
    assert "does not answer as one does" in str(asked)
    for said in (trained, asked):
        assert is_readable(said)


# ------------------------------------------------------------------------------------ forms


WRAPPED = [
    b"\xef\xbb\xbf" + REPLY,
    b"\n\n : OPENROUTER PROCESSING\n\n: OPENROUTER PROCESSING\r\n\r\n" + REPLY,
    b"\r\n   " + REPLY,
]


@pytest.mark.parametrize("body", WRAPPED)
def test_what_stands_before_the_json_is_passed_over(body: bytes) -> None:
    answered = read(body)
    assert isinstance(answered, Answered)
    assert [reply.text for reply in answered.completions] == ["Yes."]


def test_half_a_character_is_replaced_and_whole_ones_stay() -> None:
    text = rb"\\ud83d \ud83d\ude00 \ud83d \ude00\n"
    answered = read(REPLY.replace(b"Yes.", text))
    assert isinstance(answered, Answered)
    assert answered.completions[0].text == "\\ud83d \U0001f600 \ufffd \ufffd\n"


def test_any_status_of_success_may_bring_a_reply() -> None:
    answer, _ = sampled(answering(REPLY, 201))
    assert [reply.text for reply in answer.unwrap()] == ["Yes."]


@pytest.mark.parametrize(
    ("status", "body"), [(202, b'{"status": "queued"}'), (204, b""), (200, b"")]
)
def test_a_success_without_a_reply_is_tried_again_and_told_as_it_is(
    status: int, body: bytes
) -> None:
    answer, _ = sampled(answering(body, status))
    assert f"the server answers without a reply ({status}); given up after 2" in str(
        answer.failure()
    )


def test_the_head_of_an_answer_may_have_long_lines() -> None:
    answer, _ = sampled(answering(REPLY, **{"Content-Security-Policy": "x" * 100_000}))
    assert answer.unwrap()


# ------------------------------------------------------------------------------------ addresses

PAGE = b"<!doctype html><html><body>Welcome!</body></html>"
UNEXPECTED = b'{"error":"Unexpected endpoint or method. (POST /chat/completions)"}'


@pytest.mark.parametrize(("status", "body"), [(200, PAGE), (200, UNEXPECTED), (404, PAGE)])
def test_an_address_that_answers_like_no_api_is_tried_with_v1(status: int, body: bytes) -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        if request.path.startswith("/v1/"):
            return web.Response(body=REPLY)
        return web.Response(status=status, body=body)

    answered, _ = sampled(answer, base="")
    assert answered.unwrap()
    assert asked == ["/chat/completions", "/v1/chat/completions"], "once, with nothing charged"


def test_trainings_and_batches_find_v1_too(provider: Provider, tmp_path: Path, job: Job) -> None:
    url, lines = provider.url.removesuffix("/v1"), list[str]()
    (tuned,) = tune(tmp_path, url, job)
    assert tuned.unwrap().adapter
    served = {"verifier": ApiModel((Endpoint(url, TUNING_KEY),))}
    settings = patient()._replace(tell=lines.append)
    batches = batch_sampler(tmp_path, served, settings=settings, times=AT_ONCE)
    (answer,) = ask(batches, make_request())
    assert len(answer.unwrap()) == 2
    assert f"{url} is not the address of an API, but {url}/v1 is" in lines
    paths = [entry["path"] for entry in provider.log()]
    assert sum(not path.startswith("/v1/") for path in paths) == 2, "once for each client"
