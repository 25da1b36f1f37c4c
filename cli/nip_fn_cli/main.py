"""The `nip-fn` command: its groups and its version.  A command's module is imported when it runs.

To add a command, write `commands/NAME.py` with a function `NAME_command`, whose parameters are its
arguments and options, and a line below.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar

import typer
from returns.primitives.exceptions import UnwrapFailedError

from nip_fn_cli.shown.exits import Exit, die_of, say
from nip_fn_cli.shown.helping import CommandGroup
from nip_fn_cli.shown.terminal import guard_streams


class Commands(CommandGroup):
    """The commands of `nip-fn`."""

    package = "nip_fn_cli.commands"
    sentences: ClassVar[Mapping[str, str]] = {
        "train": "Train agents and record everything; print a table of the iterations at the end.",
        "eval": "Test protocols and models without training them.",
        "card": "Print the oversight card: does the verifier listen, and would it fall for another "
        "prover?",
        "retest": "Test the models of every iteration of a run again.",
        "sweep": "Run all cells of a study, and print what differs between them.",
        "attack": "Attack the verifier of a run: which prover misleads it most, and how often?",
        "replay": "Derive a run again from its recorded events, compare the digests, and print "
        "its results.",
        "ls": "List the runs with their states, accuracies and costs, the latest at the end.",
        "show": "Show a run on one screen, or list its games that were decided wrongly, undecided "
        "or cut.",
        "export": "Write a run in the formats of other programs, and print the paths of the files.",
        "pull": "Download a shared run: its recording and its adapters.",
        "compare": "Compare the last tests of two runs, or of two sets of runs, problem by "
        "problem.",
        "report": "Write a run as an HTML page: its curves, trees, games, models and costs.",
        "view": "Serve the report of a run to browsers on this machine, while the run goes on.",
        "serve": "Serve and train models for runs with --provider self-hosted, on the machine "
        "with the GPU.",
        "status": "Print the state of a language-model server: its vLLM, memory, trainings and "
        "adapters.",
        "init": "Write a configuration with every parameter, its meaning, and the value that "
        "applies.",
        "params": "Print parameters: address, meaning, type and default.",
        "doctor": "Print what is installed, what is missing, and the command that installs it.",
        "data": "Look at data sets, check them, and make buggy solutions.",
    }


app = typer.Typer(
    name="nip-fn",
    cls=Commands,
    rich_markup_mode=None,
    help="Train language models to play prover-verifier games, and replay every step of it.",
    no_args_is_help=True,
    # Typer's own tracebacks may show the values of variables, API keys among them.
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: "
    + ", ".join(f"{code.value} {code.name.lower()}" for code in Exit)
    + ". Results go to stdout, everything else to stderr.",
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from nip_fn import __version__

        print(f"nip-fn {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Options that come before the command."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command with these arguments, or with those of the process.

    Ends with `SystemExit`.  Whatever goes wrong outside nip-fn is one line, not a traceback.
    """
    guard_streams()
    try:
        # Only these are caught: whatever else is raised is a bug, and its traceback is wanted.
        app(args=arguments, prog_name="nip-fn")
    except (OSError, UnwrapFailedError) as error:
        die_of(error)
    except SystemExit as end:
        # Typer has caught the interrupt itself, and says nothing.
        if end.__context__ and isinstance(end.__context__.__cause__, KeyboardInterrupt):
            say("nip-fn: interrupted")
        raise
