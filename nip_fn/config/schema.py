"""The table of all parameters, the types of a written configuration, and errors in it."""

import difflib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from nip_fn.errors import Problem
from nip_fn.params.base import Meaning, Record
from nip_fn.params.run import DEFAULT_AGENT, HyperParameters

# The type of a whole configuration.  Its `agents` is a tuple where the written form has a table by
# name; `type_below` takes a name for an index.
WRITTEN: inspect.Type = inspect.type_info(HyperParameters)

LONGEST = 60  # characters of a value in a message

AGENT = "AGENT"  # in an address: the name of any agent, or `_default`


class Parameter(NamedTuple):
    """A parameter as it is declared.

    address: Its address, with `AGENT` for an agent's name.
    type: The type of its values, without metadata.
    description: Its help.
    needs: The conditions of its section and its own, without any of which it has no effect.
    """

    address: str
    type: inspect.Type
    default: Any
    description: str
    needs: tuple[str, ...]
    meaning: Meaning


@cache
def parameters(record: type[Record] = HyperParameters) -> Mapping[str, Parameter]:
    """The parameters of a record by address, those of the top level first, as in a file of TOML."""
    whole = inspect.type_info(record)
    assert isinstance(whole, inspect.StructType)
    table = sorted(_parameters(whole, ""), key=lambda parameter: "." in parameter.address)
    return {parameter.address: parameter for parameter in table}


def _parameters(record: inspect.StructType, prefix: str, section: str = "") -> Iterator[Parameter]:
    for field in record.fields:
        address, (value_type, schema, extra) = f"{prefix}{field.name}", _declared(field.type)
        match value_type:
            case inspect.VarTupleType(item_type=inspect.StructType() as agent):
                yield from _parameters(agent, f"{address}.{AGENT}.")
            case inspect.StructType():
                yield from _parameters(value_type, f"{address}.", extra.get("needs", ""))
            case _:
                meaning = Meaning(**extra)
                needs = tuple(need for need in (section, meaning.needs) if need)
                yield Parameter(
                    address, value_type, field.default, schema["description"], needs, meaning
                )


def _declared(value_type: inspect.Type) -> tuple[inspect.Type, dict[str, Any], dict[str, Any]]:
    """The type without its metadata, the JSON Schema of that, and what else is declared."""
    schema: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    while isinstance(value_type, inspect.Metadata):
        schema, extra = (
            {**(value_type.extra_json_schema or {}), **schema},
            {**(value_type.extra or {}), **extra},
        )
        value_type = value_type.type
    return value_type, schema, extra


def parameter_at(address: str, record: type[Record] = HyperParameters) -> Parameter | None:
    """The parameter at an address, or that a table at it belongs to; None if there is none.

    >>> parameter_at("agents.prover.update_schedule.period").address
    'agents.AGENT.update_schedule'
    """
    table, names = parameters(record), address.split(".")
    if names[0] == "agents":
        names[1:2] = [AGENT]
    prefixes = (".".join(names[:length]) for length in (1, 2, 3))
    return next((table[prefix] for prefix in prefixes if prefix in table), None)


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
            types = {field.name: field.type for field in fields}
            return inspect.StrType() if tag is not None and name == tag else types.get(name)
    return None


def record_of(expected: inspect.Type | None, table: Mapping[Any, Any]) -> inspect.Type | None:
    """The type, of those that may belong at an address, that describes this table."""
    match expected:
        case inspect.Metadata(type=inner):
            return record_of(inner, table)
        case inspect.UnionType(types=types):
            records = [record for record in types if isinstance(record, inspect.StructType)]
            named = [record for record in records if record.tag == table.get("_type")]
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
        names = [field.name for field in expected.fields]
        return Problem(
            "no such parameter",
            f"{address}.{unknown}".lstrip("."),
            _elsewhere(unknown, address)
            or did_you_mean(unknown, names)
            or f"known are {', '.join(names)}",
        )
    problem = f"{message[0].lower()}{message[1:]}"
    return Problem(problem, address or "parameters", _choices(expected) or _example(default))


# The words of the command line, where they are not those of a file.
_OPTIONS = {
    "protocol": "interaction_protocol",
    "provider": f"agents.{AGENT}.model_provider",
    "model": f"agents.{AGENT}.model_name",
    "base_url": f"agents.{AGENT}.api_base_url",
    "batch": f"agents.{AGENT}.use_batch_api",
    "iterations": "rl.num_iterations",
    "split": "test_dataset_split",
}


def _elsewhere(name: str, section: str) -> str:
    """A question for the parameter that has this name in another section; "" if none has."""
    agent = section if section.startswith("agents.") else f"agents.{DEFAULT_AGENT}"
    named = (address for address in parameters() if address.rpartition(".")[2] == name)
    address = _OPTIONS.get(name) or next(named, "")
    return f"did you mean {address.replace(f'agents.{AGENT}', agent)!r}?" if address else ""


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


def did_you_mean(name: str, names: list[str]) -> str:
    """A question for the nearest known name; "" if none is near."""
    near = difflib.get_close_matches(name, names, n=1)
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
    literals = [literal for literal in types if isinstance(literal, inspect.LiteralType)]
    return "; ".join(f"choose from {', '.join(map(str, literal.values))}" for literal in literals)


def _example(default: Any) -> str:
    """The default as an example, in TOML; "" if it is a table or nothing."""
    plain = isinstance(default, bool | int | float | str)
    return f"write, for example, {msgspec.json.encode(default).decode()}" if plain else ""
