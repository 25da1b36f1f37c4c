"""Studies: from a table to cells, and from the tests of cells to a table."""

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_fn.config.codec import by_address, from_dict, merge
from nip_fn.config.presets import with_preset
from nip_fn.config.study import Study, cells, replicate_of, row_of, study_of, with_seeds
from nip_fn.metrics.evaluation import Verdicts
from nip_fn.metrics.inference import (
    crossed_interval,
    crossed_share,
    holm,
    paired_difference,
    seeds_needed,
)
from nip_fn.metrics.study import CellResult, tabulate

ROOT = Path(__file__).parents[2]


def study(text: str) -> Study:
    return study_of("x", tomllib.loads(text)).unwrap()


WHOLE = """
seeds = [3, 5]
[base]
rl.num_iterations = 2
[arms.malt]
[arms.ei]
trainer = "ei"
[grid]
agents._default.model_name = ["a/m-1", "a/m-2"]
[zip]
rl.lr = [1e-4, 1e-3]
rl.num_epochs = [1, 2]
[random]
num = 2
malt.min_pair_margin = { uniform = [0.1, 0.5] }
[tests.greedy]
text_rl.test_temperature = 0.0
[compare]
pool = ["agents._default.model_name"]
"""


def test_a_cell_is_a_combination_of_one_value_of_each_axis() -> None:
    found = cells(study(WHOLE))
    trained = [cell for cell in found if cell.tested is None]
    assert len(trained) == 2 * 2 * 2 * 2 * 2
    assert len({cell.name for cell in found}) == len(found) == 3 * len(trained)
    first, last = trained[0], trained[-1]
    assert first.name == "malt-m-1-lr-0.0001-num_epochs-1-draw-1-seed-3"
    assert last.name == "ei-m-2-lr-0.001-num_epochs-2-draw-2-seed-5"
    table = by_address(last.table)
    assert 0.1 <= table.pop("malt.min_pair_margin") <= 0.5
    assert table == {
        "rl.num_iterations": 2,
        "trainer": "ei",
        "agents._default.model_name": "a/m-2",
        "rl.lr": 1e-3,
        "rl.num_epochs": 2,
        "seed": 5,
    }


def test_each_cell_has_the_agents_of_its_own_game() -> None:
    games = study("""
    [base.agents]
    verifier.model_name = "v"
    prover.model_name = "p"
    prover0.model_name = "p0"
    prover1.model_name = "p1"
    [grid]
    interaction_protocol = ["adp", "debate", "solo_verifier"]
    """)
    cast = [{agent.name: agent.model_name for agent in from_dict(cell.table).unwrap().agents}
            for cell in cells(games)]  # fmt: skip
    provers = {"prover0": "p0", "prover1": "p1"}
    assert cast == [
        {"prover": "p", "verifier": "v"},
        {**provers, "verifier": "v"},
        {"verifier": "v"},
    ]


def test_rows_leave_out_seeds_and_what_is_pooled() -> None:
    whole = study(WHOLE)
    last = cells(whole)[-1]
    assert row_of(whole, last) == "ei, lr-0.001-num_epochs-2, draw-2"
    assert replicate_of(whole, last) == ("m-2", "seed-5")


def test_a_test_plays_the_recorded_agents_of_its_cell_and_trains_nothing() -> None:
    cell, before, after = cells(study(WHOLE))[:3]
    assert [one.name for one in (before, after)] == [
        f"{cell.name}-greedy-base",
        f"{cell.name}-greedy-latest",
    ]
    for one, version in ((before, "base"), (after, "latest")):
        assert one.written["agents"] == {
            "_default": {
                "load_checkpoint_and_parameters": True,
                "checkpoint_run_id": cell.name,
                "checkpoint_version": version,
            }
        }
        own = by_address({**one.written, "agents": {}})
        others = by_address({**cell.table, "agents": {}})
        assert own == {
            **others,
            "rl.num_iterations": 0,
            "text_rl.test_scheme": "all",
            "text_rl.test_temperature": 0.0,
        }


def test_a_draw_depends_on_its_number_and_its_address_alone() -> None:
    def draws(text: str) -> dict[str, list[Any]]:
        found = [by_address(cell.table) for cell in cells(study(text))]
        return {address: [one[address] for one in found] for address in found[0]}

    few = draws("[random]\nnum = 3\nrl.lr = { log = [1e-6, 1e-3] }")
    more = draws(
        "[random]\nnum = 40\nmalt.min_pair_margin = [1, 2, 3]\nrl.lr = { log = [1e-6, 1e-3] }\n"
        "rl.num_epochs = { integer = [2, 4] }"
    )
    assert more["rl.lr"][:3] == few["rl.lr"]
    assert set(more["malt.min_pair_margin"]) == {1, 2, 3}
    assert set(more["rl.num_epochs"]) == {2, 3, 4}
    # As many below the geometric mean as above it, but for chance.
    assert 8 <= sum(lr < 10**-4.5 for lr in more["rl.lr"]) <= 32
    assert draws("[random]\nnum = 3\nseed = 1\nrl.lr = { log = [1e-6, 1e-3] }") != few


