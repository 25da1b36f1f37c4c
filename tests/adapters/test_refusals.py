"""Refusals in the shapes and words of many providers: read, told, and mended where they can be."""

import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import openai
import pytest

from nip_fn.run.digest import digest
from nip_fn.run.replay import replay
from nip_fn_adapters.providers.api.clients import make_client
from nip_fn_adapters.providers.api.endpoints import Endpoint
from nip_fn_adapters.providers.api.problems import describe, failure_of
from nip_fn_adapters.providers.api.refusals import read_refusal
from nip_fn_adapters.providers.api.replies import read_answer
from nip_fn_adapters.providers.api.retries import RequestFailure
from nip_fn_adapters.providers.api.sampler import served_by
from nip_fn_adapters.recording import store
from nip_fn_adapters.recording.store import CHECKPOINT

from ..core.games import make_params
from ..provider import Provider
from ..provider.shapes import SHAPES, Shape
from .sampling import KEY, QUICK, Game, ask, chats, is_readable, make_request, make_sampler


@pytest.fixture
def provider(running: Provider) -> Provider:
    running.reset(key=KEY)
    return running


# ------------------------------------------------------------------------------------ reading


def openai_form(message: str, **fields: object) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", **fields}}


def flat(message: str) -> dict[str, Any]:
    return {"object": "error", "message": message, "type": "BadRequestError", "code": 400}


