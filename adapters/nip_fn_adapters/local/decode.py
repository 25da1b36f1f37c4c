"""Decoding: many chats at once, several replies to each, every reply drawn from its own key.

The replies to one chat share its prompt.  A chat is therefore one row of the batch, not one for
each reply: every step feeds the next token of all its K replies, and a mask lets each see the
prompt and its own tokens only.  The prompt is read once; its keys and values lie in memory once.

Letters of shapes: P chats, K replies to each, T prompt tokens, S steps, V vocabulary.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nip_fn.keys import Key, generator
from nip_fn_adapters.local.models import Policy

# Chats whose replies are complete leave the batch once at most this share of it still runs.
KEEP_WHOLE = 0.75


@dataclass
class Timings:
    """Where sampling's time went, and what it came to.  Mutable: it counts as sampling goes on."""

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


class Asked(NamedTuple):
    """A chat as tokens, and the keys of the replies wanted."""

    tokens: list[int]
    keys: tuple[Key, ...]
    temperature: float
    max_tokens: int


class Drawn(NamedTuple):
    """A reply as tokens, its end token (where it has one) included."""

    tokens: list[int]
    ended: bool  # by itself, with an end token, rather than at the limit


class _Live(NamedTuple):
    """The chats of a batch that are still answered; every tensor has one row for each."""

    row: Any  # [P] its place in the batch
    uniforms: Any  # [P, K, S] float64 the reply's draws, one for each token
    temperature: Any  # [P, 1, 1]
    limit: Any  # [P, 1]
    length: Any  # [P, 1] tokens of its prompt
    mask: Any  # [P, 1, K, T + K * S] 0 where a reply sees a token, the lowest number elsewhere
    done: Any  # [P, K] the reply is complete


def decode(policy: Policy, batch: Sequence[Asked], timings: Timings) -> list[list[Drawn]]:
    """For each chat one reply for each of its keys; all chats of a batch have equally many keys.

    A reply is a function of its chat, key, temperature and limit.  What else is in the batch moves
    the last bits of floating-point sums, which decides about one draw in a million.
    """
    import torch
    from transformers import DynamicCache

    width, num_steps = len(batch[0].keys), max(asked.max_tokens for asked in batch)
    drawn = torch.zeros(len(batch), width, num_steps, dtype=torch.long)
    counts = torch.zeros(len(batch), width, dtype=torch.long)
    ended = torch.zeros(len(batch), width, dtype=torch.bool)
    with torch.inference_mode():
        cache = DynamicCache()
        prompts, seen, live = _begin(policy, batch, num_steps)
        stops = torch.tensor(policy.stops, device=prompts.device)
        logits = _forward(
            policy,
            timings,
            prompts,
            attention_mask=seen,
            position_ids=(seen.cumsum(1) - 1).clamp(min=0),
            past_key_values=cache,
            logits_to_keep=1,
        ).expand(-1, width, -1)
        for step in range(num_steps):
            tokens = _choose(logits, live.temperature, live.uniforms[:, :, step])
            ends = torch.isin(tokens, stops) & ~live.done
            rows = live.row.cpu()
            drawn[rows, :, step] = tokens.cpu()
            counts[rows] += (~live.done).cpu()
            ended[rows] |= ends.cpu()
            live = live._replace(done=live.done | ends | (step + 1 >= live.limit))
            running = (~live.done.all(1)).nonzero()[:, 0]
            if not len(running):
                break
            if len(running) <= KEEP_WHOLE * len(live.row):
                cache.batch_select_indices(running)
                tokens, live = tokens[running], _Live(*(column[running] for column in live))
            logits = _forward(
                policy,
                timings,
                tokens,
                attention_mask=live.mask[..., : prompts.shape[1] + width * (step + 1)],
                position_ids=(live.length + step).expand(-1, width),
                past_key_values=cache,
            )
    return [
        [Drawn(row[:n], end) for row, n, end in zip(rows, ns, ends, strict=True)]
        for rows, ns, ends in zip(drawn.tolist(), counts.tolist(), ended.tolist(), strict=True)
    ]


def _begin(policy: Policy, batch: Sequence[Asked], num_steps: int) -> tuple[Any, Any, _Live]:
    """The prompts padded on the left `[P, T]`, which tokens are real `[P, T]`, and the chats."""
    import torch

    device, width = policy.model.device, len(batch[0].keys)
    lengths = np.array([len(asked.tokens) for asked in batch])
    prompts = np.zeros((len(batch), lengths.max()), dtype=np.int64)
    seen = np.zeros_like(prompts)
    for row, asked in enumerate(batch):
        prompts[row, -lengths[row] :] = asked.tokens
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

    live = _Live(
        row=tensor(np.arange(len(batch))),
        uniforms=tensor(_uniforms(batch, num_steps)),
        temperature=tensor(np.array([[[asked.temperature]] for asked in batch], dtype=np.float32)),
        limit=tensor(np.array([asked.max_tokens for asked in batch])[:, None]),
        length=tensor(lengths[:, None]),
        mask=tensor(mask),
        done=tensor(np.zeros((len(batch), width), dtype=bool)),
    )
    return tensor(prompts), tensor(seen), live


def _uniforms(batch: Sequence[Asked], num_steps: int) -> np.ndarray:
    """One uniform number for each token of each reply, from the reply's key; shape `[P, K, S]`.

    A generator's first numbers do not depend on how many are drawn, so the limit, which other
    chats of the batch may raise, does not change them.
    """
    return np.array([[generator(key).random(num_steps) for key in asked.keys] for asked in batch])


def _choose(logits: Any, temperature: Any, uniforms: Any) -> Any:
    """The next tokens `[P, K]`: for `uniforms` u the first whose cumulative probability exceeds u.

    `logits` is `[P, K, V]`.  The likeliest token where the temperature is 0.
    """
    import torch

    greedy = temperature == 0
    if bool(greedy.all()):
        return logits.argmax(-1)
    scaled = logits.float() / torch.where(greedy, 1.0, temperature)
    cumulative = scaled.softmax(-1).cumsum(-1, dtype=torch.float64)
    target = uniforms[..., None] * cumulative[..., -1:]
    tokens = torch.searchsorted(cumulative, target, right=True)[..., 0]
    tokens = tokens.clamp_(max=logits.shape[-1] - 1)
    if bool(greedy.any()):
        return torch.where(greedy[..., 0], logits.argmax(-1), tokens)
    return tokens


def _forward(policy: Policy, timings: Timings, tokens: Any, **inputs: Any) -> Any:
    """The model's logits after `tokens`; the time counts as the model's."""
    began = time.perf_counter()
    logits = policy.model(tokens, use_cache=True, **inputs).logits
    if logits.is_cuda:
        import torch

        torch.cuda.synchronize()
    timings.model += time.perf_counter() - began
    return logits
