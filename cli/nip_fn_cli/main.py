"""The `nip-fn` command.  Every command imports what it needs when it runs, so help is instant."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from nip_fn_cli.exits import Exit, say

app = typer.Typer(
    name="nip-fn",
    help="Train language models to play prover-verifier games, and replay every step of it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    epilog="Exit codes: "
    + ", ".join(f"{code.value} {code.name.lower()}" for code in Exit)
    + ". Results go to stdout, everything else to stderr.",
)

RunsOption = Annotated[Path, typer.Option("--runs", help="The folder that holds the runs.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Set one parameter; may be repeated."),
]


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"nip-fn {version('nip-fn')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options that come before the command."""


@app.command()
def train(
    config: Annotated[
        Path | None,
        typer.Argument(
            help="A .toml or .json file; what it leaves out keeps the embedded default.  "
            "A configuration that the nip library saved is read, too."
        ),
    ] = None,
    trainer: Annotated[str | None, typer.Option(help="How to train: malt or ei.")] = None,
    protocol: Annotated[
        str | None,
        typer.Option(help="The game: nip, adp, debate, mnip, merlin_arthur or solo_verifier."),
    ] = None,
    provider: Annotated[
        str | None, typer.Option(help="Who samples and trains: local or dummy.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The root of all randomness.")] = None,
    iterations: Annotated[int | None, typer.Option(help="How many trainings.")] = None,
    set_: SetOption = None,
    run: Annotated[
        str | None, typer.Option("--run", help="The run's name; one is made up if left out.")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Go on with the run of that name.")] = False,
    more_iterations: Annotated[
        int | None,
        typer.Option(help="With --resume: so many more, after a run that is done.", min=1),
    ] = None,
    runs: RunsOption = Path("runs"),
) -> None:
    """Train, recording everything; at the end, print what came of it."""
    from nip_fn_cli.config import Flags
    from nip_fn_cli.train import train_command

    flags = Flags(config, trainer, protocol, provider, seed, iterations, tuple(set_ or ()))
    train_command(flags, runs=runs, name=run, resume=resume, more=more_iterations)


@app.command()
def replay(
    checkpoint: Annotated[Path, typer.Argument(help="A run's checkpoint.msgpack, or its folder.")],
    until: Annotated[
        int | None, typer.Option(help="Only the first N events.", min=0, metavar="N")
    ] = None,
    transcript: Annotated[
        str | None, typer.Option(help="Print the dialogues about a datapoint.", metavar="DATAPOINT")
    ] = None,
    tree: Annotated[
        str | None, typer.Option(help="Print the trees about a datapoint.", metavar="DATAPOINT")
    ] = None,
    iteration: Annotated[
        int | None, typer.Option(help="Only that iteration of --transcript and --tree.")
    ] = None,
    set_: SetOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Derive a run again from its recorded events, compare, and show what it came to.

    Needs no model and no network.  With --set, answers what would have been selected from the same
    replies under another selection, threshold, backup or seed, beside what was.
    """
    from nip_fn_cli.replay import Show, replay_command

    show = Show(transcript, tree, iteration, json)
    replay_command(checkpoint, until=until, sets=tuple(set_ or ()), show=show)


@app.command()
def params(
    json_schema: Annotated[
        bool, typer.Option("--json-schema", help="Print a JSON Schema of a configuration instead.")
    ] = False,
) -> None:
    """Print every parameter: its address, what it means, its type and its default."""
    from nip_fn_cli.params import params_command

    params_command(json_schema=json_schema)


@app.command()
def doctor() -> None:
    """Say what is installed, what is missing, and which command mends it."""
    from nip_fn_cli.doctor import doctor_command

    doctor_command()


def main() -> None:
    """Run the command; whatever goes wrong outside nip-fn ends in one line, not a traceback."""
    try:
        app()
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        say(f"nip-fn: {where}{error.strerror or error}")
        sys.exit(int(Exit.SYSTEM))
    except KeyboardInterrupt:
        say("nip-fn: interrupted")
        sys.exit(int(Exit.INTERRUPTED))
