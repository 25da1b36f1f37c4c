"""`nip-fn data bug`: the real command, the real sandbox, real files."""

import json
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ..provider import Provider
from .conftest import SMALL, RunCli, call_cli, needs_bubblewrap

pytestmark = needs_bubblewrap

Start = Callable[..., "subprocess.Popen[str]"]

KEY = "sk-of-the-bug-writer-7c2e"
API = (
    "data", "bug", "builtin:python", "--provider", "openai", "--model", "m", "--limit", "6",
    "--attempts", "2", "--max-tokens", "200",
)  # fmt: skip
BUG = ("data", "bug", "builtin:python", "--provider", "dummy", "--model", "m", "--limit", "4")


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that the command makes of six solutions, undisturbed."""
    folder = tmp_path_factory.mktemp("made")
    with Provider(key=KEY) as provider:
        where = ("--base-url", provider.url, "--out", "bugs.jsonl")
        assert call_cli(folder, *API, *where, OPENAI_API_KEY=KEY).returncode == 0
    return folder / "bugs.jsonl"


def test_a_model_makes_a_data_set_whose_labels_are_proven(run_cli: RunCli, made: Path) -> None:
    found = rows(made)
    bugs = [row for row in found if row["label"] == 0]
    assert bugs
    for row in found:
        assert row["tests"]["function"]
        assert row["split"]
        assert ("origin" in row) == (row["label"] == 0)
    for row in bugs:
        assert row["origin"]["made_by"] == "model"
        assert row["origin"]["how"] == "m"
        assert 0 < row["origin"]["passed"] < row["origin"]["tests"]
    checked = run_cli("data", "check", made)
    assert checked.returncode == 0, checked.stderr
    assert f"{len(found)} proven by tests, 0 not borne out" in checked.stdout
    shown = run_cli("data", "show", made, bugs[0]["problem_id"])
    assert "made by model: m" in shown.stdout
    assert "\n- " in shown.stdout
    assert "\n+ " in shown.stdout


def test_what_is_made_can_be_trained_on(run_cli: RunCli, made: Path) -> None:
    one_split = made.with_name("free.jsonl")
    free = [{**row, "split": None} for row in rows(made)]
    one_split.write_text("".join(json.dumps(row) + "\n" for row in free))
    shares = ("--set", "dataset_options.test_share=0.4")
    trained = run_cli("train", *SMALL, *shares, "--dataset", one_split, "--run", "a")
    assert trained.returncode == 0, trained.stderr
    replayed = run_cli("replay", "runs/a", "--json")
    assert replayed.returncode == 0, replayed.stderr


def test_a_finished_file_is_not_written_over(run_cli: RunCli, tmp_path: Path) -> None:
    (tmp_path / "bugs.jsonl").write_bytes(b"{}\n")
    refused = run_cli(*BUG, "--out", "bugs.jsonl")
    assert refused.returncode == 2
    assert "bugs.jsonl: exists already" in refused.stderr
    assert (tmp_path / "bugs.jsonl").read_bytes() == b"{}\n"


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider(key=KEY) as provider:
        yield provider


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    file = tmp_path / "prices.toml"
    file.write_text("[models]\nm = { prompt = 100.0, completion = 200.0 }\n")
    return file


def paid(provider: Provider) -> float:
    told = provider.counters()
    return float(told["prompt_tokens"] * 100 + told["completion_tokens"] * 200) / 1e6


def test_a_model_behind_an_api_makes_bugs_within_a_budget(
    run_cli: RunCli, provider: Provider, prices: Path, made: Path, tmp_path: Path
) -> None:
    where = (*API, "--base-url", provider.url, "--prices", prices)
    whole = run_cli(*where, "--out", "whole.jsonl", OPENAI_API_KEY=KEY)
    assert whole.returncode == 0, whole.stderr
    cost = paid(provider)
    assert f"${cost:.4f}" in whole.stdout
    assert (tmp_path / "whole.jsonl").read_bytes() == made.read_bytes()
    # With half of it the command stops, with more it goes on, to the same end at the same price.
    provider.configure(caching=False)
    stopped = run_cli(*where, "--out", "b.jsonl", "--budget", cost / 2, OPENAI_API_KEY=KEY)
    assert stopped.returncode == 11, stopped.stderr
    assert "the same command continues it" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert cost < paid(provider) <= 1.5 * cost
    again = run_cli(*where, "--out", "b.jsonl", "--budget", 10 * cost, OPENAI_API_KEY=KEY)
    assert again.returncode == 0, again.stderr
    assert paid(provider) == pytest.approx(2 * cost)
    assert (tmp_path / "b.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


def test_killed_while_a_model_is_asked_it_asks_for_nothing_twice(
    run_cli: RunCli, start: Start, provider: Provider, made: Path, tmp_path: Path
) -> None:
    (tmp_path / ".env").write_text(f"OPENAI_API_KEY={KEY}\n")
    where = (*API, "--base-url", provider.url, "--out", "b.jsonl")
    journal = tmp_path / "b.jsonl.journal"
    provider.configure(latency=[0.05, 1.0])
    process = start(*where)
    while process.poll() is None and not (
        journal.exists() and journal.read_bytes().count(b'"type":"reply"') > 2
    ):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    lines = [
        json.loads(line)
        for line in journal.read_bytes().splitlines(keepends=True)
        if line.endswith(b"\n")
    ]
    with (tmp_path / "b.jsonl").open("ab") as file:
        file.write(b'{"half a row')
    kept = {line["reply"][7] for line in lines if line.get("type") == "reply"}
    finished = run_cli(*where)
    assert finished.returncode == 0, finished.stderr
    assert (tmp_path / "b.jsonl").read_bytes() == made.read_bytes()
    bodies = Counter(str(one["body"]) for one in provider.log() if one["request_id"] in kept)
    asked = Counter(str(one["body"]) for one in provider.log())
    assert bodies
    assert all(asked[body] == 1 for body in bodies)


def test_what_a_server_refuses_stops_the_command_with_a_line(
    run_cli: RunCli, provider: Provider
) -> None:
    where = (*API, "--base-url", provider.url, "--out", "b.jsonl")
    assert "OPENAI_API_KEY" in run_cli(*where).stderr
    refused = run_cli(*where, OPENAI_API_KEY="sk-another")
    assert refused.returncode == 9
    assert "refuses the API key" in refused.stderr
    assert "the same command continues it" in refused.stderr
    unknown = run_cli(*where, "--budget", 1, OPENAI_API_KEY=KEY)
    assert unknown.returncode == 2
    assert "no price is known" in unknown.stderr


def test_a_file_is_not_gone_on_with_under_other_options(
    run_cli: RunCli, prices: Path, tmp_path: Path
) -> None:
    where = (*BUG, "--out", "b.jsonl", "--prices", prices)
    stopped = run_cli(*where, "--budget", 0.5)
    assert stopped.returncode == 11, stopped.stderr
    refused = run_cli(*where, "--seed", 5)
    assert refused.returncode == 2
    assert "other options" in refused.stderr
    finished = run_cli(*where)
    assert finished.returncode == 0, finished.stderr
    assert "0 of 4 right solutions" in finished.stdout
    assert "24 replies" in finished.stdout


def test_data_without_tests_cannot_be_made_bugs_of(run_cli: RunCli) -> None:
    refused = run_cli(
        *("data", "bug", "builtin:tea", "--provider", "dummy", "--model", "m", "--out", "a.jsonl")
    )
    assert refused.returncode == 2
    assert "no right solution with tests" in refused.stderr


def test_a_model_that_is_not_there_is_named(run_cli: RunCli) -> None:
    failed = run_cli(*BUG, "--provider", "local", "--model", "/no/model", "--out", "a.jsonl")
    assert failed.returncode == 2
    assert "/no/model" in failed.stderr
    assert "Traceback" not in failed.stderr
    elsewhere = run_cli(*BUG, "--provider", "carrier-pigeon", "--out", "b.jsonl")
    assert elsewhere.returncode == 2
    assert "carrier-pigeon" in elsewhere.stderr
