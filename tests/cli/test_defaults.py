"""What a model of the usual size meets first: a model that reasons and then decides scores so."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nip_fn.game.verdict import find_decision
from nip_fn.run.events import BatchFetched
from nip_fn_adapters.recording import store
from nip_fn_adapters.recording.store import CHECKPOINT

from ..adapters.hosted import FakeServer
from ..adapters.scripted_llama import make_scripted_llama
from ..core.games import one_by_one
from ..provider import Provider
from .conftest import Finished, RunCli

KEYS = {"OPENAI_API_KEY": "k", "OPENROUTER_API_KEY": "k"}
FEW = ("--dataset", "builtin:python", "--set", "dataset_options.max_test_size=20")
WORDS = 130


@pytest.fixture
def provider(running: Provider) -> Provider:
    """A model that reasons in 130 words before it asks or decides."""
    running.reset(reply_words=WORDS)
    return running


def at_api(name: str) -> Callable[[Provider, Path], tuple[object, ...]]:
    return lambda provider, _: ("--provider", name, "--base-url", provider.url, "--model", "m")


def in_process(_: Provider, folder: Path) -> tuple[object, ...]:
    # Each word of two tokens, as in code.
    words = [part for i in range(WORDS) for part in (f" so{i}", f"-that{i}")]
    model = make_scripted_llama(folder / "model", [*words, "\nDecision: reject"])
    return "--provider", "local", "--model", model


def decided(folder: Path) -> list[bool]:
    """Of each datapoint of a test, whether the last verdict that was written about it is right."""
    events = store.read_recording(folder / CHECKPOINT).unwrap().events
    (points,) = (event.datapoints for event in events if isinstance(event, BatchFetched))
    said: dict[int, int] = {}
    for reply in one_by_one(events):
        found = find_decision(reply.completion.text or "", "accept_reject").unwrap()
        if found is not None:
            said[reply.tree] = found.discrete
    return [said[tree] == point.label for tree, point in enumerate(points)]


def scores(done: Finished, folder: Path) -> list[dict[str, Any]]:
    """The rows of an evaluation, each of which says what the model decided."""
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    rows: list[dict[str, Any]] = found["tests"]
    for row in rows:
        (run,) = (folder / found["runs"]).glob(f"{row['protocol']}*")
        right = decided(run)
        assert row["accuracy"]["value"] == pytest.approx(sum(right) / len(right))
        assert row["no_decision_rate"] == 0.0
        assert row["warnings"] == []
    return rows


@pytest.mark.parametrize(
    "where",
    [at_api("openai"), at_api("openrouter"), at_api("self-hosted"), in_process],
    ids=["openai", "openrouter", "self-hosted", "local"],
)
def test_a_model_that_reasons_first_scores_as_it_decides(
    run_cli: RunCli, provider: Provider, tmp_path: Path, where: Any
) -> None:
    fewer = ("--set", "dataset_options.max_test_size=4") if where is in_process else ()
    done = run_cli("eval", *FEW, *fewer, *where(provider, tmp_path), "--json", **KEYS)
    assert [row["protocol"] for row in scores(done, tmp_path)] == ["nip", "solo_verifier"]


def test_it_does_behind_a_language_model_server(
    run_cli: RunCli, provider: Provider, tmp_path: Path
) -> None:
    with FakeServer(provider.port) as server:
        port = f"agents._default.language_model_server_port={server.port}"
        host = "agents._default.language_model_server_scheme_host=http://127.0.0.1"
        where = ("--provider", "self-hosted", "--model", "m", "--set", port, "--set", host)
        assert scores(run_cli("eval", *FEW, *where, "--json"), tmp_path)


def test_a_limit_that_is_too_low_is_told_and_marked(run_cli: RunCli, provider: Provider) -> None:
    low = ("--set", "agents._default.max_tokens_per_message=64", "--run", "low")
    alone = ("--protocol", "solo_verifier")
    where = at_api("openai")(provider, Path())
    done = run_cli("eval", *FEW, *where, *low, *alone, **KEYS)
    assert done.returncode == 0, done.stderr
    cut = "replies of verifier were cut at the limit of 64 tokens"
    (line,) = [line for line in done.stderr.splitlines() if cut in line]
    assert line == (
        f"nip-fn: warning: 100% of 20 {cut}; raise agents.verifier.max_tokens_per_message"
    )
    undecided = "100% of 20 games ended without a verdict"
    assert undecided in done.stderr
    for table in (done.stdout, run_cli("replay", "runs/low/solo_verifier-m").stdout):
        assert "0.0% [0.0%, 16.1%] !" in table
        assert f"iteration 0, test: 100% of 20 {cut}" in table
        assert f"iteration 0, test: {undecided}" in table


def test_data_that_no_embedded_model_plays_need_a_model(run_cli: RunCli, tmp_path: Path) -> None:
    done = run_cli("eval", *FEW)
    assert done.returncode == 2
    assert "no model is named, and no embedded one plays builtin:python" in done.stderr
    assert not (tmp_path / "runs").exists()
    assert run_cli("eval", *FEW, "--provider", "dummy").returncode == 0
