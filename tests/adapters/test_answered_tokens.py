"""Token ids and log-probabilities in the answers of servers: real HTTP, the fake provider."""

import json
from collections.abc import Iterator
from math import exp
from typing import Any

import pytest

from nip_fn.game.chat import Message
from nip_fn.game.reply import Completion
from nip_fn_adapters.providers.api.replies import Answered, most_bytes, read_answer

from ..provider import Provider
from ..provider.replies import END, log_probability, token_id, tokens
from .sampling import KEY, QUICK, ask, chats, make_request, make_sampler

FIELDS = {"logprobs", "return_token_ids"}


@pytest.fixture(scope="module")
def running() -> Iterator[Provider]:
    with Provider() as provider:
        yield provider


@pytest.fixture
def provider(running: Provider) -> Provider:
    running.reset(key=KEY)
    return running


def sampled(
    provider: Provider, told: list[str] | None = None, place: str = "here", **served: Any
) -> tuple[Completion, ...]:
    """The replies to one request whose tokens are to be recorded."""
    settings = QUICK._replace(tell=(told if told is not None else []).append)
    sampler = make_sampler(provider.url, settings=settings, **served)
    requests = (make_request(f"{place} {i}", record_tokens=True) for i in range(2))
    answers = [answer.unwrap() for answer in ask(sampler, *requests)]
    return tuple(reply for answer in answers for reply in answer)


def sent(provider: Provider) -> list[set[str]]:
    """The fields about tokens in each request."""
    return [FIELDS & entry["body"].keys() for entry in chats(provider)]


def test_openai_gives_log_probabilities_alone(provider: Provider) -> None:
    told: list[str] = []
    for reply in sampled(provider, told, is_openai=True):
        assert reply.tokens is not None
        assert reply.tokens.id_bytes == b""
        assert reply.tokens.log_probabilities.tolist() == list(
            map(log_probability, tokens(reply.text or ""))
        )
    assert sent(provider) == [{"logprobs"}] * 2
    assert told == []


def test_vllm_gives_the_ids_too_the_end_token_s_among_them(provider: Provider) -> None:
    provider.configure(token_ids=True)
    for reply in sampled(provider):
        drawn = [*tokens(reply.text or ""), END]
        assert reply.tokens is not None
        assert reply.finish_reason == "stop"
        assert reply.tokens.ids.tolist() == list(map(token_id, drawn))
        assert reply.tokens.log_probabilities.tolist() == list(map(log_probability, drawn))
    assert sent(provider) == [FIELDS] * 2
    provider.configure(faults=[{"fault": "length"}])
    for reply in sampled(provider, place="cut"):
        assert reply.tokens is not None
        assert reply.tokens.ids.tolist() == list(map(token_id, tokens(reply.text or "")))


def test_nothing_is_asked_for_unless_it_is_to_be_recorded(provider: Provider) -> None:
    provider.configure(token_ids=True)
    (answer,) = ask(make_sampler(provider.url), make_request())
    assert {reply.tokens for reply in answer.unwrap()} == {None}
    assert sent(provider) == [set()]


def test_a_server_that_gives_neither_is_told_of_once(provider: Provider) -> None:
    provider.configure(logprobs="ignored")
    told: list[str] = []
    assert {reply.tokens for reply in sampled(provider, told)} == {None}
    silent = "gives neither token ids nor log-probabilities, so none are recorded"
    assert [line.split(": the server ")[1] for line in told] == [silent]


def test_a_model_whose_log_probabilities_are_forbidden_is_asked_without(
    provider: Provider,
) -> None:
    """OpenAI's reasoning models, with status 403, which is final for all else."""
    provider.configure(logprobs="forbidden")
    told: list[str] = []
    assert len(sampled(provider, told, is_openai=True)) == 4
    assert sent(provider)[-1] == set()
    assert [line.split(": the server ")[1] for line in told] == [
        "does not take logprobs, so it is left out",
        "gives neither token ids nor log-probabilities, so none are recorded",
    ]


def test_ids_are_recorded_where_log_probabilities_are_refused(provider: Provider) -> None:
    provider.configure(token_ids=True, refuses=["logprobs"])
    for reply in sampled(provider):
        assert reply.tokens is not None
        assert reply.tokens.ids.tolist()[-1] == token_id(END)
        assert reply.tokens.log_probability_bytes == b""


def test_a_server_that_refuses_return_token_ids_is_asked_for_log_probabilities(
    provider: Provider,
) -> None:
    provider.configure(refuses=["return_token_ids"])
    assert all(reply.tokens and reply.tokens.log_probability_bytes for reply in sampled(provider))


def answered(**fields: Any) -> Completion:
    """The completion in an answer whose choice has these fields."""
    choice = {"message": {"content": "Yes."}, "finish_reason": "stop", **fields}
    answer = read_answer(
        json.dumps({"choices": [choice]}).encode(), {}, make_request(record_tokens=True), 1
    )
    assert isinstance(answer, Answered)
    (completion,) = answer.completions
    return completion


SCORES = [{"token": "Yes", "logprob": -0.5}, {"token": ".", "logprob": -0.25}]


