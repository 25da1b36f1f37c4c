"""Every hyper-parameter of a run, as frozen records; `config.py` reads and checks them.

Names and defaults are those of the *nip* library, except where its default cannot work for language
models (`rl.lr`, `rl.frames_per_batch`).
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from nip_fn.protocols.names import ProtocolName

Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Positive = Annotated[float, Meta(gt=0.0, le=1e6)]

TrainerName = Literal["malt"]
Provider = Literal["local", "dummy"]
TestScheme = Literal["none", "all", "last", "first_and_last"]
PairSelection = Literal["positive_negative", "interval"]
ValueBackup = Literal["children", "leaves"]


class Record(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, cache_hash=True, kw_only=True
):
    """What all parameter records share: immutable, hashable, and no key is ignored."""


class AgentParameters(Record, frozen=True):
    """How one agent speaks and learns."""

    name: Annotated[str, Meta(description="the agent's name in the protocol")] = ""
    model_provider: Annotated[
        Provider, Meta(description="who samples: a model in this process, or none at all")
    ] = "local"
    model_name: Annotated[
        str, Meta(description='the base model: "builtin:tiny" or a directory with one')
    ] = "builtin:tiny"
    shared_model_group: Annotated[
        str | None, Meta(description="agents with the same group share a model; None: their own")
    ] = None
    freeze_agent: Annotated[bool, Meta(description="never train this agent")] = False
    temperature: Annotated[
        Annotated[float, Meta(ge=0.0)] | None,
        Meta(description="sampling temperature; None: 1"),
    ] = None
    max_response_words: Annotated[
        Count, Meta(description="the length of a message that the prompt asks for, in words")
    ] = 150
    max_tokens_per_message: Annotated[
        Count | None, Meta(description="hard limit of a reply; None: 1.5 x max_response_words")
    ] = None
    num_invalid_generation_retries: Annotated[
        Count, Meta(description="attempts at a reply before it is recorded as invalid")
    ] = 20
    use_supervisor_message: Annotated[
        Literal["none", "all", "first", "all_but_first"],
        Meta(description="rounds in which the chat ends with instructions from a supervisor"),
    ] = "none"
    supervisor_name: Annotated[str, Meta(description="the name of that supervisor")] = "Supervisor"
    fine_tune_from_scratch: Annotated[
        bool, Meta(description="start each training at the base model, not at the last adapter")
    ] = True
    dpo_beta: Annotated[
        Annotated[float, Meta(gt=0.0, le=2.0)] | None,
        Meta(description="DPO's beta: how closely to stay with the reference; None: 0.1"),
    ] = None
    dpo_reference: Annotated[
        Literal["previous", "base"],
        Meta(description="DPO's reference policy: the adapter before this training, or the base"),
    ] = "previous"
    num_epochs: Annotated[
        Count | None, Meta(description="passes over the training data; None: rl.num_epochs")
    ] = None
    lora_rank: Annotated[Count, Meta(description="rank of the LoRA adapter")] = 64
    lora_alpha: Annotated[
        Count | None, Meta(description="LoRA's scaling factor; None: lora_rank x lora_alpha_scale")
    ] = None
    lora_alpha_scale: Annotated[
        Positive | None, Meta(description="LoRA's alpha as a multiple of its rank")
    ] = 1.0
    lora_dropout: Annotated[Share, Meta(description="dropout rate of the LoRA layers")] = 0.05
    per_device_train_batch_size: Annotated[
        Count, Meta(description="training examples in a gradient step")
    ] = 2
    agent_lr_factor: Annotated[
        Positive, Meta(description="this agent's learning rate as a multiple of rl.lr")
    ] = 1.0


class CommonProtocolParameters(Record, frozen=True):
    """Rewards and rules that all protocols share."""

    verifier_first: Annotated[bool, Meta(description="the verifier opens the dialogue")] = True
    randomize_prover_stance: Annotated[
        bool, Meta(description="the prover argues for a side that depends on the solution's hash")
    ] = False
    prover_reward: Annotated[float, Meta(description="for a prover that persuades")] = 1.0
    prover_invalid_response_penalty: Annotated[
        float | None,
        Meta(description="reward for an invalid reply, which ends the game; None: off"),
    ] = None
    verifier_reward: Annotated[float, Meta(description="for the right decision")] = 1.0
    verifier_incorrect_penalty: Annotated[float, Meta(description="for the wrong one")] = -1.0
    verifier_neither_accept_nor_reject_reward: Annotated[
        float | None, Meta(description="for an undecided decision; None: half-way between the two")
    ] = None
    verifier_terminated_penalty: Annotated[
        float, Meta(description="for not deciding in the last turn")
    ] = -1.0
    verifier_no_guess_reward: Annotated[
        float, Meta(description="for each earlier turn without a decision")
    ] = 0.0
    shared_reward: Annotated[bool, Meta(description="provers get the verifier's reward")] = False


class LongProtocolParameters(Record, frozen=True):
    """The length of a dialogue."""

    max_message_rounds: Annotated[
        Count, Meta(description="rounds at most; the game ends at the verifier's last turn")
    ] = 8
    min_message_rounds: Annotated[
        Count, Meta(description="decisions in earlier rounds than this one's end are ignored")
    ] = 1


class RlParameters(Record, frozen=True):
    """The training loop."""

    num_iterations: Annotated[
        Count, Meta(description="trainings; each samples, selects and trains")
    ] = 8
    rollouts_per_iteration: Annotated[
        Count | None,
        Meta(description="datapoints sampled an iteration; None: the whole train split"),
    ] = None
    lr: Annotated[Positive, Meta(description="learning rate of the adapters")] = 1e-5
    num_epochs: Annotated[Count, Meta(description="passes over an iteration's data")] = 3
    num_test_iterations: Annotated[
        Count, Meta(description="dialogues for each held-out datapoint")
    ] = 1


class TextRlParameters(Record, frozen=True):
    """What is tested when, and what training may touch."""

    test_scheme: Annotated[
        TestScheme, Meta(description="models that are tested on held-out problems")
    ] = "none"
    switch_adapters: Annotated[
        bool, Meta(description="sample with what was trained; false: a control that never learns")
    ] = True


class PureTextMaltParameters(Record, frozen=True):
    """Multi-Agent LLM Training: trees of replies, expected rewards, preference pairs."""

    num_responses_per_timestep: Annotated[
        Count, Meta(description="replies sampled from each agent at each position (k)")
    ] = 2
    frozen_agents_generate_one_response: Annotated[
        bool, Meta(description="one reply instead of k where only frozen agents move")
    ] = True
    pair_selection_method: Annotated[
        PairSelection,
        Meta(description="a reply above and one below the mid-point, or two far enough apart"),
    ] = "positive_negative"
    interval_threshold_proportion: Annotated[
        Share, Meta(description='"interval": how far apart, as a share of the reward range')
    ] = 0.1
    num_initial_ei_iterations: Annotated[
        Natural, Meta(description="iterations of expert iteration before the first of MALT")
    ] = 0
    value_backup: Annotated[
        ValueBackup, Meta(description="expected reward: mean over children, or over leaves")
    ] = "children"


class DatasetParameters(Record, frozen=True):
    """How much of the data is used."""

    max_train_size: Annotated[Count | None, Meta(description="train datapoints at most")] = None
    max_test_size: Annotated[Count | None, Meta(description="held-out datapoints at most")] = None


class CodeValidationParameters(Record, frozen=True):
    """The wording of the task."""

    system_prompt_version: Annotated[
        Literal["v1", "tiny"], Meta(description='prompts for any model, or for "builtin:tiny"')
    ] = "v1"


class HyperParameters(Record, frozen=True):
    """All that defines a run; two runs with equal parameters and data are the same experiment."""

    trainer: Annotated[TrainerName, Meta(description="how the agents are trained")] = "malt"
    dataset: Annotated[str, Meta(description="the problems")] = "builtin:arithmetic"
    interaction_protocol: Annotated[ProtocolName, Meta(description="the game")] = "nip"
    seed: Annotated[
        int, Meta(description="the root of all randomness", ge=-(2**63), le=2**63 - 1)
    ] = 6198
    test_dataset_split: Annotated[
        Literal["validation", "test"], Meta(description="the split that counts as held out")
    ] = "test"
    agents: tuple[AgentParameters, ...] = ()
    rl: RlParameters = RlParameters()
    text_rl: TextRlParameters = TextRlParameters()
    malt: PureTextMaltParameters = PureTextMaltParameters()
    protocol_common: CommonProtocolParameters = CommonProtocolParameters()
    nip_protocol: LongProtocolParameters = LongProtocolParameters()
    code_validation: CodeValidationParameters = CodeValidationParameters()
    dataset_options: DatasetParameters = DatasetParameters()


def agent_group(agent: AgentParameters) -> str:
    """The name of the shared model group that the agent belongs to."""
    return agent.shared_model_group or agent.name


def lora_alpha(agent: AgentParameters) -> int:
    """LoRA's alpha: given outright, or `lora_rank * lora_alpha_scale`."""
    if agent.lora_alpha is not None:
        return agent.lora_alpha
    return round(agent.lora_rank * (agent.lora_alpha_scale or 1.0))


def max_tokens(agent: AgentParameters) -> int:
    """The hard limit of a reply in tokens: given, or one and a half for each word asked for."""
    return agent.max_tokens_per_message or int(1.5 * agent.max_response_words)
