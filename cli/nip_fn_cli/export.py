"""`nip-fn export`: a run in the formats of other programs."""

from importlib.util import find_spec
from pathlib import Path

from nip_fn.errors import Problem
from nip_fn_adapters.exports import EXPORTERS
from nip_fn_adapters.tracking import SINKS, send
from nip_fn_cli.exits import Exit, die, or_exit, say
from nip_fn_cli.loading import load_once


def export_command(name: str, formats: tuple[str, ...], out: Path | None, runs: Path) -> None:
    """Write a run in some formats, each into a folder of its own, and print the files' paths."""
    unknown = [kind for kind in formats if kind not in (*EXPORTERS, *SINKS)]
    if unknown or not formats:
        known = f"choose from {', '.join((*EXPORTERS, *SINKS))}"
        die(Exit.USAGE, Problem(f"{', '.join(unknown) or 'nothing'!r} is no format", "--to", known))
    if "parquet" in formats and find_spec("pyarrow") is None:
        die(Exit.USAGE, Problem("needs pyarrow", "--to parquet", "pip install 'nip-fn[data]'"))
    run = or_exit(load_once(name, runs), Exit.RUN)
    place = out or run.path.parent / "export"
    for kind in formats:
        if kind in SINKS:
            number = or_exit(send(kind, run.path.parent), Exit.ADAPTER)
            print(f"{kind}: {number} records")
            continue
        folder = place / kind
        folder.mkdir(parents=True, exist_ok=True)
        files = list(EXPORTERS[kind](run, folder))
        for path in files:
            print(path)
        if not files:
            say(f"nip-fn: {kind}: there is nothing of that in {run.path.parent} yet")
