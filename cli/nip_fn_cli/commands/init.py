"""`nip-fn init`: write a configuration in which every parameter is explained."""

from pathlib import Path
from typing import Annotated

import typer

from nip_fn.config.codec import by_address, merge
from nip_fn.config.schema import parameters
from nip_fn.config.spelling import DUMMY
from nip_fn.config.toml import to_toml
from nip_fn.errors import Problem
from nip_fn.params.run import DEFAULT_AGENT
from nip_fn_adapters.experiments.plans import plan
from nip_fn_cli.config import overrides
from nip_fn_cli.shown.exits import Exit, command, die, say
from nip_fn_cli.shown.options import (
    DatasetOption,
    ModelOption,
    ProviderOption,
    RunsOption,
    SetOption,
)
from nip_fn_cli.shown.parameters import values_of

_HEAD = """\
# A configuration of a run: {command}
# What stands behind a # without a space applies anyway, to these models and this data.  To set a
# parameter, remove the # and change its value; "none" unsets one.

"""


def init_command(
    file: Annotated[Path, typer.Argument(help="The .toml file to write.")] = Path("config.toml"),
    trainer: Annotated[
        str | None, typer.Option(help="The training method, as for nip-fn train.", metavar="NAME")
    ] = None,
    protocol: Annotated[
        str | None, typer.Option(help="The game, as for nip-fn train.", metavar="NAME")
    ] = None,
    provider: ProviderOption = None,
    model: ModelOption = None,
    dataset: DatasetOption = None,
    sets: SetOption = None,
    runs: RunsOption = Path("runs"),
) -> None:
    """Write a configuration with every parameter, its meaning, and the value that applies.

    The values are those for the model and the data that are chosen.
    """
    if file.suffix != ".toml":
        die(Exit.USAGE, Problem("the file must end in .toml", str(file), "as in config.toml"))
    table = overrides(trainer=trainer, protocol=protocol, model=model, dataset=dataset, sets=sets)
    if provider is not None:
        # "dummy" is written like a provider, and is none.
        dummy, named = {"use_dummy_api": True}, {"model_provider": provider}
        shared = dummy if provider == DUMMY else named
        table = merge(table, {"agents": {DEFAULT_AGENT: shared}})
    params = plan(table, None, runs).params
    comments = {
        address: f"{parameter.description} ({values_of(parameter)})"
        for address, parameter in parameters().items()
    }
    train = command("nip-fn", "train", file)
    text = _HEAD.format(command=train) + to_toml(params, comments, by_address(table))
    try:
        with file.open("x", encoding="utf-8") as written:
            written.write(text)
    except FileExistsError:
        second = file.with_stem(f"{file.stem}-2")
        remedy = f"name another file: {command('nip-fn', 'init', second)}"
        die(Exit.USAGE, Problem("the file exists already", str(file), remedy))
    say(f"wrote {file}; edit it, then: {train}")
