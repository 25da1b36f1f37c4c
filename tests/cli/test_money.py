"""The forecast of a run's cost, its cost, and its end at a budget."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nip_fn.config.codec import from_dict
from nip_fn.run.events import JobCreated
from nip_fn.run.replay import replay
from nip_fn_adapters.costs.prices import Tokens, cost, listed_prices
from nip_fn_adapters.costs.spending import expected_training
from nip_fn_adapters.recording.store import read_recording
from nip_fn_cli.shown.dryrun import duration, say_reasoning

from ..provider import Provider
from .conftest import PRICES, SMALL, Finished, RunCli, call_cli


class Whole(NamedTuple):
    """A run that was paid at these prices, without a budget."""

    folder: Path
    prices: Path
    done: Finished

    @property
    def total(self) -> str:
        """The last line of the table of what it took."""
        return total_line(self.done)

    @property
    def dollars(self) -> float:
        return float(self.total.split("$")[1])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A run with a price for the model that the dummy stands for."""
    folder = tmp_path_factory.mktemp("whole")
    prices = folder / "prices.toml"
    prices.write_text(PRICES)
    done = call_cli(folder, "train", *SMALL, "--run", "whole", "--prices", prices)
    assert done.returncode == 0, done.stderr
    return Whole(folder / "runs" / "whole", prices, done)


def total_line(done: Finished) -> str:
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("total ")]
    return line


def digest_of(done: Finished) -> str:
    return done.stdout.split("digest")[1].split()[0]


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
    rows = re.compile(r" *\d+ +(?:test|sample) ")
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


# In `make test`: several movers at once, a trainer that imitates after one that compares, and an
# agent that is not trained.
OPTIONS = [
    ("--protocol", "debate", "--set", "malt.simultaneous_branching=product", *LONG),
    ("--protocol", "nip", "--set", "malt.num_initial_ei_iterations=1", *LONG),
    ("--protocol", "mnip", "--set", "agents.prover0.freeze_agent=true"),
]
MORE_OPTIONS = [
    ("--protocol", "nip"),
    ("--protocol", "nip", "--trainer", "ei", "--set", "ei.rollouts_per_iteration=30"),
    ("--protocol", "merlin_arthur", "--set", "malt.num_responses_per_timestep=3"),
    ("--protocol", "solo_verifier", "--set", "rl.num_test_iterations=2"),
]


@pytest.mark.parametrize(
    "options",
    [*OPTIONS, *(pytest.param(more, marks=pytest.mark.exhaustive) for more in MORE_OPTIONS)],
)
def test_a_run_in_which_nobody_decides_early_asks_for_the_most_that_was_said(
    run_cli: RunCli, tmp_path: Path, options: tuple[str, ...]
) -> None:
    options = (*SMALL, *options, "--set", "dummy.decision_rate=0")
    dry = run_cli("train", *options, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert not (tmp_path / "runs").exists()
    done = run_cli("train", *options, "--run", "a")
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


def test_a_dry_run_needs_no_key_and_says_what_it_does_not_know(run_cli: RunCli) -> None:
    options = ("--set", "agents._default.model_provider=OpenAI", "--set", "rl.num_iterations=1")
    known = run_cli(
        "train", *options, "--set", "agents._default.model_name=gpt-4o-mini-2024-07-18",
        "--dry-run", "--rate", "2", "--budget", "0.01",
    )  # fmt: skip
    assert known.returncode == 0, known.stderr
    total = known.stdout.splitlines()[-1]
    assert total.strip().startswith("total")
    assert re.search(r"\$\d+\.\d{4} / \$\d+\.\d{4}", total)
    assert "--rate" in known.stderr
    assert "over it" in known.stderr
    unknown = run_cli("train", *options, "--set", "agents._default.model_name=m", "--dry-run")
    assert unknown.returncode == 0
    assert "unknown" in unknown.stdout.splitlines()[-1]
    assert "$" not in unknown.stdout


def test_dollars_are_in_the_table_and_in_the_metrics_and_add_up(whole: Whole) -> None:
    rows = [row for row in stages(whole.folder) if row["stage"] != "publish"]
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
        line.split("  ")[0]: line.split("$")[1]
        for line in whole.done.stdout.splitlines()
        if "$" in line
    }
    assert shown.pop("total") == f"{sum(dollars.values()):.4f}"
    assert shown == {name: f"{value:.4f}" for name, value in dollars.items()}
    assert all(value > 0 for value in dollars.values())
    assert f"${sum(dollars.values()):.4f} spent" in whole.done.stderr.splitlines()[-1]


