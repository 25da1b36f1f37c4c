"""Decision spectra: the words in which a verifier may decide, and what they mean."""

from typing import Literal

import msgspec

SpectrumName = Literal["accept_reject"]

NEITHER = 3


class Decision(msgspec.Struct, frozen=True, array_like=True):
    """A verifier's decision."""

    text: str
    discrete: int  # 0 reject, 1 accept, 3 neither
    continuous: float  # from -1, reject, to 1, accept


# Weakest to strongest, reject to accept.
SPECTRA: dict[SpectrumName, tuple[Decision, ...]] = {
    "accept_reject": (Decision("reject", 0, -1.0), Decision("accept", 1, 1.0)),
}


def decision_instructions(spectrum: SpectrumName) -> str:
    """The sentence that tells a verifier how to decide; it starts in lower case."""
    lines = " or ".join(f"`Decision: {decision.text}`" for decision in reversed(SPECTRA[spectrum]))
    return (
        f"end your message with a line of its own that says {lines}: accept if you believe that "
        "the solution is correct, reject if you believe that it is not"
    )
