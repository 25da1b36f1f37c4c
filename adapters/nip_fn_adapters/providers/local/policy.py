"""A local model that is ready to answer, and the log-probabilities that it gives."""

from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from returns.result import Failure, Result

from nip_fn.errors import Problem
from nip_fn.game.chat import Chat
from nip_fn.training.canary import PROBE_TOKENS
from nip_fn.training.tuning import Probe
from nip_fn_adapters.providers.local.models import (
    FULL_ATTENTION,
    adapter_directory,
    check_tokenizer,
    context_of,
    encode_chat,
    encode_reply,
    first_line,
    load_model,
    load_tokenizer,
    model_directory,
    require,
    token_log_probabilities,
)
from nip_fn_adapters.providers.local.packed import reads_forests


class Defaults(NamedTuple):
    """The sampling options of a reply whose request leaves them open."""

    temperature: float = 1.0
    top_p: float = 1.0
    repetition_penalty: float = 1.0


class LoadedPolicy(NamedTuple):
    """A model that is ready to answer, its adapter merged into its weights."""

    model: Any  # a transformers causal language model: float32, in evaluation mode
    tokenizer: Any
    context: int | None  # its longest prompt and reply, in tokens; None: not known
    stops: tuple[int, ...]  # the tokens that end a reply
    defaults: Defaults
    reads_forests: bool = False  # exactly (`packed.reads_forests`), so that prompts are shared


def load_policy(model: str, adapters: Path, adapter: str | None) -> Result[LoadedPolicy, Problem]:
    """The model with the adapter merged into a copy of its weights."""
    return Result.do(
        policy
        for _ in require("torch", "transformers", "peft")
        for base in model_directory(model)
        for merged in adapter_directory(adapters, adapter)
        for policy in _load(base, merged)
    )


def _load(base: Path, adapter: Path | None) -> Result[LoadedPolicy, Problem]:
    try:
        model, tokenizer = load_model(base, adapter), load_tokenizer(base)
    except (OSError, ValueError, RuntimeError) as error:
        return Failure(Problem(f"{adapter or base} cannot be loaded: {first_line(error)}"))
    # The batched decoder's mask lets a token see its whole prompt, which other layers would not.
    if any(
        layer_type != FULL_ATTENTION
        for layer_type in getattr(model.config, "layer_types", None) or ()
    ):
        message = f"{base} has layers without full attention"
        return Failure(Problem(message, remedy="serve it with vLLM instead"))
    stops, defaults = _stops(model, tokenizer), _defaults(model)
    shares = reads_forests(model.eval())
    policy = LoadedPolicy(model, tokenizer, context_of(model), stops, defaults, shares)
    return check_tokenizer(base, tokenizer).map(lambda _: policy)


def _stops(model: Any, tokenizer: Any) -> tuple[int, ...]:
    listed = model.generation_config.eos_token_id
    stops = listed if isinstance(listed, list) else [] if listed is None else [listed]
    return tuple(sorted({*stops, tokenizer.eos_token_id}))


def _defaults(model: Any) -> Defaults:
    """The options in the model's `generation_config.json`; 1 throughout if it says not to sample.

    Its other options, such as `top_k`, are ignored.
    """
    config = model.generation_config
    if not config.do_sample:
        return Defaults()
    named = ((name, getattr(config, name)) for name in Defaults._fields)
    return Defaults(**{name: float(value) for name, value in named if value is not None})


def log_probabilities(
    policy: LoadedPolicy, chat: Chat, reply: str, limit: int | None = None
) -> list[float]:
    """The log-probabilities (in nats, at temperature 1) of the tokens of a reply and its end.

    Tokens past `limit` and past the model's context are left out, the latter as in training.
    """
    prompt = encode_chat(policy.tokenizer, chat)
    room = None if policy.context is None else max(0, policy.context - len(prompt))
    tokens = encode_reply(policy.tokenizer, reply)[:room][:limit]
    if not tokens:
        return []
    return list(map(float, token_log_probabilities(policy.model, prompt, tokens)))


def probe_scores(policy: LoadedPolicy, probes: Iterable[Probe]) -> tuple[float, ...]:
    """The log-probabilities of the probes' first `PROBE_TOKENS` tokens, one after the other."""
    return tuple(
        chain(*(log_probabilities(policy, *probe, limit=PROBE_TOKENS) for probe in probes))
    )
