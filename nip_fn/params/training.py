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
    parameter,
)
from nip_fn.params.names import PAIR_RULES, VALUE_BACKUPS
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
        parameter(
            "Number of iterations, each of which samples, selects and trains. 0: only test.",
            stage="training",
        ),
    ] = 8
    rollouts_per_iteration: Annotated[
        Count | None,
        parameter(
            "Datapoints sampled per iteration. None: the whole training split.", needs="batches"
        ),
    ] = None
    # The *nip* library's default of 1000 is an error wherever it is no multiple of the rounds of a
    # dialogue, so here the measure is off unless it is asked for.
    frames_per_batch: Annotated[
        Count | None,
        parameter(
            "Rounds sampled per iteration, in place of rollouts_per_iteration; divided by the "
            "rounds of the longest dialogue, it gives the number of datapoints.",
            needs="batches",
        ),
    ] = None
    # The *nip* library's default is 0.003, far too high for a language model.
    lr: Annotated[LearningRate, parameter("Learning rate.", needs="rl.lr", stage="training")] = 1e-5
    num_epochs: Annotated[
        Count,
        parameter(
            "Epochs over the training data of an iteration.",
            needs="rl.num_epochs",
            stage="training",
        ),
    ] = 3
    # One, where the *nip* library has ten and thus plays its whole test set ten times.
    num_test_iterations: Annotated[
        Count,
        parameter("Dialogues per held-out datapoint in a test.", needs="tests", stage="testing"),
    ] = 1


class TextRlParameters(Record, frozen=True):
    """Tests, transcripts, and the limits of requests and trainings."""

    test_scheme: Annotated[
        TestScheme,
        parameter(
            "Iterations whose models are tested on held-out datapoints.",
            needs="iterations",
            stage="testing",
        ),
    ] = "none"
    test_on_whole_dataset: Annotated[
        bool,
        parameter(
            "Test on all held-out datapoints. False: on as many as an iteration samples.",
            needs="tests",
            stage="testing",
        ),
    ] = True
    fine_tune_on_all_previous_rollouts: Annotated[
        bool,
        parameter(
            "Also train on the selections of earlier iterations of the same trainer.",
            needs="trained",
        ),
    ] = False
    verifier_guess_replacement_proportion: Annotated[
        Share,
        parameter(
            "With ei: share p of the verifier's dialogues whose decision is replaced by the true "
            "label.",
            needs="ei",
            stage="training",
        ),
    ] = 0.0
    verifier_guess_replacement_annealing: Annotated[
        Annealing,
        parameter(
            "Decay of the share p over iterations i: linear is max(p - ir, 0), exponential is p(1 "
            "- r)^i.",
            needs="replaced verdicts",
            stage="training",
        ),
    ] = "none"
    verifier_guess_replacement_annealing_rate: Annotated[
        Share, parameter("Decay rate r of the share p.", needs="annealing", stage="training")
    ] = 0.1
    max_requests_in_flight: Annotated[
        Count,
        parameter(
            "Maximum number of simultaneous requests to each API server. The actual number adapts "
            "to the server.",
            needs="server",
            stage="session",
        ),
    ] = 1024
    request_timeout_seconds: Annotated[
        Positive,
        parameter(
            "Seconds without an answer before a request is sent again.",
            needs="server",
            stage="session",
        ),
    ] = 600.0
    outage_limit_seconds: Annotated[
        Positive,
        parameter(
            "Seconds that a server which has answered before may fail, refuse every request or be "
            "unreachable before the run ends. It is probed with one request at a time, and the "
            "run can be resumed.",
            needs="server",
            stage="session",
        ),
    ] = 7200.0
    unreached_limit_seconds: Annotated[
        Positive,
        parameter(
            "The same limit for a server that has never answered.", needs="server", stage="session"
        ),
    ] = 60.0
    stop_grace_seconds: Annotated[
        NotNegative | None,
        parameter(
            "Seconds to wait for outstanding replies when a run is stopped (Ctrl-C) or fails. "
            "None: request_timeout_seconds.",
            stage="session",
        ),
    ] = None
    fine_tune_poll_seconds: Annotated[
        Positive,
        parameter(
            "Seconds between status queries of a fine-tuning job or a batch.",
            needs="jobs",
            stage="session",
        ),
    ] = 30.0
    fine_tune_limit_hours: Annotated[
        Positive,
        parameter(
            "Hours to wait for a fine-tuning job. Resuming the run starts the wait again.",
            needs="training server",
            stage="session",
        ),
    ] = 24.0
    test_trees: Annotated[
        bool,
        parameter(
            "Grow trees in tests instead of single dialogues, with as many replies as the trainer "
            "samples in an iteration.",
            needs="test trees",
            stage="testing",
        ),
    ] = False
    save_transcripts: Annotated[
        bool,
        parameter("Also write all dialogues into the run's transcripts folder.", stage="testing"),
    ] = False
    transcript_format: Annotated[
        Literal["yaml", "json"],
        parameter("File format of the transcripts.", needs="transcripts", stage="testing"),
    ] = "yaml"
    record_tokens: Annotated[
        bool,
        parameter(
            "Record the token ids of every reply and their log-probabilities, as far as the "
            "provider gives them: 8 bytes a token.",
            needs="models",
        ),
    ] = True
    switch_adapters: Annotated[
        bool,
        parameter(
            "Sample with the trained adapters. False: keep sampling with the initial models, as a "
            "control.",
            needs="trained",
            stage="training",
        ),
    ] = True
    refused_adapters: Annotated[
        RefusedAdapters,
        parameter(
            "What to do when a trained adapter cannot be served (its weights are invalid, or "
            "another model answers): stop the run, or skip the adapter and continue with the "
            "previous one.",
            needs="real training",
            stage="session",
        ),
    ] = "stop"
    failed_trainings: Annotated[
        FailedTrainings,
        parameter(
            "What to do when a training fails (it is killed, runs out of memory, has too few "
            "rows, or fails or is cancelled at the provider): stop the run, which trains again "
            "when it is resumed; retry twice, then stop; or skip the training and continue with "
            "the previous model. A training that diverges is always skipped.",
            needs="real training",
            stage="session",
        ),
    ] = "stop"
    test_temperature: Annotated[
        Temperature | None,
        parameter(
            "Sampling temperature of all agents in tests, instead of temperature and top_p. 0: "
            "greedy. None: as in training.",
            needs="test temperature",
            stage="testing",
        ),
    ] = None


