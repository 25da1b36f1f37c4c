"""Protocols by name.

A script adds its own with `PROTOCOLS["my_game"] = my_game` before it makes parameters.
"""

from collections.abc import Callable
from functools import lru_cache

from returns.result import Result

from nip_fn.errors import Problem, or_raise
from nip_fn.game.protocol import Protocol, has_answers
from nip_fn.params.names import look_up
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.adp import adp
from nip_fn.protocols.answers import with_answers, writer_of
from nip_fn.protocols.consultancy import consultancy
from nip_fn.protocols.debate import debate
from nip_fn.protocols.merlin_arthur import merlin_arthur
from nip_fn.protocols.mnip import mnip
from nip_fn.protocols.multi_channel import multi_channel_test
from nip_fn.protocols.nip import nip
from nip_fn.protocols.open_games import open_consultancy, open_debate
from nip_fn.protocols.oracle import oracle
from nip_fn.protocols.proposer_critic import proposer_critic
from nip_fn.protocols.pvg import pvg
from nip_fn.protocols.solo_judge import solo_judge
from nip_fn.protocols.solo_verifier import solo_verifier
from nip_fn.protocols.symmetric_debate import symmetric_debate

MakeProtocol = Callable[[HyperParameters], Protocol]

# A plain dictionary: adding a protocol is an assignment, and there is no decorator whose import
# must not be forgotten.
PROTOCOLS: dict[str, MakeProtocol] = {
    "nip": nip,
    "adp": adp,
    "consultancy": consultancy,
    "debate": debate,
    "merlin_arthur": merlin_arthur,
    "mnip": mnip,
    "solo_verifier": solo_verifier,
    "pvg": pvg,
    "proposer_critic": proposer_critic,
    "open_debate": open_debate,
    "open_consultancy": open_consultancy,
    "symmetric_debate": symmetric_debate,
    "oracle": oracle,
    "solo_judge": solo_judge,
    "multi_channel_test": multi_channel_test,
}


def protocol_of(params: HyperParameters) -> Protocol:
    """The protocol of the parameters; the same parameters give the same object.

    A name that was given to another function since then gives the protocol of that one: a run looks
    its protocol up once, when it starts (`config.resolve`).

    Raises:
        ValueError: There is no protocol of that name; its cause is the `Problem`.
    """
    return _made(or_raise(find_protocol(params.interaction_protocol)), params)


def find_protocol(name: object) -> Result[MakeProtocol, Problem]:
    """The function that makes the protocol of that name."""
    return look_up(
        PROTOCOLS, name, address="interaction_protocol", noun="protocol", variable="PROTOCOLS"
    )


# Caches of the core key on the identity of a protocol's functions, so that it must be made once.
# The registry is read outside this cache: it changes when a notebook redefines a protocol.
@lru_cache(maxsize=64)
def _made(make: MakeProtocol, params: HyperParameters) -> Protocol:
    protocol = make(params)
    if params.protocol_common.answers == "given" or has_answers(protocol):
        return protocol
    # Where nobody would write one, `config.checks` says so.
    return protocol if writer_of(protocol) is None else with_answers(protocol)


def agent_names(protocol: str) -> tuple[str, ...]:
    """The names of a protocol's agents, in their order."""
    # The names may not depend on other parameters, since the parameters of agents are read by name
    # before those others are known.
    params = HyperParameters(interaction_protocol=protocol)
    return tuple(agent.name for agent in protocol_of(params).agents)
