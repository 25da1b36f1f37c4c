"""Ray Tune's algorithms of search and of early stopping, each as a function.

Tune decides and does not run: its own trials would keep their states beside the recordings, and a
driver that is killed would take them along.
"""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

from nip_fn.config.search import Tried
from nip_fn.config.study import Draws, Search
from nip_fn.errors import Problem
from nip_fn.keys import fold_in, key, randint

Stopper = Callable[[str, int, float], bool]


def missing(search: Search) -> Problem | None:
    """A problem if a package is not installed that a search needs."""
    needs = {
        "ray": search.stop is not None or search.algorithm == "optuna",
        "optuna": search.algorithm == "optuna",
    }
    for package, needed in needs.items():
        if needed and find_spec(package) is None:
            remedy = "install it: pip install 'nip-fn[search]'"
            return Problem(f"{package} is not installed", "search", remedy)
    return None


def suggest(search: Search, draws: Draws, number: int, known: Sequence[Tried]) -> dict[str, Any]:
    """The values of a draw by address, by Optuna's tree-structured Parzen estimator.

    A function of its arguments: the seed is of its number, and what is known are results.

    Args:
        search: The metric, and if it is to be large or small.
        draws: The values to choose from.
        number: Of the draw.
        known: The draws that have a result.
    """
    import optuna
    from ray import tune
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    seed = randint(fold_in(key(draws.seed), "search", number), 2**32)
    spaces = {address: _domain(tune, space) for address, space in draws.spaces.items()}
    algorithm = OptunaSearch(
        OptunaSearch.convert_search_space(spaces),
        metric=search.metric,
        mode=search.mode,
        seed=seed,
        points_to_evaluate=[_point(draws, one.values) for one in known],
        evaluated_rewards=[one.result for one in known],
    )
    found = algorithm.suggest(str(number))
    return {
        address: space[found[address]] if isinstance(space, list) else found[address]
        for address, space in draws.spaces.items()
    }


def _domain(tune: Any, space: Any) -> Any:
    if isinstance(space, list):  # by place: a value may be a list itself
        return tune.choice(range(len(space)))
    ((shape, (low, high)),) = space.items()
    match shape:
        case "integer":
            return tune.randint(low, high + 1)
        case "log":
            return tune.loguniform(low, high)
    return tune.uniform(low, high)


def _point(draws: Draws, values: dict[str, Any]) -> dict[str, Any]:
    return {
        address: space.index(values[address]) if isinstance(space, list) else values[address]
        for address, space in draws.spaces.items()
    }


def asha(search: Search, iterations: int) -> Stopper:
    """Asynchronous successive halving (Li et al. 2020): should a cell with this result stop?

    A function of (cell, iteration, value) that remembers what it was told: the same results in the
    same order lead to the same decisions.

    Args:
        search: The metric, the grace period and the reduction factor.
        iterations: The most of any cell.
    """
    from ray.tune.experiment import Trial
    from ray.tune.schedulers import ASHAScheduler, TrialScheduler

    scheduler = ASHAScheduler(
        time_attr="iteration",
        metric=search.metric,
        mode=search.mode,
        max_t=iterations,
        grace_period=search.grace_period,
        reduction_factor=search.reduction_factor,
        stop_last_trials=False,
    )
    trials: dict[str, Any] = {}

    def stops(cell: str, iteration: int, value: float) -> bool:
        if cell not in trials:
            trials[cell] = Trial("cell", trial_id=cell, stub=True)
            scheduler.on_trial_add(None, trials[cell])
        result = {"iteration": iteration, search.metric: value}
        decided = scheduler.on_trial_result(None, trials[cell], result)
        # At its end there is nothing left to stop.
        return bool(decided == TrialScheduler.STOP) and iteration < iterations

    return stops
