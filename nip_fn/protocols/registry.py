"""From a protocol's id to the protocol."""

from collections.abc import Callable

from nip_fn.params import HyperParameters
from nip_fn.protocols.names import ProtocolName
from nip_fn.protocols.nip import nip
from nip_fn.protocols.protocol import Protocol

PROTOCOLS: dict[ProtocolName, Callable[[HyperParameters], Protocol]] = {"nip": nip}


def protocol_of(params: HyperParameters) -> Protocol:
    """The game that the parameters ask for."""
    return PROTOCOLS[params.interaction_protocol](params)
