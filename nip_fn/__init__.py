"""nip-fn: neural interactive proofs for language models, as a scan over recorded events."""

from nip_fn.arrays import Rollout, rollouts, to_arrays
from nip_fn.chat import (
    Chat,
    Message,
    build_chat,
    ensure_last_message_is_assistant,
    replace_last_message_with_true_label,
)
from nip_fn.config import construct_test_params, from_dict, get, to_dict
from nip_fn.data import Datapoint, Dataset, make_datapoint
from nip_fn.episode import Episode, Said, Turn, movers, reset
from nip_fn.events import Effect, Event
from nip_fn.finetune import Adapter, Group, Job, PreferenceRow
from nip_fn.growth import Ask, Given, Node, Rules, answer, descend, plant, waiting
from nip_fn.keys import Key, choice, fold_in, generator, key, permutation, split
from nip_fn.pairs import Pair, eligible_pairs, select_pairs
from nip_fn.params import HyperParameters
from nip_fn.protocols.check import ProtocolError, check_protocol
from nip_fn.protocols.protocol import Protocol, reward_mid_point, verifier_rounds
from nip_fn.protocols.registry import PROTOCOLS, protocol_of
from nip_fn.reference import from_reference
from nip_fn.reply import Completion, Reply, find_decision, parse_reply
from nip_fn.requests import Request, request
from nip_fn.run import pending, scan, step
from nip_fn.spectra import SPECTRA, Decision
from nip_fn.state import EMPTY, RunState, digest
from nip_fn.trainers.registry import trainer_of
from nip_fn.trainers.trainer import Harvest, Trainer, sequence
from nip_fn.tree import Tree, backup, flatten

__all__ = [
    "EMPTY",
    "PROTOCOLS",
    "SPECTRA",
    "Adapter",
    "Ask",
    "Chat",
    "Completion",
    "Datapoint",
    "Dataset",
    "Decision",
    "Effect",
    "Episode",
    "Event",
    "Given",
    "Group",
    "Harvest",
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
    "Request",
    "Rollout",
    "Rules",
    "RunState",
    "Said",
    "Trainer",
    "Tree",
    "Turn",
    "answer",
    "backup",
    "build_chat",
    "check_protocol",
    "choice",
    "construct_test_params",
    "descend",
    "digest",
    "eligible_pairs",
    "ensure_last_message_is_assistant",
    "find_decision",
    "flatten",
    "fold_in",
    "from_dict",
    "from_reference",
    "generator",
    "get",
    "key",
    "make_datapoint",
    "movers",
    "parse_reply",
    "pending",
    "permutation",
    "plant",
    "protocol_of",
    "replace_last_message_with_true_label",
    "request",
    "reset",
    "reward_mid_point",
    "rollouts",
    "scan",
    "select_pairs",
    "sequence",
    "split",
    "step",
    "to_arrays",
    "to_dict",
    "trainer_of",
    "verifier_rounds",
    "waiting",
]
