"""`nip-fn export`: a run in the formats of other programs."""

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from nip_fn.errors import Problem
from nip_fn_adapters.experiments.loading import load_once
from nip_fn_adapters.recording.exports import EXPORTERS
from nip_fn_adapters.recording.sharing import push as push_to_hub
from nip_fn_adapters.recording.sharing import to_hf
from nip_fn_adapters.recording.store import below
from nip_fn_adapters.recording.tracking import SINKS, send
from nip_fn_cli.shown.exits import Exit, die, or_exit, say
from nip_fn_cli.shown.options import RunsOption, TrustOption, listed

EXPORTS = {**EXPORTERS, "hf": to_hf}


def export_command(
    run: Annotated[str, typer.Argument(help="A run's name, or its folder.")],
    to: Annotated[
        list[str],
        typer.Option(
            help="The formats: inspect (logs for inspect view), trl or openai (training rows), "
            "csv or parquet (tables), arrays (npz), json or yaml (transcripts), hf (a repository "
            "of the Hugging Face hub), or a tracker (wandb, tensorboard, trackio, mlflow); "
            "several, separated by commas.",
            metavar="FORMAT",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="The folder to write to; RUN/export if left out.", metavar="FOLDER"
        ),
    ] = None,
    push: Annotated[
        str | None,
        typer.Option(
            help="With --to hf: also push it to this private repository (needs $HF_TOKEN).",
            metavar="ORG/NAME",
        ),
    ] = None,
    runs: RunsOption = Path("runs"),
    trust: TrustOption = False,
) -> None:
    """Write a run in the formats of other programs, and print the paths of the files."""
    formats = listed(to)
    if push is not None and "hf" not in formats:
        die(Exit.USAGE, Problem("only --to hf is pushed", f"--push {push}", "add --to hf"))
    unknown = [name for name in formats if name not in (*EXPORTS, *SINKS)]
    if unknown or not formats:
        remedy = f"choose from {', '.join((*EXPORTS, *SINKS))}"
        problem = Problem(f"{', '.join(unknown) or 'nothing'!r} is no format", "--to", remedy)
        die(Exit.USAGE, problem)
    if "parquet" in formats and find_spec("pyarrow") is None:
        die(Exit.USAGE, Problem("needs pyarrow", "--to parquet", "pip install 'nip-fn[data]'"))
    recorded = or_exit(load_once(run, runs))
    target = out or below(recorded.path.parent, "export")
    for name in formats:
        if name in SINKS:
            number = or_exit(send(name, recorded.path.parent))
            print(f"{name}: {number} records")
            continue
        folder = below(target, name)
        folder.mkdir(parents=True, exist_ok=True)
        exporter = partial(to_hf, repository=push) if push and name == "hf" else EXPORTS[name]
        try:
            files = list(exporter(recorded, folder))
        except ValueError as error:
            die(Exit.USAGE, Problem(str(error), f"--to {name}", "export them with --to trl"))
        for path in files:
            print(path)
        if not files:
            say(f"nip-fn: {name}: there is nothing of that in {recorded.path.parent} yet")
    if push is not None:
        print(or_exit(push_to_hub(target / "hf", push)))
