"""The game: datapoints, decisions, protocols, replies and episodes.

Datapoints and protocols are made by functions of `nip_fn` itself.  Here are

    answers       CHECKERS, Checker, find_answer
    chats         Chat, Message
    datapoints    Dataset
    decisions     Decision, SPECTRA, find_decision
    episodes      Round, Utterance, reset, movers, play_round, verifier_rounds
    replies       Reply, SampledTokens, parse_reply
    rewards       reward_bounds, reward_mid_point
"""

from nip_fn.game.answer import find_answer
from nip_fn.game.bounds import reward_bounds, reward_mid_point
from nip_fn.game.chat import Chat, Message
from nip_fn.game.checkers import CHECKERS, Checker
from nip_fn.game.datapoint import Dataset
from nip_fn.game.decision import SPECTRA, Decision
from nip_fn.game.episode import Round, Utterance, movers, play_round, reset
from nip_fn.game.protocol import verifier_rounds
from nip_fn.game.reply import Reply, parse_reply
from nip_fn.game.tokens import SampledTokens
from nip_fn.game.verdict import find_decision

__all__ = [
    "CHECKERS",
    "SPECTRA",
    "Chat",
    "Checker",
    "Dataset",
    "Decision",
    "Message",
    "Reply",
    "Round",
    "SampledTokens",
    "Utterance",
    "find_answer",
    "find_decision",
    "movers",
    "parse_reply",
    "play_round",
    "reset",
    "reward_bounds",
    "reward_mid_point",
    "verifier_rounds",
]