def test_other_seeds_take_the_place_of_those_of_the_study() -> None:
    names = [cell.name for cell in cells(with_seeds(study("seeds = 9\n[arms.a]\n[arms.b]"), 2))]
    assert names == ["a-seed-1", "a-seed-2", "b-seed-1", "b-seed-2"]
    assert [cell.table["seed"] for cell in cells(with_seeds(study(""), (7, 4)))] == [7, 4]


def test_values_with_equal_words_are_told_apart_by_numbers() -> None:
    found = cells(study('[grid]\nagents._default.model_name = ["a/m", "b/m"]'))
    assert [cell.name for cell in found] == ["m-1", "m-2"]


@pytest.mark.parametrize("name", ["learning", "learners"])
def test_every_cell_of_a_study_among_the_examples_is_a_configuration(name: str) -> None:
    text = (ROOT / f"examples/{name}.toml").read_text()
    for cell in cells(study(text)):
        table = merge({"malt": {}}, cell.table)
        table["malt"].pop("pair_selection_method", None)  # of one's own, which is loaded first
        assert from_dict(with_preset(table)).map(lambda params: params.seed).unwrap() in range(1, 6)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("gird = {}", "gird: a study has no such field; did you mean 'grid'?"),
        ("[compare]\nbasline = 'x'", "compare.basline: a study has no such field"),
        ("grid.rl.lr = 1e-4", "grid.rl.lr: expected a list of values, got 0.0001; write"),
        ("grid.rl.lr = []", "name at least one"),
        ("seeds = 0", "seeds: expected `int` >= 1"),
        ("zip.a = [1]\nzip.b = [1, 2]", "zip: values that go together are not as many: a has 1"),
        ("random.a = [1]", "random.num: expected the number of draws; write num = 10"),
        ("random.num = 1\nrandom.a = 3", "random.a: nothing can be drawn from 3"),
        ("random.num = 1\nrandom.a = {log = [0, 1]}", "a logarithmic scale has no zero"),
        ("random.num = 1\nrandom.a = {log = [2, 1]}", "a lower and an upper bound, got [2, 1]"),
        ("random.num = 1\nrandom.a = {integer = [0.5, 1]}", "expected whole numbers"),
        ("[arms.'a b']", "a b: it cannot be the name of a folder; write a-b"),
        ("[arms.a]\nrl.lr = 1\n[grid]\nrl.lr = [1]", "rl.lr: arm and rl.lr both set it"),
        ("[compare]\npool = ['x']\n[grid]\na.b = [1]", "compare.pool: x: no axis has this name"),
        ("[compare]\nbaseline = 'x'\n[arms.y]", "compare.baseline: x: no row has this name"),
        ("[compare.baseline]\ny = 'x'\n[arms.y]", "compare.baseline: x: no row has this name"),
        ("[tests.t.agents.prover]\ntemperature = 0", "tests.t.agents: a test plays the agents as"),
        ("[arms.a]\n[arms.a-t-base]\n[tests.t]", "a-t-base: two cells have this name"),
    ],
)
def test_a_problem_names_the_place_and_the_remedy(text: str, told: str) -> None:
    assert told in str(study_of("x", tomllib.loads(text)).failure())


# ------------------------------------------------------------------------------------------- table

IDS = tuple(map(str, range(30)))


def outcomes(whole: Study, rng: np.random.Generator) -> dict[str, CellResult]:
    """Tests with one game about each of 30 datapoints, right in some share of them."""

    def test(share: float) -> Verdicts:
        return Verdicts(IDS, tuple(map(int, rng.random(30) < share)), 1)

    return {
        cell.name: CellResult(
            {"after": test(0.7)} if cell.tested else {"before": test(0.4), "after": test(0.7)},
            {"replies": 10.0 * number, "dollars": None if number == 3 else 0.5},
        )
        for number, cell in enumerate(cells(whole))
    }


COMPARED = "seeds = 3\n[arms.a]\n[arms.b]\n[arms.c]\n[tests.t]\n[compare]\nbaseline = 'a'"


