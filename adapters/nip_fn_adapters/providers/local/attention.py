"""Attention over a forest of tokens, in blocks that leave out other branches.

A mask of all pairs is exact, but most of its pairs are of different branches.  Here each block of
tokens meets its ancestors and itself alone, by torch's own attention, on any device: half of the
pairs in a tree of five rows whose prompts have 600 tokens and whose replies 60.
"""

from typing import Any, NamedTuple

import numpy as np

from nip_fn.training.packing import Packed, blocks

NAME = "forest"


def attend_in_blocks(model: Any) -> Any:
    """The model, its attention now able to take a forest's blocks; if it cannot, as it was.

    Without blocks it does what it did before.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    # Where another implementation was chosen, this one may lack what the model needs.
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(NAME)
    return model


def in_blocks(model: Any) -> bool:
    """True if the model's attention takes a forest's blocks."""
    return bool(model.config._attn_implementation == NAME)


def attention_inputs(model: Any, packed: Packed, device: Any) -> dict[str, Any]:
    """The inputs of a model that tell which tokens see which: blocks, or a mask of all pairs."""
    import torch

    size = len(packed.tokens)
    if in_blocks(getattr(model, "module", model)):
        # With any mask of four dimensions transformers makes none of its own.  A model that did
        # not hand on the blocks would be told apart by its scores (`packing_problem`).
        mask = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device).expand(1, 1, size, size)
        return {"attention_mask": mask, "blocks": _blocks(packed, device)}
    places, ends = torch.arange(size, device=device), torch.as_tensor(packed.ends, device=device)
    is_ancestor = (places <= places[:, None]) & (places[:, None] < ends)
    return {"attention_mask": is_ancestor[None, None]}


class Blocks(NamedTuple):
    """The blocks of a forest, as its attention in every layer takes them."""

    queries: list[int]  # the number of each block's tokens
    keys: Any  # [sum of widths], the tokens that each block looks at, one block after the other
    widths: list[int]  # the number of each block's keys
    masks: list[Any]  # [queries, width], to be added to the scores


def _blocks(packed: Packed, device: Any) -> Blocks:
    """The blocks of a forest."""
    import torch

    spans = blocks(packed)
    # Added to the scores: of a mask of truth values torch makes such a one in every layer.
    masks = (np.where(span.is_seen, np.float32(0), np.float32(-np.inf)) for span in spans)
    return Blocks(
        queries=[span.end - span.start for span in spans],
        keys=torch.as_tensor(np.concatenate([span.keys for span in spans]), device=device),
        widths=[len(span.keys) for span in spans],
        masks=[torch.as_tensor(mask, device=device)[None, None] for mask in masks],
    )


def _attend(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    blocks: Blocks | None = None,
    **options: Any,
) -> tuple[Any, None]:
    """Attention as transformers calls it: `[1, heads, N, D]` gives `[1, N, heads, D]`."""
    import torch
    from transformers.integrations.sdpa_attention import sdpa_attention_forward as attend

    if blocks is None:
        output, _ = attend(module, query, key, value, attention_mask, **options)
        return output, None
    # Gathered once for all blocks: each by itself would have a gradient of the forest's size.
    keys, values = (x.index_select(2, blocks.keys).split(blocks.widths, 2) for x in (key, value))
    inputs = zip(query.split(blocks.queries, 2), keys, values, blocks.masks, strict=True)
    outputs = [attend(module, q, k, v, mask.to(q.dtype), **options)[0] for q, k, v, mask in inputs]
    return torch.cat(outputs, dim=1), None
