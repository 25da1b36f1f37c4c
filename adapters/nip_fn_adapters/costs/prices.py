"""What tokens cost: prices by model, and how many tokens there are in what has not been asked yet.

A price table is TOML, with a table `models."NAME"` for each model and a table `fine_tuned."NAME"`
for what is trained of it; `prices.toml` beside this file has the listed ones.  Where no price is
known the cost is None: unknown, and never 0.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from math import ceil, fsum
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta
from returns.result import Failure, Result, Success

from nip_fn.params.agent import AgentParameters
from nip_fn.params.run import HyperParameters
from nip_fn.prompts.chat import Chat
from nip_fn.training.jobs import Job, TrainingRow
from nip_fn.training.tokens import _replies

MILLION = 1_000_000

Dollars = Annotated[float, Meta(ge=0.0)]


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Dollars for a million tokens."""

    prompt: Dollars
    completion: Dollars
    cached: Dollars | None = None  # of the prompt's, those at hand; None: as any other
    training: Dollars | None = None  # in a row's text, for each epoch; None: not known
    batch: Annotated[float, Meta(ge=0.0, le=1.0)] = 1.0  # what the batch API asks, as a share


FREE = Price(prompt=0.0, completion=0.0, training=0.0)


class PriceTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices by the name of a base model."""

    models: dict[str, Price] = {}
    fine_tuned: dict[str, Price] = {}  # of what is trained of it, and of training it


class Prices(NamedTuple):
    """All that is known of prices; the user's own go before the listed ones."""

    own: PriceTable
    listed: PriceTable


class Usage(NamedTuple):
    """Tokens."""

    prompt: float = 0  # cached ones included
    cached: float = 0
    completion: float = 0
    trained: float = 0  # rows' tokens times epochs


def total(usages: Iterable[Usage]) -> Usage:
    """The tokens of all of them together."""
    sums = [fsum(column) for column in zip(*usages, strict=True)]
    return Usage(*sums)


def cost(usage: Usage, price: Price | None) -> float | None:
    """Dollars; None where there are tokens of unknown price.

    >>> cost(Usage(prompt=1_000_000, cached=400_000, completion=10), Price(1.0, 2.0, cached=0.5))
    0.80002
    """
    if not any(usage):
        return 0.0
    if price is None or (usage.trained and price.training is None):
        return None
    at_hand = min(usage.cached, usage.prompt)
    return (
        (usage.prompt - at_hand) * price.prompt
        + at_hand * (price.prompt if price.cached is None else price.cached)
        + usage.completion * price.completion
        + usage.trained * (price.training or 0.0)
    ) / MILLION


def in_batches(price: Price) -> Price:
    """What the same tokens cost through the batch API."""
    cached = None if price.cached is None else price.cached * price.batch
    return msgspec.structs.replace(
        price,
        prompt=price.prompt * price.batch,
        completion=price.completion * price.batch,
        cached=cached,
    )


def sum_known(dollars: Iterable[float | None]) -> float | None:
    """The sum; None where one of them is unknown."""
    known = list(dollars)
    return None if None in known else fsum(value for value in known if value is not None)


# ------------------------------------------------------------------------------------------ tables


def parse_prices(text: str) -> Result[PriceTable, str]:
    """The table that a TOML text holds; or what is wrong with it, in one line."""
    try:
        return Success(msgspec.convert(tomllib.loads(text), PriceTable))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        return Failure(f"not valid TOML: {error}")
    except msgspec.ValidationError as error:
        return Failure(f"not a table of prices: {error}")


@cache
def listed_prices() -> PriceTable:
    """Public prices, as of the day that their file names."""
    return parse_prices(files(__package__).joinpath("prices.toml").read_text("utf-8")).unwrap()


def overlay(base: PriceTable, over: PriceTable) -> PriceTable:
    """The prices of `base`, but for the models that `over` names."""
    return PriceTable({**base.models, **over.models}, {**base.fine_tuned, **over.fine_tuned})


