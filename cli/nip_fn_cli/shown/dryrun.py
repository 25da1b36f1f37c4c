"""`nip-fn train --dry-run`: the requests, tokens and cost of a run, before anything is sent."""

import re
from collections.abc import Mapping

from returns.pipeline import is_successful

from nip_fn.config.hosting import is_trained, provider_kind
from nip_fn.params.agent import agent_group, max_tokens
from nip_fn.params.run import HyperParameters
from nip_fn_adapters.costs.forecast import SELECTED_SHARE
from nip_fn_adapters.experiments.budgets import in_dollars, model_of
from nip_fn_adapters.experiments.forecasting import RunForecast, WorkloadRange, sum_ranges
from nip_fn_adapters.providers.local.models import builtin_directory, cached_directory, require
from nip_fn_cli.shown.exits import command, say
from nip_fn_cli.shown.printing import print_rows

COLUMNS = {
    "requests": "requests",
    "replies": "replies",
    "prompt tokens": "prompt",
    "completion tokens": "completion",
    "trained tokens": "trained",
}


def print_forecast(forecast: RunForecast, budget: float | None, rate: float) -> None:
    """Print the forecast of a run at `rate` requests a second, and if it is within a budget."""
    _print(forecast, rate)
    _say_assumptions(forecast.params, rate)
    say_reasoning(forecast.params)
    say_memory(forecast.params)
    say_budget(forecast.total.dollars, budget)


def say_budget(costs: tuple[float | None, float | None], budget: float | None) -> None:
    """Tell whether the expected cost and the highest are within a budget, if there is one."""
    if budget is None:
        return
    expected, most = (_against(dollars, budget) for dollars in costs)
    say(f"budget {in_dollars(budget)}: the expected cost is {expected}, the highest {most}")


def _print(forecast: RunForecast, rate: float) -> None:
    titles = ("iteration", "stage", "", "model", *COLUMNS, "dollars", "time")
    rows = [
        (
            *(str(stage.iteration), stage.stage, stage.name),
            model_of(forecast.params.agents[stage.agent], stage.tuned),
            *row_cells(forecast.sum([stage]), rate),
        )
        for stage in forecast.stages
    ]
    total = ("total", "", "", "", *row_cells(forecast.total, rate))
    print("expected / at most, where they differ\n")
    print_rows(titles, [*rows, total], keys=3)


def print_forecasts(title: str, workloads: Mapping[str, WorkloadRange]) -> None:
    """Print what each of some runs would ask for and cost, by their names."""
    rows = [(name, *row_cells(workload, rate=1.0)[:-1]) for name, workload in workloads.items()]
    print("expected / at most, where they differ\n")
    print_rows((title, *COLUMNS, "dollars"), rows)


def print_sweep_forecast(cells_by_name: Mapping[str, RunForecast], budget: float | None) -> None:
    """Print what each cell of a study would ask for and cost, and the sum."""
    workloads = {name: cell.total for name, cell in cells_by_name.items()}
    whole = sum_ranges(list(workloads.values()))
    print_forecasts("cell", {**workloads, "total": whole})
    say_budget(whole.dollars, budget)


def row_cells(workload: WorkloadRange, rate: float) -> list[str]:
    """The cells of a row: `COLUMNS`, dollars, and the time at `rate` requests a second."""
    workloads = workload.expected, workload.most
    counts = [[f"{getattr(end, name):,.0f}" for end in workloads] for name in COLUMNS.values()]
    dollars = [in_dollars(cost) for cost in workload.dollars]
    times = [duration(end.requests / rate) for end in workloads]
    return [most if expected == most else f"{expected} / {most}"
            for expected, most in (*counts, dollars, times)]  # fmt: skip


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
        if provider_kind(agent) == "api" and limit < ROOM_TO_REASON and _REASONS.search(name):
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
        and provider_kind(agent) in ("local", "self-hosted")
        and builtin_directory(agent.model_name) is None
    ]
    for group, agent in {agent_group(agent): agent for agent in ours}.items():
        subject = f"memory to train {group}"
        folder = cached_directory(agent.model_name)
        if folder is None or not is_successful(require("torch", "transformers", "peft")):
            doctor = command("nip-fn", "doctor", "--model", agent.model_name)
            say(f"{subject}: {doctor} estimates it")
            continue
        from nip_fn_adapters.providers.local.memory import training_memory

        memory = training_memory(
            str(folder),
            lora_rank=agent.lora_rank if agent.use_lora else None,
            checkpointing=agent.gradient_checkpointing,
            numbers=agent.base_precision,
        )
        words = memory.unwrap() if is_successful(memory) else memory.failure()
        say(f"{subject}, on a machine such as this: {words}")


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
