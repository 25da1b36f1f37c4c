"""The base class of parameter records, their number types, and the declaration of a parameter.

A field's type is its range, and the `parameter` beside it says the rest: its help, when it has an
effect, and what another value would change.  `nip_fn.config.schema` reads these declarations as one
table, from which everything that treats parameters alike derives.  So a new parameter is one field.
"""

from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from nip_fn.params.names import name_schema

# The stage of a run that a parameter acts on first, which decides where it may be changed:
# - sampling: nowhere, since the recorded replies depend on it;
# - selection: in a replay and in a fork, both of which reuse the replies (`nip_fn.run.reuse`);
# - rewards, training, testing: in a fork.  It plays the replies again by its own rules, so that
#   rewards may be others, but not a penalty that ends a game, nor what prompts tell of;
# - session: whenever a run is resumed.  Where models are reached and how patiently, and what is
#   done about a failure, `step` never reads.
ParameterStage = Literal["sampling", "selection", "rewards", "training", "testing", "session"]


class Meaning(NamedTuple):
    """The declaration of a parameter beside its type and its help.

    needs: The condition, one of `nip_fn.config.unused`, without which it has no effect; "": none.
    stage: The stage of a run that it acts on first.
    names: The built-in values of one that may also name a value of the user's own.
    shared: The agents of a model group must agree on it, since it describes their one model.
    kept_when_loaded: An agent that is loaded from another run keeps its own value.
    reset_in_attacks: It has its default when the run's agents are attacked.
    """

    needs: str = ""
    stage: ParameterStage = "sampling"
    names: tuple[str, ...] = ()
    shared: bool = False
    kept_when_loaded: bool = False
    reset_in_attacks: bool = False


def parameter(
    description: str,
    *,
    needs: str = "",
    stage: ParameterStage = "sampling",
    names: tuple[str, ...] = (),
    shared: bool = False,
    kept_when_loaded: bool = False,
    reset_in_attacks: bool = False,
) -> Meta:
    """The declaration of a field: its help, in whole sentences, and its `Meaning`."""
    meaning = Meaning(needs, stage, names, shared, kept_when_loaded, reset_in_attacks)
    schema = name_schema(names) if names else None
    return Meta(description=description, extra_json_schema=schema, extra=meaning._asdict())


def section(needs: str) -> Meta:
    """The declaration of a table of parameters that have no effect without a condition."""
    return Meta(extra=Meaning(needs)._asdict())


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