# What may follow the name of a model in the name of one of its snapshots.
SNAPSHOT = re.compile(r"-(?:\d{4}-\d{2}-\d{2}|\d{8}|\d{4}|latest)")


def find(table: Mapping[str, Price], model: str) -> Price | None:
    """The price of a model by its name, that of a snapshot of it, or OpenRouter's PROVIDER/NAME.

    The longest name in the table wins.  A model whose name only begins like another's is another.

    >>> table = {"gpt-4o": Price(2.5, 10.0), "gpt-4o-2024-05-13": Price(5.0, 15.0)}
    >>> find(table, "gpt-4o-2024-08-06").prompt, find(table, "openai/gpt-4o-2024-05-13").prompt
    (2.5, 5.0)
    >>> find(table, "gpt-4o-mini")
    """
    names = [model, model.partition("/")[2]]
    known = [entry for entry in table for name in names if _is_of(entry, name)]
    return table[max(known, key=len)] if known else None


def _is_of(entry: str, name: str) -> bool:
    rest = name.removeprefix(entry)
    return name.startswith(entry) and (not rest or SNAPSHOT.fullmatch(rest) is not None)


def is_free(agent: AgentParameters) -> bool:
    """Whether no provider is paid for the agent's tokens."""
    own = agent.use_dummy_api or agent.model_provider in ("local", "SelfHosted")
    return own or (agent.model_provider == "OpenRouter" and agent.model_name.endswith(":free"))


def price_of(prices: Prices, agent: AgentParameters, *, tuned: bool) -> Price | None:
    """The price of the agent's model, or of what was trained of it and of training it.

    None where it is unknown.  What runs here or on a server of one's own is free, unless the user's
    own prices name it.
    """
    model = agent.model_name
    if model.startswith("ft:"):
        model, tuned = model.split(":")[1], True
    if is_free(agent):
        found = find(prices.own.fine_tuned, model) if tuned else None
        found = found or find(prices.own.models, model) or FREE
        return msgspec.structs.replace(found, training=found.training or 0.0)
    tables = [table.fine_tuned if tuned else table.models for table in prices]
    listed = find(tables[0], model) or find(tables[1], model)
    return in_batches(listed) if listed and agent.use_batch_api else listed


def unpriced(prices: Prices, params: HyperParameters) -> tuple[str, ...]:
    """The models that a run needs and that have no known price, in words; () where all have one."""
    problems = []
    for agent in params.agents:
        base, tuned = (price_of(prices, agent, tuned=tuned) for tuned in (False, True))
        trains = bool(params.rl.num_iterations) and not agent.freeze_agent
        switches = trains and params.text_rl.switch_adapters
        name = f"agents.{agent.name}: {agent.model_name}"
        if base is None:
            problems.append(name)
        if tuned is None and (switches or agent.load_checkpoint_and_parameters):
            problems.append(f"{name}, fine-tuned")
        if trains and (tuned is None or tuned.training is None):
            problems.append(f"{name}, its training")
    return tuple(problems)


MOST_TOKENS_A_MESSAGE, MOST_TOKENS_A_CHAT = 16, 64  # whatever a template puts around
BYTES_A_TRAINED_TOKEN = 2  # half of what there are, so prompts may be counted for each reply


def most_prompt(chat: Chat) -> int:
    """More tokens than the prompt can have: tokenizers that go by bytes give one a byte at most."""
    return MOST_TOKENS_A_CHAT + sum(
        len(message.content.encode("utf-8", "replace"))
        + len((message.name or "").encode("utf-8", "replace"))
        + MOST_TOKENS_A_MESSAGE
        for message in chat
    )


def most_training(job: Job) -> int:
    """More tokens than a training is paid for: one for every two bytes, times the epochs."""
    return job.num_epochs * sum(map(_most_row, job.rows))


def _most_row(row: TrainingRow) -> int:
    sizes = [len(text.encode("utf-8", "replace")) for text in _replies(row)]
    return ceil((most_prompt(row.prompt) + sum(sizes)) / BYTES_A_TRAINED_TOKEN)