def test_a_row_has_intervals_over_its_seeds_and_all_datapoints() -> None:
    whole = study(COMPARED)
    done = outcomes(whole, np.random.default_rng(1))
    table = tabulate(whole, done)
    assert [(row.label, row.cells) for row in table.rows] == [("a", 3), ("b", 3), ("c", 3)]
    seeds = [f"b-seed-{seed}" for seed in (1, 2, 3)]
    for name, cell, test in (
        ("before", "", "before"),
        ("after", "", "after"),
        ("t: before", "-t-base", "after"),
        ("t: after", "-t-latest", "after"),
    ):
        matrix = [done[seed + cell].tests[test].accuracies for seed in seeds]
        assert table.rows[1].accuracies[name] == crossed_share(matrix)
    assert table.rows[1].means == {"replies": 10 * (9 + 12 + 15) / 3, "dollars": 0.5}
    assert table.rows[0].means["dollars"] is None


def test_differences_are_paired_by_seed_and_their_p_values_corrected() -> None:
    whole = study(COMPARED)
    done = outcomes(whole, np.random.default_rng(1))
    table = tabulate(whole, done)

    def matrix(arm: str, test: str) -> list[list[float]]:
        return [done[f"{arm}-seed-{seed}"].tests[test].accuracies for seed in (1, 2, 3)]

    rises = [paired_difference(matrix(a, "after"), matrix(a, "before")) for a in "abc"]
    assert [one.comparison.difference for one in table.rises] == rises
    assert [one.comparison.p for one in table.rises] == [one.p for one in rises]
    assert [one.p_holm for one in table.rises] == list(holm([one.p for one in rises]))
    over = [paired_difference(matrix(a, "after"), matrix("a", "after")) for a in "bc"]
    assert [(one.label, one.over) for one in table.over_baseline] == [("b", "a"), ("c", "a")]
    assert [one.comparison.difference for one in table.over_baseline] == over


def test_only_seeds_that_both_have_are_compared() -> None:
    whole = study(COMPARED)
    done = outcomes(whole, np.random.default_rng(1))
    for name in ("a-seed-1", "b-seed-3"):
        del done[name]
    table = tabulate(whole, done)
    assert [(one.label, one.comparison.seeds[0]) for one in table.over_baseline] == [
        ("b", 1),
        ("c", 2),
    ]
    assert {(one.comparison.p, one.p_holm) for one in table.over_baseline} == {(None, None)}
    assert table.over_baseline[0].comparison.difference == paired_difference(
        [done["b-seed-2"].tests["after"].accuracies], [done["a-seed-2"].tests["after"].accuracies]
    )


def test_a_study_of_which_nothing_is_done_has_an_empty_table() -> None:
    assert tabulate(study(COMPARED), {}) == ((), (), ())


# ------------------------------------------------------------------------------------------- power


@pytest.mark.parametrize(("seed", "rest"), [(0.05, 0.4), (0.02, 0.5)])
def test_the_seeds_that_are_proposed_find_the_difference_in_four_of_five_studies(
    seed: float, rest: float
) -> None:
    rng = np.random.default_rng(3)

    def experiment(seeds: int) -> Any:
        noise = rest * rng.normal(size=(seeds, 400)) + 0.1 * rng.normal(size=400)
        return 0.03 + seed * rng.normal(size=(seeds, 1)) + noise

    # Of a first study so large that it knows the variances.
    number = seeds_needed(experiment(200), 0.03)
    assert number is not None
    for seeds, least, most in ((number, 0.76, 0.92), (max(2, number // 2), 0.2, 0.76)):
        # The t-test of `paired_difference` rejects where this interval excludes 0.
        intervals = [crossed_interval(experiment(seeds)) for _ in range(200)]
        found = [one.low > 0 or one.high < 0 for one in intervals]
        assert least <= np.mean(found) <= most


@given(st.integers(2, 6), st.integers(2, 8), st.integers(0, 2**30))
def test_a_larger_difference_needs_no_more_seeds(seeds: int, problems: int, draw: int) -> None:
    apart = np.random.default_rng(draw).integers(-1, 2, (seeds, problems))
    found = [seeds_needed(apart, difference) for difference in (0.8, 0.4, 0.1)]
    known = [float("inf") if one is None else one for one in found]
    assert known == sorted(known)


def test_no_number_of_seeds_takes_the_luck_of_few_problems_away() -> None:
    rng = np.random.default_rng(0)
    apart = 0.5 * rng.normal(size=10) + 0.01 * rng.normal(size=(5, 10))
    assert seeds_needed(apart, 0.03) is None
    assert seeds_needed(apart[:1], 0.9) is None