def test_a_price_file_that_cannot_be_read_is_one_line(run_cli: RunCli, tmp_path: Path) -> None:
    broken = run_cli("train", *SMALL, "--run", "b", "--prices", "absent.toml")
    assert broken.returncode == 2
    assert "absent.toml" in broken.stderr
    (tmp_path / "p.toml").write_text("[models]\nx = 1\n")
    broken = run_cli("train", *SMALL, "--run", "b", "--prices", "p.toml")
    assert broken.returncode == 2
    (line,) = broken.stderr.strip().splitlines()
    assert "p.toml" in line
    assert not (tmp_path / "runs").exists()


def test_a_budget_stops_a_run_which_then_ends_as_if_it_had_not(
    run_cli: RunCli, tmp_path: Path, whole: Whole
) -> None:
    paid = ("--prices", whole.prices)
    limit = whole.dollars / 3
    stopped = run_cli("train", *SMALL, "--run", "a", *paid, "--budget", limit)
    assert stopped.returncode == 11, stopped.stderr
    line = stopped.stderr.strip().splitlines()[-1]
    spent = float(line.split("$")[1].split()[0])
    assert 0 < spent <= limit
    assert f"budget of ${limit:g}" in line
    assert "nip-fn train --resume --run a --runs runs --budget" in line
    checkpoint = tmp_path / "runs/a/checkpoint.msgpack"
    before = checkpoint.read_bytes()
    again = run_cli("train", "--resume", "--run", "a", *paid, "--budget", limit)
    assert again.returncode == 11
    after = checkpoint.read_bytes()
    assert after.startswith(before)
    larger = run_cli("train", "--resume", "--run", "a", *paid, "--budget", 10 * whole.dollars)
    assert larger.returncode == 0, larger.stderr
    assert digest_of(larger) == digest_of(whole.done)
    assert total_line(larger) == whole.total


def test_a_budget_needs_prices_which_may_be_those_of_the_user(
    run_cli: RunCli, tmp_path: Path, whole: Whole
) -> None:
    model = (
        "--set",
        "agents._default.model_provider=OpenAI",
        "--set",
        "agents._default.model_name=m",
    )
    refused = run_cli("train", *model, "--budget", "5")
    assert refused.returncode == 2
    (line,) = refused.stderr.strip().splitlines()
    assert "agents.prover: m" in line
    assert "--prices" in line
    assert not (tmp_path / "runs").exists()
    own = tmp_path / ".config/nip-fn/prices.toml"
    own.parent.mkdir(parents=True)
    own.write_text(PRICES.replace("builtin:tea", "m").replace("training = 5.0", ""))
    refused = run_cli("train", *model, "--budget", "5")
    assert "agents.prover: m, its training" in refused.stderr
    own.write_text(PRICES)
    assert run_cli("train", *model, "--budget", "5", "--dry-run").returncode == 0


def test_a_replay_shows_the_dollars_of_the_run_or_those_of_other_prices(
    run_cli: RunCli, tmp_path: Path, whole: Whole
) -> None:
    assert total_line(run_cli("replay", whole.folder)) == whole.total
    dear = tmp_path / "dear.toml"
    dear.write_text(re.sub(r"= (\d+)", r"= 10\1", PRICES.replace("1.0", "10.0")))
    other = run_cli("replay", whole.folder, "--prices", dear)
    assert float(total_line(other).split("$")[1]) > 2 * whole.dollars
    assert total_line(run_cli("replay", whole.folder)) == whole.total


def test_what_runs_here_costs_nothing_and_needs_no_budget(run_cli: RunCli) -> None:
    done = run_cli("train", *SMALL, "--budget", "0")
    assert done.returncode == 0, done.stderr
    assert re.search(r"total .*\$0\.0000", done.stdout)
    assert "spent" not in done.stderr


