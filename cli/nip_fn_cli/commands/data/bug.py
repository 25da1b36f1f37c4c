"""`nip-fn data bug`: buggy solutions out of right ones, written by a model."""

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec.structs import replace
from returns.result import Result

from nip_fn.config.presets import with_preset
from nip_fn.errors import Problem
from nip_fn.game.reply import Completion
from nip_fn.keys import key
from nip_fn.params.run import HyperParameters
from nip_fn.run.ports import Sampler, Unanswered
from nip_fn.run.request import Request
from nip_fn_adapters.costs.budget import Budget, tokens_of
from nip_fn_adapters.costs.prices import Price, cost, price_of
from nip_fn_adapters.data.bugfile import BugFile, open_bug_file
from nip_fn_adapters.data.bugmaking import WRITER, BugWriter
from nip_fn_adapters.experiments.budgets import check_budget, in_dollars, lost_line, open_budget
from nip_fn_adapters.experiments.datasets import opened_data
from nip_fn_adapters.experiments.settings import resolve, with_base_url, with_provider
from nip_fn_adapters.experiments.wiring import wire
from nip_fn_cli.commands.data.making import make, tasks_or_die
from nip_fn_cli.commands.data.opening import DatasetArgument
from nip_fn_cli.commands.data.proving import (
    JobsOption,
    Proving,
    SecondsOption,
    UnsafeOption,
    sandbox_or_die,
)
from nip_fn_cli.config import overrides
from nip_fn_cli.shown.exits import or_exit, say
from nip_fn_cli.shown.options import (
    BaseUrlOption,
    BudgetOption,
    PricesOption,
    ProviderOption,
    SetOption,
    SkipOption,
    money_or_die,
)
from nip_fn_cli.shown.watching import TERMINAL


def bug_command(
    dataset: DatasetArgument,
    out: Annotated[
        Path,
        typer.Option(
            "--out", help="The .jsonl file to write, which is a DATASET itself.", metavar="FILE"
        ),
    ],
    model: Annotated[str, typer.Option(help="The model that writes the bugs.", metavar="NAME")],
    provider: ProviderOption = "local",
    base_url: BaseUrlOption = None,
    wanted: Annotated[
        int, typer.Option(help="The number of bugs to make of each right solution.", min=1, max=100)
    ] = 2,
    attempts: Annotated[
        int, typer.Option(help="The most requests for each right solution.", min=1)
    ] = 3,
    max_tokens: Annotated[int, typer.Option(help="The most tokens of a reply.", min=1)] = 2048,
    temperature: Annotated[
        float | None, typer.Option(help="The sampling temperature.", min=0.0)
    ] = None,
    budget: BudgetOption = None,
    prices: PricesOption = None,
    limit: Annotated[
        int | None, typer.Option(help="The most right solutions to use.", min=1)
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed by which replies are drawn.")] = 0,
    jobs: JobsOption = None,
    seconds: SecondsOption = 1.0,
    unsafe: UnsafeOption = False,
    sets: SetOption = None,
    skip_bad_rows: SkipOption = False,
) -> None:
    """Make buggy solutions out of right ones by asking a model for them.

    A bug is kept only if tests show it: the program ends in time, gives a wrong answer in
    at least one of them, and the right one in another.  The same command continues where an earlier
    one was stopped, even by its budget; no reply is requested twice.
    """
    written = overrides(
        model=model, base_url=base_url, dataset=dataset, skip_bad_rows=skip_bad_rows, sets=sets
    )
    proving = Proving(jobs, unsafe, seconds)
    money = money_or_die(budget, prices)
    params = _writer_params(written, provider)
    check_budget(params, money)
    (agent,) = params.agents
    price = price_of(money.prices, agent, tuned=False)
    folder = out.with_name(f"{out.name}.run")  # for files that a provider needs
    data, models = opened_data(params, TERMINAL), wire(params, folder, TERMINAL)
    tasks, sandbox = tasks_or_die(data, limit), sandbox_or_die(proving)
    options: dict[str, object] = {
        "hash": data.info.hash,
        "wanted": wanted,
        "limit": limit,
        "seed": seed,
        "seconds": seconds,
        "provider": provider,
        "model": agent.model_name,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "attempts": attempts,
    }
    with closing(or_exit(open_bug_file(out, options))) as file:
        if file.entries:
            say(f"resuming {out}: {len(file.entries)} right solutions are done")
        account = open_budget(folder, money.budget, _paid(file, price))
        if models.meter is not None:
            models.meter.open(account, lambda request: price)
        writer = BugWriter(
            ask=file.remembered(_recorded(models.sampler, account, price)),
            model=agent.model_name,
            max_tokens=max_tokens,
            temperature=temperature,
            attempts=attempts,
            wanted=wanted,
            key=key(seed),
            sandbox=sandbox,
            limits=replace(proving.limits, give_up=True),
            free=asyncio.Semaphore(proving.at_a_time),
        )
        try:
            make(data, tasks, writer, file, out, account)
        finally:
            used = tokens_of(file.replies.values())
            tokens, dollars = used.prompt + used.completion, in_dollars(_paid(file, price))
            print(f"{len(file.replies):,} replies, {tokens:,.0f} tokens, {dollars}")
            account.close()
            if lost := lost_line(account.unrecorded):
                say(lost)


def _recorded(sampler: Sampler, budget: Budget, price: Price | None) -> Sampler:
    """The sampler, all of whose replies are noted in the file of bugs as soon as they come."""

    async def sample(request: Request) -> Result[tuple[Completion | Unanswered, ...], Problem]:
        answers = await sampler(request)
        budget.record(cost(tokens_of(answers.value_or(())), price) or 0.0)
        return answers

    return sample


def _paid(file: BugFile, price: Price | None) -> float | None:
    """Dollars for all that a model replied; None where its price is unknown."""
    return cost(tokens_of(file.replies.values()), price)


def _writer_params(written: dict[str, Any], provider: str | None) -> HyperParameters:
    """The parameters that bear on the data, and on the one agent that writes bugs."""
    params = with_base_url(resolve(with_provider(with_preset(written), provider)), TERMINAL)
    writer = replace(params.agents[0], name=WRITER, shared_model_group=None, freeze_agent=True)
    return replace(params, agents=(writer,))
