"""Shared model groups and their adapter lineage."""

from collections.abc import Sequence

import msgspec


class Adapter(msgspec.Struct, frozen=True, array_like=True):
    """One trained LoRA adapter.  Its name is never used twice: servers cache by name."""

    name: str  # GROUP-ITERATION-HASH
    iteration: int
    parent: str | None  # the adapter that the training started from; None: the base model
    # Named in the record: left to a library's default, a run would not say towards what its policy
    # was pulled.
    reference: str | None  # the reference policy; None: the base model
    data_hash: str  # of the rows that it was trained on
    loss: str = "dpo"  # the name of the loss that it was trained by


class Group(msgspec.Struct, frozen=True):
    """Agents that share one model: a base model and the adapters trained on it, oldest first."""

    name: str
    agents: tuple[int, ...]
    model: str
    trainable: bool
    lineage: tuple[Adapter, ...] = ()
    # Apart from the end of the lineage: an adapter that is trained need not be sampled with.
    serving: str | None = None  # the adapter that samples; None: the base model

    @property
    def latest(self) -> str | None:
        """The last adapter trained, whether or not it samples; None before the first."""
        return self.lineage[-1].name if self.lineage else None


def group_of(groups: Sequence[Group], agent: int) -> Group:
    """The group that the agent belongs to."""
    return next(group for group in groups if agent in group.agents)
