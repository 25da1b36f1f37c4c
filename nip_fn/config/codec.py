"""From a written configuration to checked parameters, and back.

A configuration is written as nested tables (TOML, `--set a.b=c`, or a plain `dict`).  `from_dict`
turns it into one frozen, hashable `HyperParameters`; `to_dict` is its inverse.  In the written form
`agents` is a table from agent name to fields, where `agents._default` holds what the agents share;
in the record it is a tuple in the protocol's order, each agent with all its fields.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from hashlib import blake2b
from typing import Any

import msgspec
from returns.result import Failure, Result, Success

from nip_fn.config.checks import problems
from nip_fn.config.schema import conversion_problem, parameters
from nip_fn.config.spelling import agent_as_recorded, agent_as_written, as_recorded
from nip_fn.errors import Problem, collect
from nip_fn.params.agent import AgentParameters
from nip_fn.params.run import DEFAULT_AGENT, HyperParameters
from nip_fn.protocols.registry import agent_names, find_protocol

# Two ways to say one thing: whoever writes one need not unset the other, which is less specific.
_RIVALS = {
    "lora_alpha": "lora_alpha_scale",
    "lora_alpha_scale": "lora_alpha",
    "frames_per_batch": "rollouts_per_iteration",
    "rollouts_per_iteration": "frames_per_batch",
}


def merge(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `override` laid over it, table by table; neither is changed.

    Of two parameters that exclude each other the one in `override` unsets the one in `base`.

    >>> merge({"rl": {"rollouts_per_iteration": 8}}, {"rl": {"frames_per_batch": 90}})
    {'rl': {'rollouts_per_iteration': None, 'frames_per_batch': 90}}
    """
    merged = dict(base)
    for name, value in override.items():
        below, rival = merged.get(name), _RIVALS.get(name)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            merged[name] = merge(below, value)
        else:
            merged[name] = value
        if rival in merged and rival not in override and value not in (None, "none"):
            merged[rival] = None
    return merged


