"""Sampling from models behind an API: the real client, over real sockets, at the fake provider."""

import asyncio
import gc
import time
from typing import Any

import pytest

from nip_fn.game.chat import Message
from nip_fn.run.ports import Unanswered
from nip_fn_adapters.providers.api.admission import LEAD
from nip_fn_adapters.providers.api.pace import Bounds
from nip_fn_adapters.providers.api.sampler import ClientSettings

from ..provider import Provider
from .sampling import KEY, QUICK, ask, chats, make_request, make_sampler


@pytest.fixture
def provider(running: Provider) -> Provider:
    """A provider that answers at once."""
    running.reset(key=KEY)
    return running


def bodies(provider: Provider) -> list[dict[str, Any]]:
    return [entry["body"] for entry in chats(provider)]


# ------------------------------------------------------------------------------------ what is sent


def test_siblings_come_from_one_request_and_are_paid_for_once(provider: Provider) -> None:
    provider.configure(latency=0.05)
    (answer,) = ask(make_sampler(provider.url), make_request(num=3))
    replies = answer.unwrap()
    (asked,) = chats(provider)
    assert asked["n"] == 3
    assert len({reply.text for reply in replies}) == 3
    assert [reply.prompt_tokens for reply in replies] == [asked["prompt_tokens"], 0, 0]
    assert sum(reply.completion_tokens for reply in replies) == asked["completion_tokens"]
    assert all(reply.completion_tokens > 0 for reply in replies)
    assert {reply.request_id for reply in replies} == {asked["request_id"]}
    assert all(0.04 < reply.seconds < 60 for reply in replies)
    assert {(reply.model, reply.finish_reason) for reply in replies} == {("m", "stop")}


def test_what_the_provider_had_at_hand_is_counted_once(provider: Provider) -> None:
    sampler = make_sampler(provider.url)
    first, second = (ask(sampler, make_request())[0].unwrap() for _ in range(2))
    assert [reply.cached_tokens for reply in first] == [0, 0]
    assert [reply.cached_tokens for reply in second] == [first[0].prompt_tokens - 3, 0]


