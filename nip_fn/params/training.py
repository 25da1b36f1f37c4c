"""Parameters of the training loop and of the trainers."""

from typing import Annotated, Literal

from msgspec import Meta

from nip_fn.params.base import (
    Count,
    LearningRate,
    Natural,
    NotNegative,
    Positive,
    Record,
    Reward,
    Share,
    Temperature,
)
from nip_fn.params.names import PAIR_RULES, VALUE_BACKUPS, name_schema
from nip_fn.trees.node import SimultaneousBranching

TestScheme = Literal["none", "all", "last", "first_and_last"]
RefusedAdapters = Literal["stop", "skip"]
FailedTrainings = Literal["stop", "retry", "skip"]
RolloutSelection = Literal["threshold", "weighted_sampling"]
Annealing = Literal["none", "linear", "exponential"]
PairBalance = Literal["none", "decisions", "agents"]


class RlParameters(Record, frozen=True):
    """The training loop."""

    num_iterations: Annotated[
        Natural,
        Meta(description="Number of iterations; each samples, selects and trains. 0: only test."),
    ] = 8
    rollouts_per_iteration: Annotated[
        Count | None,
        Meta(description="Datapoints sampled per iteration. None: the whole training split."),
    ] = None
    # The *nip* library's default of 1000 is an error wherever it is no multiple of the rounds of a
    # dialogue, so here the measure is off unless it is asked for.
    frames_per_batch: Annotated[
        Count | None,
        Meta(
            description="Rounds sampled per iteration, instead of rollouts_per_iteration: that "
            "many rounds divided by the longest dialogue gives the number of datapoints."
        ),
    ] = None
    # The *nip* library's default is 0.003, far too high for a language model.
    lr: Annotated[LearningRate, Meta(description="Learning rate.")] = 1e-5
    num_epochs: Annotated[
        Count, Meta(description="Epochs over the training data of an iteration.")
    ] = 3
    # One, where the *nip* library has ten and thus plays its whole test set ten times.
    num_test_iterations: Annotated[
        Count, Meta(description="Dialogues per held-out datapoint in a test.")
    ] = 1


class TextRlParameters(Record, frozen=True):
    """Tests, transcripts, and the limits of requests and trainings."""

    test_scheme: Annotated[
        TestScheme,
        Meta(description="Which iterations' models are tested on held-out datapoints."),
    ] = "none"
    test_on_whole_dataset: Annotated[
        bool,
        Meta(
            description="Test on all held-out datapoints. False: on as many as an iteration "
            "samples."
        ),
    ] = True
    fine_tune_on_all_previous_rollouts: Annotated[
        bool,
        Meta(description="Also train on the selections of earlier iterations of the same trainer."),
    ] = False
    verifier_guess_replacement_proportion: Annotated[
        Share,
        Meta(
            description="With ei: share of the verifier's dialogues in which its decision is "
            "replaced by the true label."
        ),
    ] = 0.0
    verifier_guess_replacement_annealing: Annotated[
        Annealing,
        Meta(
            description="Decay of that share p over iterations i: linear max(p - ir, 0), "
            "exponential p(1 - r)^i."
        ),
    ] = "none"
    verifier_guess_replacement_annealing_rate: Annotated[
        Share, Meta(description="Decay rate r of that share.")
    ] = 0.1
    max_requests_in_flight: Annotated[
        Count,
        Meta(
            description="Largest number of simultaneous requests to each API server. The number "
            "in use adapts to the server below this limit."
        ),
    ] = 1024
    request_timeout_seconds: Annotated[
        Positive, Meta(description="Seconds without an answer after which a request is repeated.")
    ] = 600.0
    outage_limit_seconds: Annotated[
        Positive,
        Meta(
            description="Seconds for which a server that has answered before may fail, refuse "
            "everything or be out of reach. It is probed by one request at a time; then the run "
            "ends, and can be resumed."
        ),
    ] = 7200.0
    unreached_limit_seconds: Annotated[
        Positive, Meta(description="The same for a server that has never answered.")
    ] = 60.0
    stop_grace_seconds: Annotated[
        NotNegative | None,
        Meta(
            description="Seconds for which replies that are under way are waited for when a run "
            "is stopped (Ctrl-C) or fails. None: request_timeout_seconds."
        ),
    ] = None
    fine_tune_poll_seconds: Annotated[
        Positive,
        Meta(description="Seconds between two status queries of a fine-tuning job or a batch."),
    ] = 30.0
    fine_tune_limit_hours: Annotated[
        Positive,
        Meta(description="Hours that a fine-tuning job may take. Resuming the run waits again."),
    ] = 24.0
    test_trees: Annotated[
        bool,
        Meta(
            description="Grow trees in tests, with as many replies as the trainer would sample in "
            "an iteration, instead of single dialogues."
        ),
    ] = False
    save_transcripts: Annotated[
        bool,
        Meta(description="Also write all dialogues into the run's transcripts folder."),
    ] = False
    transcript_format: Annotated[
        Literal["yaml", "json"], Meta(description="File format of the transcripts.")
    ] = "yaml"
    switch_adapters: Annotated[
        bool,
        Meta(
            description="Sample with the trained adapters. False: keep sampling with the initial "
            "models, as a control."
        ),
    ] = True
    refused_adapters: Annotated[
        RefusedAdapters,
        Meta(
            description="If a trained adapter cannot be served (poisoned weights, or another model "
            "answers): stop the run, or skip the adapter and continue with the previous one. A run "
            "may be resumed with another value."
        ),
    ] = "stop"
    failed_trainings: Annotated[
        FailedTrainings,
        Meta(
            description="If a training fails (it is killed, runs out of memory, has fewer rows "
            "than the provider takes, or fails or is cancelled there): stop the run, which trains "
            "it again when it is resumed; retry twice, then stop; or skip it and continue with the "
            "previous model. A run may be resumed with another value. A training that diverges is "
            "always skipped."
        ),
    ] = "stop"
    test_temperature: Annotated[
        Temperature | None,
        Meta(
            description="Sampling temperature of all agents in tests, instead of temperature and "
            "top_p. 0: greedy. None: as in training."
        ),
    ] = None