def test_the_bill_of_a_provider_stays_within_the_budget(run_cli: RunCli, tmp_path: Path) -> None:
    """At the listed prices, by the provider's own count; resumed, it comes to what is shown."""
    key = "sk-test-of-the-budget"
    price = listed_prices().models["gpt-4o-mini"]
    with Provider(key=key, latency=0.01) as provider:

        def bill() -> float:
            told = provider.counters()
            names = ("prompt_tokens", "cached_tokens", "completion_tokens")
            return cost(Tokens(*(told[name] for name in names)), price) or 0.0

        def train(*options: object) -> Finished:
            return run_cli("train", *options, OPENAI_API_KEY=key)

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
        assert f"${bill():.4f}" in total_line(done)
        cached = provider.counters()["cached_tokens"]
        assert total_line(done).split()[2] == f"{cached:,}" != "0"
        assert "spent" in done.stderr.splitlines()[-1]


def test_one_reply_at_each_node_cannot_be_compared_and_trains_nobody(run_cli: RunCli) -> None:
    one = ("--set", "malt.num_responses_per_timestep=1")
    dry = run_cli("train", *SMALL, *one, "--dry-run")
    assert not re.search(r"^ +\d+  train ", dry.stdout, re.MULTILINE)
    warm = run_cli("train", *SMALL, *one, "--set", "malt.num_initial_ei_iterations=1", "--dry-run")
    assert {line.split()[0] for line in warm.stdout.splitlines() if " train " in line} == {"0"}


def test_a_training_reserves_what_it_will_be_billed(run_cli: RunCli, tmp_path: Path) -> None:
    """By the provider's own counts of the prompts and replies that its rows are made of."""
    key = "sk-test-of-a-training"
    with Provider(key=key) as provider:
        done = run_cli(
            "train", "--provider", "openai", "--model", "m", "--base-url", provider.url,
            "--iterations", "1", "--run", "a", "--set", "rl.rollouts_per_iteration=20",
            "--dataset", "builtin:python", "--set", "malt.num_responses_per_timestep=2",
            "--set", "dataset_options.max_test_size=4", "--seed", "5",
            "--set", "code_validation.system_prompt_version=v1",
            "--set", "text_rl.fine_tune_poll_seconds=0.05", OPENAI_API_KEY=key,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        billed = sum(job["_"]["tokens"] for job in provider.jobs())
    events = read_recording(tmp_path / "runs/a/checkpoint.msgpack").unwrap().events
    created = [n for n, event in enumerate(events) if isinstance(event, JobCreated)]
    state = replay(events[: created[-1] + 1]).unwrap().state
    expected = sum(expected_training(state, one.job) for one in state.jobs)
    assert 1.0 <= expected / billed < 1.1


@pytest.mark.parametrize(
    ("seconds", "shown"), [(9.96, "10 s"), (200, "3 min 20 s"), (7500, "2 h 05 min"), (0, "0 s")]
)
def test_a_time_for_people(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_a_dry_run_is_of_a_whole_run(run_cli: RunCli) -> None:
    refused = run_cli("train", "--dry-run", "--resume", "--run", "a")
    assert refused.returncode == 2
    assert "--dry-run" in refused.stderr


@pytest.mark.parametrize(
    ("model", "limit", "is_told"),
    [
        ("gpt-5-mini", "none", True),
        ("gpt-5-mini", 16_000, False),
        ("openai/o3", "none", True),
        ("deepseek/deepseek-r1", "none", True),
        ("gpt-5-chat-latest", "none", False),
        ("gpt-4o-mini-2024-07-18", "none", False),
    ],
)
def test_a_limit_that_hidden_reasoning_would_use_up_is_told_beforehand(
    model: str, limit: object, is_told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = {"model_name": model, "max_tokens_per_message": limit}
    say_reasoning(from_dict({"agents": {"verifier": fields}}).unwrap())
    told = capsys.readouterr().err
    assert ("raise agents.verifier.max_tokens_per_message, or set" in told) == is_told
    assert told.count("\n") == is_told
