"""One vocabulary for files, options and messages; old spellings are read.

A record keeps the spellings of the *nip* library for providers, since recordings hold them.
"""

import difflib
from collections.abc import Mapping
from typing import Any

from msgspec import inspect
from returns.result import Failure, Result, Success

from nip_fn.config.schema import WRITTEN, type_below
from nip_fn.errors import Problem
from nip_fn.params.agent import OPTIONS, Provider

DUMMY = "dummy"  # written like a provider; in a record it is `use_dummy_api`

# What may be written, and what a record has: the spellings of options, then older ones.
PROVIDERS: dict[str, Provider] = {
    **{option: provider for provider, option in OPTIONS.items()},
    **{provider: provider for provider in OPTIONS},
    "vLLM-OpenAI": "SelfHosted",
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
    known = (*OPTIONS.values(), DUMMY)
    near = difflib.get_close_matches(str(written).lower(), known, n=1)
    guess = f"did you mean {near[0]!r}? " if near else ""
    remedy = f"{guess}choose from {', '.join(known)}"
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
    """The fields of an agent with its provider, and the number of a version, as a record has it."""
    if type(number := fields.get("checkpoint_version")) is int:
        fields = {**fields, "checkpoint_version": str(number)}
    written = fields.get("model_provider")
    if written is None:
        return Success(dict(fields))
    if written == DUMMY:
        kept = {field: value for field, value in fields.items() if field != "model_provider"}
        return Success({**kept, "use_dummy_api": True})
    address = f"agents.{name}.model_provider"
    return provider_of(written, address).map(lambda found: {**fields, "model_provider": found})


def _unset(value: Any, expected: inspect.Type | None) -> Any:
    # TOML has no word for None, and nobody should have to leave a line of a file out for it.
    if isinstance(value, Mapping):
        return {k: _unset(inner, type_below(expected, value, k)) for k, inner in value.items()}
    return None if value == "none" and _may_be_unset(expected) else value


def _may_be_unset(expected: inspect.Type | None) -> bool:
    while isinstance(expected, inspect.Metadata):
        expected = expected.type
    types = expected.types if isinstance(expected, inspect.UnionType) else ()
    return any(isinstance(one, inspect.NoneType) for one in types)