def grace_seconds(params: TextRlParameters) -> float:
    """Seconds for which a run that stops waits for replies: as given, or as a request may take."""
    given = params.stop_grace_seconds
    return params.request_timeout_seconds if given is None else given


class PureTextEiParameters(Record, frozen=True):
    """Expert Iteration: agents imitate the dialogues that earned them a high reward."""

    rollouts_per_iteration: Annotated[
        Count | None,
        Meta(description="Datapoints sampled per iteration of EI. None: as in rl."),
    ] = None
    lr: Annotated[LearningRate | None, Meta(description="Learning rate of EI. None: rl.lr.")] = None
    rollout_selection_method: Annotated[
        RolloutSelection,
        Meta(
            description="Select every dialogue that reaches a threshold, or draw dialogues at "
            "random, weighted by reward."
        ),
    ] = "threshold"
    reward_threshold: Annotated[
        Reward, Meta(description="With threshold: smallest total reward of a selected dialogue.")
    ] = 0.9
    weighting_sample_size_factor: Annotated[
        Annotated[float, Meta(gt=0.0, le=100.0)],
        Meta(description="With weighted_sampling: number of draws as a share of all dialogues."),
    ] = 0.5
    weighting_minimum: Annotated[
        Reward | None,
        Meta(
            description="Reward of weight zero; lower rewards are raised to it. None: the "
            "smallest reward."
        ),
    ] = None
    weighting_use_replacement: Annotated[bool, Meta(description="Draw with replacement.")] = True
    weighting_epsilon: Annotated[
        NotNegative,
        Meta(description="Smoothing: this over the number of dialogues is added to every weight."),
    ] = 0.01


class PureTextMaltParameters(Record, frozen=True):
    """Multi-Agent LLM Training: trees of replies, expected rewards, preference pairs."""

    num_responses_per_timestep: Annotated[
        Count, Meta(description="Replies k sampled from each agent at each position.")
    ] = 2
    frozen_agents_generate_one_response: Annotated[
        bool, Meta(description="Sample one reply instead of k where only frozen agents move.")
    ] = True
    simultaneous_branching: Annotated[
        SimultaneousBranching,
        Meta(
            description="Children where m agents move at once: joint has k (the i-th replies of "
            "all agents together), product has k^m (every combination of replies)."
        ),
    ] = "joint"
    # Not a Literal, for the same reason as `trainer`.
    pair_selection_method: Annotated[
        str,
        Meta(
            description="Pairs at each position, for each agent: a reply above and one below the "
            "mid-point of the reward range (positive_negative) or the mean of the position's "
            "replies (about_mean), two replies far enough apart (interval), the best and the worst "
            "(best_worst), every two that differ (all), or a rule of your own.",
            extra_json_schema=name_schema(PAIR_RULES),
        ),
    ] = "positive_negative"
    interval_threshold_proportion: Annotated[
        Share,
        Meta(description="With interval: smallest difference, as a share of the reward range."),
    ] = 0.1
    min_pair_margin: Annotated[
        NotNegative,
        Meta(
            description="Smallest difference of expected reward between the chosen and the "
            "rejected reply."
        ),
    ] = 0.0
    deduplicate_pairs: Annotated[
        bool,
        Meta(
            description="Drop pairs of identical texts, and repeated pairs of an agent in a tree."
        ),
    ] = False
    max_pairs_per_datapoint: Annotated[
        Count | None,
        Meta(
            description="Largest number of pairs per agent and tree; surplus pairs are dropped at "
            "random. None: no limit."
        ),
    ] = None
    balance_pairs: Annotated[
        PairBalance,
        Meta(
            description="Drop surplus pairs at random: decisions keeps as many pairs that prefer "
            "acceptance as rejection, agents keeps equal numbers for all agents that have pairs."
        ),
    ] = "none"
    num_initial_ei_iterations: Annotated[
        Natural, Meta(description="Iterations of Expert Iteration before the first of MALT.")
    ] = 0
    value_backup: Annotated[
        str,
        Meta(
            description="Expected reward of a node: mean over its children, over its leaves, or a "
            "backup of your own.",
            extra_json_schema=name_schema(VALUE_BACKUPS),
        ),
    ] = "children"
