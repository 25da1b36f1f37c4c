"""One vocabulary for files, options and messages; old spellings are read.

A record keeps the spellings of the *nip* library for providers, since recordings hold them.
"""

import difflib
from collections.abc import Mapping
from math import isfinite
from typing import Any

import msgspec
from msgspec import inspect
from returns.result import Failure, Result, Success

from nip_fn.config.schema import WRITTEN, type_below
from nip_fn.errors import Problem
from nip_fn.params.agent import OPTIONS, Provider, fields_in

DUMMY = "dummy"  # written like a provider; in a record it is `use_dummy_api`

# What may be written, and what a record has: the spellings of options, then older ones.
PROVIDERS: dict[str, Provider] = {
    **{option: provider for provider, option in OPTIONS.items()},
    **{provider: provider for provider in OPTIONS},
    "vLLM-OpenAI": "SelfHosted",
}
EXTRA = "extra_request_fields"
# Fields of a request that follow from something else, and from what.
_HAS_PARAMETER = {
    "messages": "the game",
    "model": "model_name",
    "n": "the trainer and replies_per_request",
    "seed": "the run's seed",
    "max_tokens": "max_tokens_per_message",
    "max_completion_tokens": "max_tokens_per_message",
    "stream": "nip-fn, which reads whole answers",
    "temperature": "temperature",
    "top_p": "top_p",
    "repetition_penalty": "repetition_penalty",
}
_TRAINERS = {"pure_text_ei": "ei", "pure_text_malt": "malt"}


def provider_of(written: object, address: str) -> Result[Provider, Problem]:
    """The provider, as a record has it, that a written one stands for.

    >>> provider_of("self-hosted", "--provider").unwrap()
    'SelfHosted'
    >>> print(provider_of("opnai", "--provider").failure())
    --provider: there is no provider 'opnai'; did you mean 'openai'? choose from local, openai, \
openrouter, self-hosted, scripted, dummy
    """
    if isinstance(written, str) and written in PROVIDERS:
        return Success(PROVIDERS[written])
    options = (*OPTIONS.values(), DUMMY)
    near = difflib.get_close_matches(str(written).lower(), options, n=1)
    guess = f"did you mean {near[0]!r}? " if near else ""
    remedy = f"{guess}choose from {', '.join(options)}"
    return Failure(Problem(f"there is no provider {written!r}", address, remedy))


def as_recorded(table: Mapping[str, Any]) -> dict[str, Any]:
    """The written table with its trainer as a record has it, and None for "none" wherever a
    parameter may be unset.
    """
    written: dict[str, Any] = _unset(table, WRITTEN)
    trainer = written.get("trainer")
    if isinstance(trainer, str) and trainer in _TRAINERS:
        return {**written, "trainer": _TRAINERS[trainer]}
    return written


def agent_as_recorded(name: str, fields: Mapping[str, Any]) -> Result[dict[str, Any], Problem]:
    """The fields of an agent with its provider, its extra fields and the number of a version as a
    record has them.
    """
    if type(number := fields.get("checkpoint_version")) is int:
        fields = {**fields, "checkpoint_version": str(number)}
    extra = fields.get(EXTRA)
    if extra is None:
        return _with_provider(name, fields)
    return _text_of(extra, f"agents.{name}.{EXTRA}").bind(
        lambda text: _with_provider(name, {**fields, EXTRA: text})
    )


def agent_as_written(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a recorded agent with its extra fields as a table."""
    return {**fields, EXTRA: fields_in(fields[EXTRA]) or None}


def _text_of(extra: object, address: str) -> Result[str | None, Problem]:
    """The JSON of extra fields; a failure if they are none that can be sent."""
    example = f"write a table, such as --set '{address}={{reasoning_effort=\"low\"}}'"
    if not isinstance(extra, Mapping):
        return Failure(Problem(f"expected a table, got {extra!r}", address, example))
    for field in extra:
        if parameter := _HAS_PARAMETER.get(field):
            return Failure(
                Problem(f"{field} is set by {parameter}", f"{address}.{field}", "leave it out")
            )
    if not _is_json(extra):
        problem = "it holds what JSON has no form for: none, a number that is not finite, or a date"
        return Failure(Problem(problem, address, example))
    return Success(msgspec.json.encode(extra, order="sorted").decode() if extra else None)


def _is_json(value: object) -> bool:
    match value:
        case Mapping():
            return all(isinstance(name, str) and _is_json(inner) for name, inner in value.items())
        case list() | tuple():
            return all(map(_is_json, value))
        case float():
            return isfinite(value)
    return isinstance(value, str | int)


def _with_provider(name: str, fields: Mapping[str, Any]) -> Result[dict[str, Any], Problem]:
    written = fields.get("model_provider")
    if written is None:
        return Success(dict(fields))
    if written == DUMMY:
        kept = {field: value for field, value in fields.items() if field != "model_provider"}
        return Success({**kept, "use_dummy_api": True})
    address = f"agents.{name}.model_provider"
    return provider_of(written, address).map(
        lambda provider: {**fields, "model_provider": provider}
    )


def _unset(value: Any, expected: inspect.Type | None) -> Any:
    # TOML has no word for None, and nobody should have to leave a line of a file out for it.
    if isinstance(value, Mapping):
        return {k: _unset(inner, type_below(expected, value, k)) for k, inner in value.items()}
    return None if value == "none" and _may_be_unset(expected) else value


def _may_be_unset(expected: inspect.Type | None) -> bool:
    while isinstance(expected, inspect.Metadata):
        expected = expected.type
    types = expected.types if isinstance(expected, inspect.UnionType) else ()
    return any(isinstance(option, inspect.NoneType) for option in types)
