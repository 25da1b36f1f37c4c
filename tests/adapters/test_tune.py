"""Ray Tune's algorithms as functions: equal results in an equal order, equal decisions."""

import math
from typing import Any

import pytest

from nip_fn.config.search import Tried
from nip_fn.config.study import Draws, Search
from nip_fn_adapters.experiments.studies.tune import Stopper, asha, suggest

SPACES: dict[str, Any] = {
    "rl.lr": {"log": [1e-6, 1e-2]},
    "malt.min_pair_margin": {"uniform": [0.0, 1.0]},
    "rl.num_epochs": {"integer": [1, 4]},
    "malt.pair_selection_method": [None, ["a"], "about_mean"],
}
DRAWS = Draws(30, 0, SPACES)


def loss(values: dict[str, Any]) -> float:
    """Small at lr 1e-4, margin 0.8 and the last method."""
    far = abs(math.log10(values["rl.lr"]) + 4) / 4 + abs(values["malt.min_pair_margin"] - 0.8)
    return far + (values["malt.pair_selection_method"] != "about_mean")


def searched(search: Search, sign: float) -> list[Tried]:
    known: list[Tried] = []
    for number in range(1, DRAWS.num + 1):
        values = suggest(search, DRAWS, number, known)
        known.append(Tried(f"draw-{number}", values, sign * loss(values)))
    return known


@pytest.mark.parametrize(("mode", "sign"), [("max", -1.0), ("min", 1.0)])
def test_optuna_searches_in_the_better_half_of_each_axis(mode: Any, sign: float) -> None:
    pytest.importorskip("optuna")
    search = Search(algorithm="optuna", mode=mode)
    known = searched(search, sign)
    for one in known:
        assert 1e-6 <= one.values["rl.lr"] <= 1e-2
        assert one.values["rl.num_epochs"] in (1, 2, 3, 4)
        assert one.values["malt.pair_selection_method"] in (None, ["a"], "about_mean")
    late = [one.values for one in known[15:]]
    right = [one["malt.min_pair_margin"] > 0.5 for one in late]
    assert sum(right) > 0.7 * len(right)
    chosen = [one["malt.pair_selection_method"] == "about_mean" for one in late]
    assert sum(chosen) > 0.7 * len(chosen)
    first, last = ([abs(one.result) for one in part] for part in (known[:15], known[15:]))
    assert sum(last) < 0.6 * sum(first)
    # A function of what is known: whoever asks again is told the same.
    assert suggest(search, DRAWS, 21, known[:20]) == known[20].values
    others = suggest(search, Draws(30, 1, SPACES), 21, known[:20])
    assert others != known[20].values


def stops_of(stopper: Stopper, sign: float) -> list[tuple[str, int]]:
    """The cells that are stopped, where cell N has the results N, and when."""
    found = []
    running = [str(number) for number in (3, 7, 1, 8, 2, 5, 4, 6)]
    for iteration in range(10):
        for cell in list(running):
            if stopper(cell, iteration, sign * int(cell)):
                found.append((cell, iteration))
                running.remove(cell)
    return found


@pytest.mark.parametrize(("mode", "sign"), [("max", 1), ("min", -1)])
def test_asha_stops_those_that_fall_behind_at_its_rungs(mode: Any, sign: int) -> None:
    pytest.importorskip("ray.tune")
    search = Search(stop="asha", mode=mode, grace_period=2, reduction_factor=2)
    # Whoever is worse than the median of those that came before it: at 2 below 5 and below 5; at 4,
    # after 3, 7 and 8, below 7 and below 6; at 8, after the same, below 7.
    found = [("1", 2), ("2", 2), ("5", 4), ("4", 4), ("6", 8)]
    assert stops_of(asha(search, 9), sign) == found
    # At its end there is nothing to stop.
    assert stops_of(asha(search, 8), sign) == found[:-1]
