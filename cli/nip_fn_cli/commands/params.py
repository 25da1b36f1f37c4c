"""`nip-fn params`: every parameter, as a table or as a JSON Schema."""

import json
from itertools import groupby
from typing import Any

import msgspec
from msgspec import inspect
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from nip_fn.config.presets import with_preset
from nip_fn.config.schema import AGENT, Parameter, parameters
from nip_fn.config.spelling import DUMMY, EXTRA, PROVIDERS
from nip_fn.errors import Problem
from nip_fn.params.agent import OPTIONS, AgentParameters
from nip_fn.params.names import name_schema
from nip_fn.params.run import DEFAULT_AGENT, HyperParameters
from nip_fn.protocols.registry import PROTOCOLS, agent_names
from nip_fn_cli.shown.exits import Exit, die
from nip_fn_cli.shown.printing import console

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
OWN = "package.module:NAME or file.py:NAME"
PLAIN = ((inspect.BoolType, "true or false"), (inspect.StrType, "text"))
BOUNDS = (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="))


def params_command(words: tuple[str, ...], *, json_schema: bool) -> None:
    """Print the parameters that have all the words in their address or meaning, or the schema."""
    if json_schema and words:
        die(Exit.USAGE, "--json-schema prints all parameters; leave out the words")
    if json_schema:
        print(json.dumps(schema(), indent=2))
        return
    matching = tuple(parameter for parameter in parameters().values() if _has_all(parameter, words))
    if not matching:
        problem = Problem("no parameter has it", " ".join(words), "nip-fn params lists all")
        die(Exit.USAGE, problem)
    out = console()
    if not words:
        out.print(WHICH)
    show(out, matching)


def _has_all(parameter: Parameter, words: tuple[str, ...]) -> bool:
    text = f"{parameter.address} {parameter.description} {values_of(parameter)}".lower()
    return all(word.lower() in text for word in words)


WHICH = (
    "What a file, an option or --set says always applies. What they leave out depends on the "
    "model: a value marked with builtin:tea (and builtin:tea-2 and "
    "builtin:tea-public) or builtin:bug-hunt "
    'was made for that embedded model, one marked with "other models" suits models of the usual '
    "size; without a "
    "mark, the default applies. Marks of agents.* go by the model of each agent, all others apply "
    "if one kind of model plays all agents.\n"
)

# Configurations that show what applies to whom.
KINDS: dict[str, dict[str, Any]] = {
    "builtin:tea": {"dataset": "builtin:tea"},
    "builtin:bug-hunt": {"dataset": "builtin:bug-hunt"},
    "other models": {"dataset": "builtin:python"},
}

# Defaults of commands that depend on the data set.
OF_COMMANDS = {
    "dataset": '"builtin:tea"',
    f"agents.{AGENT}.model_name": "the embedded model of the data set, if there is one",
}


def show(out: Console, shown: tuple[Parameter, ...]) -> None:
    """Print a table for each section of the parameters."""
    for section, group in groupby(shown, key=lambda parameter: _section(parameter.address)):
        table = Table(box=None, pad_edge=False, show_header=False, title_justify="left")
        table.title = Text(section or "top level", style="bold")
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for parameter in group:
            default = f"default {default_of(parameter)}{_presets(parameter)}"
            values = f"{values_of(parameter)}; {default}"
            if parameter.meaning.stage == "session":
                values += "; a run may be resumed with another value"
            help_text = Group(Text(parameter.description), Text(values, style="dim"))
            table.add_row(parameter.address, help_text)
        out.print(table, "")


def _section(address: str) -> str:
    return address.rpartition(".")[0]


def values_of(parameter: Parameter) -> str:
    """The values that may be written for a parameter, in words."""
    name = parameter.address.rpartition(".")[2]
    names = tuple(PROTOCOLS) if name == "interaction_protocol" else parameter.meaning.names
    if names:
        return f"{_choices(names)}, {OWN}"
    if name == "model_provider":  # as it is written, which is not as it is recorded
        return _choices((*OPTIONS.values(), DUMMY))
    # The text of extra fields is that of a table.
    return "table or none" if name == EXTRA else _words(parameter.type)


def _words(kind: inspect.Type) -> str:
    """A type in words."""
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    match kind:
        case inspect.LiteralType(values=values):
            return _choices(values)
        case inspect.IntType() | inspect.FloatType():
            return _number_words(kind)
        case inspect.UnionType(types=types):
            named = sorted(types, key=lambda one: isinstance(one, inspect.NoneType))
            return " or ".join(map(_words, named))
        case inspect.StructType(cls=cls, tag=tag, fields=fields):
            names = ", ".join(field.name for field in fields)
            return f"table {tag or cls.__name__} ({names})" if names else f"table {tag}"
        case inspect.VarTupleType(item_type=item):
            return f"list of {_words(item)}"
        case inspect.NoneType():
            return "none"
    return next(words for plain, words in PLAIN if isinstance(kind, plain))


def _number_words(kind: inspect.IntType | inspect.FloatType) -> str:
    name = "int" if isinstance(kind, inspect.IntType) else "float"
    bounds = [(sign, getattr(kind, bound)) for bound, sign in BOUNDS]
    limits = [f"{sign} {_number(value)}" for sign, value in bounds if value is not None]
    return " ".join((name, ", ".join(limits))).rstrip()


def _number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _choices(values: Any) -> str:
    return f"one of {', '.join(map(str, values))}"


def default_of(parameter: Parameter) -> str:
    """A default as it would be written in a file."""
    value = msgspec.to_builtins(parameter.default)
    if value is None:
        return "none"
    if parameter.address.endswith(".model_provider"):
        value = OPTIONS[value]
    return value["_type"] if isinstance(value, dict) else json.dumps(value)


def _presets(parameter: Parameter) -> str:
    """The values that apply instead of the default, by the model that plays, as words."""
    if parameter.address in OF_COMMANDS:
        return f"; in commands {OF_COMMANDS[parameter.address]}"
    marks = []
    for kind, given in KINDS.items():
        agent, verifier = (
            _value(given, parameter.address, who) for who in (DEFAULT_AGENT, "verifier")
        )
        whose, value = ("", agent) if agent is not None else (" as verifier", verifier)
        if value is not None and json.dumps(value) != default_of(parameter):
            marks.append((f"{kind}{whose}", json.dumps(value)))
    values = {value for _, value in marks}
    if len(marks) == len(KINDS) and len(values) == 1:
        return f"; in commands {values.pop()}"
    return "".join(f"; {kind} {value}" for kind, value in marks)


def _value(given: dict[str, Any], address: str, agent: str) -> Any:
    """The value of a configuration's presets at an address; None if there is none."""
    value: Any = with_preset(given)
    for part in address.replace(f".{AGENT}.", f".{agent}.").split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def schema() -> dict[str, Any]:
    """A JSON Schema (draft 2020-12) of the written form."""
    _, parts = msgspec.json.schema_components((HyperParameters,), ref_template="#/$defs/{name}")
    defs = {name: _as_written(part) for name, part in parts.items()}
    root = defs.pop(HyperParameters.__name__)
    names = dict.fromkeys(name for protocol in PROTOCOLS for name in agent_names(protocol))
    written: dict[str, dict[str, Any]] = {
        "interaction_protocol": name_schema(tuple(PROTOCOLS)),
        "agents": {
            "description": f"Parameters by agent; {DEFAULT_AGENT} holds those that all share.",
            "type": "object",
            "propertyNames": {"enum": [DEFAULT_AGENT, *names]},
            "additionalProperties": {"$ref": f"#/$defs/{AgentParameters.__name__}"},
            "default": {},
        },
    }
    kept = {"description", "default", "type"}
    # The written form differs from the record where a file may say less: agents are a table with
    # defaults, and names may be references.
    properties = {
        name: {**{k: v for k, v in field.items() if k in kept}, **written[name]}
        if name in written
        else field
        for name, field in root["properties"].items()
    }
    whole = {"$schema": _DIALECT, **root, "properties": properties, "$defs": defs}
    plain: dict[str, Any] = json.loads(json.dumps(whole))  # defaults may be tuples
    return plain


def _as_written(part: dict[str, Any]) -> dict[str, Any]:
    """The schema of a record, with all spellings of a provider, and "none" for what is unset."""
    properties = {
        name: {**field, "anyOf": [*field["anyOf"], {"enum": ["none"]}]}
        if {"type": "null"} in field.get("anyOf", ())
        else field
        for name, field in part["properties"].items()
    }
    if EXTRA in properties:
        properties[EXTRA] |= {"anyOf": [{"type": "object"}, {"enum": ["none", None]}]}
    if "model_provider" in properties:
        properties["model_provider"] |= {"enum": [*PROVIDERS, DUMMY]}
    return {**part, "properties": properties}
