"""The recorded replies of a run, scored once more by what trains the models."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nip_fn.game.reply import Completion
from nip_fn.run.events import Replied, SampleReplies
from nip_fn.run.request import Request, request
from nip_fn.run.state import EMPTY
from nip_fn.run.step import step
from nip_fn.training.packing import TokenRow
from nip_fn.trees.node import ReplyRequest
from nip_fn_adapters.providers.local.models import encode_chat
from nip_fn_adapters.providers.local.packed import token_scores
from nip_fn_adapters.providers.local.policy import LoadedPolicy, load_policy
from nip_fn_adapters.providers.local.steps import plain_scores
from nip_fn_adapters.recording import store
from nip_fn_adapters.recording.store import CHECKPOINT


class Rescored(NamedTuple):
    """The replies of one model or adapter."""

    policy: LoadedPolicy
    adapter: str | None
    completions: list[Completion]
    packed: np.ndarray  # the differences from the recorded log-probabilities, in nats
    plain: np.ndarray  # the same for some of the replies, each scored by itself


def recorded_replies(run: Path) -> Iterator[tuple[Request, Completion]]:
    """Every reply of a recording, with the request that was answered."""
    state = EMPTY
    for event in store.read_recording(run / CHECKPOINT).unwrap().events:
        if isinstance(event, Replied):
            indices = tuple(index for index, _ in event.completions)
            ask = ReplyRequest(event.path, event.agent, indices, event.attempt)
            answered = request(state, SampleReplies(event.tree, ask))
            yield from ((answered, completion) for _, completion in event.completions)
        state, _ = step(state, event)


def rescored(run: Path, every: int = 7) -> Iterator[Rescored]:
    """The replies of each model and adapter; every so many of them are also scored alone."""
    by_policy = defaultdict(list)
    for answered, completion in recorded_replies(run):
        by_policy[answered.model, answered.adapter].append((answered, completion))
    for (model, adapter), replies in by_policy.items():
        policy = load_policy(model, run / "adapters", adapter).unwrap()
        completions, rows = [], []
        for answered, completion in replies:
            assert completion.tokens is not None
            prompt = encode_chat(policy.tokenizer, answered.chat)
            rows.append(TokenRow(prompt, (completion.tokens.ids.tolist(),)))
            completions.append(completion)
        recorded = [c.tokens.log_probabilities for c in completions if c.tokens]
        some = slice(None, None, every)
        packed, plain = token_scores(policy.model, rows), plain_scores(policy.model, rows[some])
        yield Rescored(
            policy, adapter, completions, _apart(packed, recorded), _apart(plain, recorded[some])
        )


def _apart(scores: list[tuple[np.ndarray, ...]], recorded: list[np.ndarray]) -> np.ndarray:
    pairs = zip(scores, recorded, strict=True)
    return np.concatenate([row[0] - values for row, values in pairs])