# What providers were seen to answer to a prompt that is too long, in the forms in which they do.
TOO_LONG: list[tuple[str, int, Any]] = [
    (
        "OpenAI", 400,
        openai_form(
            "This model's maximum context length is 8192 tokens. However, your messages resulted "
            "in 10042 tokens. Please reduce the length of the messages.",
            param="messages", code="context_length_exceeded",
        ),
    ),
    (
        "OpenAI, newer", 400,
        openai_form("Input tokens exceed the configured limit of 272000 tokens. Your messages "
                    "resulted in 300016 tokens. Please reduce the length of the messages."),
    ),
    (
        "Azure", 400,
        {"error": {"message": "This model's maximum context length is 4096 tokens, however you "
                              "requested 5000 tokens", "code": "context_length_exceeded"}},
    ),
    (
        "vLLM, old", 400,
        flat("This model's maximum context length is 4096 tokens. However, you requested 5060 "
             "tokens (4036 in the messages, 1024 in the completion). Please reduce the length of "
             "the messages or completion."),
    ),
    (
        "vLLM V1", 400,
        flat("The decoder prompt (length 10127) is longer than the maximum model length of 8192. "
             "Make sure that `max_model_len` is no smaller than the number of text tokens."),
    ),
    ("vLLM, negative rest", 400, flat("max_tokens must be at least 1, got -186.")),
    (
        "vLLM, new", 400,
        openai_form("'max_tokens' or 'max_completion_tokens' is too large: 400. This model's "
                    "maximum context length is 512 tokens and your request has 300 input tokens."),
    ),
    (
        "Mistral", 400,
        flat("Prompt contains 40021 tokens and 0 draft tokens, too large for model with 32768 "
             "maximum context length"),
    ),
    (
        "Gemini", 400,
        [{"error": {"code": 400, "status": "INVALID_ARGUMENT", "message": "The input token count "
                    "(1200293) exceeds the maximum number of tokens allowed (1048576)."}}],
    ),
    (
        "Anthropic", 400,
        {"type": "error", "error": {"type": "invalid_request_error",
                                    "message": "prompt is too long: 202128 tokens > 200000"}},
    ),
    (
        "xAI", 400,
        {"code": "Client specified an invalid argument", "error": "This model's maximum prompt "
         "length is 131072 but the request contains 136973 tokens."},
    ),
    (
        "Cohere", 400,
        {"message": "too many tokens: size limit exceeded by 812 tokens. Try using shorter or "
                    "fewer inputs, or setting prompt_truncation='AUTO'."},
    ),
    (
        "Groq", 400,
        openai_form("Please reduce the length of the messages or completion.", param="messages",
                    code="context_length_exceeded"),
    ),
    (
        "Together", 422,
        openai_form("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 2048. "
                    "Given: 2019 `inputs` tokens and 30 `max_new_tokens`", param=None, code=None),
    ),
    (
        "Fireworks", 400,
        openai_form("The prompt is too long: 131073, model maximum context length: 131071"),
    ),
    (
        "OpenRouter, its provider's", 400,
        {"error": {"code": 400, "message": "Provider returned error", "metadata": {
            "raw": json.dumps(openai_form("prompt is too long: 202128 tokens > 200000 maximum"))}}},
    ),
    (
        "OpenRouter", 400,
        {"error": {"code": 400, "message": "This endpoint's maximum context length is 8192 tokens. "
                   "However, you requested about 9000 tokens (8000 of text input, 1000 in the "
                   "output). Please reduce the length of either one."}},
    ),
    (
        "llama.cpp", 400,
        {"error": {"code": 400, "type": "exceed_context_size_error", "n_ctx": 4096,
                   "message": "request (4390 tokens) exceeds the available context size "
                              "(4096 tokens), try increasing it"}},
    ),
    (
        "llama.cpp, old", 500,
        {"error": {"code": 500, "message": "Context size has been exceeded.",
                   "type": "server_error"}},
    ),
    ("Ollama", 400, {"error": {"message": "input length exceeds the context length"}}),
    (
        "LM Studio", 400,
        {"error": "Trying to keep the first 10136 tokens when context the overflows. However, the "
                  "model is loaded with context length of only 7866 tokens, which is not enough."},
    ),
    ("LM Studio, new", 400, flat("Cannot truncate prompt with n_keep (15028) >= n_ctx (7424)")),
    (
        "TGI", 422,
        {"error": "Input validation error: `inputs` must have less than 1024 tokens. Given: 1103",
         "error_type": "validation"},
    ),
    (
        "SGLang", 400,
        flat("The input (61709 tokens) is longer than the model's context length (40960 tokens)."),
    ),
    (
        "SGLang, other", 400,
        flat("Input length (160062 tokens) exceeds the maximum allowed length (59862 tokens)."),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("status", "body"), [row[1:] for row in TOO_LONG], ids=[
    row[0] for row in TOO_LONG
])  # fmt: skip
def test_a_prompt_that_is_too_long_is_told_by_the_words_of_any_provider(
    status: int, body: Any
) -> None:
    assert read_refusal(json.dumps(body).encode(), status).kind == "too_large"


# Refusals that only resemble those.
OTHERS: list[tuple[str, int, str, str]] = [
    ("max_tokens", 400, "max_tokens is too large: 100000. This model supports at most 16384 "
     "completion tokens, whereas you provided 100000.", "refused"),
    ("TGI's max_tokens", 422, "Input validation error: `max_new_tokens` must be <= 192", "refused"),
    ("rate", 429, "Limit 30000 tokens per min. Please reduce the length.", "rate_limit"),
    ("filter of OpenAI", 400, "Invalid prompt: your prompt was flagged as potentially violating "
     "our usage policy.", "filtered"),
    ("filter of xAI", 403, "Content violates usage guidelines.", "filtered"),
    ("an account", 403, "Your access was terminated: violation of our policies.", "forbidden"),
    ("a region", 403, "Country, region, or territory not supported", "forbidden"),
    ("a model of OpenAI", 404, "The model `gpt-9` does not exist or you do not have access to it.",
     "model"),
    ("a model of OpenRouter", 400, "gpt-9 is not a valid model ID", "model"),
    ("a model of Ollama", 404, 'model "x" not found, try pulling it first', "model"),
    ("an address", 404, "Not Found", "address"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("status", "message", "kind"), [row[1:] for row in OTHERS], ids=[row[0] for row in OTHERS]
)
def test_other_refusals_are_told_apart_by_their_words(status: int, message: str, kind: str) -> None:
    for body in (openai_form(message), flat(message), {"error": message}, {"detail": message}):
        assert read_refusal(json.dumps(body).encode(), status).kind == kind


def test_a_moderated_prompt_is_told_by_its_metadata_whatever_the_words() -> None:
    for about in ({"reasons": ["violence"]}, {"flagged_input": "You are ..."}):
        body = openai_form("Forbidden", metadata=about)
        assert read_refusal(json.dumps(body).encode(), 403).kind == "filtered"
    assert read_refusal(json.dumps(openai_form("Forbidden")).encode(), 403).kind == "forbidden"


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        ("Unexpected endpoint or method.", "malformed", 200),
        ("The prompt is too long", "too_large", 500),
        ({"message": "Input is too long", "code": "400"}, "too_large", 400),
        ({"message": "no", "code": 429}, "rate_limit", 429),
        ({"message": "no"}, "server", 500),
    ],
)
def test_an_error_with_status_200_is_read_as_well(error: Any, kind: str, status: int) -> None:
    read = read_answer(json.dumps({"error": error}).encode(), {}, make_request(), 1)
    assert isinstance(read, RequestFailure)
    assert (read.kind, read.status) == (kind, status)
    assert read.message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", ""),
        (b"{}", ""),
        (b"null", ""),
        (b'{"status": 400}', '{"status": 400}'),
        (b"no\n such\tthing", "no such thing"),
        (b"<!DOCTYPE html><p>Bad <b>request</b></p>", "Bad request"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"[" * 100_000, "[" * 3997 + "..."),
        (b'{"message": null, "detail": 3, "error": {"message": ["a", {"msg": "b"}]}}', "a; b"),
    ],
)
def test_what_is_not_understood_is_shown(body: bytes, message: str) -> None:
    failure = read_refusal(body, 400)
    assert (failure.kind, failure.message) == ("refused", message)
    shown = str(describe(Endpoint("http://a", KEY), "m", failure))
    assert len(shown) < 400


