"""Checkers: functions that say if an answer is right, by the reference of its datapoint.

A checker is pure.  In a run it is applied outside of `step`, and what it said is recorded: a
recording replays without the checker, and under a later version of it.
"""

import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from fractions import Fraction

from nip_fn.game.datapoint import Datapoint, Kind

# (datapoint, answer) -> 1 if the answer is right, 0 if it is wrong; None if that cannot be said, as
# where there is no reference.
Checker = Callable[[Datapoint, str], int | None]

MOST_DIGITS = 1000  # of a number; longer ones are no numbers that anybody meant

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d{1,3})?", re.IGNORECASE)
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_CHOICE = re.compile(r"\(?([a-z0-9]+)\)?[.:]?", re.IGNORECASE)


def exact(datapoint: Datapoint, answer: str) -> int | None:
    """1 if the answer is the reference, in any case and with any spaces between its words.

    >>> from nip_fn.game.datapoint import make_datapoint
    >>> point = make_datapoint("p", "The capital of France?", "", None, reference="Paris")
    >>> exact(point, " paris"), exact(point, "Lyon")
    (1, 0)
    """
    reference = _plain(datapoint.reference)
    return int(_plain(answer) == reference) if reference else None


def number(datapoint: Datapoint, answer: str) -> int | None:
    """1 if the answer is the number of the reference, however it is written: `1,200`, `1.2e3`.

    A dollar sign, a percent sign, a unit or a full stop may stand beside it.  A reference that is
    no number, such as `x + 1`, is compared as by `exact`.

    >>> from nip_fn.game.datapoint import make_datapoint
    >>> point = make_datapoint("p", "1000 + 200?", "", None, reference="1200")
    >>> number(point, "$1,200.00"), number(point, "120"), number(point, "many")
    (1, 0, 0)
    """
    reference = read_number(datapoint.reference)
    if reference is None:
        return exact(datapoint, answer)
    return int(read_number(answer) == reference)


def choice(datapoint: Datapoint, answer: str) -> int | None:
    """1 if the answer begins with the letter of the reference: `B`, `(B)`, `B. Because`.

    >>> from nip_fn.game.datapoint import make_datapoint
    >>> point = make_datapoint("p", "A. yes  B. no", "", None, reference="B")
    >>> choice(point, "(b) no"), choice(point, "A"), choice(point, "Because")
    (1, 0, 0)
    """
    reference = _letter(datapoint.reference)
    return int(_letter(answer) == reference) if reference else None


def same_set(datapoint: Datapoint, answer: str) -> int | None:
    """1 if the answer has the items of the reference in any order, separated by commas or lines.

    >>> from nip_fn.game.datapoint import make_datapoint
    >>> point = make_datapoint("p", "The roots?", "", None, reference="2, -3")
    >>> same_set(point, "{-3, 2}"), same_set(point, "2, 3")
    (1, 0)
    """
    reference = _items(datapoint.reference)
    return int(_items(answer) == reference) if reference else None


def tests(datapoint: Datapoint, answer: str) -> int | None:
    """None: only a process can run the tests of a program, and the core starts none."""
    return None


CHECKERS: dict[str, Checker] = {
    "exact": exact,
    "number": number,
    "choice": choice,
    "set": same_set,
    "tests": tests,
}


# By the kind of a datapoint's solution, where no checker was named.
CHECKER_OF_KIND: Mapping[Kind, str] = {
    "code": "tests",
    "prose": "exact",
    "choice": "choice",
    "number": "number",
}


def read_number(text: str) -> Fraction | None:
    """The number that a text holds, if it holds one alone; a fraction may be written as `3/4`.

    >>> read_number("3/4"), read_number("about 7 or 8")
    (Fraction(3, 4), None)
    """
    parts = _THOUSANDS.sub("", text).split("/")
    numbers = [_NUMBER.findall(part) for part in parts]
    if len(parts) > 2 or any(len(found) != 1 for found in numbers):
        return None
    values = [_fraction(found[0]) for found in numbers]
    numerator, denominator = values[0], values[1] if len(values) > 1 else Fraction(1)
    return None if numerator is None or not denominator else numerator / denominator


def _fraction(digits: str) -> Fraction | None:
    if len(digits) > MOST_DIGITS:
        return None
    try:
        return Fraction(Decimal(digits))
    except (InvalidOperation, ValueError):  # of digits that are none of ours
        return None


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def _letter(text: str) -> str:
    words = text.split()
    match = _CHOICE.fullmatch(words[0]) if words else None
    return match[1].casefold() if match else ""


def _items(text: str) -> frozenset[str]:
    inner = text.strip().strip("{}[]()")
    return frozenset(filter(None, map(_plain, re.split(r"[,;\n]", inner))))
