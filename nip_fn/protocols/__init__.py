"""Games: one short file each, in data and small pure functions.

PROTOCOLS                               the games by name
STRATEGIES, Strategy, scripted_reply    scripted agents
"""

from nip_fn.protocols.registry import PROTOCOLS
from nip_fn.protocols.strategies import STRATEGIES, Strategy, scripted_reply

__all__ = [
    "PROTOCOLS",
    "STRATEGIES",
    "Strategy",
    "scripted_reply",
]