@pytest.mark.parametrize("quoted", [KEY, f"{KEY[:9]}******{KEY[-4:]}", f"{'x' * 290} {KEY}"])
def test_the_key_is_masked_where_a_server_quotes_it(quoted: str) -> None:
    failure = RequestFailure("forbidden", 403, f"The key {quoted} may not do this")
    shown = str(describe(Endpoint("http://a", KEY), "m", failure))
    assert KEY[:6] not in shown
    assert KEY[-4:] not in shown
    assert "may not do this" in shown or "x" in shown


# ------------------------------------------------------------------------------------ mending

WORDS = {
    "openai": "Unrecognized request argument supplied: {}",
    "gemini": 'Invalid JSON payload received. Unknown name "{}": Cannot find field.',
    "mistral": "Extra inputs are not permitted",
    "fastapi": "extra fields not permitted",
    "text": "property '{}' is unsupported",
}


@pytest.mark.parametrize("shape", SHAPES)
def test_what_nip_fn_adds_is_left_out_in_whatever_shape_it_is_refused(
    provider: Provider, shape: Shape
) -> None:
    told: list[str] = []
    settings = QUICK._replace(tell=told.append)
    added = ["seed", "name", "prompt_cache_key", "n"]
    provider.configure(refuses=added, shape=shape, refusal=WORDS.get(shape, WORDS["openai"]))
    sampler = make_sampler(provider.url, is_openai=True, settings=settings)
    for place in ("a", "b"):
        (answer,) = ask(sampler, make_request(place))
        assert len(answer.unwrap()) == 2
    statuses = [entry["status"] for entry in chats(provider)]
    assert statuses[:5] == [400] * 4 + [200]
    assert statuses[5:].count(400) == 0, "each is learnt once"
    assert {line.split(": the server ")[1] for line in told} == {
        "makes one reply at a time, so replies are requested one by one",
        *(f"does not take {field}, so it is left out" for field in added[:3]),
    }


def test_where_no_field_is_named_the_request_is_tried_without_those_that_nip_fn_adds(
    provider: Provider,
) -> None:
    told: list[str] = []
    provider.configure(refuses=["seed"], shape="text", refusal="Bad request")
    sampler = make_sampler(provider.url, settings=QUICK._replace(tell=told.append))
    for place in ("a", "b"):
        (answer,) = ask(sampler, make_request(place))
        assert len(answer.unwrap()) == 2
    assert [(entry["status"], entry["n"]) for entry in chats(provider)] == [
        (400, 2), (200, 2), (200, 2)
    ]  # fmt: skip
    first, *learnt = told
    where = f"{provider.url}: verifier's m: the server refuses the request (400): Bad request"
    assert first == f"{where}; tried again without name, seed"
    assert [line.split("the server ")[1] for line in learnt] == [
        "does not take name, so it is left out", "does not take seed, so it is left out"
    ]  # fmt: skip


def test_n_is_left_out_last(provider: Provider) -> None:
    provider.configure(refuses=["n"], shape="html", refusal="Bad request")
    (answer,) = ask(make_sampler(provider.url), make_request(num=3))
    assert len(answer.unwrap()) == 3
    sent = [(entry["n"], "seed" in entry["body"]) for entry in chats(provider)]
    assert sent == [(3, True), (3, False), (1, False), (1, False), (1, False)]


def test_what_no_form_mends_is_told_in_the_first_words_and_teaches_nothing(
    provider: Provider,
) -> None:
    told: list[str] = []
    provider.configure(faults=[{"fault": "400", "message": "Bad request", "times": 3}])
    sampler = make_sampler(provider.url, settings=QUICK._replace(tell=told.append))
    (answer,) = ask(sampler, make_request())
    problem = answer.failure()
    where = f"{provider.url}: verifier's m: the server refuses the request (400): Bad request"
    assert str(problem) == where
    assert not problem.lasting, "no parameter can mend it"
    assert [entry["n"] for entry in chats(provider)] == [2, 2, 1]
    ask(sampler, make_request("b"))
    assert {"seed", "n"} <= set(chats(provider)[-1]["body"])
    assert len(told) == 1


