"""The fault menu: whole runs at a provider whose answers go wrong, through real HTTP."""

import asyncio
import re
import threading
import time
from collections.abc import Iterator
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nip_fn.game.reply import Completion
from nip_fn.run.digest import digest
from nip_fn_adapters.providers.api.pace import Bounds
from nip_fn_adapters.providers.api.retries import RetryPolicy
from nip_fn_adapters.providers.api.sampler import ClientSettings
from nip_fn_adapters.recording.store import CHECKPOINT

from ..provider import Provider
from .sampling import (
    KEY,
    QUICK,
    SPEED,
    Game,
    answered_bodies,
    ask,
    chats,
    is_readable,
    make_request,
    make_sampler,
    patient,
)

# Three siblings at each node, each in a request of its own.
ALONE = {
    "malt": {"num_responses_per_timestep": 3},
    "nip_protocol": {"max_message_rounds": 2},
    "agents": {"_default": {"replies_per_request": "one"}},
}

# Pauses of minutes pass in milliseconds.  Not for a server that is away: it would be given up.
HASTY = QUICK._replace(speed=20_000.0)

Contents = dict[tuple[Any, ...], Completion]


class Whole(NamedTuple):
    """A run in which nothing goes wrong."""

    digest: str
    contents: Contents


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with Provider(key=KEY, caching=False) as provider:
        yield provider


