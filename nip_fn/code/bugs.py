"""Making buggy solutions out of right ones: the candidates that count, and the best of them."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from nip_fn.code.fingerprint import fingerprint
from nip_fn.code.mutation import Mutant, edit_distance, subtlety
from nip_fn.code.programs import Tally
from nip_fn.code.solutions import BugOrigin, LabelledSolution

_FENCED = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)


class Candidate(NamedTuple):
    """A program that may have a bug."""

    code: str
    origin: BugOrigin


class ScoredCandidate(NamedTuple):
    """A candidate, and its counts on the tests that the right solution passes."""

    candidate: Candidate
    tally: Tally
    distance: int  # characters between it and the right solution (Levenshtein)


def from_mutant(mutant: Mutant) -> Candidate:
    """The candidate that a mutant is."""
    origin = BugOrigin(
        "mutation", mutant.operator, line=mutant.line, before=mutant.before, after=mutant.after
    )
    return Candidate(mutant.code, origin)


def is_subtle(tally: Tally) -> bool:
    """True if a program gives wrong answers to some tests and right ones to others, all in time.

    A program that merely crashes where the right one does not is no subtle bug.
    """
    return bool(tally.wrong and tally.passed and not tally.stopped)


def scored(right: str, candidate: Candidate, tally: Tally) -> ScoredCandidate:
    """The candidate with its tally and its distance to the right solution."""
    return ScoredCandidate(candidate, tally, edit_distance(right, candidate.code))


def subtlest(
    right: str, candidates: Iterable[ScoredCandidate], count: int
) -> tuple[ScoredCandidate, ...]:
    """The `count` subtlest candidates with a bug; no two are equal apart from names and layout.

    First those that still pass more of the tests, then those nearer to the right solution; of those
    that change the same line, all but the subtlest come last.
    """
    # Bugs at other lines come first, so that those of one problem differ in more than wording.
    ranked = sorted(filter(lambda bug: is_subtle(bug.tally), candidates), key=_rank)
    seen, lines = {fingerprint(right)}, set[int]()
    first: list[ScoredCandidate] = []
    last: list[ScoredCandidate] = []
    for bug in ranked:
        mark, line = fingerprint(bug.candidate.code), bug.candidate.origin.line
        if mark in seen:
            continue
        seen.add(mark)
        (last if line and line in lines else first).append(bug)
        lines.add(line)
    return tuple([*first, *last][:count])


def _rank(bug: ScoredCandidate) -> tuple[float, int, int, str]:
    """Sort key, the subtlest first; ties go to the bug that crashes on fewer tests."""
    # The code itself settles ties, so that the choice never depends on the order of the candidates.
    return -subtlety(bug.tally), bug.distance, bug.tally.crashed, bug.candidate.code


def buggy(right: LabelledSolution, bug: ScoredCandidate) -> LabelledSolution:
    """The solution with that bug, of the same problem."""
    origin = replace(
        bug.candidate.origin,
        passed=bug.tally.passed,
        tests=bug.tally.tests,
        distance=bug.distance,
    )
    # The stance is dropped, as it belongs to the text of a solution and this is another text.
    return replace(right, solution=bug.candidate.code, label=0, stance=None, origin=origin)


def code_in(reply: str) -> str | None:
    """The program in a model's reply: the last fenced block; None where there is none.

    >>> code_in("Here:\\n```python\\ndef f():\\n    return 1\\n```\\nThe bound is off.")
    'def f():\\n    return 1\\n'
    """
    blocks: list[str] = _FENCED.findall(reply.replace("\r\n", "\n"))
    return blocks[-1] if blocks and blocks[-1].strip() else None


def from_reply(reply: str, model: str) -> Candidate | None:
    """The candidate that a model wrote, if it wrote one."""
    code = code_in(reply)
    return None if code is None else Candidate(code, BugOrigin("model", model))
