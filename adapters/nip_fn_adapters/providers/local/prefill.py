"""The prompts of a batch, read before its replies are drawn: every token that they share once.

They share much, as those of a training do (`nip_fn.training.packing`): a system prompt, and all
that siblings were told: those of trees have two to five times their distinct tokens.

Letters of shapes: P prompts, T tokens of the longest, N tokens of their forest, H heads, D their
width, V vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nip_fn.training.packing import TokenRow, forest
from nip_fn_adapters.providers.local.attention import attention_inputs
from nip_fn_adapters.providers.local.policy import LoadedPolicy


def roomy_cache(room: int) -> Any:
    """A cache of keys and values with room for so many tokens more whenever it is full.

    One that grows by concatenation copies all that it holds for each new token.
    """
    from transformers.cache_utils import Cache, DynamicLayer

    class Roomy(DynamicLayer):  # type: ignore[misc]
        length = 0

        def update(self, keys: Any, values: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
            start, self.length = self.length, self.length + keys.shape[2]
            if not self.is_initialized:
                self.lazy_initialization(keys, values)
                self.keys, self.values = (part[:, :, :0] for part in (keys, values))
            if self.length > self.keys.shape[2]:
                self.keys, self.values = (
                    _extended(part[:, :, :start], self.length + room)
                    for part in (self.keys, self.values)
                )
            self.keys[:, :, start : self.length] = keys
            self.values[:, :, start : self.length] = values
            return self.keys[:, :, : self.length], self.values[:, :, : self.length]

        def get_seq_length(self) -> int:
            return self.length

    return Cache(layer_class_to_replicate=Roomy)


def _extended(part: Any, length: int) -> Any:
    """Keys or values `[P, H, T, D]` at the beginning of a longer tensor."""
    extended = part.new_empty((*part.shape[:2], length, part.shape[3]))
    extended[:, :, : part.shape[2]] = part
    return extended


def read_forest(
    policy: LoadedPolicy,
    forward: Callable[..., Any],
    prompts: Sequence[Sequence[int]],
    cache: Any,
) -> Any:
    """The logits `[P, 1, V]` of the token after each prompt.

    Args:
        policy: One whose model reads forests.
        forward: Its forward pass.
        prompts: P lists of tokens.
        cache: Is given each layer's keys and values of the prompts, `[P, H, T, D]`.  Those of a
            shorter prompt follow others, which nothing may look at.
    """
    import torch
    from transformers import DynamicCache

    device, once = policy.model.device, DynamicCache()
    packed = forest([TokenRow([], (list(tokens),)) for tokens in prompts], range(len(prompts)))
    paths = np.zeros((len(prompts), max(map(len, prompts))), dtype=np.int64)
    for row, (path,) in enumerate(packed.replies):
        paths[row, -len(path) :] = path
    lasts, places = np.unique(paths[:, -1], return_inverse=True)

    def tensor(array: np.ndarray) -> Any:
        return torch.as_tensor(array, device=device)

    logits = forward(
        tensor(packed.tokens)[None],
        position_ids=tensor(packed.positions)[None],
        **attention_inputs(policy.model, packed, device),
        past_key_values=once,
        logits_to_keep=tensor(lasts),
    )[0]
    index = tensor(paths.ravel())
    for number, layer in enumerate(once.layers):
        states = (state[0].index_select(1, index) for state in (layer.keys, layer.values))
        cache.update(*(state.unflatten(1, paths.shape).transpose(0, 1) for state in states), number)
    return logits[tensor(places)][:, None]
