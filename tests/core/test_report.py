"""A report says what the recording says, all of it and nothing else."""

import json
import re
import unicodedata
from base64 import b64decode
from collections import Counter
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from zlib import decompress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import nip_fn as nip
from nip_fn.export import page as pages
from nip_fn.export.curves import Spent, is_right, percent, share_of_games
from nip_fn.export.forests import ForestView, NodeView, view_forests
from nip_fn.export.page import policy, render_report, render_trees
from nip_fn.export.report import RunView, view_run
from nip_fn.export.svg import NUM_BINS, Chart, Point, Series, draw_chart, value_bins
from nip_fn.export.views import PageLimits, game_end, short_names
from nip_fn.export.visible import visible
from nip_fn.metrics.forest import forest_stats
from nip_fn.run import checkpoint
from nip_fn.run.events import JobFinished
from nip_fn.run.replay import Replayed
from nip_fn.trees.rollouts import leaf_games

from ..tools.hostile_run import TEXTS, hostile_events
from .games import BUSY, events_of, play

RECORDED = Path(__file__).parents[1] / "recorded" / "0.3"
IDS = ["debate", "ei-weighted", "malt-product-mnip", "multi-channel", "adp", "solo-verifier"]
SAMPLE = [RECORDED / f"{name}.msgpack" for name in IDS]

SPENT = (Spent(0, "test", "verifier", "m", 0.25, prompt=100, completion=20),)


@cache
def replayed(path: Path) -> Replayed:
    return nip.replay(checkpoint.read(path.read_bytes()).unwrap().events).unwrap()


@cache
def hostile() -> Replayed:
    return nip.replay(hostile_events()).unwrap()


def view(run: Replayed, **limits: int) -> RunView:
    limits = {"whole": 0, **limits} if limits else {}
    return view_run("a run", run, SPENT, version="0", limits=PageLimits(**limits))


# ------------------------------------------------------------------------------------------- texts


@given(st.text())
def test_every_character_of_a_visible_text_can_be_seen(text: str) -> None:
    shown = visible(text)
    unseen = {
        character
        for character in shown
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    }
    # Joiners, tabs, newlines, and signs of a few scripts that are drawn though they are "formats".
    drawn = {c for c in unseen if c in "\n\t\u200c\u200d" or "\u0600" <= c <= "\u08ff"}
    drawn |= {c for c in unseen if c in "\U000110bd\U000110cd" or "\U00013430" <= c <= "\U0001d17a"}
    assert unseen == drawn
    assert visible(shown) == shown
    if text.isprintable():
        assert shown == text


