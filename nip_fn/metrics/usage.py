"""The tokens that the replies and trainings of a stage used, by agent and adapter."""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from nip_fn.metrics.forest import Effort, total_effort


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
    efforts: Iterable[Mapping[int, Effort]], adapter_of: Callable[[int, int], str | None]
) -> tuple[Usage, ...]:
    """The tokens of all replies in trees, a record for each agent and adapter that replied.

    Args:
        efforts: Of each tree, those of the agents that replied in it; the tokens of a reply include
            those of its failed attempts.
        adapter_of: (tree, agent) -> the adapter that replied.
    """
    # Kept apart by agent and adapter, because prices are by model; what tokens cost is left to the
    # adapters, so that a recording can be priced anew.
    used: dict[tuple[int, str | None], list[Effort]] = {}
    for tree, of_agents in enumerate(efforts):
        for agent, effort in of_agents.items():
            used.setdefault((agent, adapter_of(tree, agent)), []).append(effort)
    totals = ((*key, total_effort(used[key])) for key in sorted(used, key=lambda key: key[0]))
    return tuple(
        Usage(
            agent,
            adapter,
            prompt=total.prompt_tokens,
            cached=total.cached_tokens,
            completion=total.completion_tokens,
        )
        for agent, adapter, total in totals
    )
