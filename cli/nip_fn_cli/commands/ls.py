"""`nip-fn ls`: the runs of a folder, a line each."""

import json
from pathlib import Path
from typing import Any

from nip_fn.metrics.inference import Estimate
from nip_fn_adapters.recording.overview import Overview, overviews
from nip_fn_cli.shown.exits import say
from nip_fn_cli.shown.printing import print_rows, share


def ls_command(runs: Path, as_json: bool) -> None:
    """Print the runs, those that changed last at the end."""
    found = sorted(overviews(runs), key=lambda one: one.changed)
    if as_json:
        print(json.dumps(list(map(_record, found)), indent=2))
        return
    if not found:
        say(f"nip-fn: there is no run in {runs}; begin one with: nip-fn train")
        return
    titles = ("run", "state", "iterations", "game", "trainer", "data", "first test", "last test")
    print_rows((*titles, "dollars", "changed"), list(map(_row, found)))


def _row(one: Overview) -> tuple[str, ...]:
    known = one.params is not None
    return (
        one.name,
        one.status,
        f"{one.iterations[0]}/{one.iterations[1]}" if known else "",
        one.params.interaction_protocol if one.params else "",
        one.params.trainer if one.params and one.iterations[1] else "",
        one.dataset,
        f"{one.first.value:.1%}" if one.first and one.first != one.last else "",
        _estimate(one.last),
        f"{one.dollars:.4g}" if one.dollars is not None else "unknown" if known else "",
        one.changed.astimezone().strftime("%Y-%m-%d %H:%M"),
    )


def _estimate(found: Estimate | None) -> str:
    return "" if found is None else share(*found)


def _record(one: Overview) -> dict[str, Any]:
    return {
        "run": one.name,
        "state": one.status,
        "iterations": dict(zip(("ended", "of"), one.iterations, strict=True)),
        "protocol": one.params and one.params.interaction_protocol,
        "trainer": one.params and one.params.trainer,
        "seed": one.params and one.params.seed,
        "dataset": one.dataset,
        "first_accuracy": one.first and one.first._asdict(),
        "last_accuracy": one.last and one.last._asdict(),
        "dollars": one.dollars,
        "changed": one.changed.isoformat(timespec="seconds"),
    }
