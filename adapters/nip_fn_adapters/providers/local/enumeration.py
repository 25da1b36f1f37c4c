"""Enumeration: every likely reply to a chat with its exact probability, in place of samples.

The replies to one chat are a tree of tokens, grown one token a step down to a floor of probability.
As in decoding a chat is one row of the batch, and a step feeds the next token of all its K live
paths; a mask lets each see the prompt and its own ancestors, wherever they stand in the cache, so
that nothing is copied where paths branch.

Letters of shapes: P chats, K live paths of each, T prompt tokens, C cached tokens, V vocabulary.
"""

import os
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from returns.result import Result

from nip_fn.errors import Problem
from nip_fn.game.enumeration import Enumeration, LikelyReply
from nip_fn.run.exact import Enumerate
from nip_fn.run.request import Request
from nip_fn_adapters.providers.local import models
from nip_fn_adapters.providers.local.decode import DecodeRequest
from nip_fn_adapters.providers.local.draw import next_probabilities, penalise
from nip_fn_adapters.providers.local.policy import LoadedPolicy, load_policy
from nip_fn_adapters.providers.local.prefill import read_forest, roomy_cache
from nip_fn_adapters.providers.local.sampler import encode_requests

MAX_ROWS = 64  # chats in a batch; more widen it by the paths of the one that has most


def local_enumerator(model: str, adapters: Path, adapter: str | None) -> Result[Enumerate, Problem]:
    """The enumeration of a model's replies; see `enumerate_replies`.

    Args:
        model: A model's folder, or a built-in one.
        adapters: The folder of all adapters.
        adapter: The adapter; None for the model itself.
    """
    return load_policy(model, adapters, adapter).map(_enumerator)


def _enumerator(policy: LoadedPolicy) -> Enumerate:
    # One of torch's threads for each batch: several that share one wait for one another.
    models.set_threads(1)

    def enumerate_all(requests: Sequence[Request], floor: float) -> list[Enumeration]:
        rows = [row.encoded for row in encode_requests(policy, requests, _refuse)]
        # Chats that begin alike share what is read of them; those of one length are not padded.
        lengths = [(len(row.tokens), row.tokens) for row in rows]
        order = sorted(range(len(rows)), key=lengths.__getitem__)
        batches = [order[start : start + MAX_ROWS] for start in range(0, len(order), MAX_ROWS)]

        def enumerate_batch(batch: list[int]) -> list[Enumeration]:
            return enumerate_replies(policy, [rows[index] for index in batch], floor)

        with ThreadPoolExecutor(os.cpu_count()) as threads:
            replies = chain.from_iterable(threads.map(enumerate_batch, batches))
            by_index = dict(zip(order, replies, strict=True))
        return [by_index[index] for index in range(len(rows))]

    return enumerate_all


def _refuse(index: int, problem: Result[Any, Problem]) -> None:
    problem.unwrap()


class _Live(NamedTuple):
    """The paths that still grow."""

    tokens: Any  # [P, K, T + S] of the prompt and the path; a prompt is filled from the left
    probability: Any  # [P, K] float64 0 where there is no path
    mask: Any  # [P, K, C] True for a cached token that the path sees


def enumerate_replies(
    policy: LoadedPolicy, batch: Sequence[DecodeRequest], floor: float
) -> list[Enumeration]:
    """The replies to each chat that are spelt by a path of tokens of some probability.

    They are drawn as by `decode`: temperature, top_p, repetition penalty, limit and end tokens are
    those of the request, whose keys do not matter.  Texts that several paths spell are one reply.

    Args:
        policy: A loaded model.
        batch: The chats.
        floor: The least probability of a path; less likely ones are left out.
    """
    import torch

    with torch.inference_mode():
        forward = partial(_forward, policy)
        cache, logits, live, lengths = _begin(policy, batch, forward)
        num_prompt, stops = live.tokens.shape[2], torch.tensor(policy.stops)
        limits = torch.tensor([request.max_tokens for request in batch])
        ended: list[tuple[Any, Any, Any]] = []
        for step in range(max(request.max_tokens for request in batch)):
            joint = live.probability[..., None] * _next(logits, live.tokens, batch)
            chats, parents, tokens = (joint >= floor).nonzero(as_tuple=True)
            is_end = torch.isin(tokens, stops) | (step + 1 >= limits[chats])
            paths = torch.cat((live.tokens[chats, parents], tokens[:, None]), 1)
            probability = joint[chats, parents, tokens]
            ended.append((chats[is_end], paths[is_end, num_prompt:], probability[is_end]))
            chats, parents, paths, probability = (
                column[~is_end] for column in (chats, parents, paths, probability)
            )
            if not len(chats):
                break
            live = _grown(live, chats, parents, paths, probability)
            logits = forward(
                live.tokens[..., -1],
                attention_mask=torch.where(live.mask, 0.0, torch.finfo().min)[:, None],
                position_ids=(lengths[:, None] + step).expand(-1, live.mask.shape[1]),
                past_key_values=cache,
            )
    return _texts(policy, len(batch), ended)


