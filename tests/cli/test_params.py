"""`nip-fn params`, and its JSON Schema."""

import io
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from rich.console import Console

from nip_fn.config.codec import default_table, from_dict, nest, to_dict
from nip_fn.config.presets import with_preset
from nip_fn.config.schema import parameters
from nip_fn.protocols.registry import PROTOCOLS
from nip_fn_cli.commands.params import schema, show
from nip_fn_cli.shown.parameters import OWN, default_of, values_of
from tests.cli.conftest import RunCli
from tests.core.games import Setup, setups

SCHEMA = schema()

# The keywords of draft 2020-12 that the schema uses, and what their values must be.
KEYWORDS: dict[str, type | tuple[type, ...]] = {
    "$schema": str,
    "$ref": str,
    "$defs": dict,
    "title": str,
    "description": str,
    "type": str,
    "properties": dict,
    "propertyNames": dict,
    "additionalProperties": (dict, bool),
    "required": list,
    "enum": list,
    "anyOf": list,
    "default": object,
    "minimum": (int, float),
    "maximum": (int, float),
    "exclusiveMinimum": (int, float),
    "exclusiveMaximum": (int, float),
    "pattern": str,
    "items": dict,
    "minItems": int,
    "discriminator": dict,  # of OpenAPI; to JSON Schema a remark
}
TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": (list, tuple),
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}
LIMITS: dict[str, Callable[[Any, Any], bool]] = {
    "minimum": lambda value, limit: value >= limit,
    "maximum": lambda value, limit: value <= limit,
    "exclusiveMinimum": lambda value, limit: value > limit,
    "exclusiveMaximum": lambda value, limit: value < limit,
    "minItems": lambda value, limit: len(value) >= limit,
}


