"""The page of measures: it names every metric that runs write, and no other."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from nip_fn.params.run import HyperParameters
from nip_fn.run.replay import replay
from nip_fn.run.state import RunState
from nip_fn_adapters import load_run
from nip_fn_adapters.recording import store

from ..recorded.record import FOLDER
from .conftest import SMALL, call_cli
from .test_scripted import scripted

PAGE = (Path(__file__).parents[2] / "docs" / "measures.md").read_text("utf-8")

TEST = ("--repeats", "1", "--set", "dataset_options.max_test_size=12")

HONEST = scripted("prover", "honest")

RUNS = {
    # An opponent from a pool, so that trees are played by earlier models.
    "trained": ("train", *SMALL, "--set", "agents.verifier.opponent_pool=2"),
    "weighed": ("train", "--trainer", "reinforce", *SMALL),
    "tea": ("eval", "--protocol", "nip", *TEST, *HONEST, *scripted("verifier", "asks_3")),
    "tea-lied-to": (
        *("eval", "--protocol", "nip", *TEST),
        *scripted("prover", "random"),
        *scripted("verifier", "asks_3"),
    ),
    # Games enough about each datapoint to tell the worst.
    "repeated": (
        *("eval", "--protocol", "nip", *TEST, "--repeats", "8"),
        *(*HONEST, *scripted("verifier", "asks_3")),
    ),
    "hunt": (
        *("eval", "--protocol", "adp", "--dataset", "builtin:bug-hunt", *TEST),
        *HONEST,
        *scripted("verifier", "checks_named"),
    ),
    "sums": (
        *("eval", "--protocol", "pvg", "--dataset", "builtin:sums", *TEST),
        *(*scripted("helpful", "helps"), *scripted("sneaky", "errs_once")),
        *scripted("verifier", "checks_steps"),
    ),
}


def documented() -> set[str]:
    """The names in the left columns."""
    cells = (line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| "))
    named = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    return {re.sub("^(AGENT|GROUP)[.]", "NAME.", name) for name in named}


def general(names: Iterable[str], params: HyperParameters, groups: Iterable[str]) -> set[str]:
    """The names as the page writes them: without owner, round, level or number."""
    who = "|".join(map(re.escape, {*groups, *(agent.name for agent in params.agents)}))
    rules = (
        (f"^({who})[.]", "NAME."),
        (r"[.]round_\d+[.]", ".round_R."),
        (r"^selective[.]\d[.]\d\d[.]", "selective.C."),
        (r"^tea[.]asks[.]\d$", "tea.asks.K"),
    )
    for pattern, written in rules:
        names = [re.sub(pattern, written, name) for name in names]
    return set(names)


def general_in(state: RunState) -> set[str]:
    names = {name for row in state.rows for name, _ in row.metrics}
    return general(names, state.params, [group.name for group in state.groups])


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Every name in the lines that small runs write, and in the rows of all recorded ones."""
    folder = tmp_path_factory.mktemp("measures")
    found: set[str] = set()
    for name, words in RUNS.items():
        done = call_cli(folder, *words, "--run", name)
        assert done.returncode == 0, done.stderr
    for file in (folder / "runs").rglob("metrics.jsonl"):
        state = load_run(file.parent).unwrap().state
        lines = map(json.loads, file.read_text("utf-8").splitlines())
        names = {name for line in lines for name in line}
        found |= general(names, state.params, [group.name for group in state.groups])
    for recording in FOLDER.glob("*/*.msgpack"):
        found |= general_in(replay(store.read_recording(recording).unwrap().events).unwrap().state)
    return found


def test_every_metric_is_documented(logged: set[str]) -> None:
    assert logged - documented() == set()


def test_every_documented_metric_is_logged(logged: set[str]) -> None:
    assert documented() - logged == set()