@pytest.fixture(scope="module")
def whole(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    game = Game(tmp_path_factory.mktemp("whole") / "run", provider.url)
    state = game.sit().unwrap()
    assert state.stage.name == "done"
    assert len(game.replies()) > 40
    assert game.told == []
    return Whole(digest(state), game.contents())


@pytest.fixture
def game(provider: Provider, tmp_path: Path) -> Iterator[Game]:
    """The same run, before it has begun."""
    yield Game(tmp_path / "run", provider.url)
    provider.configure(faults=[])


def since(provider: Provider, entry: int) -> list[dict[str, Any]]:
    return chats(provider)[entry:]


def log_mark(provider: Provider) -> int:
    return len(chats(provider))


# ------------------------------------------------------------------------------------ mended

# Whatever befalls each request at its first attempt, a second one mends.
MENDED: list[dict[str, Any]] = [
    {"fault": "429"},
    {"fault": "429-retry-after", "retry_after": 1},
    {"fault": "429-retry-after", "retry_after": 300},
    {"fault": "429-retry-after", "retry_after": "soon"},
    {"fault": "500"},
    {"fault": "502"},
    {"fault": "503"},
    {"fault": "503", "retry_after": 20},
    {"fault": "504"},
    {"fault": "529"},
    {"fault": "408"},
    {"fault": "409"},
    {"fault": "timeout"},
    {"fault": "timeout-after"},
    {"fault": "reset"},
    {"fault": "reset-mid-body"},
    {"fault": "lost"},
    {"fault": "malformed"},
    {"fault": "null-body"},
    {"fault": "empty-choices"},
    {"fault": "error-200"},
    {"fault": "error-choice"},
    {"fault": "reversed"},
]


# The sample of these is the next test, in which all of them befall one run.
@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", MENDED, ids=lambda fault: "-".join(map(str, fault.values())))
def test_what_a_retry_can_mend_leaves_no_trace(
    provider: Provider, whole: Whole, game: Game, fault: dict[str, Any]
) -> None:
    mark = log_mark(provider)
    first_time = {"kind": "chat", "per_request": True, "until": 1}
    provider.configure(faults=[{**fault, "match": first_time}])
    ends_like(whole, game)
    log = since(provider, mark)
    assert sum(entry["fault"] == fault["fault"] for entry in log) == len(answered_bodies(log))
    assert set(answered_bodies(log).values()) == {1}, "no reply is asked for twice"


def test_everything_that_can_be_mended_at_once_leaves_no_trace(
    provider: Provider, whole: Whole, game: Game
) -> None:
    mark = log_mark(provider)
    turns = range(2, 2 + len(MENDED))
    matches = [{"kind": "chat", "nth": (turn, turn + 2 * len(MENDED))} for turn in turns]
    provider.configure(
        faults=[{**fault, "match": match} for fault, match in zip(MENDED, matches, strict=True)]
    )
    ends_like(whole, game)
    log = since(provider, mark)
    assert {entry["fault"] for entry in log} == {None, *(fault["fault"] for fault in MENDED)}
    assert set(answered_bodies(log).values()) == {1}, "no reply is asked for twice"


def ends_like(whole: Whole, game: Game, settings: ClientSettings = HASTY) -> None:
    state = game.sit(settings).unwrap()
    assert state.stage.name == "done"
    assert game.contents() == whole.contents
    assert digest(state) == whole.digest
    assert all(map(is_readable, game.told))


def test_retry_after_300_is_waited_for(provider: Provider) -> None:
    """The openai client by itself would not: it gives up at anything above 120 s."""
    fault = {"fault": "429-retry-after", "retry_after": 300, "times": 1}
    provider.configure(faults=[fault])
    mark, began = log_mark(provider), time.monotonic()
    (answer,) = ask(make_sampler(provider.url, settings=QUICK._replace(speed=2000)), make_request())
    assert len(answer.unwrap()) == 2
    assert time.monotonic() - began >= 300 / 2000
    assert [entry["status"] for entry in since(provider, mark)] == [429, 200]


# ------------------------------------------------------------------------------------ documented

# What the recorded replies say where the provider answers so every third time: nothing is asked
# again as it was; the game counts a failed attempt, and asks anew in its place.
ODD: list[tuple[str, set[tuple[bool, str]]]] = [
    ("null-content", {(False, "stop")}),
    ("empty-content", {(False, "stop")}),
    ("content_filter", {(False, "content_filter")}),
    ("refusal", {(False, "content_filter")}),
    ("unknown-finish", {(True, "stop")}),
    ("no-finish-reason", {(True, "stop")}),
    ("length", {(True, "length")}),
    ("parts", {(True, "stop")}),
    ("odd-usage", {(True, "stop")}),
]


@pytest.mark.parametrize(("fault", "found"), ODD, ids=[fault for fault, _ in ODD])
def test_an_odd_reply_is_recorded_as_what_it_is(
    provider: Provider, game: Game, fault: str, found: set[tuple[bool, str]]
) -> None:
    mark = log_mark(provider)
    provider.configure(faults=[{"fault": fault, "match": {"kind": "chat", "every": 3}}])
    state = game.sit().unwrap()
    assert state.stage.name == "done"
    log = since(provider, mark)
    odd = {entry["request_id"] for entry in log if entry["fault"] == fault}
    recorded = [reply.completion for reply in game.replies()]
    assert {
        (bool(one.text), one.finish_reason) for one in recorded if one.request_id in odd
    } == found
    assert {one.finish_reason for one in recorded if one.request_id not in odd} == {"stop"}
    assert sum(one.completion_tokens for one in recorded) == sum(
        entry["completion_tokens"] for entry in log
    )
    assert len({str(entry["body"]) for entry in log}) == len(log), "no reply is asked for twice"
    assert game.told == []


@pytest.mark.parametrize("fault", ["wrong-n", "wrong-n-more"])
def test_a_wrong_number_of_replies_is_made_good(provider: Provider, game: Game, fault: str) -> None:
    mark = log_mark(provider)
    provider.configure(faults=[{"fault": fault, "match": {"kind": "chat", "every": 3}}])
    state = game.sit().unwrap()
    assert state.stage.name == "done"
    log = since(provider, mark)
    recorded = [reply.completion for reply in game.replies()]
    assert sum(one.completion_tokens for one in recorded) == sum(
        entry["completion_tokens"] for entry in log
    )
    assert len({str(entry["body"]) for entry in log}) == len(log), "no reply is asked for twice"
    assert game.told == [], "replies are requested together as before"


@pytest.mark.parametrize("fault", ["null-usage", "negative-usage"])
def test_tokens_that_are_not_counted_are_none(provider: Provider, fault: str) -> None:
    provider.configure(faults=[{"fault": fault}])
    (answer,) = ask(make_sampler(provider.url), make_request())
    provider.configure(faults=[])
    found = answer.unwrap()
    assert all(one.text for one in found)
    assert {(one.prompt_tokens, one.completion_tokens, one.cached_tokens) for one in found} == {
        (0, 0, 0)
    }


REFUSED_PROMPTS = [
    ("403-flagged", "prompt_filtered", "refuses the prompt for its content (403)"),
    ("400-flagged", "prompt_filtered", "refuses the prompt for its content (400)"),
    ("400-context", "prompt_too_long", "finds the prompt too long (400)"),
    ("400-vllm", "prompt_too_long", "finds the prompt too long (400)"),
    ("413", "prompt_too_long", "finds the prompt too long (413)"),
]


@pytest.mark.parametrize(
    ("fault", "reason", "words"),
    REFUSED_PROMPTS,
)
def test_a_prompt_that_is_refused_is_an_invalid_reply_at_its_place(
    provider: Provider, game: Game, fault: str, reason: str, words: str
) -> None:
    mark = log_mark(provider)
    provider.configure(
        faults=[{"fault": fault, "match": {"kind": "chat", "contains": "Question 3?"}}]
    )
    state = game.sit().unwrap()
    provider.configure(faults=[])
    assert state.stage.name == "done"
    refused = [entry for entry in since(provider, mark) if entry["status"] != 200]
    recorded = [r.completion for r in game.replies() if r.completion.finish_reason == reason]
    assert 0 < len(recorded) < len(game.replies()) / 2
    assert {(one.text, one.prompt_tokens) for one in recorded} == {(None, 0)}
    assert sum(entry["n"] for entry in refused) == len(recorded), "none is asked for again"
    assert game.told
    for line in game.told:
        assert words in line
        assert line.endswith("; counted as an invalid reply")
        assert is_readable(line)


# ------------------------------------------------------------------------------------ fatal

KEY_REMEDY = "check OPENAI_API_KEY, in the environment or in a file .env"
MODEL_REMEDY = "check the name of the model, and --base-url"
QUOTA_REMEDY = "add credit to the account"

FATAL: list[tuple[dict[str, Any], str]] = [
    ({"fault": "401"}, f"the server refuses the API key (401); {KEY_REMEDY}"),
    (
        {"fault": "403"},
        "the server does not allow it (403): Your account may not use this model; check what the "
        "key in OPENAI_API_KEY may do",
    ),
    (
        {"fault": "402"},
        "the account has no credit left (402): Insufficient credits. Add more and try again; "
        f"{QUOTA_REMEDY}",
    ),
    (
        {"fault": "429-quota"},
        f"the account has no credit left (429): You exceeded your current quota; {QUOTA_REMEDY}",
    ),
    (
        {"fault": "404-model"},
        f"the server does not have the model (404): The model does not exist; {MODEL_REMEDY}",
    ),
    ({"fault": "400"}, "the server refuses the request (400): Invalid value for 'messages'"),
    (
        {"fault": "429-retry-after", "retry_after": 3600},
        "the server takes no more requests (429): Rate limit reached for requests; it asks for a "
        "pause of 3,600 s, and 600 s are allowed",
    ),
]


@pytest.mark.parametrize(
    ("fault", "line"), FATAL, ids=["-".join(map(str, fault.values())) for fault, _ in FATAL]
)
def test_what_no_retry_can_mend_ends_the_run_with_a_line_and_all_that_was_answered_is_kept(
    provider: Provider, whole: Whole, game: Game, fault: dict[str, Any], line: str
) -> None:
    mark = log_mark(provider)
    provider.configure(faults=[{**fault, "match": {"kind": "chat", "after": 9}}], latency=0.02)
    said = str(game.sit().failure())
    provider.configure(faults=[], latency=0.0)
    assert said in {f"{provider.url}: {agent}'s m: {line}" for agent in ("verifier", "prover")}
    assert is_readable(said)
    answered = [entry for entry in since(provider, mark) if entry["status"] == 200]
    assert len(answered) == 9
    recorded = game.replies()
    assert {r.completion.request_id for r in recorded} == {e["request_id"] for e in answered}
    state = game.sit().unwrap()
    assert digest(state) == whole.digest
    assert game.contents() == whole.contents
    assert set(answered_bodies(since(provider, mark)).values()) == {1}
    assert KEY.encode() not in (game.folder / CHECKPOINT).read_bytes()


def test_where_siblings_are_asked_for_singly_each_that_was_answered_is_kept(
    provider: Provider, tmp_path: Path
) -> None:
    """Half of the requests fail for good: siblings of what was answered, wherever they are."""
    undisturbed, game = (Game(tmp_path / name, provider.url, ALONE) for name in ("whole", "run"))
    whole = undisturbed.sit().unwrap()
    mark, sittings = log_mark(provider), 1
    provider.configure(faults=[{"fault": "400", "match": {"share": 0.5}}], latency=[0.0, 0.02])
    while (sat := game.sit()).value_or(None) is None:
        assert is_readable(sat.failure())
        sittings += 1
        assert sittings < 60
    provider.configure(faults=[], latency=0.0)
    answered = [entry for entry in since(provider, mark) if entry["status"] == 200]
    assert {r.completion.request_id for r in game.replies()} == {e["request_id"] for e in answered}
    assert sittings > 2
    assert set(answered_bodies(answered).values()) == {1}
    assert digest(sat.unwrap()) == digest(whole)
    assert game.contents() == undisturbed.contents()


@pytest.mark.parametrize("fault", ["timeout", "malformed", "empty-choices"])
def test_what_never_gets_better_ends_after_so_many_attempts(provider: Provider, fault: str) -> None:
    provider.configure(faults=[{"fault": fault}])
    mark = log_mark(provider)
    settings = patient(max_attempts=3)._replace(timeout=0.2)
    (answer,) = ask(make_sampler(provider.url, settings=settings), make_request())
    provider.configure(faults=[])
    assert len(since(provider, mark)) == 3
    assert "; given up after 3 attempts in " in str(answer.failure())
    assert is_readable(answer.failure())


def test_a_failed_reply_does_not_cancel_its_neighbours(provider: Provider) -> None:
    provider.configure(
        latency=0.1, faults=[{"fault": "404-model", "match": {"contains": "This is 3."}}]
    )
    answers = ask(make_sampler(provider.url), *(make_request(f"{i}") for i in range(8)))
    provider.configure(latency=0.0, faults=[])
    assert [len(answer.value_or(())) for answer in answers] == [2, 2, 2, 0, 2, 2, 2, 2]


def test_one_request_that_always_fails_is_given_up_while_others_are_answered(
    provider: Provider,
) -> None:
    poison = {"fault": "500", "match": {"contains": "This is 3."}}
    provider.configure(faults=[poison], latency=0.02)
    mark = log_mark(provider)
    settings = patient(max_attempts=3)._replace(bounds=Bounds(2, 1, 2))
    requests = [make_request(f"{i}") for i in range(100)]
    answers = ask(make_sampler(provider.url, settings=settings), *requests)
    provider.configure(faults=[], latency=0.0)
    assert [i for i, answer in enumerate(answers) if not answer.value_or(())] == [3]
    assert "; given up after 3 attempts in " in str(answers[3].failure())
    assert [entry["status"] for entry in since(provider, mark)].count(500) == 3


def test_a_connection_that_the_server_has_closed_is_no_failure() -> None:
    """The server closes each connection when a second request comes over it, unanswered."""
    asked: list[int] = []

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for number in range(2):
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(re.findall(rb"content-length: (\d+)", head.lower())[0]))
            asked.append(number)
            if number == 0:
                body = b'{"choices": [{"message": {"content": "Yes."}}]}'
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                await writer.drain()
        writer.close()

    async def sample() -> tuple[list[Any], list[str]]:
        told: list[str] = []
        async with await asyncio.start_server(converse, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            settings = ClientSettings(policy=RetryPolicy(max_attempts=1), tell=told.append)
            sampler = make_sampler(f"http://127.0.0.1:{port}/v1", settings=settings)
            answers = []
            for _ in range(2):
                wave = (sampler(make_request(f"{i}", num=1)) for i in range(20))
                answers += await asyncio.gather(*wave)
        return answers, told

    began = time.monotonic()
    answers, told = asyncio.run(sample())
    assert [answer.unwrap()[0].text for answer in answers] == ["Yes."] * 40
    assert asked.count(1) == 20, "each kept connection was closed by its second request"
    assert told == []
    assert time.monotonic() - began < 10


# ------------------------------------------------------------------------------------ away


@pytest.mark.parametrize("fault", ["500", "503", "reset"])
def test_an_outage_is_borne_by_time_and_looked_into_by_one_request_at_a_time(
    provider: Provider, fault: str
) -> None:
    provider.configure(faults=[{"fault": fault, "match": {"after": 8}}], latency=0.05)
    told: list[str] = []
    settings = patient(max_attempts=4, max_outage=300.0)._replace(tell=told.append, speed=100.0)
    mark = log_mark(provider)
    requests = [make_request(f"{i}") for i in range(60)]
    sampler = make_sampler(provider.url, settings=settings._replace(bounds=Bounds(8, 1, 8)))
    mended = threading.Timer(2.0, lambda: provider.configure(faults=[], latency=0.0))
    mended.start()
    answers = ask(sampler, *requests)
    mended.join()
    assert all(len(answer.unwrap()) == 2 for answer in answers)
    failed = [entry for entry in since(provider, mark) if entry["fault"] == fault]
    assert len(failed) < 80, "probed now and then"
    assert {entry["in_flight"] for entry in failed[24:]} == {1}
    limits = [
        float(found[1].replace(",", ""))
        for line in told
        if (found := re.search("waiting for it for ([0-9,]+) s more; one request at a time", line))
    ]
    assert limits
    assert all(is_readable(line) for line in told)
    assert limits == sorted(limits, reverse=True)
    assert all(0 < limit < 300 for limit in limits)


def test_an_outage_that_is_too_long_ends_the_run_with_a_line(provider: Provider) -> None:
    sampler = make_sampler(provider.url, settings=patient(max_outage=300.0))
    assert ask(sampler, make_request())[0].unwrap()
    provider.configure(faults=[{"fault": "503"}])
    answers = ask(sampler, *(make_request(f"{i}") for i in range(3)))
    provider.configure(faults=[])
    said = str(answers[0].failure())
    assert "the server fails (503): The engine is currently overloaded; given up after 3" in said
    assert is_readable(said)


def test_a_server_that_dies_and_comes_back_minutes_later_is_waited_for(
    provider: Provider, whole: Whole, game: Game
) -> None:
    """It is away for half a second, which is more than three minutes at the speed of the test."""
    mark = log_mark(provider)
    provider.configure(latency=0.01, faults=[{"fault": "die", "match": {"kind": "chat", "nth": 9}}])

    def bring_back() -> None:
        while provider.pid is not None:
            time.sleep(0.01)
        time.sleep(0.5)
        provider.restart(latency=0.0, faults=[])

    helper = threading.Thread(target=bring_back)
    helper.start()
    began = time.monotonic()
    result = game.sit()
    seconds = time.monotonic() - began
    helper.join()
    assert digest(result.unwrap()) == whole.digest
    assert game.contents() == whole.contents
    assert set(answered_bodies(since(provider, mark)).values()) == {1}
    assert game.told
    assert all(map(is_readable, game.told))
    assert all(
        line.startswith(f"{provider.url}: m: the server cannot be reached: ") for line in game.told
    ), game.told
    assert len(game.told) <= 1 + seconds * SPEED / 30, "not more than once in 30 s"


def test_a_server_that_was_never_there_is_not_waited_for_long(tmp_path: Path) -> None:
    with Provider(key=KEY) as gone:
        url = gone.url
    game = Game(tmp_path / "run", url)
    line = str(game.sit().failure())
    assert line.startswith(f"{url}: verifier's m: the server cannot be reached: ")
    assert line.endswith("; check the address (api_base_url), and that the server runs")
    assert is_readable(line)
    assert game.replies() == []


def test_something_else_that_listens_there_is_told_apart() -> None:
    """A server of files, which knows nothing of chats."""
    with HTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        (answer,) = ask(make_sampler(url), make_request())
        server.shutdown()
    line = str(answer.failure())
    assert line.startswith(f"{url}: verifier's m: the server does not have what is requested (501)")
    assert "Unsupported method ('POST')" in line
    assert line.endswith("; check --base-url, which --resume takes, too")
