"""nip-fn: prover-verifier games with language models, as pure functions over frozen records.

    import nip_fn as nip

Start with the first line of what you want to do; `help(nip.NAME)` explains each name.

    a game         make_datapoint, AgentSpec, Move, in_turn, make_protocol; check_protocol tests it
    ... built in   from_dict({"interaction_protocol": "debate"}), then protocol_of
    rollouts       play(protocol, datapoints, policy, ...); a `Policy` is your function
                   (datapoint, game so far, agent's index, key) -> Completion
    trees          Rules, grow; grow_many with batched policies, agrow in an event loop
    values         mean_children, discounted: the expected reward of each agent at each node
    preferences    candidates, then chain(interval(0.1), margin(0.2), dedupe(), one_per_node())
    training       malt, policy_gradient, ei, sequence, accumulate: trainers, shaped like optax
                   transformations; a `SampleBatch` is what they learn from; check_trainer
                   tests one of your own
    a run          step, scan, pending: a fold over recorded events; simulate, replay;
                   run.reselect: the pairs that other parameters would have selected
    randomness     key, split, randint: a key is a value, and equal keys give equal draws

The rest is in namespaces, by kind; `help(nip.selectors)` lists what is in one.

    selectors      pair rules, filters, selection of rollouts
    stats          accuracy, soundness and other metrics; intervals; tests
    schedules      constant, linear, exponential, periodic, join
    config         tables to parameters and back; trainers by name
    game           chats, decisions, replies, episodes, bounds of rewards
    protocols      the games and the scripted strategies by name
    trees          nodes, leaves, backups, growth by hand
    training       rows, losses, advantages, groups, trainers of a part of the agents
    run            events, effects, the state, forks, the pure world
    testing        what the conformance suites raise; parameters for tests
    export         arrays and transcripts
    keys           uniform, permutation, fold_in and the other draws

Whole runs with models and files are functions of `nip_fn_adapters`: train, resume, load_run.
"""

from nip_fn import config as config
from nip_fn import export as export
from nip_fn import game as game
from nip_fn import keys as keys
from nip_fn import protocols as protocols
from nip_fn import run as run
from nip_fn import schedules as schedules
from nip_fn import selectors as selectors
from nip_fn import stats as stats
from nip_fn import testing as testing
from nip_fn import training as training
from nip_fn import trees as trees
from nip_fn.config.codec import from_dict
from nip_fn.config.groups import make_groups
from nip_fn.errors import Problem
from nip_fn.game.datapoint import Datapoint, make_datapoint
from nip_fn.game.decision import ACCEPT, REJECT
from nip_fn.game.episode import Episode
from nip_fn.game.protocol import AgentSpec, Move, Outcome, Protocol
from nip_fn.game.reply import Completion
from nip_fn.keys import Key, key, randint, split
from nip_fn.params.run import HyperParameters
from nip_fn.prompts.chat import build_chat
from nip_fn.protocols.build import in_turn, make_protocol
from nip_fn.protocols.registry import protocol_of
from nip_fn.run.digest import digest
from nip_fn.run.replay import replay
from nip_fn.run.simulate import simulate
from nip_fn.run.step import pending, scan, step
from nip_fn.select.filters import dedupe, margin, one_per_node
from nip_fn.select.pairs import Rule, best_worst, candidates, chain, interval
from nip_fn.select.rollouts import at_least
from nip_fn.testing.check import check_protocol
from nip_fn.testing.trainers import check_trainer
from nip_fn.training.compose import accumulate, sequence
from nip_fn.training.ei import ei
from nip_fn.training.malt import malt
from nip_fn.training.policy_gradient import policy_gradient
from nip_fn.training.trainer import SampleBatch, Trainer, Update
from nip_fn.trees.backup import discounted, mean_children
from nip_fn.trees.grow import Policy, Query, Rules, Turn, agrow, batched, grow, grow_many
from nip_fn.trees.node import reply_key
from nip_fn.trees.rollouts import play
from nip_fn.trees.tree import Tree

__version__ = "0.3.0"

__all__ = [
    "ACCEPT",
    "REJECT",
    "AgentSpec",
    "Completion",
    "Datapoint",
    "Episode",
    "HyperParameters",
    "Key",
    "Move",
    "Outcome",
    "Policy",
    "Problem",
    "Protocol",
    "Query",
    "Rule",
    "Rules",
    "SampleBatch",
    "Trainer",
    "Tree",
    "Turn",
    "Update",
    "accumulate",
    "agrow",
    "at_least",
    "batched",
    "best_worst",
    "build_chat",
    "candidates",
    "chain",
    "check_protocol",
    "check_trainer",
    "dedupe",
    "digest",
    "discounted",
    "ei",
    "from_dict",
    "grow",
    "grow_many",
    "in_turn",
    "interval",
    "key",
    "make_datapoint",
    "make_groups",
    "make_protocol",
    "malt",
    "margin",
    "mean_children",
    "one_per_node",
    "pending",
    "play",
    "policy_gradient",
    "protocol_of",
    "randint",
    "replay",
    "reply_key",
    "scan",
    "sequence",
    "simulate",
    "split",
    "step",
]
