"""What a run will cost, what it has cost, and where it stops: the real command."""

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nip_fn_adapters.costs.prices import Usage, cost, listed_prices
from nip_fn_cli.dryrun import duration
from tests.cli.conftest import SMALL, Finished
from tests.provider import Provider

NipFn = Callable[..., Finished]

PRICES = """
[models."builtin:tiny"]
prompt = 1.0
completion = 100.0

[fine_tuned."builtin:tiny"]
prompt = 2.0
completion = 200.0
training = 5.0
"""


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    """A file in which the model that the dummy stands for costs something."""
    file = tmp_path / "prices.toml"
    file.write_text(PRICES)
    return file


def stages(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def column(output: str, title: str, rows: re.Pattern[str]) -> list[str]:
    """The cells of a printed table under a title, which they end with."""
    lines = output.splitlines()
    (header,) = [line for line in lines if title in line]
    end = header.index(title) + len(title)
    return [line[:end].split("  ")[-1].strip() for line in lines if rows.match(line)]


def asked(output: str) -> dict[tuple[str, str, str], tuple[int, int]]:
    """(iteration, stage, agent) -> requests and replies at most, as --dry-run printed them."""
    rows = re.compile(r" +\d+  (?:test|sample) ")
    names = [tuple(line.split()[:3]) for line in output.splitlines() if rows.match(line)]
    counts = [
        [int(cell.split("/")[-1].replace(",", "")) for cell in column(output, title, rows)]
        for title in ("requests", "replies")
    ]
    return {
        (name[0], name[1], name[2]): (requests, replies)
        for name, requests, replies in zip(names, *counts, strict=True)
    }


LONG = (
    "--set",
    "nip_protocol.max_message_rounds=4",
    "--set",
    "debate_protocol.max_message_rounds=4",
)


@pytest.mark.parametrize(
    "options",
    [
        ("--protocol", "nip"),
        ("--protocol", "nip", "--trainer", "ei", "--set", "ei.rollouts_per_iteration=30"),
        ("--protocol", "nip", "--set", "malt.num_initial_ei_iterations=1", *LONG),
        ("--protocol", "debate", "--set", "malt.simultaneous_branching=product", *LONG),
        ("--protocol", "merlin_arthur", "--set", "malt.num_responses_per_timestep=3"),
        ("--protocol", "mnip", "--set", "agents.prover0.freeze_agent=true"),
        ("--protocol", "solo_verifier", "--set", "rl.num_test_iterations=2"),
    ],
)
def test_a_run_in_which_nobody_decides_early_asks_for_the_most_that_was_said(
    nip_fn: NipFn, tmp_path: Path, options: tuple[str, ...]
) -> None:
    options = (*SMALL, *options, "--set", "dummy.decision_rate=0")
    dry = nip_fn("train", *options, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert not (tmp_path / "runs").exists()
    done = nip_fn("train", *options, "--run", "a")
    assert done.returncode == 0, done.stderr
    counted = {
        (str(row["iteration"]), row["stage"], name): (
            row[f"{name}.requests"],
            row[f"{name}.replies"],
        )
        for row in stages(tmp_path / "runs/a")
        if row["stage"] in ("test", "sample")
        for name in [key.removesuffix(".requests") for key in row if key.endswith(".requests")]
    }
    assert asked(dry.stdout) == counted


def test_a_dry_run_needs_no_key_and_says_what_it_does_not_know(nip_fn: NipFn) -> None:
    options = ("--set", "agents._default.model_provider=OpenAI", "--set", "rl.num_iterations=1")
    known = nip_fn(
        "train", *options, "--set", "agents._default.model_name=gpt-4o-mini-2024-07-18",
        "--dry-run", "--rate", "2", "--budget", "0.01",
    )  # fmt: skip
    assert known.returncode == 0, known.stderr
    total = known.stdout.splitlines()[-1]
    assert total.strip().startswith("in all")
    assert re.search(r"\$\d+\.\d{4} / \$\d+\.\d{4}", total)
    assert "--rate" in known.stderr
    assert "over it" in known.stderr
    unknown = nip_fn("train", *options, "--set", "agents._default.model_name=m", "--dry-run")
    assert unknown.returncode == 0
    assert "unknown" in unknown.stdout.splitlines()[-1]
    assert "$" not in unknown.stdout


def test_dollars_are_in_the_table_and_in_the_metrics_and_add_up(
    nip_fn: NipFn, tmp_path: Path, prices: Path
) -> None:
    done = nip_fn("train", *SMALL, "--run", "a", "--prices", prices)
    assert done.returncode == 0, done.stderr
    rows = [row for row in stages(tmp_path / "runs/a") if row["stage"] != "publish"]
    dollars: Counter[str] = Counter()
    for row in rows:
        for name in ("prover", "verifier"):
            tuned = 2 if row["iteration"] else 1
            if row["stage"] == "train":
                expected = row[f"{name}.train_tokens"] * 5
            else:
                prompt, written = row[f"{name}.prompt_tokens"], row[f"{name}.tokens"]
                expected = (prompt + 100 * written) * tuned
                assert row[f"{name}.cached_tokens"] == 0
            assert row[f"{name}.dollars"] == pytest.approx(expected / 1e6)
            dollars["training " * (row["stage"] == "train") + name] += row[f"{name}.dollars"]
    shown = {
        line.split("  ")[0]: line.split("$")[1] for line in done.stdout.splitlines() if "$" in line
    }
    assert shown.pop("in all") == f"{sum(dollars.values()):.4f}"
    assert shown == {name: f"{value:.4f}" for name, value in dollars.items()}
    assert all(value > 0 for value in dollars.values())
    assert f"${sum(dollars.values()):.4f} spent" in done.stderr.splitlines()[-1]


def test_a_price_file_that_cannot_be_read_is_one_line(nip_fn: NipFn, tmp_path: Path) -> None:
    broken = nip_fn("train", *SMALL, "--run", "b", "--prices", "absent.toml")
    assert broken.returncode == 2
    assert "absent.toml" in broken.stderr
    (tmp_path / "p.toml").write_text("[models]\nx = 1\n")
    broken = nip_fn("train", *SMALL, "--run", "b", "--prices", "p.toml")
    assert broken.returncode == 2
    (line,) = broken.stderr.strip().splitlines()
    assert "p.toml" in line
    assert not (tmp_path / "runs").exists()


def test_a_budget_stops_a_run_which_then_goes_on_as_if_it_had_not(
    nip_fn: NipFn, tmp_path: Path, prices: Path
) -> None:
    paid = ("--prices", prices)
    whole = nip_fn("train", *SMALL, "--run", "whole", *paid)
    total = float(whole.stdout.split("in all")[1].split("$")[1].split()[0])
    limit = total / 3
    stopped = nip_fn("train", *SMALL, "--run", "a", *paid, "--budget", limit)
    assert stopped.returncode == 11, stopped.stderr
    line = stopped.stderr.strip().splitlines()[-1]
    spent = float(line.split("$")[1].split()[0])
    assert 0 < spent <= limit
    assert f"budget of ${limit:g}" in line
    assert "nip-fn train --resume --run a --runs runs --budget" in line
    checkpoint = tmp_path / "runs/a/checkpoint.msgpack"
    before = checkpoint.read_bytes()
    again = nip_fn("train", "--resume", "--run", "a", *paid, "--budget", limit)
    assert again.returncode == 11
    after = checkpoint.read_bytes()
    assert after.startswith(before)
    larger = nip_fn("train", "--resume", "--run", "a", *paid, "--budget", 10 * total)
    assert larger.returncode == 0, larger.stderr
    assert larger.stdout.split("digest")[1].split()[0] == whole.stdout.split("digest")[1].split()[0]
    assert (
        larger.stdout.split("in all")[1].split("\n")[0]
        == (whole.stdout.split("in all")[1].split("\n")[0])
    )


def test_a_budget_needs_prices_which_may_be_those_of_the_user(
    nip_fn: NipFn, tmp_path: Path
) -> None:
    model = (
        "--set",
        "agents._default.model_provider=OpenAI",
        "--set",
        "agents._default.model_name=m",
    )
    refused = nip_fn("train", *model, "--budget", "5")
    assert refused.returncode == 2
    (line,) = refused.stderr.strip().splitlines()
    assert "agents.prover: m" in line
    assert "--prices" in line
    assert not (tmp_path / "runs").exists()
    own = tmp_path / ".config/nip-fn/prices.toml"
    own.parent.mkdir(parents=True)
    own.write_text(PRICES.replace("builtin:tiny", "m").replace("training = 5.0", ""))
    refused = nip_fn("train", *model, "--budget", "5")
    assert "agents.prover: m, its training" in refused.stderr
    own.write_text(PRICES)
    done = nip_fn("train", *SMALL, "--run", "a")
    assert re.search(r"in all .*\$0\.[1-9]", done.stdout)
    replayed = nip_fn("replay", "runs/a")
    assert (
        replayed.stdout.split("in all")[1].split("\n")[0]
        == (done.stdout.split("in all")[1].split("\n")[0])
    )


def test_what_runs_here_costs_nothing_and_needs_no_budget(nip_fn: NipFn) -> None:
    done = nip_fn("train", *SMALL, "--budget", "0")
    assert done.returncode == 0, done.stderr
    assert re.search(r"in all .*\$0\.0000", done.stdout)
    assert "spent" not in done.stderr


def test_the_bill_of_a_provider_stays_within_the_budget(nip_fn: NipFn, tmp_path: Path) -> None:
    """At the listed prices, by the provider's own count; resumed, it comes to what is shown."""
    key = "sk-test-of-the-budget"
    price = listed_prices().models["gpt-4o-mini"]
    with Provider(key=key, latency=0.01) as provider:

        def bill() -> float:
            told = provider.counters()
            names = ("prompt_tokens", "cached_tokens", "completion_tokens")
            return cost(Usage(*(told[name] for name in names)), price) or 0.0

        def train(*options: object) -> Finished:
            return nip_fn("train", *options, OPENAI_API_KEY=key)

        options = {
            "model_provider": "OpenAI",
            "model_name": "gpt-4o-mini-2024-07-18",
            "api_base_url": provider.url,
            "freeze_agent": "true",
        }
        sets = [
            part
            for name, value in options.items()
            for part in ("--set", f"agents._default.{name}={value}")
        ]
        small = ("--iterations", 1, "--set", "rl.rollouts_per_iteration=5", "--run", "a", *sets)
        small = (*small, "--set", "dataset_options.max_test_size=20")
        stopped = train(*small, "--budget", "0.002")
        assert stopped.returncode == 11, stopped.stderr
        assert 0.001 < bill() <= 0.002
        done = train("--resume", "--run", "a", "--budget", "5.00")
        assert done.returncode == 0, done.stderr
        assert f"${bill():.4f}" in done.stdout.split("in all")[1].splitlines()[0]
        total = done.stdout.split("in all")[1].split()
        cached = provider.counters()["cached_tokens"]
        assert total[1] == f"{cached:,}" != "0"
        assert "spent" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("seconds", "shown"), [(9.96, "10 s"), (200, "3 min 20 s"), (7500, "2 h 05 min"), (0, "0 s")]
)
def test_a_time_for_people(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_a_dry_run_is_of_a_whole_run(nip_fn: NipFn) -> None:
    refused = nip_fn("train", "--dry-run", "--resume", "--run", "a")
    assert refused.returncode == 2
    assert "--dry-run" in refused.stderr
