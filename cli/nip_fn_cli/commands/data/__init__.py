"""`nip-fn data ...`: look at data sets, check them, make buggy solutions."""

from collections.abc import Mapping
from typing import ClassVar

import typer

from nip_fn_cli.shown.helping import CommandGroup


class DataCommands(CommandGroup):
    """The commands of `nip-fn data`."""

    package = __name__
    sentences: ClassVar[Mapping[str, str]] = {
        "stats": "Print what a data set holds: rows, problems, balance, difficulties, lengths, "
        "hash.",
        "check": "Check rows, duplicates, leaks between splits, and labels against tests.",
        "bug": "Make buggy solutions out of right ones by asking a model for them.",
        "show": "Print a problem: its statement, its code, and what differs from the right "
        "solution.",
    }


data_command = typer.Typer(
    cls=DataCommands,
    rich_markup_mode=None,
    help="Look at data sets, check them, and make buggy solutions.",
    no_args_is_help=True,
)
