"""`nip-fn params`: every parameter, as a table or as a JSON Schema."""

import json
from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from nip_fn.config.compat.tags import TYPE_NAMES
from nip_fn.config.presets import with_preset
from nip_fn.config.schema import WRITTEN, record_of, type_below
from nip_fn.config.spelling import DUMMY, EXTRA, PROVIDERS
from nip_fn.errors import Problem
from nip_fn.params.agent import OPTIONS, AgentParameters
from nip_fn.params.names import name_schema
from nip_fn.params.run import DEFAULT_AGENT, HyperParameters
from nip_fn.protocols.registry import PROTOCOLS, agent_names
from nip_fn_cli.shown.exits import Exit, die
from nip_fn_cli.shown.printing import console

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
AGENT = "AGENT"  # stands for an agent's name, or for `_default`
OWN = "package.module:NAME or file.py:NAME"
PLAIN = ((inspect.BoolType, "true or false"), (inspect.StrType, "text"))
BOUNDS = (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="))


class Parameter(NamedTuple):
    """One parameter of the written form."""

    section: str  # "" for the top level
    address: str
    type: str
    default: str
    meaning: str


def params_command(words: tuple[str, ...], *, json_schema: bool) -> None:
    """Print the parameters that have all the words in their address or meaning, or the schema."""
    if json_schema and words:
        die(Exit.USAGE, "--json-schema prints all parameters; leave out the words")
    if json_schema:
        print(json.dumps(schema(), indent=2))
        return
    found = tuple(one for one in parameters() if _has_all(one, words))
    if not found:
        asked = Problem("no parameter has it", " ".join(words), "nip-fn params lists all")
        die(Exit.USAGE, asked)
    out = console()
    if not words:
        out.print(WHICH)
    show(out, found)


def _has_all(one: Parameter, words: tuple[str, ...]) -> bool:
    text = f"{one.address} {one.meaning} {one.type}".lower()
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


def show(out: Console, found: tuple[Parameter, ...]) -> None:
    """Print a table for each section of the parameters."""
    for section, group in groupby(found, key=lambda parameter: parameter.section):
        table = Table(box=None, pad_edge=False, show_header=False, title_justify="left")
        table.title = Text(section or "top level", style="bold")
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for one in group:
            values = f"{one.type}; default {one.default}{_presets(one)}"
            table.add_row(one.address, Group(Text(one.meaning), Text(values, style="dim")))
        out.print(table, "")


def parameters() -> tuple[Parameter, ...]:
    """Every parameter, section by section, the top level first."""
    # In TOML, what is written below a table header belongs to it, so the top level comes first.
    found = _parameters(WRITTEN, "", "")
    return tuple(sorted(found, key=lambda parameter: bool(parameter.section)))


def _parameters(record: inspect.Type | None, section: str, prefix: str) -> Iterator[Parameter]:
    if not isinstance(record, inspect.StructType):
        return
    for field in record.fields:
        address = f"{prefix}{field.name}"
        kind, about = _described(field.type)
        if address == "interaction_protocol":
            about |= name_schema(tuple(PROTOCOLS))
        if field.name == "model_provider":  # as it is written, which is not as it is recorded
            kind = inspect.LiteralType((*OPTIONS.values(), DUMMY))
        match kind:
            case inspect.VarTupleType(item_type=inspect.StructType() as item):
                yield from _parameters(item, f"{address}.{AGENT}", f"{address}.{AGENT}.")
            case inspect.StructType():
                yield from _parameters(kind, address, f"{address}.")
            case _:
                words = _names(about) or _words(kind)
                if field.name == EXTRA:  # its text is that of a table
                    words = "table or none"
                yield Parameter(section, address, words, _default(field), about["description"])
                if field.default is None:  # a table may be written there
                    yield from _parameters(record_of(kind, {}), section, f"{address}.")


def _described(kind: inspect.Type) -> tuple[inspect.Type, dict[str, Any]]:
    """The type without its metadata, and what the metadata says, as in a JSON Schema."""
    about: dict[str, Any] = {}
    while isinstance(kind, inspect.Metadata):
        about = {**(kind.extra_json_schema or {}), **about}
        kind = kind.type
    return kind, about


def _names(about: dict[str, Any]) -> str:
    """The words for a name that may be a reference; "" for other parameters."""
    known = [name for option in about.get("anyOf", ()) for name in option.get("enum", ())]
    return f"{_choices(known)}, {OWN}" if known else ""


def _words(kind: inspect.Type) -> str:
    """A type in words."""
    kind, _ = _described(kind)
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


def _default(field: inspect.Field) -> str:
    """A default as it would be written in a file."""
    value = msgspec.to_builtins(field.default)
    if value is None:
        return "none"
    if field.name == "model_provider":
        value = OPTIONS[value]
    return value["_type"] if isinstance(value, dict) else json.dumps(value)


def _presets(one: Parameter) -> str:
    """The values that apply instead of the default, by the model that plays, as words."""
    if one.address in OF_COMMANDS:
        return f"; in commands {OF_COMMANDS[one.address]}"
    marks = []
    for kind, given in KINDS.items():
        agent, verifier = (_value(given, one.address, who) for who in (DEFAULT_AGENT, "verifier"))
        whose, value = ("", agent) if agent is not None else (" as verifier", verifier)
        if value is not None and json.dumps(value) != one.default:
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
    defs = {name: _as_written(_with_tags(name, part)) for name, part in parts.items()}
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


def _with_tags(name: str, part: dict[str, Any]) -> dict[str, Any]:
    """The schema of a record, with the `_type` that its table may have."""
    names = [
        one for address, known in TYPE_NAMES.items() if _class_at(address) == name for one in known
    ]
    if not names:
        return part
    tag = {"_type": {"enum": list(dict.fromkeys(names))}}
    return {**part, "properties": {**tag, **part["properties"]}}


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


def _class_at(address: str) -> str:
    """The name of the record that describes the table at an address."""
    kind: inspect.Type | None = WRITTEN
    for part in address.split(".") if address else ():
        kind = type_below(kind, {}, part)
    record = record_of(kind, {})
    return record.cls.__name__ if isinstance(record, inspect.StructType) else ""
