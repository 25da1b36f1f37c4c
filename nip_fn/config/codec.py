"""From a written configuration to checked parameters, and back.

A configuration is written as nested tables (TOML, `--set a.b=c`, or a plain `dict`).  `from_dict`
turns it into one frozen, hashable `HyperParameters`; `to_dict` is its inverse.  In the written form
`agents` is a table from agent name to fields, where `agents._default` holds what the agents share;
in the record it is a tuple in the protocol's order, each agent with all its fields.  A table may
name the class of the *nip* library that it stands for, as `_type`.
"""

import difflib
from collections.abc import Iterator, Mapping
from functools import reduce
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import inspect
from returns.result import Failure, Result, Success

from nip_fn.config.checks import problems
from nip_fn.config.tags import WRITTEN, tagged, type_problems, without_extras
from nip_fn.params.agent import AgentParameters
from nip_fn.params.run import DEFAULT_AGENT, HyperParameters
from nip_fn.protocols.registry import PROTOCOLS, agent_names


def merge(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `override` laid over it, table by table; neither is changed."""
    merged = dict(base)
    for name, value in override.items():
        below = merged.get(name)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            merged[name] = merge(below, value)
        else:
            merged[name] = value
    return merged


def nest(address: str, value: Any) -> dict[str, Any]:
    """`nest("a.b", 1)` is `{"a": {"b": 1}}`: the table that sets one dotted address."""
    nested: Any = reduce(lambda inner, part: {part: inner}, reversed(address.split(".")), value)
    return dict(nested)


def spread(agents: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """The table of each agent: its own fields over those that all agents share."""
    shared = agents.get(DEFAULT_AGENT, {})
    return {name: merge(shared, agents.get(name, {})) for name in names}


def from_dict(
    table: Mapping[str, Any], *, ignore_extra_keys: bool = False
) -> Result[HyperParameters, str]:
    """The parameters that a nested table describes, or one line that says what is wrong with it.

    Keys that name no parameter are a failure, or are left out with `ignore_extra_keys`.
    """
    protocol = table.get("interaction_protocol", "nip")
    if not isinstance(protocol, str) or protocol not in PROTOCOLS:
        known = ", ".join(PROTOCOLS)
        return Failure(f"interaction_protocol: {protocol!r} is not a protocol; choose from {known}")
    names = agent_names(protocol)
    problem = next(type_problems(table), None)
    table = without_extras(table, ignore=ignore_extra_keys)
    agents = table.get("agents", {})
    if ignore_extra_keys and isinstance(agents, Mapping):
        agents = {name: agents[name] for name in (*names, DEFAULT_AGENT) if name in agents}
    problem = problem or next(_agents_problems(agents, protocol), None)
    if problem:
        return Failure(problem)
    resolved = [_resolve_agent(name, own) for name, own in spread(agents, names).items()]
    try:
        params = msgspec.convert({**table, "agents": resolved}, HyperParameters)
    except (msgspec.ValidationError, TypeError) as error:
        return Failure(_explain(error, names))
    problem = next(problems(params), None)
    return Failure(problem) if problem else Success(params)


def to_dict(params: HyperParameters, *, type_tags: bool = False) -> dict[str, Any]:
    """The nested table of `params`; `from_dict(to_dict(p))` is `Success(p)`.

    With `type_tags` each table names its class of the *nip* library as `_type`.
    """
    table: dict[str, Any] = msgspec.to_builtins(params)
    written = {**table, "agents": {agent["name"]: agent for agent in table["agents"]}}
    return tagged(written) if type_tags else written


# What an agent keeps of its own when it is loaded: where it comes from, and whether it learns.
LOAD_PRESERVED = (
    "load_checkpoint_and_parameters",
    "checkpoint_entity",
    "checkpoint_project",
    "checkpoint_run_id",
    "checkpoint_version",
    "freeze_agent",
)


def load_agent(own: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """The table of an agent that is loaded: all that was saved, but for `LOAD_PRESERVED`."""
    return {**saved, **{name: own[name] for name in LOAD_PRESERVED if name in own}}


def default_table() -> dict[str, Any]:
    """The nested table of all defaults; those of agents are in `agents._default`."""
    agent = msgspec.to_builtins(AgentParameters())
    del agent["name"]
    return {**msgspec.to_builtins(HyperParameters()), "agents": {DEFAULT_AGENT: agent}}


def get(params: HyperParameters, address: str) -> Any:
    """The value at a dotted address such as `"agents.prover.lora_rank"`; `KeyError` if none."""
    value: Any = to_dict(params)
    for part in address.split("."):
        if not isinstance(value, dict) or part not in value:
            raise KeyError(address)
        value = value[part]
    return value


def params_hash(params: HyperParameters) -> str:
    """Sixteen hexadecimal digits that two configurations share only if they are equal."""
    return blake2b(msgspec.json.encode(params, order="sorted"), digest_size=8).hexdigest()


def differences(one: HyperParameters, other: HyperParameters) -> tuple[str, ...]:
    """The dotted addresses at which two configurations differ, sorted."""
    a, b = _flatten(to_dict(one)), _flatten(to_dict(other))
    return tuple(sorted(name for name in {*a, *b} if a.get(name) != b.get(name)))


def _flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def shape_problems(agents: Any) -> Iterator[str]:
    """Where the value of `agents` is no table of tables."""
    if not isinstance(agents, Mapping):
        yield "agents: expected a table from agent name to its parameters"
        return
    for name, fields in agents.items():
        if not isinstance(fields, Mapping):
            yield f"agents.{name}: expected a table of parameters, got {fields!r}"


def _agents_problems(agents: Any, protocol: str) -> Iterator[str]:
    """What is wrong with the table of agents as a table."""
    misshapen = tuple(shape_problems(agents))
    if misshapen:
        yield from misshapen
        return
    names = agent_names(protocol)
    for name, fields in agents.items():
        if "name" in fields and fields["name"] != name:
            yield f"agents.{name}.name: the protocol calls this agent {name!r}"
        elif name not in (*names, DEFAULT_AGENT):
            yield (
                f"agents.{name}: the protocol {protocol!r} has no such agent; "
                f"it has {', '.join(names)} (and {DEFAULT_AGENT} for what they share)"
            )


def _resolve_agent(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The agent's fields with its name; writing `lora_alpha` turns the default scale off."""
    turned_off = {"lora_alpha_scale": None} if fields.get("lora_alpha") is not None else {}
    return {**turned_off, **fields, "name": name}


def _explain(error: Exception, agents: tuple[str, ...]) -> str:
    """msgspec's message with the address first, agents by name, and what would have been right."""
    message, _, where = str(error).partition(" - at `$")
    address = where.rstrip("`").lstrip(".")
    expected = _type_at(address)
    for i, name in enumerate(agents):
        address = address.replace(f"agents[{i}]", f"agents.{name}")
    if "unknown field" in message and isinstance(expected, inspect.StructType):
        unknown = message.split("`")[1]
        known = [field.name for field in expected.fields]
        near = difflib.get_close_matches(unknown, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"
        return f"{address}{'.' if address else ''}{unknown}: no such parameter{hint}"
    hint = "".join(f"; choose from {', '.join(map(str, of.values))}" for of in _literals(expected))
    return f"{address or 'parameters'}: {message[0].lower()}{message[1:]}{hint}"


def _type_at(address: str) -> inspect.Type:
    """What belongs at an address as msgspec writes it, such as `agents[0].lora_rank`."""
    expected = WRITTEN
    for part in address.split(".") if address else []:
        name = part.partition("[")[0]
        if isinstance(expected, inspect.StructType):
            expected = next(field.type for field in expected.fields if field.name == name)
        if isinstance(expected, inspect.VarTupleType):
            expected = expected.item_type
        while isinstance(expected, inspect.Metadata):
            expected = expected.type
    return expected


def _literals(expected: inspect.Type) -> tuple[inspect.LiteralType, ...]:
    """The choices among the types that belong at an address."""
    types = expected.types if isinstance(expected, inspect.UnionType) else (expected,)
    return tuple(one for one in types if isinstance(one, inspect.LiteralType))