@pytest.mark.parametrize(
    ("sent", "refused", "parameter"),
    [
        ({"temperature": 0.5}, "temperature", "temperature"),
        ({"extra_fields": '{"reasoning_effort":"low"}'}, "reasoning_effort",
         "extra_request_fields.reasoning_effort"),
    ],
)  # fmt: skip
def test_a_field_of_the_user_s_is_never_left_out_and_its_parameter_is_named(
    provider: Provider, sent: dict[str, Any], refused: str, parameter: str
) -> None:
    provider.configure(refuses=[refused], shape="vllm-flat")
    (answer,) = ask(make_sampler(provider.url), make_request(**sent))
    problem = answer.failure()
    assert f"'{refused}' is not supported" in str(problem)
    assert problem.remedy == f"change agents.verifier.{parameter}"
    assert problem.lasting
    assert len(chats(provider)) == 1


def test_extra_fields_are_sent_as_they_are(provider: Provider) -> None:
    extra = '{"reasoning":{"effort":"low"},"service_tier":"flex"}'
    ask(make_sampler(provider.url), make_request(extra_fields=extra))
    body = chats(provider)[0]["body"]
    assert body["reasoning"] == {"effort": "low"}
    assert body["service_tier"] == "flex"


def test_a_wrong_model_is_told_as_what_only_a_new_run_changes(provider: Provider) -> None:
    provider.configure(models=["m-1"])
    (answer,) = ask(make_sampler(provider.url), make_request())
    problem = answer.failure()
    assert "the server does not have the model (404): The model 'm' does not exist" in str(problem)
    assert problem.remedy == "check the name of the model, and --base-url"
    assert problem.lasting


@pytest.mark.parametrize("shape", SHAPES)
def test_the_client_s_errors_are_read_as_those_of_chats_are(
    provider: Provider, shape: Shape
) -> None:
    provider.configure(faults=[{"fault": "400", "message": "The file has no rows."}], shape=shape)

    async def refused() -> RequestFailure:
        endpoint = Endpoint(provider.url, KEY)
        async with make_client(endpoint, timeout=60.0, connections=1) as client:
            with pytest.raises(openai.APIStatusError) as raised:
                await client.files.list()
            return failure_of(raised.value)

    failure = asyncio.run(refused())
    assert (failure.kind, failure.status) == ("refused", 400)
    assert "The file has no rows." in failure.message


@pytest.mark.parametrize(
    ("url", "is_openai"),
    [
        (None, True),
        ("https://eu.api.openai.com/v1", True),
        ("https://api.openai.com.evil.test/v1", False),
        ("https://generativelanguage.googleapis.com/v1beta/openai", False),
        ("https://api.openai.com/v1, http://localhost:8000/v1", False),
    ],
)
def test_the_prompts_beginning_is_named_to_openai_alone(url: str | None, is_openai: bool) -> None:
    (agent, *_) = make_params({"agents": {"_default": {"api_base_url": url}}}).agents
    assert served_by(agent, {"OPENAI_API_KEY": KEY}).unwrap().is_openai == is_openai


# ------------------------------------------------------------------------------------ no room


def test_a_reply_that_is_empty_at_its_limit_is_told_with_the_parameter(provider: Provider) -> None:
    told: list[str] = []
    provider.configure(reasoning_tokens=1000)
    sampler = make_sampler(provider.url, settings=QUICK._replace(tell=told.append))
    (answer,) = ask(sampler, make_request())
    assert {(one.text, one.finish_reason) for one in answer.unwrap()} == {("", "length")}
    (line,) = told
    assert line == (
        f"{provider.url}: verifier's m: 2 of 2 replies are empty at the limit of 64 tokens, after "
        "128 tokens of hidden reasoning; raise agents.verifier.max_tokens_per_message; a second "
        "one in a row at the same place is counted as an invalid reply"
    )
    assert is_readable(line)


def test_a_place_is_asked_for_twice_where_nothing_is_written_before_the_limit(
    provider: Provider, tmp_path: Path
) -> None:
    provider.configure(reasoning_tokens=1000)
    limits = {"num_invalid_generation_retries": 20, "max_tokens_per_message": 30}
    game = Game(tmp_path / "run", provider.url, {"agents": {"_default": limits}})
    state = game.sit().unwrap()
    assert state.stage.name == "done"
    asked = Counter((r.tree, r.path, r.agent, r.index) for r in game.replies())
    assert set(asked.values()) == {2}
    told = {re.sub(r".*(; raise .*?);.*", r"\1", line) for line in game.told}
    agents = ("verifier", "prover")
    assert told == {f"; raise agents.{agent}.max_tokens_per_message" for agent in agents}
    events = store.read_recording(game.folder / CHECKPOINT).unwrap().events
    assert digest(replay(events).unwrap().state) == digest(state)
