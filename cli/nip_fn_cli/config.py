"""The options that describe a run, as the written configuration that they stand for."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import msgspec
from returns.result import Failure, Result, Success

from nip_fn.config.codec import merge, nest, shape_problems, together
from nip_fn.config.spelling import as_recorded
from nip_fn.errors import Problem
from nip_fn.params.run import DEFAULT_AGENT
from nip_fn_adapters.experiments.settings import named, read_table
from nip_fn_cli.shown.exits import Exit, die, or_exit
from nip_fn_cli.shown.watching import TERMINAL


def overrides(
    config: Path | None = None,
    *,
    trainer: str | None = None,
    protocol: str | None = None,
    model: str | None = None,
    base_url: str | None = None,
    batch: bool = False,
    dataset: str | None = None,
    skip_bad_rows: bool = False,
    seed: int | None = None,
    iterations: int | None = None,
    sets: Sequence[str] | None = None,
) -> dict[str, Any]:
    """The table that a file and the options of a command describe: the file, the options, --set.

    Ends the command if one of them cannot be read.
    """
    table = or_exit(read_table(config, TERMINAL)) if config else {}
    options = {
        "trainer": trainer,
        "interaction_protocol": protocol,
        f"agents.{DEFAULT_AGENT}.model_name": model,
        f"agents.{DEFAULT_AGENT}.api_base_url": base_url,
        # An option that was not given must not override the configuration with its false.
        f"agents.{DEFAULT_AGENT}.use_batch_api": batch or None,
        "dataset": dataset,
        "dataset_options.skip_bad_rows": skip_bad_rows or None,
        "seed": seed,
        "rl.num_iterations": iterations,
    }
    written = [nest(address, value) for address, value in options.items() if value is not None]
    table = with_sets(reduce(merge, written, table), sets or ())
    for problem in shape_problems(table.get("agents", {})):
        die(Exit.USAGE, problem)
    named(options)
    return as_recorded(table)


def with_sets(table: Mapping[str, Any], sets: Iterable[str]) -> dict[str, Any]:
    """The table with each `a.b=value` of --set laid over it; ends the command if it cannot."""
    assigned = together([or_exit(_parse_set(assignment)) for assignment in sets])
    named(assigned)
    return merge(table, assigned)


def _parse_set(assignment: str) -> Result[dict[str, Any], Problem]:
    """The table of one `a.b=value`; the value is TOML or JSON, and a bare word is a string."""
    address, equals, text = assignment.partition("=")
    if not equals or not all(address.strip().split(".")):
        return Failure(
            Problem(
                "expected a parameter, an equals sign and a value",
                f"--set {assignment}",
                "as in --set rl.lr=1e-4",
            )
        )
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = _json_or_text(text.strip())
    return Success(nest(address.strip(), value))


def _json_or_text(text: str) -> Any:
    """The table or list that a text of JSON stands for; any other text as it is."""
    # A bare word counts as text: nobody wants to quote it once for TOML and once for the shell.
    if not text.startswith(("{", "[")):
        return text
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):  # a template may begin with a brace, too
        return text