def test_only_what_is_set_is_sent(provider: Provider) -> None:
    sampler = make_sampler(provider.url)
    ask(sampler, make_request(num=1))
    assert set(bodies(provider)[0]) == {"model", "messages", "max_tokens", "seed"}
    everything = {"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.1}
    ask(sampler, make_request(num=2, **everything))
    sent = bodies(provider)[1]
    assert {name: sent[name] for name in everything} == everything
    assert set(sent) == {"model", "messages", "max_tokens", "seed", "n", *everything}
    assert sent["messages"][0]["role"] == "system"
    assert "name" not in sent["messages"][0]
    assert sent["messages"][1] == {"role": "user", "content": "This is here.", "name": "Expert"}


def test_a_name_that_providers_would_refuse_is_mended(provider: Provider) -> None:
    chat = (Message("user", "Hello", "The <Boss> of all"),)
    ask(make_sampler(provider.url), make_request(chat=chat))
    assert bodies(provider)[0]["messages"][0]["name"] == "The_Boss_of_all"


def test_an_adapter_answers_for_itself(provider: Provider) -> None:
    provider.configure(models=["m", "lora-7"], serves_as={"m": "m-2026-01-01"})
    sampler = make_sampler(provider.url)
    based, adapted = ask(sampler, make_request(), make_request(adapter="lora-7"))
    assert {reply.model for reply in based.unwrap()} == {"m-2026-01-01"}
    assert {reply.model for reply in adapted.unwrap()} == {"lora-7"}
    assert sorted(body["model"] for body in bodies(provider)) == ["lora-7", "m"]


def test_the_prompts_beginning_is_named_where_the_provider_caches_by_name(
    provider: Provider,
) -> None:
    other = (Message("system", "You are somebody else."), Message("user", "This is here."))
    requests = make_request("a"), make_request("b"), make_request("a", chat=other)
    ask(make_sampler(provider.url, is_openai=True), *requests)
    first, second, third = (body["prompt_cache_key"] for body in bodies(provider))
    assert first == second != third
    assert first.startswith("verifier-")


def test_the_same_place_draws_the_same_replies_and_another_one_others(provider: Provider) -> None:
    a, again, b = ask(
        make_sampler(provider.url), make_request("a"), make_request("a"), make_request("b")
    )
    texts = [[reply.text for reply in answer.unwrap()] for answer in (a, again, b)]
    assert texts[0] == texts[1] != texts[2]
    seeds = [body["seed"] for body in bodies(provider)]
    assert seeds[0] == seeds[1] != seeds[2]
    assert all(0 <= seed < 2**31 for seed in seeds)


# ------------------------------------------------------------------------------------ n


def test_where_n_is_refused_replies_are_asked_for_one_by_one_from_then_on(
    provider: Provider,
) -> None:
    provider.configure(supports_n="refused")
    told: list[str] = []
    sampler = make_sampler(provider.url, settings=QUICK._replace(tell=told.append))
    for place in ("a", "b"):
        (answer,) = ask(sampler, make_request(place, num=3))
        replies = answer.unwrap()
        assert len({reply.text for reply in replies}) == 3
        assert all(reply.prompt_tokens > 0 for reply in replies), "each has paid for its prompt"
    assert [entry["n"] for entry in chats(provider)] == [3, 1, 1, 1, 1, 1, 1]
    assert [entry["status"] for entry in chats(provider)] == [400, *[200] * 6]
    (line,) = told
    assert line.endswith(
        ": m: the server makes one reply at a time, so replies are requested one by one"
    )


def test_where_n_is_ignored_what_came_is_kept_and_the_rest_asked_for_singly(
    provider: Provider,
) -> None:
    provider.configure(supports_n="ignored")
    sampler = make_sampler(provider.url)
    for place in ("a", "b"):
        (answer,) = ask(sampler, make_request(place, num=3))
        assert len({reply.text for reply in answer.unwrap()}) == 3
    # The fourth answer in a row with another number of replies settles it.
    assert [entry["n"] for entry in chats(provider)] == [3, 2, 1, 3, 2, 1]
    ask(sampler, make_request("c", num=3))
    assert [entry["n"] for entry in chats(provider)][6:] == [1, 1, 1]
    assert {entry["status"] for entry in chats(provider)} == {200}


def test_more_replies_than_were_asked_for_are_left_and_paid_for(provider: Provider) -> None:
    provider.configure(faults=[{"fault": "wrong-n-more", "times": 1}])
    sampler = make_sampler(provider.url)
    (answer,) = ask(sampler, make_request(num=2))
    replies = answer.unwrap()
    assert len(replies) == 2
    assert sum(r.completion_tokens for r in replies) == chats(provider)[0]["completion_tokens"]
    ask(sampler, make_request("b", num=2))
    assert [entry["n"] for entry in chats(provider)] == [2, 2], "one slip changes nothing"


@pytest.mark.parametrize(("how", "asked"), [("one", [1, 1, 1]), ("all", [3])])
def test_how_many_replies_a_request_asks_for_can_be_fixed(
    provider: Provider, how: str, asked: list[int]
) -> None:
    (answer,) = ask(make_sampler(provider.url, replies_per_request=how), make_request(num=3))
    assert len(answer.unwrap()) == 3
    assert [entry["n"] for entry in chats(provider)] == asked


def test_insisting_on_n_where_it_is_refused_is_a_failure_that_says_so(provider: Provider) -> None:
    provider.configure(supports_n="refused")
    (answer,) = ask(make_sampler(provider.url, replies_per_request="all"), make_request())
    assert str(answer.failure()).startswith(
        f"{provider.url}: verifier's m: the server refuses the request (400)"
    )
    assert "Only n = 1 is supported" in str(answer.failure())


# ------------------------------------------------------------------------------------ quirks


def test_a_provider_that_takes_another_field_is_asked_so_from_then_on(provider: Provider) -> None:
    provider.configure(refuses=["max_tokens", "seed"])
    sampler = make_sampler(provider.url)
    for place in ("a", "b"):
        (answer,) = ask(sampler, make_request(place, num=1))
        assert answer.unwrap()[0].text
    sent = [set(body) - {"model", "messages"} for body in bodies(provider)]
    assert sent == [
        {"max_tokens", "seed"},
        {"max_completion_tokens", "seed"},
        {"max_completion_tokens"},
        {"max_completion_tokens"},
    ]


def test_what_is_learnt_of_one_model_is_not_held_against_another(provider: Provider) -> None:
    provider.configure(
        faults=[{"fault": "400", "message": "Unknown field 'seed'.", "match": {"model": "m"}}]
    )
    sampler = make_sampler(provider.url)
    ask(sampler, make_request(num=1))
    ask(sampler, make_request(num=1, model="other"))
    assert "seed" in bodies(provider)[-1]
    assert "seed" not in bodies(provider)[-2]


def test_a_field_that_was_asked_for_is_never_left_out_silently(provider: Provider) -> None:
    provider.configure(refuses=["temperature"])
    (answer,) = ask(make_sampler(provider.url), make_request(temperature=0.5))
    assert "'temperature' is not supported" in str(answer.failure())
    assert len(chats(provider)) == 1


# ------------------------------------------------------------------------------------ scheduling


def test_requests_are_sent_in_order_with_siblings_side_by_side(provider: Provider) -> None:
    narrow = QUICK._replace(bounds=Bounds(1, 1, 1))
    sampler = make_sampler(provider.url, settings=narrow, replies_per_request="one")
    places = [f"place {i}" for i in range(8)]
    ask(sampler, *(make_request(place, num=3) for place in places))
    contents = [body["messages"][1]["content"] for body in bodies(provider)]
    assert contents == [f"This is {place}." for place in places for _ in range(3)]


def test_agents_at_one_server_share_its_limit(provider: Provider) -> None:
    provider.configure(latency=0.02)
    sampler = make_sampler(provider.url, settings=QUICK._replace(bounds=Bounds(6, 1, 6)))
    agents = ("verifier", "prover") * 20
    ask(sampler, *(make_request(f"{i}", agent=agent) for i, agent in enumerate(agents)))
    assert provider.counters()["in_flight_max"] == 6


def test_servers_share_the_work_though_its_prefix_is_at_one_of_them(provider: Provider) -> None:
    with Provider(key=KEY, latency=0.02) as other:
        provider.configure(latency=0.02)
        sampler = make_sampler(provider.url, other.url)
        ask(sampler, *(make_request(f"{i}") for i in range(40)))
        ask(sampler, make_request("last"))
        ask(sampler, make_request("very last"))
        served = len(chats(provider)), len(chats(other))
        assert sum(served) == 42
        assert max(served) - min(served) <= LEAD + 2  # the last two meet idle servers


def test_a_server_that_is_gone_leaves_its_work_to_the_others(provider: Provider) -> None:
    with Provider(key=KEY) as other:
        gone = other.url
    sampler = make_sampler(gone, provider.url)
    answers = ask(sampler, *(make_request(f"{i}") for i in range(40)))
    assert all(len(answer.unwrap()) == 2 for answer in answers)
    assert len(chats(provider)) == 40


def test_a_limit_of_requests_in_flight_is_found(provider: Provider) -> None:
    provider.configure(latency=0.02, in_flight_limit=4)
    sampler = make_sampler(
        provider.url, settings=QUICK._replace(bounds=Bounds(16, 1, 64), speed=50)
    )
    answers = ask(sampler, *(make_request(f"{i}") for i in range(300)))
    assert all(len(answer.unwrap()) == 2 for answer in answers)
    statuses = [entry["status"] for entry in chats(provider)]
    assert statuses.count(200) == 300, "nothing is answered twice"
    late = statuses[len(statuses) // 2 :]
    assert late.count(429) < statuses.count(429) / 2 + 1
    assert late.count(429) < 0.1 * len(late)


def test_rate_limit_headers_keep_requests_within_the_quota(provider: Provider) -> None:
    """The limit is 50 requests a second, 25 of them at once; few of 125 need be refused."""
    patient, refused = ClientSettings(bounds=Bounds(5, 1, 64)), []
    for headers in (True, False):
        provider.reset(requests_per_second=50.0, burst=25.0, rate_limit_headers=headers)
        sampler, began = make_sampler(provider.url, settings=patient), time.monotonic()
        answers = ask(sampler, *(make_request(f"{i}") for i in range(125)))
        seconds = time.monotonic() - began
        assert all(len(answer.unwrap()) == 2 for answer in answers)
        assert seconds > 1.9
        refused.append([entry["status"] for entry in chats(provider)].count(429))
    told, untold = refused
    assert told < untold / 2


# ------------------------------------------------------------------------------------ the end


def test_what_waits_is_held_back_and_what_is_under_way_ends(provider: Provider) -> None:
    provider.configure(latency=0.2)
    sampler = make_sampler(provider.url, settings=QUICK._replace(bounds=Bounds(4, 1, 4)))

    async def stop_early() -> list[asyncio.Task[Any]]:
        tasks = [asyncio.ensure_future(sampler(make_request(f"{i}"))) for i in range(10)]
        await asyncio.sleep(0.1)
        sampler.drain()
        tasks.append(asyncio.ensure_future(sampler(make_request("late"))))
        await asyncio.wait(tasks)
        return tasks

    tasks = asyncio.run(stop_early())
    assert [task.cancelled() for task in tasks] == [False] * 4 + [True] * 7
    assert all(len(task.result().unwrap()) == 2 for task in tasks[:4])
    assert len(chats(provider)) == 4


def test_siblings_that_are_held_back_do_not_take_those_under_way_with_them(
    provider: Provider,
) -> None:
    provider.configure(latency=0.2)
    narrow = QUICK._replace(bounds=Bounds(1, 1, 1))
    sampler = make_sampler(provider.url, settings=narrow, replies_per_request="one")

    async def stop_early() -> Any:
        task = asyncio.ensure_future(sampler(make_request(num=3)))
        await asyncio.sleep(0.1)
        sampler.drain()
        return await task

    first, *others = asyncio.run(stop_early()).unwrap()
    assert first.text
    assert others == [Unanswered(), Unanswered()]
    assert len(chats(provider)) == 1


def test_whoever_is_cancelled_leaves_room_for_others(provider: Provider) -> None:
    provider.configure(latency=0.2)
    sampler = make_sampler(provider.url, settings=QUICK._replace(bounds=Bounds(2, 1, 2)))

    async def change_of_mind() -> int:
        tasks = [asyncio.ensure_future(sampler(make_request(f"{i}"))) for i in range(4)]
        await asyncio.sleep(0.1)
        for task in (tasks[0], tasks[2]):  # one under way, one in line
            task.cancel()
        await asyncio.wait(tasks)
        return len((await sampler(make_request("after"))).unwrap())

    assert asyncio.run(change_of_mind()) == 2


def test_connections_are_closed_with_the_event_loop(
    provider: Provider, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    sampler = make_sampler(provider.url)
    for place in ("a", "b"):  # a loop each
        (answer,) = ask(sampler, make_request(place))
        assert len(answer.unwrap()) == 2
    del sampler
    gc.collect()
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "WARNING")]
    assert not [warning for warning in recwarn if issubclass(warning.category, ResourceWarning)]
