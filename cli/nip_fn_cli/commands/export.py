"""`nip-fn export`: a run in the formats of other programs."""

from functools import partial
from importlib.util import find_spec
from pathlib import Path

from nip_fn.errors import Problem
from nip_fn_adapters.experiments.loading import load_once
from nip_fn_adapters.recording.exports import EXPORTERS
from nip_fn_adapters.recording.sharing import push, to_hf
from nip_fn_adapters.recording.store import below
from nip_fn_adapters.recording.tracking import SINKS, send
from nip_fn_cli.shown.exits import Exit, die, or_exit, say

EXPORTS = {**EXPORTERS, "hf": to_hf}


def export_command(
    name: str, formats: tuple[str, ...], out: Path | None, place: str | None, runs: Path
) -> None:
    """Write a run in some formats, each into a folder of its own, and print the files' paths.

    Args:
        name: The run's name, or its folder.
        formats: The formats, or trackers.
        out: The folder to write to; None for one in the run's own.
        place: The repository of the Hugging Face hub to which it is pushed; None for none.
        runs: The folder of all runs.
    """
    if place is not None and "hf" not in formats:
        die(Exit.USAGE, Problem("only --to hf is pushed", f"--push {place}", "add --to hf"))
    unknown = [kind for kind in formats if kind not in (*EXPORTS, *SINKS)]
    if unknown or not formats:
        known = f"choose from {', '.join((*EXPORTS, *SINKS))}"
        die(Exit.USAGE, Problem(f"{', '.join(unknown) or 'nothing'!r} is no format", "--to", known))
    if "parquet" in formats and find_spec("pyarrow") is None:
        die(Exit.USAGE, Problem("needs pyarrow", "--to parquet", "pip install 'nip-fn[data]'"))
    run = or_exit(load_once(name, runs))
    target = out or below(run.path.parent, "export")
    for kind in formats:
        if kind in SINKS:
            number = or_exit(send(kind, run.path.parent))
            print(f"{kind}: {number} records")
            continue
        folder = below(target, kind)
        folder.mkdir(parents=True, exist_ok=True)
        named = partial(to_hf, place=place) if place and kind == "hf" else EXPORTS[kind]
        files = list(named(run, folder))
        for path in files:
            print(path)
        if not files:
            say(f"nip-fn: {kind}: there is nothing of that in {run.path.parent} yet")
    if place is not None:
        print(or_exit(push(target / "hf", place)))