def test_llama_cpp_names_the_ids_beside_the_scores() -> None:
    named = [score | {"id": 10 + i} for i, score in enumerate(SCORES)]
    tokens = answered(logprobs={"content": named}).tokens
    assert tokens is not None
    assert tokens.ids.tolist() == [10, 11]
    assert tokens.log_probabilities.tolist() == [-0.5, -0.25]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"logprobs": None, "token_ids": None},
        {"logprobs": {"content": []}, "token_ids": []},
        {"logprobs": {"content": SCORES}, "token_ids": [1, 2, 3]},  # whose are they?
        {"logprobs": {"content": [SCORES[0] | {"id": 1}, SCORES[1]]}},
        {"logprobs": {"content": [{"token": "Yes."}]}},
        {"logprobs": {"content": [{"logprob": None}]}},
        {"logprobs": {"content": [{"logprob": 7.5}]}},
        {"logprobs": {"content": [{"logprob": -1e300}]}},
        {"logprobs": {"content": "many"}},
        {"logprobs": True},
        {"logprobs": {"tokens": ["Yes."], "token_logprobs": [-0.5]}},
        {"token_ids": [-1]},
        {"token_ids": [2**32]},
        {"token_ids": [10**30]},
        {"token_ids": ["Yes"]},
        {"token_ids": {"0": 1}},
        {"token_ids": [[[1]]]},
    ],
)
def test_a_reply_is_as_usable_with_tokens_in_any_other_form(fields: dict[str, Any]) -> None:
    completion = answered(**fields)
    assert completion.text == "Yes."
    assert completion.tokens is None


def test_half_a_character_is_a_token_like_any_other() -> None:
    body = (
        b'{"choices": [{"message": {"content": "Yes."}, "logprobs": {"content": '
        b'[{"token": "\\ud83d", "logprob": -0.5, "bytes": [240, 159]}]}}]}'
    )
    answer = read_answer(body, {}, make_request(record_tokens=True), 1)
    assert isinstance(answer, Answered)
    assert answer.completions[0].tokens is not None


def test_an_answer_has_room_for_its_tokens() -> None:
    """As vLLM writes them: one for each character of the longest kind, and those of the prompt."""
    request = make_request(record_tokens=True, max_tokens=100)
    score = {"token": "\U0001f600" * 8, "logprob": -1.2345678901234567, "top_logprobs": []}
    score["bytes"] = list(("\U0001f600" * 8).encode())
    prompt = sum(len(message.content) for message in request.chat)
    choice = {"logprobs": {"content": [score] * 100}, "token_ids": [149_999] * 100}
    written = json.dumps({"choices": [choice] * 3, "prompt_token_ids": [149_999] * prompt})
    assert len(written) < most_bytes(request, 3)


# --------------------------------------------------------------------- the probability of a verdict

ASKS = (Message("user", "Say `Decision: accept` or `Decision: reject`. Decide now."),)
DECIDING = {"record_tokens": True, "decisions": ("reject", "accept"), "chat": ASKS}


def decided(provider: Provider, **changes: Any) -> tuple[Completion, ...]:
    request = make_request(**{**DECIDING, **changes})
    (answer,) = ask(make_sampler(provider.url), request)
    return answer.unwrap()


@pytest.mark.parametrize("temperature", [None, 1.0, 0.5, 2.0])
def test_the_probability_of_a_verdict_comes_from_the_likeliest_tokens(
    provider: Provider, temperature: float | None
) -> None:
    """At temperature T in the ratio of p^(1/T), summed over the spellings of a verdict."""
    accept, other, reject = (
        exp(log_probability(token) / (temperature or 1.0))
        for token in (" accept", " Accept", " reject")
    )
    share = (accept + other) / (accept + other + reject)
    for reply in decided(provider, temperature=temperature):
        assert reply.verdict_probabilities == pytest.approx((1 - share, share))
    assert [entry["body"]["top_logprobs"] for entry in chats(provider)] == [20]


def test_without_a_temperature_the_likeliest_verdict_is_certain(provider: Provider) -> None:
    accepts = log_probability(" accept"), log_probability(" Accept")
    certain = float(max(accepts) > log_probability(" reject"))
    for reply in decided(provider, temperature=0.0):
        assert reply.verdict_probabilities == (1 - certain, certain)


@pytest.mark.parametrize(
    "changes", [{"top_p": 0.9}, {"repetition_penalty": 1.2}, {"extra_fields": '{"top_k":5}'}]
)
def test_what_servers_do_not_tell_of_is_not_guessed(
    provider: Provider, changes: dict[str, Any]
) -> None:
    assert {reply.verdict_probabilities for reply in decided(provider, **changes)} == {()}


def test_other_tokens_are_asked_for_only_where_a_verdict_may_be_said(provider: Provider) -> None:
    assert {reply.verdict_probabilities for reply in sampled(provider)} == {()}
    decided(provider, record_tokens=False)
    assert not any("top_logprobs" in entry["body"] for entry in chats(provider))


@pytest.mark.parametrize("refused", ["logprobs", "top_logprobs"])
def test_a_server_that_refuses_them_is_asked_without(provider: Provider, refused: str) -> None:
    provider.configure(refuses=[refused], token_ids=True)
    for reply in decided(provider):
        assert reply.tokens is not None
        assert reply.verdict_probabilities == ()
    last = chats(provider)[-1]["body"]
    assert "top_logprobs" not in last
    assert ("logprobs" in last) == (refused == "top_logprobs")


@pytest.mark.parametrize("top", [None, [], "many", [{"token": 3}], [{"logprob": 0.0}]])
def test_other_forms_of_alternatives_give_no_probability(top: Any) -> None:
    score = {"token": "Decision: accept", "logprob": -0.5, "top_logprobs": top}
    choice = {"message": {"content": "Decision: accept"}, "logprobs": {"content": [score]}}
    content = json.dumps({"choices": [choice]}).encode()
    answer = read_answer(content, {}, make_request(**DECIDING), 1)
    assert isinstance(answer, Answered)
    (completion,) = answer.completions
    assert completion.verdict_probabilities == ()
    assert completion.tokens is not None
    assert completion.tokens.log_probabilities.tolist() == [-0.5]
