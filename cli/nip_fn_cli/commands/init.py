"""`nip-fn init`: write a configuration in which every parameter is explained."""

from pathlib import Path

from nip_fn.config.codec import flatten, merge
from nip_fn.config.schema import parameters
from nip_fn.config.spelling import DUMMY
from nip_fn.config.toml import to_toml
from nip_fn.errors import Problem
from nip_fn.params.run import DEFAULT_AGENT
from nip_fn_adapters.experiments.plans import plan
from nip_fn_cli.commands.params import values_of
from nip_fn_cli.config import Flags, overrides
from nip_fn_cli.shown.exits import Exit, command, die, say

_HEAD = """\
# A configuration of a run: {command}
# What stands behind a # without a space applies anyway, to these models and this data.  To set a
# parameter, remove the # and change its value; "none" unsets one.

"""


def init_command(file: Path, flags: Flags, runs: Path) -> None:
    """Write a configuration to a file that does not exist yet."""
    if file.suffix != ".toml":
        die(Exit.USAGE, Problem("the file must end in .toml", str(file), "as in config.toml"))
    given = overrides(flags)
    if flags.provider is not None:
        # "dummy" is written like a provider, and is none.
        dummy, named = {"use_dummy_api": True}, {"model_provider": flags.provider}
        shared = dummy if flags.provider == DUMMY else named
        given = merge(given, {"agents": {DEFAULT_AGENT: shared}})
    params = plan(given, None, runs).params
    comments = {
        address: f"{parameter.description} ({values_of(parameter)})"
        for address, parameter in parameters().items()
    }
    train = command("nip-fn", "train", file)
    text = _HEAD.format(command=train) + to_toml(params, comments, flatten(given))
    try:
        with file.open("x", encoding="utf-8") as written:
            written.write(text)
    except FileExistsError:
        other = file.with_stem(f"{file.stem}-2")
        remedy = f"name another file: {command('nip-fn', 'init', other)}"
        die(Exit.USAGE, Problem("the file exists already", str(file), remedy))
    say(f"wrote {file}; edit it, then: {train}")
