"""`nip-fn params`: every parameter, as a table or as a JSON Schema."""

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from nip_fn.config.presets import with_preset
from nip_fn.config.schema import AGENT, Parameter, parameters
from nip_fn.config.spelling import DUMMY, EXTRA, PROVIDERS
from nip_fn.errors import Problem
from nip_fn.params.agent import AgentParameters
from nip_fn.params.names import name_schema
from nip_fn.params.run import DEFAULT_AGENT, HyperParameters
from nip_fn.protocols.registry import PROTOCOLS, agent_names
from nip_fn_cli.shown.exits import Exit, die
from nip_fn_cli.shown.parameters import default_of, values_of
from nip_fn_cli.shown.printing import console

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def params_command(
    words: Annotated[
        list[str] | None,
        typer.Argument(help="Words; only parameters with all of them are printed.", metavar="WORD"),
    ] = None,
    json_schema: Annotated[
        bool, typer.Option("--json-schema", help="Print a JSON Schema of a configuration instead.")
    ] = False,
) -> None:
    """Print parameters: address, meaning, type and default."""
    if json_schema and words:
        die(Exit.USAGE, "--json-schema prints all parameters; leave out the words")
    if json_schema:
        print(json.dumps(schema(), indent=2))
        return
    matching = tuple(
        parameter for parameter in parameters().values() if _has_all(parameter, words or ())
    )
    if not matching:
        problem = Problem("no parameter has it", " ".join(words or ()), "nip-fn params lists all")
        die(Exit.USAGE, problem)
    out = console()
    if not words:
        out.print(WHICH)
    show(out, matching)


def _has_all(parameter: Parameter, words: Sequence[str]) -> bool:
    text = f"{parameter.address} {parameter.description} {values_of(parameter)}".lower()
    return all(word.lower() in text for word in words)


WHICH = (
    "What a file, an option or --set says always applies. What they leave out depends on the "
    "model: a value marked with builtin:tea or builtin:bug-hunt was made for that embedded model "
    '(builtin:tea@3 is one of another seed), one marked with "other models" suits models of the '
    "usual size; without a mark, the default applies. Marks of agents.* go by the model of each "
    "agent, all others apply if one kind of model plays all agents.\n"
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


def _presets(parameter: Parameter) -> str:
    """The values that apply instead of the default, by the model that plays, as words."""
    if parameter.address in OF_COMMANDS:
        return f"; in commands {OF_COMMANDS[parameter.address]}"
    marks = []
    for model, written in KINDS.items():
        agent, verifier = (
            _value(written, parameter.address, who) for who in (DEFAULT_AGENT, "verifier")
        )
        whose, value = ("", agent) if agent is not None else (" as verifier", verifier)
        if value is not None and json.dumps(value) != default_of(parameter):
            marks.append((f"{model}{whose}", json.dumps(value)))
    values = {value for _, value in marks}
    if len(marks) == len(KINDS) and len(values) == 1:
        return f"; in commands {values.pop()}"
    return "".join(f"; {model} {value}" for model, value in marks)


def _value(written: dict[str, Any], address: str, agent: str) -> Any:
    """The value of a configuration's presets at an address; None if there is none."""
    value: Any = with_preset(written)
    for part in address.replace(f".{AGENT}.", f".{agent}.").split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def schema() -> dict[str, Any]:
    """A JSON Schema (draft 2020-12) of the written form."""
    _, records = msgspec.json.schema_components((HyperParameters,), ref_template="#/$defs/{name}")
    defs = {name: _as_written(part) for name, part in records.items()}
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