class Inventory(HTMLParser):
    """The tags, attributes and texts of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: set[str] = set()
        self.links: set[str] = set()
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes |= {name for name, _ in attrs}
        self.links |= {value or "" for name, value in attrs if name in ("href", "src", "action")}

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def inventory(page: str) -> Inventory:
    found = Inventory()
    found.feed(page)
    return found


def test_hostile_texts_are_shown_and_do_nothing() -> None:
    page = render_report([view(hostile(), nodes=10_000, packed=0)], version="0")
    found = inventory(page)
    assert not {"img", "iframe", "object", "base", "form"} & set(found.tags)
    assert not {name for name in found.attributes if name.startswith("on")}
    assert all(link.startswith(("#", "data:")) for link in found.links), found.links
    assert found.tags["script"] == 2  # the page's own, and its data
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\U000e0041]", page)
    told = "".join(found.texts)
    for text in TEXTS:
        assert visible(text)[:4000] in told
    assert "980,0" in told.replace("\n", ""), "a text of a million characters is cut"
    assert len(page) < 12_000_000


def test_a_page_of_trees_is_as_harmless() -> None:
    run = view(hostile(), nodes=10_000, packed=0)
    found = inventory(render_trees(run, run.forests[0]))
    assert found.links <= {"index.html", "#main", "data:,"} | {
        link for link in found.links if link.startswith("#r0-lines-")
    }
    assert found.tags["script"] == 1
    assert not {name for name in found.attributes if name.startswith("on")}


def test_the_policy_lets_nothing_load_and_only_a_live_page_ask_its_server() -> None:
    page = render_report([view(hostile(), nodes=0, packed=0)], version="0")
    assert "default-src &#39;none&#39;" in page
    assert "connect-src" not in page
    assert "unsafe" not in page
    assert "connect-src 'self'" in policy(live=True)
    assert "style=" not in page.replace("style=sheet", "")


def test_the_data_are_json() -> None:
    run = hostile()
    page = render_report([view(run, nodes=0, packed=0)], version="0")
    (text,) = re.findall(r'<script type="application/json" id=data>(.*?)</script>', page)
    (data,) = json.loads(text)
    assert data["digest"] == nip.digest(run.state)
    assert data["dataset"][0] == run.state.dataset.name
    assert [record["iteration"] for record in data["iterations"]] == [0, 1, 2]
    assert data["iterations"][0]["test.accuracy"] == pytest.approx(
        dict(run.state.rows[0].metrics)["accuracy"], abs=1e-6
    )


# ----------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize("path", SAMPLE, ids=IDS)
def test_the_share_of_right_games_is_the_accuracy_that_the_run_logged(path: Path) -> None:
    run = replayed(path)
    rows = {(row.stage, row.iteration): dict(row.metrics) for row in run.state.rows}
    for stage in run.stages:
        if stage.stage != "test":
            continue
        games = zip(stage.stats.games, stage.stats.weights, strict=True)
        logged = rows["test", stage.iteration]
        found = share_of_games([*games], is_right)
        assert found is not None
        names = ("accuracy", "accuracy_low", "accuracy_high")
        assert found == pytest.approx([logged[name] for name in names])


@pytest.mark.parametrize("path", SAMPLE, ids=IDS)
def test_the_counts_that_a_stage_keeps_are_those_of_its_games(path: Path) -> None:
    for stage in replayed(path).stages:
        assert stage.stats == forest_stats(stage.batch.datapoints, stage.batch.trees)
        ends = [(end.status, end.decision, end.was_cut) for end in stage.stats.games]
        assert ends == [(game.status, game.decision, game.was_cut) for game in stage.games()]


def told_nodes(node: NodeView) -> int:
    return node.copies + sum(map(told_nodes, node.children))


def all_nodes(node: NodeView) -> list[NodeView]:
    return [node, *(below for child in node.children for below in all_nodes(child))]


@pytest.mark.parametrize("path", SAMPLE, ids=IDS)
def test_every_node_pair_and_end_of_every_tree_is_shown(path: Path) -> None:
    run = replayed(path)
    stages = [stage for stage in run.stages if stage.stage == "sample"]
    for stage, forest in zip(stages, view_forests("r0", run, PageLimits(whole=10**9)), strict=True):
        assert forest.total == len(forest.trees) == len(stage.batch.trees)
        marks: Counter[bool] = Counter()
        for tree, shown in zip(stage.batch.trees, forest.trees, strict=True):
            assert told_nodes(shown.root) == tree.num_nodes == shown.nodes
            for node in all_nodes(shown.root):
                for mark in node.marks:
                    marks[mark.chosen] += mark.times
            ends = Counter((node.end[0], node.copies) for node in all_nodes(shown.root) if node.end)
            games = leaf_games(tree, stage.datapoint(forest.trees.index(shown)))
            told: Counter[str] = Counter()
            for (kind, copies), times in ends.items():
                told[kind] += copies * times
            assert told == Counter(game_end(game)[0] for game in games)
        assert marks[True] == marks[False] == len(stage.selection.pairs)
        imitated = sum(len(tree.imitated) for tree in forest.trees)
        assert imitated == len(stage.selection.rollouts)


@pytest.mark.parametrize("path", SAMPLE, ids=IDS)
def test_a_page_is_a_function_of_the_recording(path: Path) -> None:
    events = checkpoint.read(path.read_bytes()).unwrap().events
    again = nip.replay(events).unwrap()
    pages = [render_report([view(run)], version="0") for run in (replayed(path), again)]
    assert pages[0] == pages[1]


def test_trees_beyond_the_limit_are_packed_and_none_is_lost() -> None:
    run = view(hostile(), nodes=30, packed=10_000)
    page = render_report([run], version="0")
    packs = re.findall(r'<script type="text/plain">([^<]*)</script>', page)
    unpacked = "".join(decompress(b64decode(pack)).decode() for pack in packs)
    ids = re.findall(r'id="(r0-tree-\d+-\d+)"', page + unpacked)
    assert sorted(ids) == sorted(
        f"r0-tree-{stage.iteration}-{index}"
        for stage in hostile().stages
        if stage.stage == "sample"
        for index in range(len(stage.batch.trees))
    )
    assert len(packs) == 2
    assert not {name for name in inventory(unpacked).attributes if name.startswith("on")}
    assert "script" not in inventory(unpacked).tags


def test_an_iteration_shows_one_tree_at_least() -> None:
    found: tuple[ForestView, ...] = view(hostile(), nodes=0, packed=0).forests
    assert [len(forest.trees) for forest in found] == [1, 1]
    assert [forest.held for forest in found] == [1, 1]


def test_what_changed_between_tests_is_what_the_games_say() -> None:
    run = hostile()
    first, *_, last = (stage for stage in run.stages if stage.stage == "test")
    right = [
        {game.datapoint.id for game in stage.games() if is_right(game)} for stage in (first, last)
    ]
    changes = view(run, nodes=0).outcomes
    assert changes is not None
    assert (changes.gained, changes.lost) == (len(right[1] - right[0]), len(right[0] - right[1]))
    assert [name for name, _, _ in changes.rows] == ["test 0", "test 1", "test 2"]


def test_a_training_says_how_far_its_chosen_replies_moved_and_warns_of_one_that_fell() -> None:
    report = (("chosen_log_ratio", -0.25), ("chosen_log_ratio_min", -21.4))
    events = (
        replace(event, report=report) if isinstance(event, JobFinished) else event
        for event in events_of(play(BUSY))
    )
    trainings = view(nip.replay(events).unwrap()).trainings
    assert trainings
    for training in trainings.values():
        shown = " · ".join(training)
        assert "mean ln(policy / reference) of the chosen replies -0.25 nats" in shown
        assert "warning: a chosen reply's log-probability fell by 21 nats" in shown


def test_a_run_that_has_just_begun_has_a_page() -> None:
    events = hostile_events()
    for count in (1, 2, 40):
        run = nip.replay(events[:count]).unwrap()
        assert "under way" in render_report([view(run)], version="0", live=str(count))


# ---------------------------------------------------------------------------------------- pictures


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_the_axis_of_a_chart_holds_all_its_values(values: list[float]) -> None:
    points = tuple(Point(x, y) for x, y in enumerate(values))
    drawn = str(draw_chart(Chart("t", (Series("s", points),), lambda value: f"{value:g}")))
    heights = [float(y) for y in re.findall(r"cy=([-\d.]+)", drawn)]
    assert len(heights) == len(values)
    assert all(9.9 <= y <= 166.1 for y in heights)
    assert 2 <= drawn.count("class=g") <= 7


@given(st.floats(-1, 1))
def test_only_zero_has_the_colour_of_zero(value: float) -> None:
    (found,) = value_bins(np.array([value]), (-1.0, 1.0))
    assert 0 <= found < NUM_BINS
    if abs(value) > 1e-8:
        assert (found > NUM_BINS // 2) == (value > 0)
        assert found != NUM_BINS // 2


def test_short_names_tell_agents_apart() -> None:
    assert short_names(("verifier", "prover")) == ("V", "P")
    assert len(set(short_names(("prover0", "prover1", "verifier")))) == 3


def test_shares_are_written_as_percentages() -> None:
    assert [percent(value) for value in (0.0, 0.5, 1.0, 0.0123)] == [
        "0 %",
        "50 %",
        "100 %",
        "1.2 %",
    ]


def test_decisions_of_degrees_have_a_histogram_and_binary_ones_have_none() -> None:
    degrees = view(replayed(RECORDED / "debate.msgpack"))
    credence, lines = degrees.decisions
    counted = sum(int(point.y) for one in credence.series for point in one.points)
    undecided = int(re.findall(r"(\d+) were not decided", credence.about)[0])
    assert counted + undecided == 12
    assert {one.name for one in lines.series} >= {"accuracy", "true positives"}
    assert credence.axis == "credence"
    page = render_report([degrees], version="0")
    assert "Decisions of the last test" in page
    assert "Agreement with the first test" in page
    binary = view(replayed(RECORDED / "ei-weighted.msgpack"))
    assert binary.decisions == ()
    assert "Decisions of the last test" not in render_report([binary], version="0")


# ----------------------------------------------------------------------------------------- colours


def luminance(colour: str) -> float:
    """Of a colour such as "#1b1f24", by WCAG 2.2."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot((0.2126, 0.7152, 0.0722), linear))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_every_text_stands_out_from_what_is_behind_it(dark: bool) -> None:
    """4.5 to 1 at least, which WCAG asks of texts (success criterion 1.4.3, level AA)."""
    style = (Path(pages.__file__).parent / "templates/style.css").read_text()
    schemes = style.split("@media (prefers-color-scheme: dark)")
    colours = dict(re.findall(r"--(\w+): (#\w{6})", schemes[dark].split("\n* {")[0]))
    texts = ("fg", "soft", "s0", "s1", "s2", "s3", "s4")
    pairs = [(colours[text], colours[back]) for text in texts for back in ("bg", "card", "tint")]
    (on_values,) = re.findall(r"i\[class\^=v\] \{[^}]* color: (#\w{6})", style)
    pairs += [(on_values, colours[f"v{number}"]) for number in range(NUM_BINS)]
    assert len(pairs) == 30
    assert min(contrast(*pair) for pair in pairs) >= 4.5
