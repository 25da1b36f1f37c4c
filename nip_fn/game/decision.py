"""Decision spectra: the words in which a verifier may decide, and what they mean."""

from collections.abc import Sequence
from math import fsum
from typing import Literal

import msgspec

SpectrumName = Literal[
    "accept_reject",
    "likert_scale_4",
    "likert_scale_5",
    "likert_scale_6",
    "likert_scale_7",
    "likert_int_scale_11",
    "out_of_10",
    "out_of_100",
]

# What a discrete decision can be.
REJECT, ACCEPT, NO_DECISION, NEITHER = 0, 1, 2, 3


class Decision(msgspec.Struct, frozen=True, array_like=True):
    """A verifier's decision.

    text: the words in which it was made.
    discrete: `REJECT` (0), `ACCEPT` (1) or `NEITHER` (3).
    continuous: from -1, reject, to 1, accept.
    """

    text: str
    discrete: int
    continuous: float


def _evenly(*texts: str) -> tuple[Decision, ...]:
    """The texts, weakest to strongest, spread evenly from -1 to 1; each side of 0 is a verdict."""
    # Compared in integers, so that the middle of an odd scale is exactly "neither".
    most = len(texts) - 1
    return tuple(
        Decision(
            text,
            NEITHER if 2 * rank == most else ACCEPT if 2 * rank > most else REJECT,
            (2 * rank - most) / most,
        )
        for rank, text in enumerate(texts)
    )


def _without(text: str, spectrum: tuple[Decision, ...]) -> tuple[Decision, ...]:
    return tuple(decision for decision in spectrum if decision.text != text)


# The even scales are the odd ones without their middle, and not spread anew, so that "disagree"
# pays the same on both.
UNDECIDED = "neither agree nor disagree"
FIVE = _evenly("strongly disagree", "disagree", UNDECIDED, "agree", "strongly agree")
SEVEN = _evenly(
    "strongly disagree",
    "disagree",
    "somewhat disagree",
    UNDECIDED,
    "somewhat agree",
    "agree",
    "strongly agree",
)
# One table for two spectra, which differ in nothing but what the prompt says the numbers mean.
UP_TO_10 = _evenly(*map(str, range(11)))

# Weakest to strongest, reject to accept.
SPECTRA: dict[SpectrumName, tuple[Decision, ...]] = {
    "accept_reject": _evenly("reject", "accept"),
    "likert_scale_4": _without(UNDECIDED, FIVE),
    "likert_scale_5": FIVE,
    "likert_scale_6": _without(UNDECIDED, SEVEN),
    "likert_scale_7": SEVEN,
    "likert_int_scale_11": UP_TO_10,
    "out_of_10": UP_TO_10,
    "out_of_100": _evenly(*map(str, range(101))),
}


def combined(decisions: Sequence[Decision]) -> Decision:
    """The mean of decisions that were made at once, one for each of several verifiers.

    >>> [one] = SPECTRA["accept_reject"][:1]
    >>> combined([one, one]) == one, combined(SPECTRA["accept_reject"]).discrete == NEITHER
    (True, True)
    """
    if len({decision.text for decision in decisions}) == 1:
        return decisions[0]
    confidence = fsum(decision.continuous for decision in decisions) / len(decisions)
    discrete = ACCEPT if confidence > 0 else REJECT if confidence < 0 else NEITHER
    return Decision(" / ".join(decision.text for decision in decisions), discrete, confidence)


def strongest(spectrum: SpectrumName, label: int) -> Decision:
    """The firmest decision for acceptance (label 1) or rejection (label 0)."""
    return SPECTRA[spectrum][-1 if label else 0]


def decision_instructions(spectrum: SpectrumName) -> str:
    """The sentence that tells a verifier how to decide; it starts in lower case."""
    return f"end your message with a line of its own that says {_choices(spectrum)}"


def _choices(spectrum: SpectrumName) -> str:
    if spectrum == "accept_reject":
        return (
            "`Decision: accept` or `Decision: reject`: accept if you believe that the solution is "
            "correct, reject if you believe that it is not"
        )
    most = SPECTRA[spectrum][-1].text
    if spectrum == "likert_int_scale_11":
        return (
            f"`Decision: ` and a whole number from 0 to {most}, for how far you agree that the "
            f"solution is correct: 0 strongly disagree, 5 {UNDECIDED}, {most} strongly agree"
        )
    if most.isdigit():
        return (
            f"`Decision: ` and a whole number from 0 to {most}, for how sure you are that the "
            f"solution is correct: `Decision: {most}` if you have no doubt that it is, "
            f"`Decision: {int(most) // 2}` if you cannot tell, `Decision: 0` if you have no doubt "
            "that it is not"
        )
    lines = ", ".join(f"`Decision: {decision.text}`" for decision in reversed(SPECTRA[spectrum]))
    return f"how far you agree that the solution is correct, in one of these forms: {lines}"
