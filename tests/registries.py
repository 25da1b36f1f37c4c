"""The registries that scripts add their own to, as they were before."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nip_fn.config.trainers import BACKUPS, SELECTORS, TRAINERS
from nip_fn.protocols.registry import PROTOCOLS
from nip_fn.protocols.strategies import STRATEGIES
from nip_fn.training.losses import LOSSES


@contextmanager
def restored_registries() -> Iterator[None]:
    """What is registered within the block is gone after it."""
    registries: tuple[dict[str, Any], ...] = (
        PROTOCOLS,
        TRAINERS,
        SELECTORS,
        BACKUPS,
        STRATEGIES,
        LOSSES,
    )
    kept = [(registry, dict(registry)) for registry in registries]
    yield
    for registry, before in kept:
        registry.clear()
        registry.update(before)
