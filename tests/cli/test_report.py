"""`nip-fn report`, and what a real browser says of its pages."""

import asyncio
from collections.abc import Awaitable, Callable
from importlib import resources
from pathlib import Path
from typing import TypeVar

import pytest
from msgspec.structs import replace

import nip_fn as nip
from nip_fn.export.page import render_report
from nip_fn.export.report import view_run
from nip_fn.export.views import PageLimits
from nip_fn.run import checkpoint
from nip_fn.run.events import StageEnded

from ..tools.browser import CHROMIUM, Page, chromium, complaints
from ..tools.hostile_run import hostile_events
from .conftest import SMALL, RunCli, call_cli

T = TypeVar("T")
NO_RUN, MISMATCH = 3, 8
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium is installed (apt install chromium)"
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small run and with one of hostile texts, and their reports."""
    home = tmp_path_factory.mktemp("reports")
    done = call_cli(home, "train", *SMALL, "--run", "small")
    assert done.returncode == 0, done.stderr
    hostile = home / "runs/<i>hostile"
    hostile.mkdir()
    (hostile / "checkpoint.msgpack").write_bytes(checkpoint.write(hostile_events()))
    for run in ("small", "<i>hostile"):
        made = call_cli(home, "report", run)
        assert made.returncode == 0, made.stderr
    return home


def seen(folder: Path, look: Callable[[Page], Awaitable[T]]) -> T:
    """What `look` finds out in a browser with a profile in `folder`."""

    async def session() -> T:
        async with chromium(folder / "profile") as page:
            return await look(page)

    return asyncio.run(session())


# ----------------------------------------------------------------------------------------- command


def test_the_report_of_a_run_lies_beside_its_recording(home: Path) -> None:
    made = call_cli(home, "report", "small")
    assert made.stdout == "runs/small/report.html\n"
    page = (home / "runs/small/report.html").read_text("utf-8")
    assert page == Path(home / "runs/small/report.html").read_text("utf-8")
    assert "Held-out accuracy" in page
    assert "It is finished." in page


def test_several_runs_share_a_page(home: Path) -> None:
    made = call_cli(home, "report", "small", "runs/<i>hostile", "-o", "out/both.html")
    assert (made.returncode, made.stdout) == (0, "out/both.html\n")
    page = (home / "out/both.html").read_text("utf-8")
    assert "<h1>2 runs</h1>" in page
    assert page.count("<article id=r") == 2


def test_a_split_report_links_to_every_tree(home: Path) -> None:
    made = call_cli(home, "report", "small", "--split", "-o", "split")
    assert made.stdout == "split/index.html\n"
    index = (home / "split/index.html").read_text("utf-8")
    pages = sorted(path.name for path in (home / "split").glob("*.html"))
    assert pages == ["index.html", "r0-trees-0-1.html", "r0-trees-1-1.html"]
    assert all(f'href="{name}"' in index for name in pages[1:])
    trees = sum((home / "split" / name).read_text().count("class=box") for name in pages[1:])
    assert trees == 24


def test_a_torn_recording_has_a_report_that_says_so(home: Path, run_cli: RunCli) -> None:
    whole = (home / "runs/small/checkpoint.msgpack").read_bytes()
    torn = home / "runs/torn"
    torn.mkdir()
    (torn / "checkpoint.msgpack").write_bytes(whole[: len(whole) // 2])
    made = call_cli(home, "report", "torn")
    assert made.returncode == 0
    assert "ends inside an event" in made.stderr
    assert "It is under way" in (torn / "report.html").read_text("utf-8")


def test_a_run_that_is_derived_otherwise_than_recorded_is_shown_and_refused(home: Path) -> None:
    events = [
        replace(event, digest="0" * 32) if isinstance(event, StageEnded) else event
        for event in hostile_events(iterations=1)
    ]
    other = home / "runs/other"
    other.mkdir()
    (other / "checkpoint.msgpack").write_bytes(checkpoint.write(events))
    made = call_cli(home, "report", "other")
    assert made.returncode == MISMATCH
    assert "recorded digest" in made.stderr
    assert "is not the recorded one" in (other / "report.html").read_text("utf-8")


def test_a_run_that_is_not_there_is_named(run_cli: RunCli) -> None:
    made = run_cli("report", "nowhere")
    assert made.returncode == NO_RUN
    assert made.stderr.startswith("nip-fn: nowhere: there is no such run")


# ----------------------------------------------------------------------------------------- browser

GRAVE = ("serious", "critical")
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@needs_chromium
@pytest.mark.parametrize("run", ["small", "<i>hostile"])
def test_a_browser_has_nothing_to_complain_of(home: Path, tmp_path: Path, run: str) -> None:
    """Nor to fetch; nothing is wider than a phone; and hostile replies have done nothing."""

    async def look(page: Page) -> None:
        url = (home / "runs" / run / "report.html").as_uri()
        for width, dark in ((1440, False), (390, True)):
            await page.screen(width, dark=dark)
            await page.open(url)
            await page.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
            assert await page.run(OVERFLOW) == 0
            assert await page.run("typeof window.pwned") == "undefined"
            assert await page.run("document.title") == run
        assert complaints(page) == ([], [], [])

    seen(tmp_path, look)


@needs_chromium
@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_no_serious_obstacle(home: Path, tmp_path: Path, dark: bool) -> None:
    """The rules of WCAG 2 that a program can check, with all that can be unfolded open."""
    axe = resources.files("axe_core_python").joinpath("axe.min.js").read_text("utf-8")
    compared = call_cli(home, "compare", "small@0", "small", "--html", "compared.html")
    assert compared.returncode == 0, compared.stderr

    async def look(page: Page) -> None:
        for path in ("runs/small/report.html", "runs/<i>hostile/report.html", "compared.html"):
            await page.screen(390 if dark else 1440, dark=dark)
            await page.open((home / path).as_uri())
            await page.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
            await page.run(axe)
            told = await page.run("axe.run({resultTypes: ['violations']})")
            assert told["passes"], "it looked at something"
            grave = [one for one in told["violations"] if one["impact"] in GRAVE]
            assert [(one["id"], one["nodes"][0]["html"]) for one in grave] == [], path

    seen(tmp_path, look)


@needs_chromium
def test_all_content_is_there_without_a_script(home: Path, tmp_path: Path) -> None:
    async def look(page: Page) -> tuple[int, int, int, bool, bool]:
        await page.ask("Emulation.setScriptExecutionDisabled", value=True)
        await page.open((home / "runs/small/report.html").as_uri())
        return (
            await page.run("document.querySelectorAll('svg.tree').length"),
            await page.run("document.querySelectorAll('.box:has(.answer)').length"),
            await page.run("document.querySelectorAll('[aria-labelledby$=games] .box').length"),
            await page.run("document.querySelector('.tools').checkVisibility()"),
            await page.run("document.querySelector('ul.tree').checkVisibility()"),
        )

    trees, answered, games, tools, shown = seen(tmp_path, look)
    assert trees == 48  # of two iterations with 12 each, a picture for each agent
    assert answered == games > 0
    assert not tools  # what only a script can do is not offered
    assert not shown  # folded at first, opened by the browser itself


@needs_chromium
def test_trees_can_be_searched_unpacked_and_walked(tmp_path: Path) -> None:
    run = nip.replay(hostile_events()).unwrap()
    trees = sum(len(one.batch.trees) for one in run.stages if one.stage == "sample")
    limits = PageLimits(whole=0, nodes=30)
    page_file = tmp_path / "page.html"
    page_file.write_text(
        render_report([view_run("a run", run, (), version="0", limits=limits)], version="0"),
        "utf-8",
    )
    boxes = "document.querySelectorAll('[aria-labelledby$=trees] .box').length"

    async def look(page: Page) -> None:
        await page.open(page_file.as_uri())
        assert await page.run(boxes) < trees
        search = "document.querySelector('.tools input')"
        await page.run(f"{search}.value = 'onerror'; {search}.onchange()")
        found = await page.run("document.querySelector('.tools output').value")
        replies, among = (int(word) for word in found.split() if word.isdigit())
        assert replies >= among > 0
        assert await page.run(boxes) == trees
        assert await page.run("document.querySelectorAll('.hit').length") == replies
        assert await page.run("typeof window.pwned") == "undefined"
        assert complaints(page) == ([], [], [])
        await page.run("document.querySelector('.box:not([hidden])[open] .tree summary').focus()")
        is_open = "document.activeElement.parentElement.open"
        assert await page.run(is_open)
        for key, after in (("ArrowLeft", False), ("ArrowRight", True)):
            await page.ask("Input.dispatchKeyEvent", type="keyDown", key=key)
            assert await page.run(is_open) is after
        await page.ask("Input.dispatchKeyEvent", type="keyDown", key="ArrowDown")
        assert await page.run("document.activeElement.tagName") == "SUMMARY"

    seen(tmp_path, look)
