"""From a written configuration to checked parameters, and back.

A configuration is written as nested tables (TOML, `--set a.b=c`, or a plain `dict`).  `from_dict`
turns it into one frozen, hashable `HyperParameters`; `to_dict` is its inverse.  In the written form
`agents` is a table from agent name to fields, where `agents._default` holds what the agents share;
in the record it is a tuple in the protocol's order, each agent with all its fields.
"""

import difflib
from collections.abc import Mapping
from functools import reduce
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import inspect
from returns.result import Failure, Result, Success

from nip_fn.keys import key
from nip_fn.params import AgentParameters, HyperParameters, agent_group
from nip_fn.protocols.names import AGENTS_BY_PROTOCOL
from nip_fn.protocols.protocol import verifier_rounds
from nip_fn.protocols.registry import protocol_of

DEFAULT_AGENT = "_default"


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


def from_dict(table: Mapping[str, Any]) -> Result[HyperParameters, str]:
    """The parameters that a nested table describes, or one line that says what is wrong with it."""
    protocol = table.get("interaction_protocol", "nip")
    names = AGENTS_BY_PROTOCOL.get(protocol) if isinstance(protocol, str) else None
    if names is None:
        known = ", ".join(AGENTS_BY_PROTOCOL)
        return Failure(f"interaction_protocol: {protocol!r} is not a protocol; choose from {known}")
    agents = table.get("agents", {})
    if not isinstance(agents, Mapping):
        return Failure("agents: expected a table from agent name to its parameters")
    for name, fields in agents.items():
        if not isinstance(fields, Mapping):
            return Failure(f"agents.{name}: expected a table of parameters, got {fields!r}")
        if "name" in fields and fields["name"] != name:
            return Failure(f"agents.{name}.name: the protocol calls this agent {name!r}")
        if name not in (*names, DEFAULT_AGENT):
            return Failure(
                f"agents.{name}: the protocol {protocol!r} has no such agent; "
                f"it has {', '.join(names)} (and {DEFAULT_AGENT} for what they share)"
            )
    shared = agents.get(DEFAULT_AGENT, {})
    resolved = [_resolve_agent(name, merge(shared, agents.get(name, {}))) for name in names]
    try:
        params = msgspec.convert({**table, "agents": resolved}, HyperParameters)
    except (msgspec.ValidationError, TypeError) as error:
        return Failure(_explain(error, names))
    problem = next((line for agent in params.agents for line in _agent_problems(agent)), None)
    problem = problem or next(iter(_problems(params)), None)
    return Failure(problem) if problem else Success(params)


def to_dict(params: HyperParameters) -> dict[str, Any]:
    """The nested table of `params`; `from_dict(to_dict(p))` is `Success(p)`."""
    table: dict[str, Any] = msgspec.to_builtins(params)
    agents = {agent["name"]: agent for agent in table["agents"]}
    return {**table, "agents": agents}


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


def _resolve_agent(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The agent's fields with its name; writing `lora_alpha` turns the default scale off."""
    turned_off = {"lora_alpha_scale": None} if fields.get("lora_alpha") is not None else {}
    return {**turned_off, **fields, "name": name}


def _agent_problems(agent: AgentParameters) -> tuple[str, ...]:
    problems = []
    if agent.lora_alpha is not None and agent.lora_alpha_scale is not None:
        problems.append(
            f"agents.{agent.name}: lora_alpha and lora_alpha_scale are both set; keep one"
        )
    if agent.lora_alpha is None and agent.lora_alpha_scale is None:
        problems.append(f"agents.{agent.name}: set one of lora_alpha and lora_alpha_scale")
    alpha = agent.lora_rank * (agent.lora_alpha_scale or 1.0)
    if alpha < 1 or alpha != round(alpha):
        problems.append(
            f"agents.{agent.name}.lora_alpha_scale: {agent.lora_alpha_scale} times the rank, "
            f"{agent.lora_rank}, is not a whole number of at least 1"
        )
    return tuple(problems)


def _problems(params: HyperParameters) -> tuple[str, ...]:
    problems = []
    if params.malt.num_initial_ei_iterations:
        problems.append(
            "malt.num_initial_ei_iterations: expert iteration is not part of this version; "
            "leave it at 0"
        )
    problems.extend(_turn_problems(params))
    problems.extend(group_problems(params.agents))
    return tuple(problems)


def _turn_problems(params: HyperParameters) -> tuple[str, ...]:
    """Where the verifier gets no turn, or none in which its decision would count."""
    protocol = protocol_of(params)
    rounds = verifier_rounds(protocol, key(params.seed))
    if not rounds:
        return (f"{protocol.name}_protocol.max_message_rounds: the verifier never gets a turn",)
    if rounds[-1] < protocol.min_message_rounds - 1:
        return (
            f"{protocol.name}_protocol.min_message_rounds: {protocol.min_message_rounds} is too "
            f"many: the verifier speaks for the last time in round {rounds[-1] + 1} of "
            f"{protocol.max_message_rounds}, so its decision would never count",
        )
    return ()


# Fields that agents of one shared model group must agree on, because they describe the one model.
SHARED_FIELDS = (
    "model_provider",
    "model_name",
    "freeze_agent",
    "fine_tune_from_scratch",
    "dpo_beta",
    "dpo_reference",
    "num_epochs",
    "lora_rank",
    "lora_alpha",
    "lora_alpha_scale",
    "lora_dropout",
    "per_device_train_batch_size",
    "agent_lr_factor",
)


def group_problems(agents: tuple[AgentParameters, ...]) -> tuple[str, ...]:
    """Where agents of one shared model group disagree about the model that they share."""
    leaders: dict[str, AgentParameters] = {}
    problems = []
    for agent in agents:
        leader = leaders.setdefault(agent_group(agent), agent)
        for field in SHARED_FIELDS:
            ours, theirs = getattr(agent, field), getattr(leader, field)
            if ours != theirs:
                problems.append(
                    f"agents.{leader.name} and agents.{agent.name} share the model group "
                    f"{agent_group(agent)!r} but not {field}: {theirs!r} and {ours!r}"
                )
    return tuple(problems)


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
    expected: inspect.Type = inspect.type_info(HyperParameters)
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
