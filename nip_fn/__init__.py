"""nip-fn: neural interactive proofs for language models, as pure functions over frozen records.

Start with these.

    datapoint, protocol_of      a problem with a proposed solution; the game that is played about it
    play, grow                  games, and trees of replies, from nothing but functions
    grow_many, agrow            trees of a model that is asked in batches, or in an event loop
    mean_children, discounted   backups: expected rewards of a tree
    chain(interval(...), ...)   preference pairs, by a rule and filters
    malt, ei, sequence          trainers, shaped like optax transformations
    step, simulate, replay      a run: a scan over recorded events
    from_dict, trainer_of       a configuration as text, and the values it stands for

The modules are rooms on two storeys.  `keys`, `game`, `trees`, `select` and `training` know no
configuration; `params` and all that stands on it (`protocols`, `prompts`, `config`, `metrics`,
`export`, `testing`, `run`) turn a TOML file into those values and a run into a scan.
"""

from nip_fn.config.codec import from_dict, get, to_dict
from nip_fn.config.compat.nip import from_nip_config
from nip_fn.config.groups import make_groups
from nip_fn.config.trainers import BACKUPS, SELECTORS, TRAINERS, trainer_of
from nip_fn.errors import Problem
from nip_fn.export.arrays import to_arrays
from nip_fn.export.transcripts import transcript
from nip_fn.game.bounds import reward_bounds, reward_mid_point
from nip_fn.game.chat import Chat, Message
from nip_fn.game.datapoint import Datapoint, Dataset, make_datapoint
from nip_fn.game.decision import ACCEPT, REJECT, SPECTRA, Decision
from nip_fn.game.episode import Episode, Round, Utterance, movers, play_round, reset
from nip_fn.game.protocol import (
    AgentSpec,
    Move,
    Outcome,
    Protocol,
    verifier_rounds,
)
from nip_fn.game.reply import Completion, Reply, parse_reply
from nip_fn.game.verdict import find_decision
from nip_fn.keys import Key, fold_in, key, permutation, randint, split, uniform, weighted_choice
from nip_fn.metrics.evaluation import Verdicts, accuracy, always_fails, verdicts
from nip_fn.metrics.exploits import best_of
from nip_fn.metrics.formulas import effective_size, wilson_interval
from nip_fn.metrics.inference import (
    Difference,
    Estimate,
    crossed_interval,
    crossed_share,
    detectable_difference,
    holm,
    paired_difference,
    sign_flip,
    t_interval,
)
from nip_fn.metrics.oversight import (
    Judged,
    agent_score_difference,
    auroc,
    brier,
    calibration,
    checking_rate,
    completeness,
    judged,
    majority_accuracy,
    message_effect,
    soundness,
)
from nip_fn.metrics.stage import stage_metrics
from nip_fn.metrics.usage import Usage
from nip_fn.params.run import HyperParameters
from nip_fn.prompts.chat import build_chat
from nip_fn.protocols.build import in_turn, make_protocol
from nip_fn.protocols.registry import PROTOCOLS, protocol_of
from nip_fn.protocols.sides import sides
from nip_fn.protocols.strategies import STRATEGIES, Strategy, scripted_reply
from nip_fn.run.digest import digest
from nip_fn.run.events import DatasetInfo, Effect, Event, RunStarted
from nip_fn.run.fork import ForkPoint, fork_point
from nip_fn.run.replay import Replayed, StageForest, annotate, replay, reselect, summary
from nip_fn.run.request import Request, request
from nip_fn.run.simulate import pure_world, simulate, started
from nip_fn.run.state import EMPTY, Row, RunState
from nip_fn.run.step import pending, scan, step
from nip_fn.select.filters import balance, cap, dedupe, margin, one_per_node
from nip_fn.select.pairs import (
    Candidates,
    DecisionPoint,
    Pair,
    Ranks,
    Rule,
    Selector,
    about,
    about_mean,
    best_worst,
    by_agent,
    candidates,
    chain,
    every,
    interval,
    propose,
)
from nip_fn.select.reestimate import reestimated
from nip_fn.select.rollouts import RolloutRule, SelectedRollout, at_least, weighted
from nip_fn.testing.check import ProtocolError, check_protocol
from nip_fn.testing.params import construct_test_params
from nip_fn.testing.trainers import TrainerError, check_trainer
from nip_fn.training.compose import accumulate, masked, sequence
from nip_fn.training.ei import ei
from nip_fn.training.groups import Adapter, Group
from nip_fn.training.malt import malt
from nip_fn.training.rows import PreferenceRow, SupervisedRow
from nip_fn.training.schedules import Schedule, constant, exponential, join, linear, periodic
from nip_fn.training.trainer import SampleBatch, Selection, Trainer, Update, trained_agents
from nip_fn.training.tuning import Job
from nip_fn.trees.backup import Backup, discounted, map_rewards, mean_children, mean_leaves
from nip_fn.trees.grow import (
    AsyncSampler,
    BatchSampler,
    Policy,
    Query,
    Rules,
    Turn,
    agrow,
    batched,
    grow,
    grow_many,
    insert,
    new_tree,
)
from nip_fn.trees.node import (
    GameTree,
    Node,
    ReplyArrival,
    ReplyRequest,
    node_at,
    pending_requests,
    reply_key,
)
from nip_fn.trees.rollouts import Rollout, dialogue_of, leaf_games, leaf_probabilities, play
from nip_fn.trees.tree import Tree, children_of, flatten, leaves_of

