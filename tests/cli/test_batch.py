"""`--batch`: the command through the fake provider's batch API."""

import json
from pathlib import Path

import pytest

from ..provider import Provider
from .conftest import RunCli

KEY = "sk-of-the-batches-4f8a"
EVAL = (
    "eval", "--provider", "openai", "--model", "m", "--seed", "3", "--protocol", "nip",
    "--set", "dataset_options.max_test_size=6", "--set", "text_rl.fine_tune_poll_seconds=0.02",
    "--set", "code_validation.system_prompt_version=views", "--json",
)  # fmt: skip


@pytest.fixture
def provider(running: Provider) -> Provider:
    running.reset(key=KEY, batch_seconds=0.05, caching=False)
    return running


def test_batches_come_to_what_single_requests_come_to(
    run_cli: RunCli, provider: Provider, tmp_path: Path
) -> None:
    where = ("--base-url", provider.url)
    found = []
    for name, how in (("alone", ()), ("batched", ("--batch",))):
        done = run_cli(*EVAL, *where, *how, "--run", name, OPENAI_API_KEY=KEY)
        assert done.returncode == 0, done.stderr
        (test,) = json.loads(done.stdout)["tests"]
        found.append({key: test[key] for key in test if key != "dollars"})
    assert found[0] == found[1]
    kinds = [entry["kind"] for entry in provider.log()]
    assert kinds.count("batch-row") == kinds.count("chat") > 6
    assert "file" in kinds
    assert provider.files() == [], "what was uploaded, and what was answered, is deleted"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


def test_batches_are_paid_at_half_the_price(
    run_cli: RunCli, provider: Provider, tmp_path: Path
) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("[models]\nm = { prompt = 100.0, completion = 200.0, batch = 0.5 }\n")
    dollars = []
    for name, how in (("alone", ()), ("batched", ("--batch",))):
        options = ("--base-url", provider.url, "--prices", prices, "--run", name)
        done = run_cli(*EVAL, *options, *how, OPENAI_API_KEY=KEY)
        dollars.append(json.loads(done.stdout)["tests"][0]["dollars"])
    assert dollars[1] == pytest.approx(dollars[0] / 2)
    assert dollars[1] > 0


def test_a_budget_is_that_of_all_tests_together(
    run_cli: RunCli, provider: Provider, tmp_path: Path
) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("[models]\nm = { prompt = 100.0, completion = 200.0 }\n")
    options = (*EVAL[:-1], "--protocol", "solo_verifier", "--base-url", provider.url)
    priced = (*options, "--prices", prices, "--run", "e")
    whole = run_cli(*options, "--prices", prices, "--run", "w", "--json", OPENAI_API_KEY=KEY)
    first, second = (one["dollars"] for one in json.loads(whole.stdout)["tests"])
    budget = first + second / 2
    stopped = run_cli(*priced, "--budget", budget, OPENAI_API_KEY=KEY)
    assert stopped.returncode == 11, stopped.stderr
    done = run_cli(*priced, "--budget", 10 * (first + second), "--json", OPENAI_API_KEY=KEY)
    assert done.returncode == 0, done.stderr
    assert [one["dollars"] for one in json.loads(done.stdout)["tests"]] == [first, second]
    unknown = run_cli(*options, "--budget", 1, OPENAI_API_KEY=KEY)
    assert unknown.returncode == 2
    assert "no price is known" in unknown.stderr
