"""From files and options to parameters."""

import tomllib
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec
from returns.result import Failure

from nip_fn.config.codec import default_table, from_dict, merge, nest, shape_problems
from nip_fn.config.compat.nip import from_reference, is_reference
from nip_fn.params.run import DEFAULT_AGENT, HyperParameters
from nip_fn_cli.exits import Exit, die

# As they are written on the command line.
PROVIDERS = {"openai": "OpenAI", "openrouter": "OpenRouter", "self-hosted": "SelfHosted"}


class Flags(NamedTuple):
    """What the user wrote on the command line to describe a run."""

    config: Path | None = None
    trainer: str | None = None
    protocol: str | None = None
    provider: str | None = None
    model: str | None = None
    base_url: str | None = None
    batch: bool | None = None
    dataset: str | None = None
    skip_bad_rows: bool | None = None
    seed: int | None = None
    iterations: int | None = None
    sets: tuple[str, ...] = ()


def overrides(flags: Flags) -> dict[str, Any]:
    """The table that the flags describe: the file, then the options, then --set, in this order."""
    table = read_table(flags.config) if flags.config else {}
    options = {
        "trainer": flags.trainer,
        "interaction_protocol": flags.protocol,
        f"agents.{DEFAULT_AGENT}.model_name": flags.model,
        f"agents.{DEFAULT_AGENT}.api_base_url": flags.base_url,
        f"agents.{DEFAULT_AGENT}.use_batch_api": flags.batch,
        "dataset": flags.dataset,
        "dataset_options.skip_bad_rows": flags.skip_bad_rows,
        "seed": flags.seed,
        "rl.num_iterations": flags.iterations,
    }
    given = [nest(address, value) for address, value in options.items() if value is not None]
    table = reduce(merge, [*given, *map(parse_set, flags.sets)], table)
    problem = next(shape_problems(table.get("agents", {})), None)
    if problem:
        _refuse(problem)
    return table


def read_table(path: Path) -> dict[str, Any]:
    """The table in a TOML or JSON file, which may be a configuration that the nip library saved.

    What such a one leaves out has its default, as in that library, not the embedded one.
    """
    read = {".toml": read_toml, ".json": read_json}.get(path.suffix)
    if read is None:
        _refuse(f"{path}: expected a file that ends in .toml or .json")
    table = read(path)
    if not is_reference(table):
        return table
    ours = from_reference(table)
    if isinstance(ours, Failure):
        _refuse(f"{path}: {ours.failure()}")
    return merge(default_table(), ours.unwrap())


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a TOML file."""
    try:
        return tomllib.loads(_text(path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        _refuse(f"{path}: not valid TOML: {error}")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        table = msgspec.json.decode(_text(path))
    except (msgspec.DecodeError, RecursionError) as error:
        _refuse(f"{path}: not valid JSON: {error}")
    if not isinstance(table, dict):
        _refuse(f"{path}: expected an object of parameters")
    return table


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        _refuse(f"{path}: not UTF-8 text: {error}")
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
    """The table with every agent at that provider, whatever it says of single agents.

    "dummy" is no provider but `use_dummy_api`: random replies instead of any model.
    """
    if provider is None:
        return table
    provider = PROVIDERS.get(provider, provider)
    dummy = provider == "dummy"
    fields = {"use_dummy_api": dummy, **({} if dummy else {"model_provider": provider})}
    names = {DEFAULT_AGENT, *table.get("agents", {})}
    return merge(table, {"agents": dict.fromkeys(sorted(names), fields)})


def resolve(table: dict[str, Any]) -> HyperParameters:
    """The parameters of a whole table."""
    params = from_dict(table)
    if isinstance(params, Failure):
        _refuse(params.failure())
    return params.unwrap()


def _refuse(line: str) -> NoReturn:
    die(Exit.USAGE, line)
