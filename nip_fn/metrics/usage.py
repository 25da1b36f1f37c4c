"""The tokens that the replies and trainings of a stage used, by agent and adapter."""

from collections.abc import Callable, Iterable

import msgspec

from nip_fn.trees.tree import Tree, replies_in


class Usage(msgspec.Struct, frozen=True, array_like=True):
    """Tokens of one agent, or of the training of its group.

    agent: the agent; of a training, the first of its group.
    adapter: the adapter that replied or was trained; None for the base model.
    prompt: tokens sent, cached ones included.
    cached: those of them that the provider had cached.
    completion: tokens written, failed attempts included.
    trained: tokens of training rows times epochs.
    """

    agent: int
    adapter: str | None
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    trained: float = 0.0


def reply_usage(
    trees: Iterable[Tree], adapter_of: Callable[[Tree, int], str | None]
) -> tuple[Usage, ...]:
    """The tokens of all replies in the trees, a record for each agent and adapter that replied.

    Args:
        trees: Grown trees; the tokens of a reply include those of its failed attempts.
        adapter_of: (tree, agent) -> the adapter that replied.
    """
    # Kept apart by agent and adapter, because prices are by model; what tokens cost is left to the
    # adapters, so that a recording can be priced anew.
    used: dict[tuple[int, str | None], list[tuple[int, int, int]]] = {}
    for tree in trees:
        adapters: dict[int, str | None] = {}
        for _, utterance in replies_in(tree):
            if utterance.agent not in adapters:
                adapters[utterance.agent] = adapter_of(tree, utterance.agent)
            tokens = (utterance.prompt_tokens, utterance.cached_tokens, utterance.completion_tokens)
            used.setdefault((utterance.agent, adapters[utterance.agent]), []).append(tokens)
    return tuple(
        Usage(agent, adapter, *map(sum, zip(*tokens, strict=True)))
        for (agent, adapter), tokens in sorted(used.items(), key=lambda entry: entry[0][0])
    )
