"""The written form of a configuration as msgspec describes it, and msgspec's errors as problems."""

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import inspect

from nip_fn.errors import Problem
from nip_fn.params.run import HyperParameters

# The type of a whole configuration.  Its `agents` is a tuple where the written form has a table by
# name; `type_below` takes a name for an index.
WRITTEN: inspect.Type = inspect.type_info(HyperParameters)

LONGEST = 60  # characters of a value in a message


def type_below(
    expected: inspect.Type | None, table: Mapping[Any, Any], name: Any
) -> inspect.Type | None:
    """The type that belongs at a key of a table; None if the key is unknown.

    Args:
        expected: The type that belongs at the table itself.
        table: The table; its `_type` chooses between the records of a union.
        name: The key, which in a malformed table need not be a string.
    """
    match record_of(expected, table):
        case inspect.VarTupleType(item_type=item):
            return item
        case inspect.StructType(tag_field=tag, fields=fields):
            known = {field.name: field.type for field in fields}
            return inspect.StrType() if tag is not None and name == tag else known.get(name)
    return None


def record_of(expected: inspect.Type | None, table: Mapping[Any, Any]) -> inspect.Type | None:
    """The type, of those that may belong at an address, that describes this table."""
    match expected:
        case inspect.Metadata(type=inner):
            return record_of(inner, table)
        case inspect.UnionType(types=types):
            records = [one for one in types if isinstance(one, inspect.StructType)]
            named = [one for one in records if one.tag == table.get("_type")]
            return next(iter(named or records), None)
    return expected


def conversion_problem(
    error: Exception, agents: tuple[str, ...], table: Mapping[str, Any]
) -> Problem:
    """msgspec's error as a problem: agents by name, unknown fields with the nearest known one.

    >>> table = {"seed": "six"}
    >>> try:
    ...     msgspec.convert(table, HyperParameters)
    ... except msgspec.ValidationError as error:
    ...     print(conversion_problem(error, (), table))
    seed: expected `int`, got 'six'; write, for example, 6198
    """
    # There is no structured form of these errors: the message ends with " - at `$.rl.lr`".
    message, _, where = str(error).partition(" - at `$")
    address = where.rstrip("`").lstrip(".")
    expected, default = _belonging_at(address)
    if message.startswith("Expected"):  # its own words name the type of what was given, if anything
        message = f"{message.partition(', got')[0]}{_given(table, address)}"
    for i, name in enumerate(agents):
        address = address.replace(f"agents[{i}]", f"agents.{name}")
    if "unknown field" in message and isinstance(expected, inspect.StructType):
        unknown = message.split("`")[1]
        known = [field.name for field in expected.fields]
        return Problem(
            "no such parameter",
            f"{address}.{unknown}".lstrip("."),
            _elsewhere(unknown, address)
            or did_you_mean(unknown, known)
            or f"known are {', '.join(known)}",
        )
    problem = f"{message[0].lower()}{message[1:]}"
    return Problem(problem, address or "parameters", _choices(expected) or _example(default))


# The words of the command line, where they are not those of a file.
_OPTIONS = {
    "protocol": "interaction_protocol",
    "provider": "agents._default.model_provider",
    "model": "agents._default.model_name",
    "base_url": "agents._default.api_base_url",
    "batch": "agents._default.use_batch_api",
    "iterations": "rl.num_iterations",
    "split": "test_dataset_split",
}


def _elsewhere(name: str, section: str) -> str:
    """A question for the parameter that has this name in another section; "" if none has."""
    agent = section if section.startswith("agents.") else "agents._default"
    known = dict(_parameters(WRITTEN, ""))
    address = _OPTIONS.get(name) or known.get(name)
    return f"did you mean {address.replace('agents._default', agent)!r}?" if address else ""


def _parameters(record: inspect.Type, prefix: str) -> Iterator[tuple[str, str]]:
    """(name, address) of all parameters; the first of equal names comes last."""
    if not isinstance(record, inspect.StructType):
        return
    for field in reversed(record.fields):
        match field.type:
            case inspect.StructType():
                yield from _parameters(field.type, f"{prefix}{field.name}.")
            case inspect.VarTupleType(item_type=item):
                yield from _parameters(item, f"{prefix}{field.name}._default.")
            case _:
                yield field.name, f"{prefix}{field.name}"


def _given(table: Mapping[str, Any], address: str) -> str:
    """The words for the value at an address as msgspec writes it; "" if there is none."""
    value: Any = table
    for part in re.findall(r"[^.\[\]]+", address):
        try:
            value = value[int(part) if isinstance(value, list | tuple) else part]
        except (KeyError, IndexError, ValueError, TypeError):
            return ""
    words = repr(value)
    return f", got {words if len(words) <= LONGEST else words[:LONGEST] + '...'}"


def did_you_mean(name: str, known: list[str]) -> str:
    """A question for the nearest known name; "" if none is near."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else ""


def _belonging_at(address: str) -> tuple[inspect.Type, Any]:
    """The type and the default at an address as msgspec writes it: `agents[0].lora_rank`."""
    expected, default = WRITTEN, None
    for part in address.split(".") if address else []:
        name = part.partition("[")[0]
        if isinstance(expected, inspect.StructType):
            field = next(field for field in expected.fields if field.name == name)
            expected, default = field.type, field.default
        if isinstance(expected, inspect.VarTupleType):
            expected = expected.item_type
        while isinstance(expected, inspect.Metadata):
            expected = expected.type
    return expected, default


def _choices(expected: inspect.Type) -> str:
    """An invitation to choose, if a literal belongs there; otherwise ""."""
    types = expected.types if isinstance(expected, inspect.UnionType) else (expected,)
    literals = [one for one in types if isinstance(one, inspect.LiteralType)]
    return "; ".join(f"choose from {', '.join(map(str, one.values))}" for one in literals)


def _example(default: Any) -> str:
    """The default as an example, in TOML; "" if it is a table or nothing."""
    plain = isinstance(default, bool | int | float | str)
    return f"write, for example, {msgspec.json.encode(default).decode()}" if plain else ""
