"""A training of the lady's tea: what it teaches is the interaction, and the reward teaches it."""

from pathlib import Path

import pytest

from nip_fn_adapters import load_run

from .conftest import RunCli, call_cli

pytestmark = [pytest.mark.exhaustive, pytest.mark.xdist_group("learning")]

ITERATIONS = 6
GAMES = 400
NO_BETTER = 0.5 + 3 * (0.25 / GAMES) ** 0.5  # than a coin, of so many games
CONTROLS = Path(__file__).parents[2] / "examples" / "controls.py"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of runs in which `own` is one of MALT."""
    runs = tmp_path_factory.mktemp("runs")
    done = call_cli(
        runs, "train", f"--runs={runs}", "--run=own", f"--iterations={ITERATIONS}", "--seed=1"
    )
    assert done.returncode == 0, done.stderr
    return runs


def accuracy(run_cli: RunCli, runs: Path, name: str, *options: str) -> float:
    """The accuracy of the trained verifier on held-out problems, in a test of its own."""
    verifier = (
        "--set=agents.verifier.load_checkpoint_and_parameters=true",
        "--set=agents.verifier.checkpoint_run_id=own",
    )
    run_cli("train", f"--runs={runs}", f"--run={name}", "--iterations=0", *verifier, *options)
    return last_accuracy(runs / name)


def last_accuracy(run: Path) -> float:
    return last_test(run)["accuracy"]


def last_test(run: Path) -> dict[str, float]:
    """The metrics of the last test."""
    tests = [row for row in load_run(run, trust=True).unwrap().state.rows if row.stage == "test"]
    return dict(tests[-1].metrics)


@pytest.mark.parametrize("temperature", [0, 1])
def test_it_judges_well_with_its_own_prover(
    run_cli: RunCli, trained: Path, temperature: int
) -> None:
    prover = (
        "--set=agents.prover.load_checkpoint_and_parameters=true",
        "--set=agents.prover.checkpoint_run_id=own",
    )
    options = (*prover, f"--set=text_rl.test_temperature={temperature}")
    assert accuracy(run_cli, trained, f"at-{temperature}", *options) > 0.65


def test_it_judges_no_better_than_a_coin_with_an_untrained_prover(
    run_cli: RunCli, trained: Path
) -> None:
    assert accuracy(run_cli, trained, "untrained") < 0.6


@pytest.mark.parametrize("script", ["silent", "random"])
def test_nor_with_one_that_says_nothing_or_anything(
    run_cli: RunCli, trained: Path, script: str
) -> None:
    played = (
        "--set=agents.prover.model_provider=scripted",
        f"--set=agents.prover.model_name={script}",
    )
    assert accuracy(run_cli, trained, script, *played) < 0.6


def test_a_coin_in_place_of_the_reward_teaches_nothing(run_cli: RunCli, tmp_path: Path) -> None:
    run_cli(
        "train",
        f"--runs={tmp_path}",
        "--run=coin",
        f"--iterations={ITERATIONS}",
        "--seed=1",
        f"--set=malt.pair_selection_method={CONTROLS}:SHUFFLED",
    )
    assert last_accuracy(tmp_path / "coin") < NO_BETTER


def test_a_prover_that_sees_the_private_coins_learns_to_fool(
    run_cli: RunCli, tmp_path: Path
) -> None:
    """In public the saucers tell her what to say, so whom to believe cannot be learnt."""
    run_cli(
        "train", f"--runs={tmp_path}", "--run=public", "--dataset=builtin:tea-public",
        "--iterations=8", "--seed=1",
    )  # fmt: skip
    test = last_test(tmp_path / "public")
    assert test["tea.told.blind"] > 2 * test["tea.fisher"]
    assert test["accuracy"] < 0.6
