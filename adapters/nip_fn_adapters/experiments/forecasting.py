"""Forecasts from Python: what a run would ask for, and its price, before anything is sent."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from nip_fn import __version__
from nip_fn.params.run import HyperParameters
from nip_fn.run.events import RunStarted
from nip_fn_adapters.costs.forecast import StageForecast, Workload, forecast_stages
from nip_fn_adapters.costs.prices import Prices, cost, price_of, sum_known
from nip_fn_adapters.experiments.budgets import read_money
from nip_fn_adapters.experiments.concurrency import asynchronous
from nip_fn_adapters.experiments.datasets import describe, suitable_data
from nip_fn_adapters.experiments.outcomes import outcome
from nip_fn_adapters.experiments.plans import New, plan, warn_of_unused
from nip_fn_adapters.experiments.settings import Settings, as_written
from nip_fn_adapters.experiments.watching import NOBODY, Tell, Watch
from nip_fn_adapters.experiments.wiring import check_apis


class WorkloadRange(NamedTuple):
    """Requests and tokens, and their cost in dollars (None where a price is unknown).

    expected: as expected.
    most: at most.
    dollars: the cost of either.
    """

    expected: Workload
    most: Workload
    dollars: tuple[float | None, float | None]


class RunForecast(NamedTuple):
    """The forecast of a run.

    params: its parameters.
    stages: for each stage the workload of each agent's model, or of each group that is trained.
    prices: of tokens.
    """

    params: HyperParameters
    stages: tuple[StageForecast, ...]
    prices: Prices

    @property
    def total(self) -> WorkloadRange:
        """The whole run."""
        return self.sum(self.stages)

    def sum(self, stages: Sequence[StageForecast]) -> WorkloadRange:
        """Some of its stages together."""
        priced = [
            (stage, price_of(self.prices, self.params.agents[stage.agent], tuned=stage.tuned))
            for stage in stages
        ]
        return WorkloadRange(
            _sum([stage.expected for stage in stages]),
            _sum([stage.most for stage in stages]),
            (
                sum_known(cost(stage.expected.tokens, price) for stage, price in priced),
                sum_known(cost(stage.most.tokens, price) for stage, price in priced),
            ),
        )


@outcome
def forecast(
    settings: Settings | None = None,
    *,
    provider: str | None = None,
    runs: Path | str = "runs",
    prices: Path | None = None,
    tell: Tell | None = None,
    watch: Watch = NOBODY,
) -> RunForecast:
    """Forecast a run that `train` would begin; send nothing: `nip-fn train --dry-run`.

    Args:
        settings: As for `train`.
        provider: The provider of all agents, whatever the settings say of them.
        runs: The folder of earlier runs that agents may continue from.
        prices: A file of prices, which go before those that are known.
        tell: Takes lines for people; None: nothing is printed.
        watch: See `Watch`.

    Returns:
        The requests, tokens and cost of each stage.
    """
    watch = watch.telling(tell)
    table = as_written(settings, watch)
    new = plan(table, provider, Path(runs), watch)
    warn_of_unused(table, provider, [new], watch)
    check_apis(new.params)
    return forecast_plan(new, read_money(file=prices).prices, watch)


forecast_async = asynchronous(forecast)


def forecast_plan(new: New, prices: Prices, watch: Watch = NOBODY) -> RunForecast:
    """The forecast of a planned run."""
    data = suitable_data(new.params, watch)
    watch.tell(describe(data, new.params))
    start = RunStarted(new.params, data.info, __version__, new.lineages)
    return RunForecast(new.params, tuple(forecast_stages(start, data.source)), prices)


def sum_ranges(ranges: Sequence[WorkloadRange]) -> WorkloadRange:
    """Some runs together."""
    low, high = (sum_known(workload.dollars[end] for workload in ranges) for end in range(2))
    expected, most = (
        _sum([workload.expected for workload in ranges]),
        _sum([workload.most for workload in ranges]),
    )
    return WorkloadRange(expected, most, (low, high))


def _sum(workloads: Sequence[Workload]) -> Workload:
    return Workload(*map(sum, zip(*workloads, strict=True)))
