"""Prices of tokens by model, and upper bounds on the tokens of requests before they are sent.

A price table is TOML, with a table `models."NAME"` for each model and a table `fine_tuned."NAME"`
for models trained from it; `prices.toml` beside this file has the listed prices.  The cost at an
unknown price is None, never 0: a budget that counted it as free would not be kept.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from math import fsum
from types import MappingProxyType
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta
from returns.result import Failure, Result, Success

from nip_fn.errors import Problem
from nip_fn.game.chat import Chat
from nip_fn.params.agent import AgentParameters
from nip_fn.params.run import HyperParameters

MILLION = 1_000_000

Dollars = Annotated[float, Meta(ge=0.0)]


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Dollars per million tokens."""

    prompt: Dollars
    completion: Dollars
    cached: Dollars | None = None  # prompt tokens from the provider's cache; None: as `prompt`
    training: Dollars | None = None  # tokens of the rows, for each epoch; None: unknown
    batch: Annotated[float, Meta(ge=0.0, le=1.0)] = 1.0  # price of the batch API, as a share


FREE = Price(prompt=0.0, completion=0.0, training=0.0)


class PriceTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices by the name of a base model; both mappings are read-only."""

    models: Mapping[str, Price] = {}
    fine_tuned: Mapping[str, Price] = {}  # of models trained from it, and of training them

    def __post_init__(self) -> None:
        """Freeze the mappings."""
        for name in self.__struct_fields__:
            frozen = MappingProxyType(dict(getattr(self, name)))
            msgspec.structs.force_setattr(self, name, frozen)


class Prices(NamedTuple):
    """All known prices; the user's own take precedence over the listed ones."""

    own: PriceTable
    listed: PriceTable


class Tokens(NamedTuple):
    """Numbers of tokens, by the way they are priced."""

    prompt: float = 0  # cached ones included
    cached: float = 0
    completion: float = 0
    trained: float = 0  # tokens of the rows times epochs


def total(tokens: Iterable[Tokens]) -> Tokens:
    """The sum of the tokens, exactly rounded, so that their order cannot matter.

    >>> total([Tokens(1, 0, 2), Tokens(3, 0, 0.5)])
    Tokens(prompt=4, cached=0, completion=2.5, trained=0)
    """
    # Counted tokens stay whole numbers; those of a forecast are means.
    return Tokens(
        *(
            sum(column) if all(isinstance(number, int) for number in column) else fsum(column)
            for column in zip(*tokens, strict=True)
        )
    )


def cost(tokens: Tokens, price: Price | None) -> float | None:
    """The price of the tokens in dollars; None if it is unknown.

    >>> cost(Tokens(prompt=1_000_000, cached=400_000, completion=10), Price(1.0, 2.0, cached=0.5))
    0.80002
    """
    # Tokens that were not used cost nothing at any price, known or not.
    if not any(tokens):
        return 0.0
    if price is None or (tokens.trained and price.training is None):
        return None
    cached = min(tokens.cached, tokens.prompt)
    return (
        (tokens.prompt - cached) * price.prompt
        + cached * (price.prompt if price.cached is None else price.cached)
        + tokens.completion * price.completion
        + tokens.trained * (price.training or 0.0)
    ) / MILLION


def in_batches(price: Price) -> Price:
    """The price of the same tokens through the batch API."""
    cached = None if price.cached is None else price.cached * price.batch
    return msgspec.structs.replace(
        price,
        prompt=price.prompt * price.batch,
        completion=price.completion * price.batch,
        cached=cached,
    )


def sum_known(dollars: Iterable[float | None]) -> float | None:
    """The sum; None if one of the amounts is unknown."""
    amounts = list(dollars)
    return None if None in amounts else fsum(value for value in amounts if value is not None)


# ------------------------------------------------------------------------------------------ tables


def parse_prices(text: str) -> Result[PriceTable, Problem]:
    """The price table in a TOML text; the caller adds the file to the problem."""
    try:
        return Success(msgspec.convert(tomllib.loads(text), PriceTable))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        return Failure(Problem(f"it is not valid TOML: {error}"))
    except msgspec.ValidationError as error:
        entry = '"MODEL" = { prompt = 1.0, completion = 2.0 }'
        problem = f"it is not a table of prices: {error}"
        return Failure(Problem(problem, remedy=f"give prices as {entry} below [models]"))


