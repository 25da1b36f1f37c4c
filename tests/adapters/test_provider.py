"""The fake provider does what tests rely on: real sockets, the real openai client."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nip_fn.game.reply import Completion
from nip_fn.keys import seed_of
from nip_fn.params.run import HyperParameters
from nip_fn.run.events import EndStage, Replied, RunStarted, SampleReplies
from nip_fn.run.request import Request, request
from nip_fn.run.state import EMPTY
from nip_fn.run.step import step
from nip_fn.trees.node import Node

from ..core.games import DATASET, Setup, make_params, perform, singles
from ..provider import Provider
from ..provider.replies import Message, digest_of, reply_text
from ..provider.settings import Settings

openai = pytest.importorskip("openai")
pytest.importorskip("aiohttp")

KEY = "sk-test-of-the-fake"
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
def provider(running: Provider) -> Provider:
    """A provider with plain settings; its log is that of all tests of this file."""
    running.configure(**{**PLAIN, "key": KEY})
    return running


PLAIN: dict[str, Any] = {
    "latency": 0.0,
    "concurrency": None,
    "in_flight_limit": None,
    "requests_per_second": None,
    "retry_after": None,
    "rate_limit_headers": False,
    "faults": (),
    "supports_n": True,
    "models": None,
    "refuses": (),
}


def client(provider: Provider, key: str = KEY, timeout: float = 5.0) -> Any:
    # There is no TLS to verify, and certificates take 60 ms to load.
    http = openai.DefaultAsyncHttpxClient(verify=False)
    return openai.AsyncOpenAI(
        base_url=provider.url, api_key=key, max_retries=0, timeout=timeout, http_client=http
    )


async def chat(provider: Provider, *, timeout: float = 5.0, **fields: Any) -> Any:
    async with client(provider, timeout=timeout) as own:
        return await own.chat.completions.create(**{"model": "m", "messages": HI} | fields)


def ask(provider: Provider, **fields: Any) -> Any:
    return asyncio.run(chat(provider, **fields))


def texts(answer: Any) -> list[str]:
    return [choice.message.content for choice in answer.choices]


def error_of(provider: Provider, **fields: Any) -> Any:
    with pytest.raises(openai.APIError) as caught:
        ask(provider, **fields)
    return caught.value


def test_the_same_question_has_the_same_replies(provider: Provider) -> None:
    first = texts(ask(provider, n=3, seed=1))
    assert first == texts(ask(provider, n=3, seed=1))
    assert first[:1] == texts(ask(provider, n=1, seed=1))
    assert len({*first, *texts(ask(provider, n=3, seed=2)), *texts(ask(provider, model="o"))}) == 7


def test_replies_do_not_depend_on_the_process(provider: Provider) -> None:
    with Provider() as other:
        assert texts(ask(other, seed=7)) == texts(ask(provider, seed=7))


def test_usage_counts_the_prompt_once_and_what_was_cached(provider: Provider) -> None:
    before = provider.counters()
    system = {"role": "system", "content": "s" * 4000}
    first = ask(provider, messages=[system, {"role": "user", "content": "first"}], n=4).usage
    second = ask(provider, messages=[system, {"role": "user", "content": "second"}]).usage
    assert first.prompt_tokens == 3 + (1000 + 4) + (2 + 4)
    assert first.prompt_tokens_details.cached_tokens == 0
    assert second.prompt_tokens_details.cached_tokens == 1004
    after = provider.counters()
    assert after["prompt_tokens"] - before["prompt_tokens"] == 2 * first.prompt_tokens
    assert after["cached_tokens"] - before["cached_tokens"] == 1004


def test_a_reply_is_cut_at_the_limit(provider: Provider) -> None:
    whole = ask(provider, seed=3)
    cut = ask(provider, seed=3, max_tokens=2).choices[0]
    assert whole.choices[0].finish_reason == "stop"
    assert (cut.finish_reason, cut.message.content) == ("length", texts(whole)[0][:8])


def test_n_where_it_is_not_known(provider: Provider) -> None:
    provider.configure(supports_n=False)
    assert len(texts(ask(provider, n=3))) == 1
    provider.configure(supports_n="refused")
    assert error_of(provider, n=3).status_code == 400


def test_fields_and_models_that_are_refused(provider: Provider) -> None:
    provider.configure(refuses=["max_tokens"], models=["m"])
    assert error_of(provider, max_tokens=3).code == "unsupported_parameter"
    assert ask(provider, max_completion_tokens=30).model == "m"
    assert error_of(provider, model="unknown").code == "model_not_found"
    provider.configure(models=None)
    assert error_of(provider, model="ft:m:org::never").status_code == 404


STATUSES = {
    "400": openai.BadRequestError,
    "401": openai.AuthenticationError,
    "402": openai.APIStatusError,
    "404-model": openai.NotFoundError,
    "413": openai.APIStatusError,
    "429": openai.RateLimitError,
    "500": openai.InternalServerError,
    "502": openai.InternalServerError,
    "503": openai.InternalServerError,
}


@pytest.mark.parametrize("name", STATUSES)
def test_statuses(provider: Provider, name: str) -> None:
    provider.configure(faults=[{"fault": name, "times": 1}])
    error = error_of(provider)
    assert type(error) is STATUSES[name]
    assert error.status_code == int(name[:3])
    assert "retry-after" not in error.response.headers
    assert ask(provider).choices  # the fault was to happen once
    assert [entry["status"] for entry in provider.log()[-2:]] == [int(name[:3]), 200]
    assert [entry["fault"] for entry in provider.log()[-2:]] == [name, None]


def test_retry_after(provider: Provider) -> None:
    faults = [
        {"fault": "429-retry-after", "match": {"nth": 1}},
        {"fault": "429", "retry_after": 300, "match": {"nth": 2}},
        {"fault": "503", "retry_after": "Wed, 21 Oct 2026 07:28:00 GMT", "match": {"nth": 3}},
    ]
    provider.configure(faults=faults)
    said = [error_of(provider).response.headers["retry-after"] for _ in range(3)]
    assert said == ["1", "300", "Wed, 21 Oct 2026 07:28:00 GMT"]


@pytest.mark.parametrize("name", ["reset", "lost", "reset-mid-body", "timeout", "timeout-after"])
def test_broken_connections(provider: Provider, name: str) -> None:
    provider.configure(faults=[{"fault": name, "match": {"until": 1}}])
    error = error_of(provider, timeout=0.5 if "timeout" in name else 5.0)
    assert isinstance(error, openai.APITimeoutError) == ("timeout" in name)
    assert isinstance(error, openai.APIConnectionError)
    assert ask(provider).choices
    assert [entry["status"] for entry in provider.log()[-2:]] == [None, 200]


def test_malformed_json(provider: Provider) -> None:
    provider.configure(faults=[{"fault": "malformed", "times": 1}])
    with pytest.raises(Exception, match=r"(?i)json|delimiter|unterminated|expecting|EOF"):
        ask(provider)


def test_spoilt_answers(provider: Provider) -> None:
    def spoilt(name: str, n: int = 2) -> Any:
        provider.configure(faults=[{"fault": name, "match": {"kind": "chat"}}])
        return ask(provider, n=n, seed=1)

    plain = ask(provider, n=2, seed=1)
    assert spoilt("empty-choices").choices == []
    assert texts(spoilt("null-content")) == [None, None]
    assert spoilt("content_filter").choices[0].finish_reason == "content_filter"
    assert spoilt("length").choices[0].finish_reason == "length"
    refused = spoilt("refusal").choices[0].message
    assert (refused.content, bool(refused.refusal)) == (None, True)
    assert texts(spoilt("wrong-n")) == texts(plain)[:1]
    assert len(texts(spoilt("wrong-n", n=1))) == 2
    assert len(texts(spoilt("wrong-n-more"))) == 3
    assert [choice.index for choice in spoilt("reversed").choices] == [1, 0]
    assert spoilt("no-usage").usage is None
    assert spoilt("error-200").choices is None
    assert spoilt("null-body") is None


def test_faults_by_count_share_and_request(provider: Provider) -> None:
    def statuses(match: dict[str, Any], times: int | None = None) -> list[int]:
        provider.configure(faults=[{"fault": "500", "match": match, "times": times}])
        return [_status(provider, seed=i % 3) for i in range(9)]

    def _status(provider: Provider, seed: int) -> int:
        try:
            ask(provider, seed=seed)
        except openai.InternalServerError:
            return 500
        return 200

    assert statuses({"nth": [2, 5]}) == [200, 500, 200, 200, 500, 200, 200, 200, 200]
    assert statuses({"every": 4}) == [200, 200, 200, 500] * 2 + [200]
    assert statuses({"after": 7}) == [200] * 7 + [500] * 2
    assert statuses({"per_request": True}, times=1) == [500] * 3 + [200] * 6
    assert statuses({"model": "another"}) == [200] * 9
    assert statuses({"contains": '"seed":2'}) == [200, 200, 500] * 3
    drawn = statuses({"share": 0.5})
    assert drawn == statuses({"share": 0.5})
    assert set(drawn) == {200, 500}


def test_a_fault_or_setting_that_does_not_exist_is_refused(provider: Provider) -> None:
    with pytest.raises(ValueError, match="no fault is called teapot"):
        provider.configure(faults=[{"fault": "teapot"}])
    with pytest.raises(ValueError, match="latenzy"):
        provider.configure(latenzy=3)


def test_keys(provider: Provider) -> None:
    async def with_key(shown: str) -> Any:
        async with client(provider, key=shown) as own:
            return await own.chat.completions.create(model="m", messages=HI)

    with pytest.raises(openai.AuthenticationError, match="sk-wrong"):
        asyncio.run(with_key("sk-wrong"))
    assert asyncio.run(with_key(KEY)).choices
    assert [entry["key_ok"] for entry in provider.log()[-2:]] == [False, True]
    for file in provider.folder.rglob("*"):
        assert file.is_dir() or KEY.encode() not in file.read_bytes()


async def _at_once(provider: Provider, count: int) -> float:
    """Seconds until so many chats are answered."""
    async with client(provider) as own:
        await own.models.list()  # imports and connects
        began = time.perf_counter()
        calls = (own.chat.completions.create(model="m", messages=HI, seed=i) for i in range(count))
        await asyncio.gather(*calls)
        return time.perf_counter() - began


def test_concurrency_makes_chats_wait_in_line(provider: Provider) -> None:
    provider.configure(latency=0.2, concurrency=2)
    assert asyncio.run(_at_once(provider, 8)) >= 0.78
    assert provider.counters()["in_flight_max"] >= 6
    provider.configure(concurrency=None)
    assert asyncio.run(_at_once(provider, 8)) < 0.78


def test_limits_answer_429(provider: Provider) -> None:
    provider.configure(requests_per_second=0.001, burst=2, retry_after=7, rate_limit_headers=True)
    assert ask(provider).choices
    assert ask(provider).choices
    headers = error_of(provider).response.headers
    assert headers["retry-after"] == "7"
    assert headers["x-ratelimit-limit-requests"] == "2"
    assert headers["x-ratelimit-remaining-requests"] == "0"
    provider.configure(requests_per_second=None, in_flight_limit=2, latency=0.2)

    async def three() -> list[Any]:
        async with client(provider) as own:
            calls = (own.chat.completions.create(model="m", messages=HI) for _ in range(3))
            return await asyncio.gather(*calls, return_exceptions=True)

    assert sum(isinstance(x, openai.RateLimitError) for x in asyncio.run(three())) == 1


def test_state_survives_a_kill(tmp_path: Path) -> None:
    async def upload(provider: Provider) -> Any:
        async with client(provider) as own:
            return await own.files.create(file=("a.jsonl", b"{}\n"), purpose="fine-tune")

    with Provider(tmp_path, key=KEY) as provider:
        url, before = provider.url, texts(ask(provider, seed=5))
        uploaded = asyncio.run(upload(provider))
        provider.kill()
        assert provider.pid is None
        assert isinstance(error_of(provider), openai.APIConnectionError)
        assert len(provider.log()) == 2
        provider.restart()
        assert provider.url == url
        assert texts(ask(provider, seed=5)) == before
        assert [entry["id"] for entry in provider.log()] == [1, 2, 3]
        assert provider.counters()["requests"] == 3

        async def content() -> bytes:
            async with client(provider) as own:
                return (await own.files.content(uploaded.id)).content

        assert asyncio.run(content()) == b"{}\n"


def test_a_server_that_dies_by_itself() -> None:
    with Provider(faults=[{"fault": "die", "match": {"nth": 2}}]) as provider:
        assert ask(provider).choices
        assert isinstance(error_of(provider), openai.APIConnectionError)
        provider.restart(faults=[])
        assert ask(provider).choices
        assert [entry["status"] for entry in provider.log()] == [200, None, 200]


def test_it_dies_with_its_parent(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from tests.provider import Provider\n"
        "with Provider(Path(sys.argv[1])) as provider:\n"
        "    print(provider.pid, flush=True); time.sleep(60)"
    )
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        os.kill(parent.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and _runs(pid):
        time.sleep(0.02)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.parametrize("spectrum", ["accept_reject", "likert_scale_7", "out_of_10"])
@pytest.mark.parametrize("protocol", ["nip", "adp", "mnip", "debate", "solo_verifier"])
@pytest.mark.parametrize("version", ["v1", "views"])
def test_game_replies_can_be_used(protocol: str, spectrum: str, version: str) -> None:
    table = {
        "interaction_protocol": protocol,
        "code_validation": {"system_prompt_version": version},
        "protocol_common": {"verifier_decision_spectrum": spectrum},
        "agents": {"_default": {"use_supervisor_message": "all"}},
        "rl": {"num_test_iterations": 4},
    }
    nodes = [node for tree in _forest(make_params(table)) for node in _nodes(tree)]
    said = [said for node in nodes for said in node.utterances]
    decisions = {one.decision.text for one in said if one.decision is not None}
    assert {one.error for one in said} == {None}
    assert len(decisions) > 1
    assert {node.status for node in nodes} <= {"open", "decided"}
    if protocol == "nip":
        assert len({len(list(_nodes(tree))) for tree in _forest(make_params(table))}) > 1


def _forest(params: HyperParameters) -> tuple[Node, ...]:
    """The games of a run's first stage, played by what the fake models write."""
    state, effects = step(EMPTY, RunStarted(params, DATASET, "0"))
    waiting = list(singles(effects))
    while not isinstance(waiting[0], EndStage):
        effect = waiting.pop(0)
        event = perform(Setup(params), state, effect)
        if isinstance(effect, SampleReplies) and isinstance(event, Replied):
            event = replace(event, completion=_completion(request(state, effect)))
        state, effects = step(state, event)
        waiting.extend(singles(effects))
    return tuple(game.root for game in state.forest)


def _completion(asked: Request) -> Completion:
    messages = [Message(message.role, message.content) for message in asked.chat]
    digest = digest_of(asked.model, messages, seed_of(asked.keys[0]), "")
    return Completion(reply_text(Settings(), messages, digest, 0), "stop", "m")


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from _nodes(child)
