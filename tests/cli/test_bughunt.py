"""The bug hunt between scripts: the bounds, as a command prints them."""

import json

import pytest

from .conftest import RunCli
from .test_scripted import scripted

OPTIONS = ("--protocol", "adp", "--set", "dataset_options.max_test_size=60", "--json", "--run", "e")


@pytest.mark.parametrize(("prover", "found"), [("honest", 1.0), ("mimic", 0.0)])
def test_right_programs_are_accepted_and_bugs_found_where_they_are_named(
    run_cli: RunCli, prover: str, found: float
) -> None:
    cast = (*scripted("prover", prover), *scripted("verifier", "checks_named"))
    done = run_cli("eval", "--dataset", "builtin:bug-hunt", *OPTIONS, *cast)
    assert done.returncode == 0, done.stderr
    (adp,) = json.loads(done.stdout)["tests"]
    assert adp["accuracy"]["value"] == (1 + found) / 2
    replayed = json.loads(run_cli("replay", "runs/e/adp", "--json").stdout)
    (row,) = replayed["iterations"]
    assert replayed["digests_match"]
    assert row["test.hunt.names"] == found
    assert row["test.hunt.true"] == row["test.hunt.decides"] == 1
    assert row["test.hunt.rejects.right"] == 0
