"""The base class and the number types of all parameter records."""

from typing import Annotated

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
# The upper bound keeps infinity out, which msgspec has no word for.
Positive = Annotated[float, Meta(gt=0.0, le=1e6)]


# The hash is cached, because records of parameters are the keys of caches that every chat and every
# new node asks.
class Record(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, cache_hash=True, kw_only=True
):
    """A table of parameters: immutable, hashable, and strict about unknown keys."""
