"""`nip-fn compare`, on runs of scripted players, whose accuracies are known."""

import json
import re
from pathlib import Path

import pytest

from ..core.test_report import inventory
from .conftest import RunCli
from .test_scripted import scripted


@pytest.fixture
def tested(run_cli: RunCli) -> RunCli:
    """Two runs a side: an honest prover is believed, a random one is found out."""
    for prover in ("honest", "random"):
        for seed in (1, 2):
            cast = (*scripted("prover", prover), *scripted("verifier", "asks_3"))
            size = "dataset_options.max_test_size=40"
            done = run_cli(
                "train", "--dataset", "builtin:tea", "--iterations", "0", "--seed", seed,
                "--set", size, "--set", "text_rl.test_scheme=all", *cast,
                "--run", f"{prover}-{seed}",
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
    return run_cli


def test_two_sides_are_compared_problem_by_problem(tested: RunCli) -> None:
    done = tested("compare", "random-1,random-2", "honest-*", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["second"]["runs"] == ["honest-1", "honest-2"]
    assert (found["paired_by"], found["datapoints"]) == ("seed", 40)
    assert found["difference"]["low"] > 0.1
    assert (found["difference"]["interval_over"], found["difference"]["p"]) == (
        "problems and trainings",
        None,
    )
    assert found["difference"]["value"] == pytest.approx(
        found["second"]["accuracy"]["value"] - found["first"]["accuracy"]["value"]
    )
    assert [one["name"] for one in found["parameters"]] == ["agents.prover.model_name"]
    shown = tested("compare", "random-1", "honest-1").stdout
    assert "agents.prover.model_name: random → honest" in shown
    assert "points, p (these two models) < 0.001" in shown
    assert "of these two models alone: one training a side tells nothing of other seeds" in shown
    single = json.loads(tested("compare", "random-1", "honest-1", "--json").stdout)["difference"]
    assert (single["interval_over"], single["p"]) == ("problems", None)
    assert single["p_these_two_models"] < 0.001


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("honest-1", "nobody-*"), "no run has such a name"),
        (("honest-1", "nobody"), "no such run"),
        (("honest-1@7", "honest-1"), "its tests are of iterations 0"),
        (("honest-1,honest-2", "random-1", "--pair", "seed"), "cannot be paired by seed"),
    ],
)
def test_a_side_that_is_not_there_is_named(
    tested: RunCli, arguments: tuple[str, ...], words: str
) -> None:
    done = tested("compare", *arguments)
    assert done.returncode in (2, 3)
    assert words in done.stderr


def test_a_comparison_is_a_page_that_is_whole_in_itself(tested: RunCli, tmp_path: Path) -> None:
    done = tested("compare", "random-1", "honest-1", "--html", "out/compare.html")
    assert (done.returncode, done.stdout.strip()) == (0, "out/compare.html"), done.stderr
    page = (tmp_path / "out/compare.html").read_text()
    found = json.loads(tested("compare", "random-1", "honest-1", "--json").stdout)
    (data,) = re.findall(r'<script type="application/json" id=data>(.*?)</script>', page)
    assert json.loads(data) == found
    assert page.count("<details class=box>") == len(found["datapoints_that_differ"])
    assert f"{100 * found['difference']['value']:+.1f}" in page
    assert "agents.prover.model_name<td>random<td>honest" in page
    assert inventory(page).links <= {"#main", "data:,"}
    assert "default-src &#39;none&#39;" in page
