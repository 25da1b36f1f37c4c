"""What all parameter records share."""

from typing import Annotated

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Positive = Annotated[float, Meta(gt=0.0, le=1e6)]


class Record(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, cache_hash=True, kw_only=True
):
    """A table of parameters: immutable, hashable, and no key is ignored."""
