"""`nip-fn pull`: a shared run, downloaded."""

from pathlib import Path

from nip_fn.errors import Problem
from nip_fn_adapters.experiments.plans import checked_name
from nip_fn_adapters.recording.sharing import ADAPTERS, pull
from nip_fn_cli.shown.exits import Exit, command, die, or_exit, say


def pull_command(place: str, name: str | None, runs: Path) -> None:
    """Download a run into the folder of all runs, and print where it is."""
    folder = runs / (checked_name(name) or place.rpartition("/")[2])
    if folder.exists():
        remedy = "give it another name (--run)"
        die(Exit.RUN, Problem("there is a run of that name", str(folder), remedy))
    run = or_exit(pull(place, folder))
    print(folder)
    say(f"digest {run.digest}, as recorded; look at it with: {command('nip-fn', 'show', folder)}")
    lineage = [one.name for group in run.state.groups for one in group.lineage]
    missing = [one for one in lineage if not (folder / ADAPTERS / one).is_dir()]
    if missing:
        say(f"nip-fn: it has no weights of {', '.join(missing)}: only what speaks of them is here")