def grace_seconds(params: TextRlParameters) -> float:
    """Seconds for which a run that stops waits for replies: as given, or as a request may take."""
    seconds = params.stop_grace_seconds
    return params.request_timeout_seconds if seconds is None else seconds


class PureTextEiParameters(Record, frozen=True):
    """Expert Iteration: agents imitate the dialogues that earned them a high reward."""

    rollouts_per_iteration: Annotated[
        Count | None,
        parameter("Datapoints sampled per iteration of Expert Iteration. None: as in rl."),
    ] = None
    lr: Annotated[
        LearningRate | None,
        parameter(
            "Learning rate of Expert Iteration. None: rl.lr.",
            needs="learning rate",
            stage="training",
        ),
    ] = None
    rollout_selection_method: Annotated[
        RolloutSelection,
        parameter(
            "threshold selects every dialogue whose reward reaches reward_threshold; "
            "weighted_sampling draws dialogues at random, weighted by reward.",
            stage="selection",
        ),
    ] = "threshold"
    reward_threshold: Annotated[
        Reward,
        parameter(
            "With threshold: smallest total reward of a selected dialogue.",
            needs="threshold",
            stage="selection",
        ),
    ] = 0.9
    weighting_sample_size_factor: Annotated[
        Annotated[float, Meta(gt=0.0, le=100.0)],
        parameter(
            "With weighted_sampling: number of draws as a share of all dialogues.",
            needs="weighted draws",
            stage="selection",
        ),
    ] = 0.5
    weighting_minimum: Annotated[
        Reward | None,
        parameter(
            "Reward with weight zero, to which lower rewards are raised. None: the smallest "
            "reward.",
            needs="weighted draws",
            stage="selection",
        ),
    ] = None
    weighting_use_replacement: Annotated[
        bool, parameter("Draw with replacement.", needs="weighted draws", stage="selection")
    ] = True
    weighting_epsilon: Annotated[
        NotNegative,
        parameter(
            "Smoothing: this value divided by the number of dialogues is added to every weight.",
            needs="weighted draws",
            stage="selection",
        ),
    ] = 0.01


