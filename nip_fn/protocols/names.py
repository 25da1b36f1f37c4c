"""The ids of the protocols and, for each, its agents in their order."""

from typing import Literal

ProtocolName = Literal["nip"]

AGENTS_BY_PROTOCOL: dict[str, tuple[str, ...]] = {
    "nip": ("prover", "verifier"),
}