def prices_text(table: PriceTable) -> str:
    """The table as a TOML text, which `parse_prices` reads."""
    lines: list[str] = []
    for title in table.__struct_fields__:
        for name, price in getattr(table, title).items():
            # A name in TOML's quotes is written as in JSON.
            fields = msgspec.structs.asdict(price).items()
            settings = (f"{field} = {value!r}" for field, value in fields if value is not None)
            lines += [f"[{title}.{msgspec.json.encode(name).decode()}]", *settings, ""]
    return "\n".join(lines)


@cache
def listed_prices() -> PriceTable:
    """Public prices, as of the date in their file."""
    return parse_prices(files(__package__).joinpath("prices.toml").read_text("utf-8")).unwrap()


def overlay(base: PriceTable, over: PriceTable) -> PriceTable:
    """The prices of `base`, replaced by those of `over` for the models that it names."""
    return PriceTable({**base.models, **over.models}, {**base.fine_tuned, **over.fine_tuned})


# Suffixes by which providers mark the snapshots of a model.
SNAPSHOT = re.compile(r"-(?:\d{4}-\d{2}-\d{2}|\d{8}|\d{4}|latest)")


def find(table: Mapping[str, Price], model: str) -> Price | None:
    """The price of a model by its name, a snapshot's name, or OpenRouter's PROVIDER/NAME.

    The longest matching name in the table wins.  A common prefix alone is no match: gpt-4o-mini is
    not a snapshot of gpt-4o.

    >>> table = {"gpt-4o": Price(2.5, 10.0), "gpt-4o-2024-05-13": Price(5.0, 15.0)}
    >>> find(table, "gpt-4o-2024-08-06").prompt, find(table, "openai/gpt-4o-2024-05-13").prompt
    (2.5, 5.0)
    >>> find(table, "gpt-4o-mini")
    """
    names = [model, model.partition("/")[2]]
    matches = [entry for entry in table for name in names if _is_of(entry, name)]
    return table[max(matches, key=len)] if matches else None


def _is_of(entry: str, name: str) -> bool:
    rest = name.removeprefix(entry)
    return name.startswith(entry) and (not rest or SNAPSHOT.fullmatch(rest) is not None)


def is_free(agent: AgentParameters) -> bool:
    """True if no provider is paid for the agent's tokens."""
    is_unpaid = agent.use_dummy_api or agent.model_provider in ("local", "SelfHosted", "scripted")
    return is_unpaid or (
        agent.model_provider == "OpenRouter" and agent.model_name.endswith(":free")
    )


def price_of(prices: Prices, agent: AgentParameters, *, tuned: bool) -> Price | None:
    """The price of the agent's model, or if `tuned` of models trained from it and of training them.

    None if it is unknown.  Models on one's own machines are free unless the user's own prices name
    them.
    """
    model = agent.model_name
    # OpenAI names a fine-tuned model ft:BASE:ORGANISATION:SUFFIX:ID.
    if model.startswith("ft:"):
        model, tuned = model.split(":")[1], True
    if is_free(agent):
        # Listed prices are left out, since no provider bills these tokens.
        price = find(prices.own.fine_tuned, model) if tuned else None
        price = price or find(prices.own.models, model) or FREE
        return msgspec.structs.replace(price, training=price.training or 0.0)
    tables = [table.fine_tuned if tuned else table.models for table in prices]
    listed = find(tables[0], model) or find(tables[1], model)
    return in_batches(listed) if listed and agent.use_batch_api else listed


def unpriced(prices: Prices, params: HyperParameters) -> tuple[str, ...]:
    """The models of unknown price that a run needs, as text."""
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


# ------------------------------------------------------------------------------------ upper bounds

TEMPLATE_TOKENS_A_MESSAGE, TEMPLATE_TOKENS_A_CHAT = 16, 64  # for what a chat template adds


def upper_bound_prompt(chat: Chat) -> int:
    """An upper bound on a prompt's tokens: a byte-level tokenizer makes at most one per byte."""
    return TEMPLATE_TOKENS_A_CHAT + sum(
        _bytes(message.content) + _bytes(message.name or "") + TEMPLATE_TOKENS_A_MESSAGE
        for message in chat
    )


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
