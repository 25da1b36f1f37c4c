"""The results of a study's search, printed or as JSON."""

from collections.abc import Collection, Mapping
from typing import Any

from nip_fn.config.search import tried
from nip_fn_adapters.experiments.studies.searching import Searching
from nip_fn_cli.shown.printing import print_rows


def reasons(searching: Searching | None) -> Mapping[str, str]:
    """By which result each of the cells was stopped that were stopped early."""
    stopped = searching.stopped if searching else {}
    return {
        name: f"after iteration {one.iteration}: {searching.search.metric} {one.value:.4g}"
        for name, one in stopped.items()
        if searching
    }


def search_record(searching: Searching, done: Collection[str]) -> dict[str, Any]:
    """The draws that have a result, the best first, and the cells that were stopped early."""
    search = searching.search
    best_first = sorted(
        tried(searching.study, searching.entries),
        key=lambda one: one.result,
        reverse=search.mode == "max",
    )
    stopped = [one for name, one in searching.stopped.items() if name not in done]
    return {
        "search": {
            "metric": search.metric,
            "draws": [one._asdict() for one in best_first],
            "stopped": [
                {"cell": one.cell, "iteration": one.iteration, "value": one.value}
                for one in stopped
            ],
        }
    }


def print_search(found: Mapping[str, Any]) -> None:
    """Print the draws and the cells that were stopped, as `search_record` has them."""
    metric, draws, stopped = found["metric"], found["draws"], found["stopped"]
    if draws:
        print(f"\ndraws by {metric}, by which they were chosen: other seeds will show less")
        addresses = tuple(draws[0]["values"])
        print_rows(
            ("", metric, *addresses),
            [
                (
                    one["draw"],
                    f"{one['result']:.4g}",
                    *(_value(one["values"][a]) for a in addresses),
                )
                for one in draws
            ],
        )
    if stopped:
        print("\nstopped early; the rows above are of the other runs alone")
        print_rows(
            ("", "after iteration", metric),
            [(one["cell"], str(one["iteration"]), f"{one['value']:.4g}") for one in stopped],
        )


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
