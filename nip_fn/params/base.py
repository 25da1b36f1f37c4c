"""The base class and the number types of all parameter records."""

from typing import Annotated

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
# Every float has two bounds, which keep out infinity and NaN, for which msgspec has no word, and
# numbers whose sums and squares overflow.  A new one is one of these types, or bounded like them.
LARGEST = 1e6
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Positive = Annotated[float, Meta(gt=0.0, le=LARGEST)]
NotNegative = Annotated[float, Meta(ge=0.0, le=LARGEST)]
Reward = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
# At 100 a model draws its tokens almost uniformly.
Temperature = Annotated[float, Meta(ge=0.0, le=100.0)]
# Each step of Adam moves a weight by about as much, and the weights are smaller than 1.
LearningRate = Annotated[float, Meta(gt=0.0, le=1.0)]


# The hash is cached, because records of parameters are the keys of caches that every chat and every
# new node asks.
class Record(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, cache_hash=True, kw_only=True
):
    """A table of parameters: immutable, hashable, and strict about unknown keys."""
