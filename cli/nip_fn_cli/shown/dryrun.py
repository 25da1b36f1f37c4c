"""`nip-fn train --dry-run`: the requests, tokens and cost of a run, before anything is sent."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from returns.pipeline import is_successful

from nip_fn import __version__
from nip_fn.config.hosting import is_trained, kind_of
from nip_fn.params.agent import agent_group, max_tokens
from nip_fn.params.run import HyperParameters
from nip_fn.run.events import RunStarted
from nip_fn_adapters.costs.forecast import SELECTED_SHARE, StageForecast, Workload, forecast
from nip_fn_adapters.costs.prices import Prices, cost, price_of, sum_known
from nip_fn_adapters.experiments.budgets import Money, in_dollars, model_of
from nip_fn_adapters.experiments.datasets import describe, suitable_data
from nip_fn_adapters.experiments.plans import New
from nip_fn_adapters.providers.local.models import BUILTIN, cached_directory, require
from nip_fn_cli.shown.exits import command, say
from nip_fn_cli.shown.printing import print_rows
from nip_fn_cli.shown.watching import TERMINAL

COLUMNS = {
    "requests": "requests",
    "replies": "replies",
    "prompt tokens": "prompt",
    "completion tokens": "completion",
    "trained tokens": "trained",
}


def dry_run(new: New, money: Money, rate: float) -> None:
    """Print the forecast of a run at `rate` requests a second; send nothing."""
    data = suitable_data(new.params, TERMINAL)
    say(describe(data, new.params))
    start = RunStarted(new.params, data.info, __version__, new.lineages)
    rows = forecast(start, data.source)
    _print(rows, new.params, money.prices, rate)
    _say_assumptions(new.params, rate)
    say_reasoning(new.params)
    say_memory(new.params)
    say_budget(_costs(rows, new.params, money.prices), money.budget)


def say_budget(costs: tuple[float | None, float | None], budget: float | None) -> None:
    """Tell whether the expected cost and the highest are within a budget, if there is one."""
    if budget is None:
        return
    expected, most = (_against(one, budget) for one in costs)
    say(f"budget {in_dollars(budget)}: the expected cost is {expected}, the highest {most}")


def _print(
    rows: Sequence[StageForecast], params: HyperParameters, prices: Prices, rate: float
) -> None:
    titles = ("iteration", "stage", "", "model", *COLUMNS, "dollars", "time")
    told = [
        (
            *(str(row.iteration), row.stage, row.name),
            model_of(params.agents[row.agent], row.tuned),
            *cells([row], params, prices, rate),
        )
        for row in rows
    ]
    total = ("total", "", "", "", *cells(rows, params, prices, rate))
    print("expected / at most, where they differ\n")
    print_rows(titles, [*told, total], keys=3)


class Counted(NamedTuple):
    """The requests and tokens of some stages and their cost, as expected and at most."""

    expected: Workload
    most: Workload
    dollars: tuple[float | None, float | None]


def counted(rows: Sequence[StageForecast], params: HyperParameters, prices: Prices) -> Counted:
    """The sum over some stages of a run."""
    expected, most = (_sum([getattr(row, name) for row in rows]) for name in ("expected", "most"))
    return Counted(expected, most, _costs(rows, params, prices))


def summed(parts: Sequence[Counted]) -> Counted:
    """The sum over some runs."""
    expected, most = (_sum([getattr(one, name) for one in parts]) for name in ("expected", "most"))
    low, high = (sum_known(one.dollars[i] for one in parts) for i in range(2))
    return Counted(expected, most, (low, high))


def cells(
    rows: Sequence[StageForecast], params: HyperParameters, prices: Prices, rate: float
) -> list[str]:
    """The cells of a row: those of `shown`, for some stages of a run."""
    return shown(counted(rows, params, prices), rate)


def shown(one: Counted, rate: float) -> list[str]:
    """The cells of a row: `COLUMNS`, dollars, and the time at `rate` requests a second."""
    both = one.expected, one.most
    counts = [[f"{getattr(one, name):,.0f}" for one in both] for name in COLUMNS.values()]
    dollars = [in_dollars(one) for one in one.dollars]
    times = [duration(one.requests / rate) for one in both]
    return [most if expected == most else f"{expected} / {most}"
            for expected, most in (*counts, dollars, times)]  # fmt: skip


def _sum(workloads: Sequence[Workload]) -> Workload:
    return Workload(*map(sum, zip(*workloads, strict=True)))


def _costs(
    rows: Sequence[StageForecast], params: HyperParameters, prices: Prices
) -> tuple[float | None, float | None]:
    """The expected cost and the highest, in dollars; None where a price is unknown."""
    priced = [(row, price_of(prices, params.agents[row.agent], tuned=row.tuned)) for row in rows]
    return (
        sum_known(cost(row.expected.tokens, price) for row, price in priced),
        sum_known(cost(row.most.tokens, price) for row, price in priced),
    )


def _against(dollars: float | None, budget: float) -> str:
    if dollars is None:
        return "unknown"
    return "within it" if dollars <= budget else "over it"


def duration(seconds: float) -> str:
    """A time for people."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


