"""Reports of recorded runs as files: one page that is whole in itself, or an index and pages."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from nip_fn import __version__
from nip_fn.export.curves import Spent
from nip_fn.export.forests import chunks, view_forest
from nip_fn.export.improvements import BestReplies
from nip_fn.export.page import render_report, render_trees
from nip_fn.export.report import RunView, view_run
from nip_fn.export.views import ONE_PAGE, PageLimits
from nip_fn.run.events import RunStarted
from nip_fn.run.replay import Replayed
from nip_fn.run.state import RunState
from nip_fn_adapters.costs.prices import Prices
from nip_fn_adapters.costs.spending import stage_expenses
from nip_fn_adapters.durable import replace_file
from nip_fn_adapters.recording.exact_attacks import best_replies_of


class ReportedRun(NamedTuple):
    """A run to report on.

    name: as the page calls it.
    replayed: the run, derived from its recording.
    version: of nip-fn, that started it.
    best_replies: the exact attacks of its verifiers.
    """

    name: str
    replayed: Replayed
    version: str
    best_replies: tuple[BestReplies, ...]


def subject(folder: Path, replayed: Replayed, start: RunStarted | None) -> ReportedRun:
    """A run to report on, by its folder; `start` is its first event."""
    version = "?" if start is None else start.version
    return ReportedRun(folder.name, replayed, version, best_replies_of(folder))


def spent_on(state: RunState, prices: Prices) -> tuple[Spent, ...]:
    """The tokens and dollars of each stage that has ended."""
    return tuple(
        Spent(
            row.iteration,
            row.stage,
            expense.name,
            expense.model,
            expense.dollars,
            **expense.tokens._asdict(),
        )
        for row in state.rows
        for expense in stage_expenses(state.params, row, prices)
    )


def report_page(subjects: Sequence[ReportedRun], prices: Prices, live: str | None = None) -> str:
    """The report of some runs as one page; runs share what a page can hold.

    Args:
        subjects: The runs.
        prices: The prices of tokens.
        live: How far the run is, where the page is served while it goes on.
    """
    whole, nodes, packed = (most // len(subjects) for most in ONE_PAGE[:3])
    # Served while a run goes on, a page is made again and again.
    limits = ONE_PAGE._replace(whole=whole, nodes=nodes, packed=0 if live else packed)
    return render_report(_views(subjects, prices, limits), version=__version__, live=live)


def split_report(subjects: Sequence[ReportedRun], prices: Prices) -> Iterator[tuple[str, str]]:
    """(file name, page) of an index and of as many pages as all trees of the runs fill."""
    limits = PageLimits(whole=0, nodes=0, packed=0)
    views = _views(subjects, prices, limits)
    pages: dict[tuple[str, int], tuple[str, ...]] = {}
    for view, recorded in zip(views, subjects, strict=True):
        for stage in (stage for stage in recorded.replayed.stages if stage.stage == "sample"):
            trees = stage.batch.trees
            named = {
                f"{view.id}-trees-{stage.iteration}-{number}.html": part
                for number, part in enumerate(chunks(trees, range(len(trees))), 1)
            }
            pages[view.id, stage.iteration] = tuple(named)
            for name, part in named.items():
                yield name, render_trees(view, view_forest(view.id, stage, part))
    yield "index.html", render_report(views, version=__version__, pages=pages)


def write_pages(folder: Path, pages: Mapping[str, str] | Iterator[tuple[str, str]]) -> None:
    """Write pages into a folder, each one whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in dict(pages).items():
        replace_file(folder / name, page.encode())


def _views(
    subjects: Sequence[ReportedRun], prices: Prices, limits: PageLimits
) -> tuple[RunView, ...]:
    return tuple(
        view_run(
            recorded.name,
            recorded.replayed,
            spent_on(recorded.replayed.state, prices),
            version=recorded.version,
            best_replies=recorded.best_replies,
            id=f"r{index}",
            limits=limits,
        )
        for index, recorded in enumerate(subjects)
    )
