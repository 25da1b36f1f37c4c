"""Every hyper-parameter of a run, as frozen records; `config.py` reads, `checks.py` checks them.

Names and defaults are those of the *nip* library, except where its default cannot work for language
models (`rl.lr`, `rl.frames_per_batch`).
"""

from typing import Annotated, Literal

from msgspec import Meta

from nip_fn.keys import DrawsName
from nip_fn.params.agent import AgentParameters
from nip_fn.params.base import Record, Share
from nip_fn.params.data import CodeValidationParameters, DatasetParameters
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

TrainerName = Literal["malt", "ei"]


class DummyParameters(Record, frozen=True):
    """How agents with `use_dummy_api` behave."""

    decision_rate: Annotated[
        Share, Meta(description="share of a verifier's replies that decide")
    ] = 0.4
    invalid_rate: Annotated[Share, Meta(description="share of replies that cannot be used")] = 0.0


class HyperParameters(Record, frozen=True):
    """All that defines a run; two runs with equal parameters and data are the same experiment."""

    trainer: Annotated[TrainerName, Meta(description="how the agents are trained")] = "malt"
    dataset: Annotated[
        str, Meta(description='"builtin:NAME", "hf:NAME", or the path of a file or directory')
    ] = "builtin:arithmetic"
    interaction_protocol: Annotated[str, Meta(description="the game")] = "nip"
    seed: Annotated[
        int, Meta(description="the root of all randomness", ge=-(2**63), le=2**63 - 1)
    ] = 6198
    test_dataset_split: Annotated[
        Literal["validation", "test"], Meta(description="the split that counts as held out")
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
    draws: Annotated[
        DrawsName,
        Meta(description='source of shuffles; "philox" replays runs that nip-fn 0.1 recorded'),
    ] = "lots"
