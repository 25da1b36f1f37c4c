"""Decoding: many chats at once, several replies to each, every reply drawn from its own key.

The replies to one chat share its prompt.  A chat is therefore one row of the batch, not one for
each reply: every step feeds the next token of all its K replies, and a mask lets each see the
prompt and its own tokens only.  The prompt is read once; its keys and values are in memory once.

Letters of shapes: P chats, K replies to each, T prompt tokens, S steps, V vocabulary.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from nip_fn.keys import Key
from nip_fn_adapters.providers.local.draw import (
    choose,
    log_probabilities,
    next_probabilities,
    penalise,
)
from nip_fn_adapters.providers.local.policy import LoadedPolicy
from nip_fn_adapters.providers.local.prefill import read_forest, roomy_cache

# Chats whose replies are complete leave the batch once at most this share of it still runs: each
# time, the cache is copied.
KEEP_WHOLE = 0.75


@dataclass
class Timings:
    """The time that sampling has taken, and its yield.  Mutable: sampling adds to it."""

    total: float = 0.0  # seconds from taking up chats to handing back replies, without loading
    model: float = 0.0  # of these, seconds in the model's forward passes
    loading: float = 0.0  # seconds that loading models took, not part of `total`
    replies: int = 0
    prompt_tokens: int = 0  # counted once a reply
    completion_tokens: int = 0

    @property
    def share_outside(self) -> float:
        """The share of `total` that was spent outside the model; 0 before the first reply."""
        return 1.0 - self.model / self.total if self.total else 0.0


class DecodeRequest(NamedTuple):
    """A chat as tokens, the keys of its replies, and their options."""

    tokens: list[int]
    keys: tuple[Key, ...]
    temperature: float
    max_tokens: int
    top_p: float = 1.0  # 1: every token may be drawn
    repetition_penalty: float = 1.0  # 1: none


class DecodedReply(NamedTuple):
    """A reply as tokens, its end token included if it has one."""

    tokens: list[int]
    log_probabilities: list[float]  # of its tokens, in nats, under the model at temperature 1
    ended: bool  # with an end token, rather than at the limit
    # [T, C] the probabilities of the watched tokens as they were drawn from, up to a factor a token
    watched: Sequence[Sequence[float]] = ()


class _Live(NamedTuple):
    """The chats of a batch that are still decoded; every tensor has one row for each."""

    row: Any  # [P] its place in the batch
    uniforms: Any  # [P, K, S] float64 the reply's draws, one for each token
    temperature: Any  # [P, 1, 1]
    top_p: Any  # [P, 1, 1] float64; None if it is 1 for the whole batch
    penalty: Any  # [P, 1, 1] the repetition penalty; None if it is 1 for the whole batch
    said: Any  # [P, K, T + S] tokens of the prompt and the reply; None if `penalty` is
    limit: Any  # [P, 1]
    length: Any  # [P, 1] tokens of its prompt
    mask: Any  # [P, 1, K, T + K * S] 0 for a token that a reply sees, the lowest number for others
    done: Any  # [P, K] the reply is complete


def decode(
    policy: LoadedPolicy,
    batch: Sequence[DecodeRequest],
    timings: Timings,
    watched: Sequence[int] = (),
) -> list[list[DecodedReply]]:
    """One reply for each key of each chat; all chats of a batch have the same number of keys.

    A reply is a function of its own request: chat, key, temperature, limit, top_p and repetition
    penalty.  The rest of the batch moves the last bits of floating-point sums, which changes about
    one draw in a million.

    Args:
        policy: A loaded model.
        batch: The chats.
        timings: The time taken is added to them.
        watched: `[C]` tokens whose probabilities are kept for each token of each reply.
    """
    import torch

    width, num_steps = len(batch[0].keys), max(request.max_tokens for request in batch)
    drawn = torch.zeros(len(batch), width, num_steps, dtype=torch.long)
    scores = torch.zeros(len(batch), width, num_steps)
    counts = torch.zeros(len(batch), width, dtype=torch.long)
    ended = torch.zeros(len(batch), width, dtype=torch.bool)
    watches = torch.zeros(len(batch), width, num_steps, len(watched))
    with torch.inference_mode():
        cache = roomy_cache(width * num_steps)
        prompts, seen, live = _begin(policy, batch, num_steps)
        stops = torch.tensor(policy.stops, device=prompts.device)
        columns = torch.tensor(watched, dtype=torch.long, device=prompts.device)
        forward = partial(_forward, policy, timings)
        if policy.reads_forests:
            logits = read_forest(policy, forward, [request.tokens for request in batch], cache)
        else:
            logits = forward(
                prompts,
                attention_mask=seen,
                # Padding does not count: a prompt's positions begin at its first token.
                position_ids=(seen.cumsum(1) - 1).clamp(min=0),
                past_key_values=cache,
                logits_to_keep=1,
            )
        logits = logits.expand(-1, width, -1)
        for step in range(num_steps):
            penalised = logits
            if live.penalty is not None:
                penalised = penalise(logits, live.said, live.penalty)
            probabilities = next_probabilities(penalised, live.temperature, live.top_p)
            tokens = choose(probabilities, live.uniforms[:, :, step])
            if live.penalty is not None:
                live.said[:, :, prompts.shape[1] + step] = tokens
            ends = torch.isin(tokens, stops) & ~live.done
            rows = live.row.cpu()
            drawn[rows, :, step] = tokens.cpu()
            scores[rows, :, step] = log_probabilities(logits, tokens).cpu()
            if watched:
                watches[rows, :, step] = probabilities[..., columns].cpu()
            counts[rows] += (~live.done).cpu()
            ended[rows] |= ends.cpu()
            live = live._replace(done=live.done | ends | (step + 1 >= live.limit))
            running = (~live.done.all(1)).nonzero()[:, 0]
            if not len(running):
                break
            if len(running) <= KEEP_WHOLE * len(live.row):
                cache.batch_select_indices(running)
                tokens, live = tokens[running], _keep(live, running)
            logits = forward(
                tokens,
                attention_mask=live.mask[..., : prompts.shape[1] + width * (step + 1)],
                position_ids=(live.length + step).expand(-1, width),
                past_key_values=cache,
            )
    by_chat = (drawn.tolist(), scores.tolist(), counts.tolist(), ended.tolist(), watches.numpy())
    return [
        [
            DecodedReply(tokens[:number], values[:number], end, weights[:number].tolist())
            for tokens, values, number, end, weights in zip(*replies, strict=True)
        ]
        for replies in zip(*by_chat, strict=True)
    ]


def _begin(
    policy: LoadedPolicy, batch: Sequence[DecodeRequest], num_steps: int
) -> tuple[Any, Any, _Live]:
    """The prompts padded on the left `[P, T]`, which tokens are real `[P, T]`, and the chats."""
    import torch

    device, width = policy.model.device, len(batch[0].keys)
    lengths = np.array([len(request.tokens) for request in batch])
    prompts = np.zeros((len(batch), lengths.max()), dtype=np.int64)
    seen = np.zeros_like(prompts)
    for row, request in enumerate(batch):
        # Padded on the left, so that the last tokens of all prompts stand in one column, whose
        # logits are the only ones that are needed.
        prompts[row, -lengths[row] :] = request.tokens
        seen[row, -lengths[row] :] = 1
    allowed = np.concatenate(
        [
            np.repeat(seen[:, None, None] > 0, width, axis=2),
            np.tile(np.eye(width, dtype=bool), (len(batch), 1, 1, num_steps)),
        ],
        axis=3,
    )
    mask = np.where(allowed, np.float32(0), np.finfo(np.float32).min)

    def tensor(array: np.ndarray) -> Any:
        return torch.from_numpy(array).to(device)

    def option(values: Sequence[float], dtype: type[np.floating]) -> Any:
        return tensor(np.array(values, dtype=dtype)[:, None, None])

    top_ps, penalties = zip(*((r.top_p, r.repetition_penalty) for r in batch), strict=True)
    penalised = any(penalty != 1 for penalty in penalties)
    live = _Live(
        row=tensor(np.arange(len(batch))),
        uniforms=tensor(_uniforms(batch, num_steps)),
        temperature=option([request.temperature for request in batch], np.float32),
        top_p=option(top_ps, np.float64) if min(top_ps) < 1 else None,
        penalty=option(penalties, np.float32) if penalised else None,
        said=tensor(_said(prompts, seen, width, num_steps)) if penalised else None,
        limit=tensor(np.array([request.max_tokens for request in batch])[:, None]),
        length=tensor(lengths[:, None]),
        mask=tensor(mask),
        done=tensor(np.zeros((len(batch), width), dtype=bool)),
    )
    return tensor(prompts), tensor(seen), live


def _uniforms(batch: Sequence[DecodeRequest], num_steps: int) -> np.ndarray:
    """One uniform number for each token of each reply, from the reply's key: `[P, K, S]`.

    A generator's first numbers do not depend on how many are drawn, so the limit, which other
    chats of the batch may raise, does not change them.
    """
    return np.array([[_draw(key, num_steps) for key in request.keys] for request in batch])


def _draw(key: Key, num: int) -> np.ndarray:
    # NumPy's generator, because a hash for each token would be slower than the tiny model; samples
    # of a neural network are no part of what must be equal across versions.
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little"))).random(num)


def _said(prompts: np.ndarray, seen: np.ndarray, width: int, num_steps: int) -> np.ndarray:
    """The tokens of each prompt and room for its replies `[P, K, T + S]`.

    The prompt's last token fills the rest: how often a token occurs does not matter.
    """
    tokens = np.repeat(prompts[:, -1:], prompts.shape[1] + num_steps, axis=1)
    tokens[:, : prompts.shape[1]][seen > 0] = prompts[seen > 0]
    return np.repeat(tokens[:, None], width, axis=1)


def _keep(live: _Live, rows: Any) -> _Live:
    """The rows of these chats."""
    return _Live(*(None if column is None else column[rows] for column in live))


def _forward(policy: LoadedPolicy, timings: Timings, tokens: Any, **inputs: Any) -> Any:
    """The model's logits after `tokens`; the time is counted as the model's."""
    began = time.perf_counter()
    logits = policy.model(tokens, use_cache=True, **inputs).logits
    if logits.is_cuda:
        import torch

        torch.cuda.synchronize()
    timings.model += time.perf_counter() - began
    return logits
