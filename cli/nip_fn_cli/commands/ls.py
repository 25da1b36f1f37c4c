"""`nip-fn ls`: the runs of a folder, a line each."""

import json
from pathlib import Path
from typing import Any

from nip_fn_adapters.recording.overview import Overview, overviews
from nip_fn_cli.shown.exits import say
from nip_fn_cli.shown.numbers import dollars, percent, share_with_interval
from nip_fn_cli.shown.options import JsonOption, RunsOption
from nip_fn_cli.shown.printing import print_rows


def ls_command(
    as_json: JsonOption = False,
    runs: RunsOption = Path("runs"),
) -> None:
    """List the runs with their states, accuracies and costs, the latest at the end."""
    rows = sorted(overviews(runs), key=lambda overview: overview.changed)
    if as_json:
        print(json.dumps(list(map(_record, rows)), indent=2))
        return
    if not rows:
        say(f"nip-fn: there is no run in {runs}; begin one with: nip-fn train")
        return
    titles = ("run", "state", "iterations", "game", "trainer", "data", "first test", "last test")
    print_rows((*titles, "dollars", "changed"), list(map(_row, rows)))


def _row(run: Overview) -> tuple[str, ...]:
    is_readable = run.params is not None
    return (
        run.name,
        run.status,
        f"{run.iterations[0]}/{run.iterations[1]}" if is_readable else "",
        run.params.interaction_protocol if run.params else "",
        run.params.trainer if run.params and run.iterations[1] else "",
        run.dataset,
        percent(run.first.value) if run.first and run.first != run.last else "",
        share_with_interval(run.last) if run.last else "",
        dollars(run.dollars) if is_readable else "",
        run.changed.astimezone().strftime("%Y-%m-%d %H:%M"),
    )


def _record(run: Overview) -> dict[str, Any]:
    return {
        "run": run.name,
        "state": run.status,
        "iterations": dict(zip(("ended", "of"), run.iterations, strict=True)),
        "protocol": run.params and run.params.interaction_protocol,
        "trainer": run.params and run.params.trainer,
        "seed": run.params and run.params.seed,
        "dataset": run.dataset,
        "first_accuracy": run.first and run.first._asdict(),
        "last_accuracy": run.last and run.last._asdict(),
        "dollars": run.dollars,
        "changed": run.changed.isoformat(timespec="seconds"),
    }
