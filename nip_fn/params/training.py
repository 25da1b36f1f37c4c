"""Parameters of the training loop and of its trainers."""

from typing import Annotated, Literal

from msgspec import Meta

from nip_fn.params.base import Count, Natural, Positive, Record, Share

RolloutSelection = Literal["threshold", "weighted_sampling"]
Annealing = Literal["none", "linear", "exponential"]
PairSelection = Literal["positive_negative", "interval", "best_worst", "all"]
PairBalance = Literal["none", "decisions", "agents"]
SimultaneousBranching = Literal["joint", "product"]
ValueBackup = Literal["children", "leaves"]
TestScheme = Literal["none", "all", "last", "first_and_last"]
RefusedAdapters = Literal["stop", "skip"]


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
