"""Making buggy solutions out of right ones: the candidates that count, and the best of them."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from nip_fn.code.fingerprint import fingerprint
from nip_fn.code.programs import Tally
from nip_fn.code.solutions import BugOrigin, LabelledSolution

_FENCED = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)


class Candidate(NamedTuple):
    """A program that may have a bug, and its counts on the tests that the right solution passes."""

    code: str
    model: str  # that wrote it
    tally: Tally
    distance: int  # characters between it and the right solution (Levenshtein)


def is_subtle(tally: Tally) -> bool:
    """True if a program gives wrong answers to some tests and right ones to others, all in time.

    A program that merely crashes where the right one does not is no subtle bug.
    """
    return bool(tally.wrong and tally.passed and not tally.stopped)


def subtlest(right: str, candidates: Iterable[Candidate], count: int) -> tuple[Candidate, ...]:
    """The `count` subtlest candidates with a bug; no two are equal apart from names and layout.

    First those that still pass more of the tests, then those nearer to the right solution.
    """
    bugs: dict[str, Candidate | None] = {fingerprint(right): None}
    for candidate in sorted(candidates, key=_rank):
        if is_subtle(candidate.tally):
            bugs.setdefault(fingerprint(candidate.code), candidate)
    return tuple(filter(None, bugs.values()))[:count]


def _rank(bug: Candidate) -> tuple[float, int, int, str]:
    """Sort key, the subtlest first; ties go to the bug that crashes on fewer tests."""
    # The code itself settles ties, so that the choice never depends on the order of the candidates.
    share = bug.tally.passed / max(1, bug.tally.tests)
    return -share, bug.distance, bug.tally.crashed, bug.code


def buggy(right: LabelledSolution, bug: Candidate) -> LabelledSolution:
    """The solution with that bug, of the same problem."""
    tally = bug.tally
    origin = BugOrigin("model", bug.model, tally.passed, tally.tests, bug.distance)
    # The stance is dropped, as it belongs to the text of a solution and this is another text.
    return replace(right, solution=bug.code, label=0, stance=None, origin=origin)


def code_in(reply: str) -> str | None:
    """The program in a model's reply: the last fenced block; None where there is none.

    >>> code_in("Here:\\n```python\\ndef f():\\n    return 1\\n```\\nThe bound is off.")
    'def f():\\n    return 1\\n'
    """
    blocks: list[str] = _FENCED.findall(reply.replace("\r\n", "\n"))
    return blocks[-1] if blocks and blocks[-1].strip() else None


def edit_distance(source: str, target: str) -> int:
    """The least number of characters to insert, delete or replace to make one of the other.

    A column of the table of distances is kept as two integers, a bit for each step up and for each
    step down (Myers 1999, "A fast bit-vector algorithm", in the form of Hyyrö 2003).

    >>> edit_distance("a < b", "a <= b")
    1
    """
    # Python's integers are as long as the text, so a whole column is one operation; a compiled
    # package would be a dependency for this function alone.
    masks: dict[str, int] = {}
    for index, character in enumerate(source):
        masks[character] = masks.get(character, 0) | 1 << index
    ones = (1 << len(source)) - 1
    up, down, distance = ones, 0, len(source)
    for character in target:
        same = masks.get(character, 0)
        diagonal = (((same & up) + up) ^ up) | same | down
        right_up, right_down = down | ~(diagonal | up), up & diagonal
        distance += (
            (right_up >> len(source) - 1 & 1) - (right_down >> len(source) - 1 & 1) if source else 1
        )
        right_up, right_down = right_up << 1 | 1, right_down << 1
        up, down = (right_down | ~(diagonal | right_up)) & ones, right_up & diagonal & ones
    return distance
