"""The hyper-parameters of a whole run, as one frozen record.

`nip_fn.config` reads, checks and writes it.  Names and defaults are those of the *nip* library,
except where its default cannot work for language models (`rl.lr`, `rl.frames_per_batch`).
"""

from typing import Annotated, Literal

from msgspec import Meta

from nip_fn.params.agent import AgentParameters
from nip_fn.params.base import Record, Share
from nip_fn.params.data import CodeValidationParameters, DatasetParameters
from nip_fn.params.names import BUILT_IN_TRAINERS, name_schema
from nip_fn.params.protocol import (
    CommonProtocolParameters,
    LongProtocolParameters,
    TwoProverParameters,
)
from nip_fn.params.training import (
    PureTextEiParameters,
    PureTextMaltParameters,
    RlParameters,
    TextRlParameters,
)

DEFAULT_AGENT = "_default"


class DummyParameters(Record, frozen=True):
    """The random behaviour of agents with `use_dummy_api`."""

    decision_rate: Annotated[
        Share, Meta(description="Share of the verifier's replies that contain a decision.")
    ] = 0.4
    invalid_rate: Annotated[Share, Meta(description="Share of replies that are invalid.")] = 0.0


class HyperParameters(Record, frozen=True):
    """All that defines a run; two runs with equal parameters and data are the same experiment."""

    # Not a Literal: a trainer of the user's own is named by reference, and must decode.
    trainer: Annotated[
        str,
        Meta(
            description="The training method: a built-in one, or a trainer of your own.",
            extra_json_schema=name_schema(BUILT_IN_TRAINERS),
        ),
    ] = "malt"
    dataset: Annotated[
        str,
        Meta(description='"builtin:NAME", "hf:NAME", or the path of a file or a directory.'),
    ] = "builtin:tea"
    interaction_protocol: Annotated[
        str, Meta(description="The game: a built-in protocol, or one of your own.")
    ] = "nip"
    seed: Annotated[
        int, Meta(description="Seed of all randomness in the run.", ge=-(2**63), le=2**63 - 1)
    ] = 6198
    test_dataset_split: Annotated[
        Literal["train", "validation", "test"],
        Meta(description='The split to test on; "train" only where nothing is trained.'),
    ] = "test"
    agents: tuple[AgentParameters, ...] = ()
    rl: RlParameters = RlParameters()
    text_rl: TextRlParameters = TextRlParameters()
    ei: PureTextEiParameters = PureTextEiParameters()
    malt: PureTextMaltParameters = PureTextMaltParameters()
    protocol_common: CommonProtocolParameters = CommonProtocolParameters()
    nip_protocol: LongProtocolParameters = LongProtocolParameters()
    debate_protocol: TwoProverParameters = TwoProverParameters()
    mnip_protocol: TwoProverParameters = TwoProverParameters()
    dummy: DummyParameters = DummyParameters()
    code_validation: CodeValidationParameters = CodeValidationParameters()
    dataset_options: DatasetParameters = DatasetParameters()
