"""nip-fn: neural interactive proofs for language models, as a scan over recorded events."""

from nip_fn.config.codec import from_dict, get, to_dict
from nip_fn.config.compat.chat import (
    ensure_last_message_is_assistant,
    replace_last_message_with_true_label,
)
from nip_fn.config.compat.nip import from_nip_config
from nip_fn.export.arrays import to_arrays
from nip_fn.game.datapoint import Datapoint, Dataset, make_datapoint
from nip_fn.game.decision import SPECTRA, Decision
from nip_fn.game.episode import Episode, Round, Utterance, movers, reset
from nip_fn.game.protocol import Protocol, reward_mid_point, verifier_rounds
from nip_fn.game.reply import Completion, Reply, find_decision, parse_reply
from nip_fn.keys import Key, fold_in, generator, key, permutation, randint, split
from nip_fn.params.run import HyperParameters
from nip_fn.prompts.chat import Chat, Message, build_chat
from nip_fn.protocols.registry import PROTOCOLS, protocol_of
from nip_fn.run.events import Effect, Event
from nip_fn.run.request import Request, request
from nip_fn.run.state import EMPTY, RunState, digest
from nip_fn.run.step import pending, scan, step
from nip_fn.select.pairs import Pair, eligible_pairs, select_pairs
from nip_fn.testing.check import ProtocolError, check_protocol
from nip_fn.testing.params import construct_test_params
from nip_fn.training.groups import Adapter, Group
from nip_fn.training.jobs import Job, PreferenceRow
from nip_fn.training.registry import trainer_of
from nip_fn.training.trainer import SampleBatch, Trainer, sequence
from nip_fn.trees.grow import (
    Node,
    ReplyArrival,
    ReplyRequest,
    Rules,
    insert,
    new_tree,
    node_at,
    pending_requests,
)
from nip_fn.trees.rollouts import Rollout, leaf_games
from nip_fn.trees.tree import Tree, backup, flatten

__version__ = "0.2.0"

__all__ = [
    "EMPTY",
    "PROTOCOLS",
    "SPECTRA",
    "Adapter",
    "Chat",
    "Completion",
    "Datapoint",
    "Dataset",
    "Decision",
    "Effect",
    "Episode",
    "Event",
    "Group",
    "HyperParameters",
    "Job",
    "Key",
    "Message",
    "Node",
    "Pair",
    "PreferenceRow",
    "Protocol",
    "ProtocolError",
    "Reply",
    "ReplyArrival",
    "ReplyRequest",
    "Request",
    "Rollout",
    "Round",
    "Rules",
    "RunState",
    "SampleBatch",
    "Trainer",
    "Tree",
    "Utterance",
    "backup",
    "build_chat",
    "check_protocol",
    "construct_test_params",
    "digest",
    "eligible_pairs",
    "ensure_last_message_is_assistant",
    "find_decision",
    "flatten",
    "fold_in",
    "from_dict",
    "from_nip_config",
    "generator",
    "get",
    "insert",
    "key",
    "leaf_games",
    "make_datapoint",
    "movers",
    "new_tree",
    "node_at",
    "parse_reply",
    "pending",
    "pending_requests",
    "permutation",
    "protocol_of",
    "randint",
    "replace_last_message_with_true_label",
    "request",
    "reset",
    "reward_mid_point",
    "scan",
    "select_pairs",
    "sequence",
    "split",
    "step",
    "to_arrays",
    "to_dict",
    "trainer_of",
    "verifier_rounds",
]
