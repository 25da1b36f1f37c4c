"""The hyper-parameters of a whole run, as one frozen record.

`nip_fn.config` reads, checks and writes it.  Names and defaults are those of the *nip* library,
except where its default cannot work for language models (`rl.lr`, `rl.frames_per_batch`).
"""

from typing import Annotated, Literal

from msgspec import Meta

from nip_fn.params.agent import AgentParameters
from nip_fn.params.base import Record, Share, parameter, section
from nip_fn.params.data import CodeValidationParameters, DatasetParameters
from nip_fn.params.names import BUILT_IN_TRAINERS
from nip_fn.params.protocol import (
    CommonProtocolParameters,
    LongProtocolParameters,
    OracleParameters,
    TwoProverParameters,
)
from nip_fn.params.training import (
    PureTextEiParameters,
    PureTextMaltParameters,
    ReinforceParameters,
    RlParameters,
    TextRlParameters,
)

DEFAULT_AGENT = "_default"


class DummyParameters(Record, frozen=True):
    """The random behaviour of agents with `use_dummy_api`."""

    decision_rate: Annotated[
        Share, parameter("Share of the verifier's replies that contain a decision.")
    ] = 0.4
    invalid_rate: Annotated[Share, parameter("Share of replies that are invalid.")] = 0.0


class HyperParameters(Record, frozen=True):
    """All that defines a run; two runs with equal parameters and data are the same experiment."""

    # Not a Literal: a trainer of the user's own is named by reference, and must decode.
    trainer: Annotated[
        str,
        parameter(
            "Training method: a built-in one, or a trainer of your own.",
            names=BUILT_IN_TRAINERS,
            needs="trainer",
        ),
    ] = "malt"
    dataset: Annotated[
        str,
        parameter(
            'Data set: "builtin:NAME", a benchmark such as "gpqa", "hf:NAME", or the path of a '
            "file or directory."
        ),
    ] = "builtin:python"
    interaction_protocol: Annotated[
        str, parameter("The game: a built-in protocol, or one of your own.")
    ] = "nip"
    seed: Annotated[
        int,
        Meta(ge=-(2**63), le=2**63 - 1),
        parameter("Seed of all randomness in the run.", stage="selection"),
    ] = 6198
    test_dataset_split: Annotated[
        Literal["train", "validation", "test"],
        parameter(
            'Split that tests use; "train" is allowed only if nothing is trained.',
            needs="tests",
            stage="testing",
        ),
    ] = "test"
    agents: tuple[AgentParameters, ...] = ()
    rl: RlParameters = RlParameters()
    text_rl: TextRlParameters = TextRlParameters()
    ei: Annotated[PureTextEiParameters, section("ei")] = PureTextEiParameters()
    malt: Annotated[PureTextMaltParameters, section("malt")] = PureTextMaltParameters()
    reinforce: Annotated[ReinforceParameters, section("reinforce")] = ReinforceParameters()
    protocol_common: CommonProtocolParameters = CommonProtocolParameters()
    nip_protocol: Annotated[LongProtocolParameters, section("nip_protocol")] = (
        LongProtocolParameters()
    )
    debate_protocol: Annotated[TwoProverParameters, section("debate_protocol")] = (
        TwoProverParameters()
    )
    mnip_protocol: Annotated[TwoProverParameters, section("mnip_protocol")] = TwoProverParameters()
    oracle_protocol: Annotated[OracleParameters, section("oracle_protocol")] = OracleParameters()
    dummy: Annotated[DummyParameters, section("dummy")] = DummyParameters()
    code_validation: CodeValidationParameters = CodeValidationParameters()
    dataset_options: DatasetParameters = DatasetParameters()
