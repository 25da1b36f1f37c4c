"""From files and options to parameters."""

import tomllib
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from returns.result import Failure

from nip_fn.config import DEFAULT_AGENT, from_dict, merge, nest
from nip_fn.params import HyperParameters
from nip_fn_cli.exits import Exit, die


class Flags(NamedTuple):
    """What the user wrote on the command line to describe a run."""

    config: Path | None
    trainer: str | None
    protocol: str | None
    provider: str | None
    seed: int | None
    iterations: int | None
    sets: tuple[str, ...]


def overrides(flags: Flags) -> dict[str, Any]:
    """The table that the flags describe: the file, then the options, then --set, in this order."""
    table = read_toml(flags.config) if flags.config else {}
    options = {
        "trainer": flags.trainer,
        "interaction_protocol": flags.protocol,
        "seed": flags.seed,
        "rl.num_iterations": flags.iterations,
    }
    given = [nest(address, value) for address, value in options.items() if value is not None]
    return reduce(merge, [*given, *map(parse_set, flags.sets)], table)


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a TOML file."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        _refuse(f"{path}: not valid TOML: {error}")
    except OSError as error:
        _refuse(f"{path}: {error.strerror}")


def parse_set(assignment: str) -> dict[str, Any]:
    """The table of one `a.b=value`; the value is TOML, and a bare word is a string."""
    address, equals, text = assignment.partition("=")
    if not equals or not all(part for part in address.strip().split(".")):
        _refuse(f"--set {assignment}: expected a parameter, =, and a value, as in --set rl.lr=1e-4")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    return nest(address.strip(), value)


def with_provider(table: dict[str, Any], provider: str | None) -> dict[str, Any]:
    """The table with every agent at that provider, whatever it says of single agents."""
    if provider is None:
        return table
    names = {DEFAULT_AGENT, *table.get("agents", {})}
    return merge(table, {"agents": {name: {"model_provider": provider} for name in sorted(names)}})


def resolve(table: dict[str, Any]) -> HyperParameters:
    """The parameters of a whole table."""
    params = from_dict(table)
    if isinstance(params, Failure):
        _refuse(params.failure())
    return params.unwrap()


def _refuse(line: str) -> NoReturn:
    die(Exit.USAGE, line)