# Of models that reason out of sight, as of 2025-11.  A name that is missing costs a hint.
_REASONS = re.compile(
    r"\bo[134]\b|\bgpt-5(?!.*chat)|gpt-oss|deepseek-r|qwq|magistral|gemini-(2\.5|3)|grok-(4|3-mini)|"
    r"think|reason|\br1\b",
    re.IGNORECASE,
)
ROOM_TO_REASON = 4000  # tokens


def say_reasoning(params: HyperParameters) -> None:
    """Warn of limits that hidden reasoning would use up, as far as a model's name tells it."""
    for agent in params.agents:
        limit, name = max_tokens(agent), agent.model_name
        if kind_of(agent) == "api" and limit < ROOM_TO_REASON and _REASONS.search(name):
            say(
                f"{agent.name}: {name} may reason out of sight, within its limit of {limit:,} "
                "tokens a reply, and then write nothing: raise "
                f"agents.{agent.name}.max_tokens_per_message, or set "
                f"agents.{agent.name}.extra_request_fields.reasoning_effort"
            )


def say_memory(params: HyperParameters) -> None:
    """Tell what memory trainings by us take, if the model's configuration is on this machine.

    The built-in models are left out: they take less than a GB, and the imports seconds.
    """
    ours = [
        agent
        for agent in params.agents
        if is_trained(params, agent)
        and kind_of(agent) in ("local", "self-hosted")
        and agent.model_name not in BUILTIN
    ]
    for group, agent in {agent_group(agent): agent for agent in ours}.items():
        told = f"memory to train {group}"
        folder = cached_directory(agent.model_name)
        if folder is None or not is_successful(require("torch", "transformers", "peft")):
            doctor = command("nip-fn", "doctor", "--model", agent.model_name)
            say(f"{told}: {doctor} estimates it")
            continue
        from nip_fn_adapters.providers.local.memory import training_memory

        memory = training_memory(
            str(folder),
            lora_rank=agent.lora_rank if agent.use_lora else None,
            checkpointing=agent.gradient_checkpointing,
            numbers=agent.base_precision,
        )
        known = memory.unwrap() if is_successful(memory) else memory.failure()
        say(f"{told}, on a machine such as this: {known}")


def _say_assumptions(params: HyperParameters, rate: float) -> None:
    say(
        "at most: no verifier decides before its last turn, every reply is as long as allowed, and "
        "every possible training example is selected"
    )
    say(
        f"expected: verifiers decide at {params.dummy.decision_rate:.0%} of their turns "
        "(dummy.decision_rate), replies are as long as prompts ask for, and "
        f"{SELECTED_SHARE:.0%} of the possible training examples are selected"
    )
    say(
        "not counted: retries of unusable replies, the discount on cached prompts, and the time of "
        "trainings; a token is estimated as four characters"
    )
    say(f"time: at {rate:g} requests a second (--rate), the number in flight over their latency")