def together(tables: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Tables that were written side by side as one; of equal keys the last counts.

    >>> together([{"a": {"b": 1, "c": 2}}, {"a": {"c": 3}}])
    {'a': {'b': 1, 'c': 3}}
    """
    merged: dict[str, Any] = {}
    for table in tables:
        for name, value in table.items():
            below = merged.get(name)
            if isinstance(value, Mapping) and isinstance(below, Mapping):
                value = together([below, value])
            merged[name] = value
    return merged


def nest(address: str, value: Any) -> dict[str, Any]:
    """The table that sets one dotted address.

    >>> nest("a.b", 1)
    {'a': {'b': 1}}
    """
    nested: Any = reduce(lambda inner, part: {part: inner}, reversed(address.split(".")), value)
    return dict(nested)


def spread(agents: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """The table of each agent: its own fields over those that all agents share."""
    shared = agents.get(DEFAULT_AGENT, {})
    return {name: merge(shared, agents.get(name, {})) for name in names}


def from_dict(table: Mapping[str, Any]) -> Result[HyperParameters, Problem]:
    """The parameters that a nested table describes, or the first problem with it.

    >>> from_dict({"rl": {"num_iterations": 3}}).unwrap().rl.num_iterations
    3
    >>> print(from_dict({"rl": {"num_iteration": 3}}).failure())
    rl.num_iteration: no such parameter; did you mean 'num_iterations'?
    """
    written = as_recorded(table)
    return (
        _protocol_name(written)
        .bind(lambda protocol: _with_all_agents(written, protocol))
        .bind(_convert)
        .bind(_check)
    )


def check_types(table: Mapping[str, Any]) -> Result[None, Problem]:
    """The first parameter of a written table that is unknown or of a wrong type; a success if there
    is none.

    What belongs together, the names of agents among it, can only be checked in a whole table.
    """
    written = as_recorded(table)
    agents = written.get("agents", {})
    if problem := next(shape_problems(agents), None):
        return Failure(problem)
    whole = _listed(agents).bind(lambda listed: _convert({**written, "agents": listed}))
    return whole.map(lambda _: None)


def to_dict(params: HyperParameters) -> dict[str, Any]:
    """The nested table of `params`; `from_dict(to_dict(p))` is `Success(p)`."""
    table: dict[str, Any] = msgspec.to_builtins(params)
    agents = {agent["name"]: agent_as_written(agent) for agent in table["agents"]}
    return {**table, "agents": agents}


def load_agent(agent: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """The table of an agent that is loaded: the saved one, but for what it keeps as its own."""
    fields = parameters(AgentParameters)
    own = {name for name, field in fields.items() if field.meaning.kept_when_loaded}
    return {
        **{name: value for name, value in saved.items() if name not in own},
        **{name: value for name, value in agent.items() if name in own},
    }


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


ABSENT = "-"


def differences(params: HyperParameters, reference: HyperParameters) -> tuple[str, ...]:
    """The dotted addresses at which two configurations differ, sorted."""
    return tuple(changes(params, reference))


def changes(params: HyperParameters, reference: HyperParameters) -> dict[str, tuple[Any, Any]]:
    """The values of two configurations where they differ, by dotted address, sorted.

    `ABSENT` stands for a parameter that one of them does not have: of an agent, or in a table.
    """
    a, b = by_address(to_dict(params)), by_address(to_dict(reference))
    addresses = sorted(name for name in {*a, *b} if a.get(name) != b.get(name))
    return {name: (a.get(name, ABSENT), b.get(name, ABSENT)) for name in addresses}


def unusual(params: HyperParameters) -> dict[str, tuple[Any, Any]]:
    """The values that differ from the defaults of the same game, and those, as of `changes`."""
    defaults = from_dict({"interaction_protocol": params.interaction_protocol}).unwrap()
    return changes(params, defaults)


def by_address(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of a nested table by dotted address; the inverse of `nest`, for all of them."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat |= by_address(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


# ------------------------------------------------------------------------- the stages of from_dict


def _protocol_name(table: Mapping[str, Any]) -> Result[str, Problem]:
    """The name of the protocol, which decides which agents there are."""
    name = table.get("interaction_protocol", "nip")
    return find_protocol(name).map(lambda _: str(name))


def _with_all_agents(table: Mapping[str, Any], protocol: str) -> Result[dict[str, Any], Problem]:
    """The table with its agents as the list of all the protocol's agents."""
    agents = table.get("agents", {})
    if problem := next(_agents_problems(agents, protocol), None):
        return Failure(problem)
    listed = _listed(spread(agents, agent_names(protocol)))
    return listed.map(lambda agents: {**table, "agents": agents})


def _listed(agents: Mapping[str, Any]) -> Result[tuple[dict[str, Any], ...], Problem]:
    """The fields of each agent, its name among them."""
    named = {name: _with_name(name, fields) for name, fields in agents.items()}
    return collect(agent_as_recorded(name, fields) for name, fields in named.items())


def _convert(table: Mapping[str, Any]) -> Result[HyperParameters, Problem]:
    try:
        return Success(msgspec.convert(table, HyperParameters))
    # TypeError: a key of the table is not a string.
    except (msgspec.ValidationError, TypeError) as error:
        names = tuple(fields["name"] for fields in table["agents"])
        return Failure(conversion_problem(error, names, table))


def _check(params: HyperParameters) -> Result[HyperParameters, Problem]:
    problem = next(problems(params), None)
    return Failure(problem) if problem else Success(params)


def shape_problems(agents: Any) -> Iterator[Problem]:
    """A problem for each place where `agents` is not a table of tables."""
    example = "write it as in [agents.prover] or --set agents.prover.lora_rank=8"
    if not isinstance(agents, Mapping):
        yield Problem("expected a table from agent name to parameters", "agents", example)
        return
    for name, fields in agents.items():
        if not isinstance(fields, Mapping):
            expected = f"expected a table of parameters, got {fields!r}"
            yield Problem(expected, f"agents.{name}", example)


def _agents_problems(agents: Any, protocol: str) -> Iterator[Problem]:
    """Problems with the table of agents, apart from the parameters in it."""
    malformed = tuple(shape_problems(agents))
    if malformed:
        yield from malformed
        return
    names = agent_names(protocol)
    for name, fields in agents.items():
        if "name" in fields and fields["name"] != name:
            yield Problem(
                f"the protocol calls this agent {name!r}", f"agents.{name}.name", "leave it out"
            )
        elif name not in (*names, DEFAULT_AGENT):
            yield Problem(
                f"the protocol {protocol!r} has no such agent",
                f"agents.{name}",
                f"it has {', '.join(names)} (and {DEFAULT_AGENT} for what they share)",
            )


def _with_name(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The agent's fields with its name; writing `lora_alpha` turns the default scale off."""
    # Otherwise whoever writes lora_alpha = 32 would have to write lora_alpha_scale = none, too.
    turned_off = {"lora_alpha_scale": None} if fields.get("lora_alpha") is not None else {}
    return {**turned_off, **fields, "name": name}