__version__ = "0.3.0"

__all__ = [
    "ACCEPT",
    "BACKUPS",
    "EMPTY",
    "PROTOCOLS",
    "REJECT",
    "SELECTORS",
    "SPECTRA",
    "STRATEGIES",
    "TRAINERS",
    "Adapter",
    "AgentSpec",
    "AsyncSampler",
    "Backup",
    "BatchSampler",
    "Candidates",
    "Chat",
    "Completion",
    "Datapoint",
    "Dataset",
    "DatasetInfo",
    "Decision",
    "DecisionPoint",
    "Difference",
    "Effect",
    "Episode",
    "Estimate",
    "Event",
    "ForkPoint",
    "GameTree",
    "Group",
    "HyperParameters",
    "Job",
    "Judged",
    "Key",
    "Message",
    "Move",
    "Node",
    "Outcome",
    "Pair",
    "Policy",
    "PreferenceRow",
    "Problem",
    "Protocol",
    "ProtocolError",
    "Query",
    "Ranks",
    "Replayed",
    "Reply",
    "ReplyArrival",
    "ReplyRequest",
    "Request",
    "Rollout",
    "RolloutRule",
    "Round",
    "Row",
    "Rule",
    "Rules",
    "RunStarted",
    "RunState",
    "SampleBatch",
    "Schedule",
    "SelectedRollout",
    "Selection",
    "Selector",
    "StageForest",
    "Strategy",
    "SupervisedRow",
    "Trainer",
    "TrainerError",
    "Tree",
    "Turn",
    "Update",
    "Usage",
    "Utterance",
    "Verdicts",
    "__version__",
    "about",
    "about_mean",
    "accumulate",
    "accuracy",
    "agent_score_difference",
    "agrow",
    "always_fails",
    "annotate",
    "at_least",
    "auroc",
    "balance",
    "batched",
    "best_of",
    "best_worst",
    "brier",
    "build_chat",
    "by_agent",
    "calibration",
    "candidates",
    "cap",
    "chain",
    "check_protocol",
    "check_trainer",
    "checking_rate",
    "children_of",
    "completeness",
    "constant",
    "construct_test_params",
    "crossed_interval",
    "crossed_share",
    "dedupe",
    "detectable_difference",
    "dialogue_of",
    "digest",
    "discounted",
    "effective_size",
    "ei",
    "every",
    "exponential",
    "find_decision",
    "flatten",
    "fold_in",
    "fork_point",
    "from_dict",
    "from_nip_config",
    "get",
    "grow",
    "grow_many",
    "holm",
    "in_turn",
    "insert",
    "interval",
    "join",
    "judged",
    "key",
    "leaf_games",
    "leaf_probabilities",
    "leaves_of",
    "linear",
    "majority_accuracy",
    "make_datapoint",
    "make_groups",
    "make_protocol",
    "malt",
    "map_rewards",
    "margin",
    "masked",
    "mean_children",
    "mean_leaves",
    "message_effect",
    "movers",
    "new_tree",
    "node_at",
    "one_per_node",
    "paired_difference",
    "parse_reply",
    "pending",
    "pending_requests",
    "periodic",
    "permutation",
    "play",
    "play_round",
    "propose",
    "protocol_of",
    "pure_world",
    "randint",
    "reestimated",
    "replay",
    "reply_key",
    "request",
    "reselect",
    "reset",
    "reward_bounds",
    "reward_mid_point",
    "scan",
    "scripted_reply",
    "sequence",
    "sides",
    "sign_flip",
    "simulate",
    "soundness",
    "split",
    "stage_metrics",
    "started",
    "step",
    "summary",
    "t_interval",
    "to_arrays",
    "to_dict",
    "trained_agents",
    "trainer_of",
    "transcript",
    "uniform",
    "verdicts",
    "verifier_rounds",
    "weighted",
    "weighted_choice",
    "wilson_interval",
]