def leaves(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Every value of a table, by address; a schedule is one value."""
    for name, value in table.items():
        if isinstance(value, dict) and name != "update_schedule":
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


# ------------------------------------------------------------------------------------ the table


def test_every_parameter_is_there_once_and_means_something() -> None:
    written = {
        address.replace("_default", "AGENT"): value for address, value in leaves(default_table())
    }
    assert set(parameters()) == {*written, "agents.AGENT.name"}
    assert all(one.description and values_of(one) for one in parameters().values())
    for address, value in written.items():
        if not isinstance(value, dict):
            shown = "none" if value is None else json.dumps(value)
            # A provider is written as on the command line, and recorded as the nip library does.
            assert default_of(parameters()[address]) == shown.replace("OpenAI", "openai")


@pytest.mark.parametrize(
    ("address", "kind", "default"),
    [
        ("rl.num_iterations", "int >= 0", "8"),
        ("rl.rollouts_per_iteration", "int >= 1 or none", "none"),
        (
            "malt.pair_selection_method",
            "one of positive_negative, about_mean, interval, best_worst, all, " + OWN,
            None,
        ),
        ("malt.interval_threshold_proportion", "float >= 0, <= 1", "0.1"),
        ("protocol_common.prover_reward", "float >= -1e+06, <= 1e+06", "1.0"),
        ("malt.min_pair_margin", "float >= 0, <= 1e+06", "0.0"),
        ("text_rl.test_temperature", "float >= 0, <= 100 or none", "none"),
        ("interaction_protocol", f"one of {', '.join(PROTOCOLS)}, {OWN}", '"nip"'),
        ("agents.AGENT.use_dummy_api", "true or false", "false"),
        ("agents.AGENT.model_name", "text", None),
        ("agents.AGENT.agent_lr_factor", "float > 0, <= 1e+06 or none", "none"),
        ("seed", f"int >= {-(2**63)}, <= {2**63 - 1}", "6198"),
    ],
)
def test_types_are_told_in_words(address: str, kind: str, default: str | None) -> None:
    assert values_of(parameters()[address]) == kind
    assert default is None or default_of(parameters()[address]) == default


@pytest.mark.parametrize("width", [100, 180])
def test_no_address_is_broken_and_no_line_too_long(width: int) -> None:
    out = io.StringIO()
    show(Console(file=out, width=width), tuple(parameters().values()))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    starts = [line.split()[0] for line in lines if line.strip() and not line.startswith(" ")]
    titles = {address.rpartition(".")[0] for address in parameters()} | {"top"}
    assert [start for start in starts if start not in titles] == list(parameters())


def test_the_command_prints_to_a_pipe(run_cli: RunCli) -> None:
    done = run_cli("params")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert re.search(r"^rl\.lr +Learning rate\.", done.stdout, re.MULTILINE)
    shown = run_cli("params", "--help", COLUMNS="100")
    assert max(map(len, shown.stdout.splitlines())) <= 100


def test_words_find_the_parameters_that_have_all_of_them(run_cli: RunCli) -> None:
    done = run_cli("params", "learning", "RATE")
    addresses = re.findall(r"^\w+(?:\.\w+)+(?= {2})", done.stdout, re.MULTILINE)
    assert {"rl.lr", "ei.lr", "agents.AGENT.agent_lr_factor"} <= set(addresses)
    assert not {"rl.num_iterations", "rl.num_epochs"} & set(addresses)
    nothing = run_cli("params", "learning", "zebra")
    assert nothing.returncode == 2
    assert "learning zebra: no parameter has it" in nothing.stderr
    assert run_cli("params", "rate", "--json-schema").returncode == 2


# ------------------------------------------------------------------------------------ the schema


def subschemas(one: Any) -> Iterator[dict[str, Any]]:
    """A schema and all schemas in it."""
    if not isinstance(one, dict):
        return
    yield one
    for keyword in ("properties", "$defs"):
        for inner in one.get(keyword, {}).values():
            yield from subschemas(inner)
    for keyword in ("additionalProperties", "propertyNames", "items"):
        yield from subschemas(one.get(keyword))
    for inner in one.get("anyOf", ()):
        yield from subschemas(inner)


def errors(value: Any, one: dict[str, Any], root: dict[str, Any], at: str = "$") -> Iterator[str]:
    """Mismatches between a value and a schema, as far as the schema's keywords go."""
    if "$ref" in one:
        yield from errors(value, root["$defs"][one["$ref"].rpartition("/")[2]], root, at)
    if "anyOf" in one and all(any(errors(value, option, root, at)) for option in one["anyOf"]):
        yield f"{at}: none of the options"
    if "enum" in one and value not in one["enum"]:
        yield f"{at}: not a choice"
    if "type" in one and not _is(value, one["type"]):
        yield f"{at}: not {one['type']}"
        return
    if "pattern" in one and isinstance(value, str) and not re.search(one["pattern"], value):
        yield f"{at}: does not match"
    for keyword, holds in LIMITS.items():
        if keyword in one and not holds(value, one[keyword]):
            yield f"{at}: {keyword}"
    if isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            yield from errors(inner, one.get("items", {}), root, f"{at}.{place}")
    if isinstance(value, dict):
        yield from (
            f"{at}.{name}: missing" for name in one.get("required", ()) if name not in value
        )
        for name, inner in value.items():
            yield from errors(name, one.get("propertyNames", {}), root, f"{at}.{name}")
            below = one.get("properties", {}).get(name, one.get("additionalProperties", {}))
            if below is False:
                yield f"{at}.{name}: unknown"
            else:
                yield from errors(inner, below, root, f"{at}.{name}")


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def test_the_schema_is_well_formed() -> None:
    whole = SCHEMA
    assert whole["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    for one in subschemas(whole):
        for keyword, value in one.items():
            assert isinstance(value, KEYWORDS[keyword]), keyword
        assert one.get("type", "null") in TYPES
        assert one.get("enum", [0])
        assert one.get("anyOf", [0])
        assert set(one.get("required", ())) <= set(one.get("properties", {}))
        if "$ref" in one:
            assert one["$ref"].removeprefix("#/$defs/") in whole["$defs"]
        if "default" in one:
            assert not list(errors(one["default"], one, whole))


def test_the_schema_is_of_the_written_form() -> None:
    properties = SCHEMA["properties"]
    assert properties["interaction_protocol"]["anyOf"][0] == {"enum": list(PROTOCOLS)}
    agents = properties["agents"]
    assert agents["type"] == "object"
    assert {"_default", "prover", "prover0", "verifier"} <= set(agents["propertyNames"]["enum"])
    assert agents["additionalProperties"] == {"$ref": "#/$defs/AgentParameters"}


@given(setups())
def test_what_is_written_matches_the_schema(setup: Setup) -> None:
    assert not list(errors(to_dict(setup.params), SCHEMA, SCHEMA))


@pytest.mark.parametrize("table", [{}, with_preset({}), default_table()])
def test_what_may_be_written_matches_the_schema(table: dict[str, Any]) -> None:
    assert not list(errors(table, SCHEMA, SCHEMA))


@pytest.mark.parametrize(
    ("address", "value"),
    [
        ("zzz", 1),
        ("rl.zzz", 1),
        ("rl.lr", 0.0),
        ("rl.num_iterations", "3"),
        ("rl.num_iterations", True),
        ("trainer", "ppo"),
        ("trainer", 5),
        ("interaction_protocol", "chess"),
        ("interaction_protocol", 5),
        ("agents", []),
        ("agents.bob", {}),
        ("agents.prover.lora_rnk", 3),
        ("agents._default.dpo_beta", 3.0),
        ("agents.prover.update_schedule", {"_type": "ContiguousPeriodicUpdateSchedule"}),
        ("malt.pair_selection_method", "best"),
    ],
)
def test_what_is_refused_does_not_match_the_schema(address: str, value: object) -> None:
    table = with_preset(nest(address, value))
    assert from_dict(table).failure()
    assert list(errors(table, SCHEMA, SCHEMA))


def test_the_command_prints_the_schema(run_cli: RunCli) -> None:
    assert json.loads(run_cli("params", "--json-schema").stdout) == SCHEMA
