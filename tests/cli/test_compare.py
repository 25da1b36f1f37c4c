"""`nip-fn compare`: its text, its JSON and its page; see tests/adapters for the numbers."""

import json
import re
from pathlib import Path

import pytest

from ..core.test_report import inventory
from .conftest import RunCli
from .test_scripted import scripted


@pytest.fixture
def tested(run_cli: RunCli) -> RunCli:
    """A run a side: an honest prover is believed, a random one is found out."""
    for prover in ("honest", "random"):
        cast = (*scripted("prover", prover), *scripted("verifier", "asks_3"))
        size = "dataset_options.max_test_size=40"
        done = run_cli(
            "train", "--dataset", "builtin:tea", "--iterations", "0", "--seed", 1,
            "--set", size, "--set", "text_rl.test_scheme=all", *cast, "--run", f"{prover}-1",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    return run_cli


def test_the_text_and_the_json_say_the_same(tested: RunCli) -> None:
    shown = tested("compare", "random-1", "honest-1").stdout
    assert "agents.prover.model_name: random → honest" in shown
    assert "points, p (these two models) < 0.001" in shown
    assert "of these two models alone: one training a side tells nothing of other seeds" in shown
    found = json.loads(tested("compare", "random-1", "honest-1", "--json").stdout)
    difference = found["difference"]
    assert f"{100 * difference['value']:+.1f} [" in shown
    assert (difference["interval_over"], difference["p"]) == ("problems", None)
    assert difference["p_these_two_models"] < 0.001
    assert (found["paired_by"], found["datapoints"]) == ("seed", 40)
    assert [one["name"] for one in found["parameters"]] == ["agents.prover.model_name"]
    refused = tested("compare", "honest-1", "nobody-*")
    assert (refused.returncode, "no run has such a name" in refused.stderr) == (3, True)


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
