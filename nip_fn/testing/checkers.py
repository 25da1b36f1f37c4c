"""`check_checker`, the conformance suite of checkers, built in or your own."""

from collections.abc import Sequence

from nip_fn.game.checkers import Checker
from nip_fn.game.datapoint import Datapoint

# Answers that models do write.
STRANGE = ("", " ", "\n", "?", "-", "0", "1/0", "nan", "1e999", "🙂", "é" * 300, "(" * 2000, "\x00")


class CheckerError(AssertionError):
    """A checker breaks a law; the message has one line for each violation."""


def check_checker(checker: Checker, datapoints: Sequence[Datapoint]) -> None:
    """Check that a checker obeys the laws on these datapoints.

    It says 0, 1 or None of any text, and the same each time; and where a datapoint has a reference,
    that is right.

    Args:
        checker: The function.
        datapoints: Such as it will be asked about, with their references.

    Raises:
        CheckerError: A law does not hold; one line for each datapoint and answer.
    """
    lines = [line for point in datapoints for line in _violations(checker, point)]
    if lines:
        raise CheckerError("\n".join(lines))


def _violations(checker: Checker, point: Datapoint) -> list[str]:
    lines = []
    references = (point.reference,) if point.reference else ()
    for answer in (*references, *STRANGE):
        about = f"datapoint {point.id}, answer {answer[:40]!r}"
        try:
            label, again = checker(point, answer), checker(point, answer)
        except Exception as error:  # whatever a user's own code raises
            lines.append(f"{about}: raises {type(error).__name__}: {error}")
            continue
        if label not in (0, 1, None):
            lines.append(f"{about}: returns {label!r}, and not 0, 1 or None")
        elif label != again:
            lines.append(f"{about}: returns {label!r} and then {again!r}")
        elif answer in references and label == 0:
            lines.append(f"{about}: the reference itself is wrong")
    return lines