class ReinforceParameters(Record, frozen=True):
    """Policy gradients: every reply weighed by its advantage."""

    advantage: Annotated[
        Literal["tree", "running_baseline"],
        parameter(
            "A reply's value less the mean of the replies to the same prompt (tree), or less a "
            "moving average of the agent's values (running_baseline), which needs no second "
            "reply.",
            stage="selection",
        ),
    ] = "tree"
    baseline_decay: Annotated[
        Share,
        parameter(
            "Share of the moving average that an iteration keeps.",
            needs="running baseline",
            stage="selection",
        ),
    ] = 0.95
    normalise_by: Annotated[
        Literal["agent", "position", "none"],
        parameter(
            "Divide advantages by their root mean square: that of the agent, or of the agent's "
            "turn in the round (position).",
            stage="selection",
        ),
    ] = "position"


class PureTextMaltParameters(Record, frozen=True):
    """Multi-Agent LLM Training: trees of replies, expected rewards, preference pairs."""

    num_responses_per_timestep: Annotated[
        Count,
        parameter(
            "Number k of replies sampled from each agent at each position.",
            needs="malt.num_responses_per_timestep",
        ),
    ] = 2
    frozen_agents_generate_one_response: Annotated[
        bool,
        parameter(
            "Sample one reply instead of k where only frozen agents move.", needs="frozen agents"
        ),
    ] = True
    simultaneous_branching: Annotated[
        SimultaneousBranching,
        parameter(
            "Children of a position at which m agents move at once: joint has k (the i-th replies "
            "of all agents together), product has k^m (every combination of replies).",
            needs="simultaneous turns",
        ),
    ] = "joint"
    # Not a Literal, for the same reason as `trainer`.
    pair_selection_method: Annotated[
        str,
        parameter(
            "Preference pairs at each position, for each agent: one reply above and one below the "
            "mid-point of the reward range (positive_negative) or the mean of the position's "
            "replies (about_mean), two replies that are far enough apart (interval), the best and "
            "the worst (best_worst), every two that differ (all), or a rule of your own.",
            names=PAIR_RULES,
            needs="malt.pair_selection_method",
            stage="selection",
        ),
    ] = "positive_negative"
    interval_threshold_proportion: Annotated[
        Share,
        parameter(
            "With interval: smallest difference as a share of the reward range.",
            needs="interval",
            stage="selection",
        ),
    ] = 0.1
    min_pair_margin: Annotated[
        NotNegative,
        parameter(
            "Smallest difference in expected reward between the chosen and the rejected reply.",
            needs="malt.min_pair_margin",
            stage="selection",
        ),
    ] = 0.0
    deduplicate_pairs: Annotated[
        bool,
        parameter(
            "Drop pairs of identical texts, and repeated pairs of one agent in a tree.",
            needs="pairs",
            stage="selection",
        ),
    ] = False
    max_pairs_per_datapoint: Annotated[
        Count | None,
        parameter(
            "Maximum number of pairs per agent and tree; surplus pairs are dropped at random. "
            "None: no limit.",
            needs="pairs",
            stage="selection",
        ),
    ] = None
    balance_pairs: Annotated[
        PairBalance,
        parameter(
            "Drop surplus pairs at random: decisions keeps as many pairs that prefer acceptance "
            "as pairs that prefer rejection; agents keeps the same number for every agent that "
            "has pairs.",
            needs="pairs",
            stage="selection",
        ),
    ] = "none"
    num_initial_ei_iterations: Annotated[
        Natural,
        parameter(
            "Iterations of Expert Iteration before the first iteration of malt or reinforce.",
            needs="trained",
        ),
    ] = 0
    value_backup: Annotated[
        str,
        parameter(
            "Expected reward of a node: the mean over its children or over its leaves, or a backup "
            "of your own.",
            needs="siblings",
            stage="selection",
            names=VALUE_BACKUPS,
        ),
    ] = "children"
    verdict: Annotated[
        Literal["sampled", "probability"],
        parameter(
            "Reward of a decided game in the expected reward of the positions before the verdict: "
            "that of the sampled verdict, or its expectation over the verdict's probability, where "
            "the provider gives log-probabilities.",
            needs="siblings",
            stage="selection",
        ),
    ] = "sampled"
