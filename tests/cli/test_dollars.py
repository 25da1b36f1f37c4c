"""One amount of dollars, wherever a run's cost is shown."""

import json
from math import fsum
from pathlib import Path
from random import Random

import pytest

from nip_fn_adapters.costs.note import read_prices
from nip_fn_adapters.costs.prices import Prices, listed_prices
from nip_fn_adapters.costs.spending import run_cost
from nip_fn_adapters.experiments.sweeping import cell_result
from nip_fn_adapters.recording.runs import load_run
from nip_fn_adapters.recording.tracker import read_metrics
from nip_fn_adapters.recording.tracking import _values

from .conftest import RunCli

# Models of one agent whose prices are far apart, and so high that no decimal is cut off.
PRICES = """
[models."builtin:tea"]
prompt = 1000.0
completion = 3000.0

[fine_tuned."builtin:tea"]
prompt = 20000.0
completion = 70000.0
training = 5000.0
"""


def options(random: Random) -> list[str]:
    """A small run in which agents meet earlier models, scripts and base models."""
    words = [
        *("train", "--provider", "dummy", "--dataset", "builtin:tea", "--run", "a"),
        *("--seed", str(random.randrange(10**6)), "--iterations", str(random.randint(2, 3))),
        *("--trainer", random.choice(["malt", "malt", "ei"])),
    ]
    values = {
        "rl.rollouts_per_iteration": random.choice([12, 16, 20]),
        "malt.pair_selection_method": "all",
        "malt.num_initial_ei_iterations": random.choice([0, 1]),
        "dataset_options.max_test_size": random.choice([1, 4]),
        "nip_protocol.max_message_rounds": random.choice([2, 3]),
        "agents._default.opponent_pool": random.choice([1, 3]),
        "agents._default.opponent_pool_share": random.choice([0.2, 0.45]),
        "agents.prover.opponent_scripts": random.choice([[], ["silent"], ["repeat", "silent"]]),
        "agents.verifier.freeze_agent": random.choice(["true", "false"]),
        "dummy.invalid_rate": random.choice([0.0, 0.2]),
    }
    return [
        *words,
        *(word for name, value in values.items() for word in ("--set", f"{name}={value}")),
    ]


SAMPLE = (4, 9)  # in which an agent played several models at different prices in one stage


@pytest.mark.parametrize(
    "seed",
    [s if s in SAMPLE else pytest.param(s, marks=pytest.mark.exhaustive) for s in range(100)],
)
def test_a_run_costs_the_same_wherever_it_is_shown(
    run_cli: RunCli, tmp_path: Path, seed: int
) -> None:
    (tmp_path / "prices.toml").write_text(PRICES)
    trained = run_cli(*options(Random(seed)), "--prices", "prices.toml")
    assert trained.returncode == 0, trained.stderr
    (total,) = [line for line in trained.stdout.splitlines() if line.startswith("total ")]
    table = float(total.split("$")[1].replace(",", ""))
    folder = tmp_path / "runs/a"
    prices = Prices(read_prices(tmp_path / "prices.toml").unwrap(), listed_prices())
    run = load_run(folder).unwrap()
    whole = run_cost(run.state, prices)
    assert whole == pytest.approx(table, abs=0.01)
    records = list(read_metrics(folder))
    (listed,) = json.loads(run_cli("ls", "--json").stdout)
    for amounts in (
        [record[name] for record in records for name in record if name.endswith(".dollars")],
        [value for record in records for name, value in _values(record).items()
         if name.endswith(".dollars")],
        [listed["dollars"]],
        run.usage()["dollars"],
        [cell_result(run, (), prices).means["dollars"]],  # of the cell of a sweep
    ):  # fmt: skip
        assert fsum(amounts) == pytest.approx(whole)