def _begin(
    policy: LoadedPolicy, batch: Sequence[DecodeRequest], forward: Any
) -> tuple[Any, Any, _Live, Any]:
    """The cache of the prompts, the logits `[P, 1, V]` after them, the roots, and the lengths."""
    import torch

    lengths = torch.tensor([len(request.tokens) for request in batch])
    seen = torch.arange(int(lengths.max())) >= lengths.max() - lengths[:, None]
    tokens = torch.tensor([request.tokens[:1] for request in batch]).repeat(1, seen.shape[1])
    for row, request in enumerate(batch):
        tokens[row, -len(request.tokens) :] = torch.tensor(request.tokens)
    cache = roomy_cache(max(request.max_tokens for request in batch))
    if policy.reads_forests:
        logits = read_forest(policy, forward, [request.tokens for request in batch], cache)
    else:
        logits = forward(
            tokens,
            attention_mask=seen.long(),
            position_ids=(seen.cumsum(1) - 1).clamp(min=0),
            past_key_values=cache,
            logits_to_keep=1,
        )
    probability = torch.ones(len(batch), 1, dtype=torch.float64)
    return cache, logits, _Live(tokens[:, None], probability, seen[:, None]), lengths


def _next(logits: Any, context: Any, batch: Sequence[DecodeRequest]) -> Any:
    """The probabilities `[P, K, V]` by which `decode` draws the next token, in float64."""
    import torch

    def option(name: str) -> Any:
        return torch.tensor([getattr(request, name) for request in batch])[:, None, None]

    temperature, top_p, penalty = map(option, ("temperature", "top_p", "repetition_penalty"))
    if (penalty != 1).any():
        logits = penalise(logits, context, penalty)
    probabilities = next_probabilities(logits, temperature, top_p.double()).double()
    return probabilities / probabilities.sum(-1, keepdim=True)


def _grown(live: _Live, chats: Any, parents: Any, paths: Any, probability: Any) -> _Live:
    """The paths, sorted by chat; each sees what its parent sees, and its own new token.

    The new tokens are cached behind all others, those of a chat's K paths one after the other.
    """
    import torch

    counts = chats.bincount(minlength=len(live.mask))
    width = int(counts.max())
    ranks = torch.arange(len(chats)) - (counts.cumsum(0) - counts)[chats]
    # Where a chat has fewer paths, a row repeats its first token and has no probability.
    tokens = live.tokens[:, :1, :1].repeat(1, width, paths.shape[1])
    mask = torch.zeros(len(counts), width, live.mask.shape[2] + width, dtype=torch.bool)
    mask[..., -width:] = torch.eye(width, dtype=torch.bool)
    kept = torch.zeros(len(counts), width, dtype=torch.float64)
    tokens[chats, ranks], kept[chats, ranks] = paths, probability
    mask[chats, ranks, :-width] = live.mask[chats, parents]
    return _Live(tokens, kept, mask)


def _texts(
    policy: LoadedPolicy, num_chats: int, ended: Sequence[tuple[Any, Any, Any]]
) -> list[Enumeration]:
    """The enumeration of each chat, from (chat, tokens, probability) of all paths that ended."""
    stops = set(policy.stops)
    totals: list[dict[tuple[str, bool], float]] = [defaultdict(float) for _ in range(num_chats)]
    texts: dict[tuple[int, ...], str] = {}
    for columns in ended:
        for chat, tokens, probability in zip(*(column.tolist() for column in columns), strict=True):
            has_end = tokens[-1] in stops
            reply = tuple(tokens[:-1] if has_end else tokens)
            if reply not in texts:
                texts[reply] = policy.tokenizer.decode(reply, skip_special_tokens=True)
            totals[chat][texts[reply], has_end] += probability
    return [
        Enumeration(
            tuple(
                LikelyReply(text, "stop" if has_end else "length", probability)
                for (text, has_end), probability in total.items()
            )
        )
        for total in totals
    ]


def _forward(policy: LoadedPolicy, tokens: Any, **inputs: Any) -> Any:
    return policy.model(tokens, use_cache=True, **inputs).logits
