"""Every hyper-parameter of a run, as frozen records; `config.py` reads, `checks.py` checks them.

Names and defaults are those of the *nip* library, except where its default cannot work for language
models (`rl.lr`, `rl.frames_per_batch`).
"""

from typing import Annotated, Literal

from msgspec import Meta

from nip_fn.agent_params import AgentParameters
from nip_fn.record import Count, Natural, Positive, Record, Share
from nip_fn.spectra import SpectrumName

TrainerName = Literal["malt", "ei"]
RolloutSelection = Literal["threshold", "weighted_sampling"]
Annealing = Literal["none", "linear", "exponential"]
TestScheme = Literal["none", "all", "last", "first_and_last"]
PairSelection = Literal["positive_negative", "interval", "best_worst", "all"]
PairBalance = Literal["none", "decisions", "agents"]
SimultaneousBranching = Literal["joint", "product"]
ValueBackup = Literal["children", "leaves"]
ForceGuess = Literal["zero", "one", "y"]
RefusedAdapters = Literal["stop", "skip"]


class CommonProtocolParameters(Record, frozen=True):
    """Rewards and rules that all protocols share."""

    verifier_first: Annotated[
        bool, Meta(description="the verifier opens the dialogue (nip, debate, mnip)")
    ] = True
    randomize_prover_stance: Annotated[
        bool,
        Meta(
            description="provers argue for a side that depends on the solution's hash, where the "
            "protocol leaves the side open (nip, adp, mnip)"
        ),
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
    force_guess: Annotated[
        ForceGuess | None,
        Meta(
            description="the verifier decides at its first turn that counts, whatever it says: "
            "zero rejects, one accepts, y is always right; None: it decides for itself"
        ),
    ] = None
    zero_knowledge: Annotated[bool, Meta(description="tensor agents only: leave it false")] = False
    verifier_decision_spectrum: Annotated[
        SpectrumName, Meta(description="the words in which the verifier decides")
    ] = "accept_reject"


class LongProtocolParameters(Record, frozen=True):
    """The length of a dialogue."""

    max_message_rounds: Annotated[
        Count, Meta(description="rounds at most; the game ends at the verifier's last turn")
    ] = 8
    min_message_rounds: Annotated[
        Count, Meta(description="decisions in earlier rounds than this one's end are ignored")
    ] = 1


class TwoProverParameters(LongProtocolParameters, frozen=True):
    """The length and order of a dialogue with two provers."""

    sequential: Annotated[
        bool, Meta(description="the provers speak one after the other, not at once")
    ] = False
    prover0_first: Annotated[
        bool, Meta(description="prover0 is the first of the two, where they speak in turn")
    ] = True
    randomize_channel_order: Annotated[
        bool, Meta(description="the verifier reads the provers' messages in a random order")
    ] = True


class DummyParameters(Record, frozen=True):
    """How agents with `use_dummy_api` behave."""

    decision_rate: Annotated[
        Share, Meta(description="share of a verifier's replies that decide")
    ] = 0.4
    invalid_rate: Annotated[Share, Meta(description="share of replies that cannot be used")] = 0.0


class RlParameters(Record, frozen=True):
    """The training loop."""

    num_iterations: Annotated[
        Natural, Meta(description="trainings; each samples, selects and trains; 0: only a test")
    ] = 8
    rollouts_per_iteration: Annotated[
        Count | None,
        Meta(description="datapoints sampled an iteration; None: the whole train split"),
    ] = None
    frames_per_batch: Annotated[
        Count | None,
        Meta(
            description="rounds sampled an iteration, instead of rollouts_per_iteration: as many "
            "datapoints as dialogues of the longest kind fit into it"
        ),
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
    test_on_whole_dataset: Annotated[
        bool,
        Meta(description="test on all held-out problems; false: as many as an iteration samples"),
    ] = True
    fine_tune_on_all_previous_rollouts: Annotated[
        bool,
        Meta(description="train on what earlier iterations of the same trainer selected, too"),
    ] = False
    verifier_guess_replacement_proportion: Annotated[
        Share,
        Meta(description="ei: share of rollouts that a verifier learns from with the true label"),
    ] = 0.0
    verifier_guess_replacement_annealing: Annotated[
        Annealing,
        Meta(description="how that share p falls in iteration i: max(p - ir, 0), or p(1 - r)^i"),
    ] = "none"
    verifier_guess_replacement_annealing_rate: Annotated[
        Share, Meta(description="the rate r of that fall")
    ] = 0.1
    max_requests_in_flight: Annotated[
        Count, Meta(description="at each server behind an API, at a time; found below that")
    ] = 1024
    request_timeout_seconds: Annotated[
        Positive, Meta(description="for an API to answer a request, before it is asked again")
    ] = 600.0
    fine_tune_poll_seconds: Annotated[
        Positive, Meta(description="between two looks at a training or a batch at a provider")
    ] = 30.0
    fine_tune_limit_hours: Annotated[
        Positive, Meta(description="for a training at a provider to end; resuming waits again")
    ] = 24.0
    save_transcripts: Annotated[
        bool,
        Meta(description="write all dialogues, too, into the run's transcripts folder"),
    ] = False
    transcript_format: Annotated[
        Literal["yaml", "json"], Meta(description="how they are written")
    ] = "yaml"
    switch_adapters: Annotated[
        bool, Meta(description="sample with what was trained; false: a control that never learns")
    ] = True
    refused_adapters: Annotated[
        RefusedAdapters,
        Meta(
            description="an adapter that cannot be served (poisoned, or another model answers) "
            "stops the run, or is left out: the run goes on with the one before it"
        ),
    ] = "stop"


class PureTextEiParameters(Record, frozen=True):
    """Expert Iteration: dialogues that went well for an agent are imitated."""

    rollouts_per_iteration: Annotated[
        Count | None,
        Meta(description="datapoints of an iteration of this trainer; None: as rl says"),
    ] = None
    lr: Annotated[
        Positive | None, Meta(description="learning rate of this trainer; None: rl.lr")
    ] = None
    rollout_selection_method: Annotated[
        RolloutSelection, Meta(description="all that reach a reward, or a weighted draw")
    ] = "threshold"
    reward_threshold: Annotated[
        float, Meta(description='"threshold": the least reward of a dialogue to learn from')
    ] = 0.9
    weighting_sample_size_factor: Annotated[
        Positive, Meta(description='"weighted_sampling": dialogues drawn, as a share of all')
    ] = 0.5
    weighting_minimum: Annotated[
        float | None,
        Meta(description="the reward of weight 0, and the least one counted; None: the least one"),
    ] = None
    weighting_use_replacement: Annotated[
        bool, Meta(description="whether a dialogue can be drawn more than once")
    ] = True
    weighting_epsilon: Annotated[
        Annotated[float, Meta(ge=0.0)],
        Meta(description="added, over the number of dialogues, to every weight"),
    ] = 0.01


class PureTextMaltParameters(Record, frozen=True):
    """Multi-Agent LLM Training: trees of replies, expected rewards, preference pairs."""

    num_responses_per_timestep: Annotated[
        Count, Meta(description="replies sampled from each agent at each position (k)")
    ] = 2
    frozen_agents_generate_one_response: Annotated[
        bool, Meta(description="one reply instead of k where only frozen agents move")
    ] = True
    simultaneous_branching: Annotated[
        SimultaneousBranching,
        Meta(
            description="where m agents move at once: k rounds of everyone's i-th reply, or k^m in "
            "which every reply meets all of the others'"
        ),
    ] = "joint"
    pair_selection_method: Annotated[
        PairSelection,
        Meta(
            description="at each position and for each agent: a reply above and one below the "
            "mid-point, two far enough apart, the best and the worst, or every two that differ"
        ),
    ] = "positive_negative"
    interval_threshold_proportion: Annotated[
        Share, Meta(description='"interval": how far apart, as a share of the reward range')
    ] = 0.1
    min_pair_margin: Annotated[
        float, Meta(description="how much more the chosen reply is worth, at least", ge=0.0)
    ] = 0.0
    deduplicate_pairs: Annotated[
        bool, Meta(description="no pair of equal texts, and none twice in a tree for an agent")
    ] = False
    max_pairs_per_datapoint: Annotated[
        Count | None, Meta(description="pairs of an agent from one tree at most, drawn at random")
    ] = None
    balance_pairs: Annotated[
        PairBalance,
        Meta(
            description="surplus pairs dropped at random: an agent keeps as many that accept as "
            "that reject, or every agent that has any as many as the one with fewest"
        ),
    ] = "none"
    num_initial_ei_iterations: Annotated[
        Natural, Meta(description="iterations of expert iteration before the first of MALT")
    ] = 0
    value_backup: Annotated[
        ValueBackup, Meta(description="expected reward: mean over children, or over leaves")
    ] = "children"


class DatasetParameters(Record, frozen=True):
    """Which of the data are used, and how they are split."""

    max_train_size: Annotated[Count | None, Meta(description="train datapoints at most")] = None
    max_test_size: Annotated[Count | None, Meta(description="held-out datapoints at most")] = None
    reduce_shuffle_seed: Annotated[
        int, Meta(description="draws those; the same ones, and more, for a larger size")
    ] = 42
    difficulty: Annotated[
        str | None, Meta(description="only problems of this difficulty (not for APPS: see below)")
    ] = None
    balance_classes: Annotated[
        bool, Meta(description="right and buggy solutions in equal number, in turn, in each split")
    ] = False
    validation_share: Annotated[
        Share, Meta(description="of the problems, where the data are not split already")
    ] = 0.15
    test_share: Annotated[Share, Meta(description="likewise")] = 0.15
    skip_bad_rows: Annotated[
        bool, Meta(description="leave out rows that cannot be read, and count them")
    ] = False


class CodeValidationParameters(Record, frozen=True):
    """The wording of the task, and the choice of data from APPS."""

    apps_difficulty: Annotated[
        Literal["introductory", "interview", "competition", "all"],
        Meta(description="only problems of this difficulty, from APPS and buggy-apps"),
    ] = "interview"
    apps_solution_number: Annotated[
        Natural, Meta(description="which of a problem's solutions, from APPS (not buggy-apps)")
    ] = 0
    apps_exclude_flagged: Annotated[
        bool, Meta(description="no problems that buggy-apps gives flags to")
    ] = True
    system_prompt_version: Annotated[
        Literal["v1", "tiny"], Meta(description='prompts for any model, or for "builtin:tiny"')
    ] = "v1"


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
