"""The split of each datapoint: by problem, never by row.

Rows that share a key (the problem, the wording of its question, the normalised syntax tree of the
solution) belong together, and so do rows that each belong with a third.  All of such a group are in
one split, so nothing can be learnt by heart from one split and asked in another.  Of rows with
views these are a part of the wording, and a solution beside them is no code; nor is one in prose.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

from nip_fn.code.fingerprint import fingerprint
from nip_fn.code.solutions import LabelledSolution, SplitHint, wording_hash
from nip_fn.game.datapoint import Split


class LeakKeys(NamedTuple):
    """The keys that decide the split of a row."""

    keys: tuple[str, ...]  # what it must not share with rows of other splits; the first names it
    wanted: SplitHint | None = None

    def without_code(self) -> "LeakKeys":
        """The keys of the same row, if its solution is no program."""
        name, wording, _ = self.keys
        return self._replace(keys=(name, wording, wording))


def marks_of(solution: LabelledSolution) -> LeakKeys:
    """The keys that a solution must not share with those of other splits."""
    # Three ways to be the same: by name, by wording and by code.  A data set that repeats a problem
    # under another name would leak through any single one.
    wording = wording_hash(solution.question, solution.views)
    # Beside views, or in prose, a solution is a text like any other: an answer such as "42" to two
    # questions does not make one problem of them.
    # An answer that is to be written is no text yet.
    is_code = solution.kind == "code" and not solution.views and bool(solution.solution)
    same = fingerprint(solution.solution) if is_code else wording
    return LeakKeys((solution.problem_id, wording, same), solution.wanted)


class Shares(NamedTuple):
    """The shares of the groups that are held out, where the rows leave it open."""

    validation: float = 0.15
    test: float = 0.15


def splits(rows: Sequence[LeakKeys], shares: Shares) -> tuple[Split | None, ...]:
    """The split of each row, in the rows' order, whatever that order is.

    None: the row is left out, as its group belongs to a split that is held out and the row wants
    another.  A group in which nothing is wanted goes by a hash of its name (its least first key).
    """
    groups = _groups(row.keys for row in rows)
    members: defaultdict[int, list[LeakKeys]] = defaultdict(list)
    for group, row in zip(groups, rows, strict=True):
        members[group].append(row)
    chosen = {group: _split_of(rows, shares) for group, rows in members.items()}
    return tuple(
        chosen[group] if _content(row.wanted, chosen[group]) else None
        for group, row in zip(groups, rows, strict=True)
    )


def _content(hint: SplitHint | None, split: Split) -> bool:
    return hint in (None, split) or (hint == "held out" and split != "train")


def _split_of(rows: Iterable[LeakKeys], shares: Shares) -> Split:
    """The split of a group: the most held out of those its rows want."""
    # The most held out wins, since a row that was trained on cannot be taken back for a test.
    hints = {row.wanted for row in rows}
    if "test" in hints:
        return "test"
    if "validation" in hints:
        return "validation"
    # By a hash of the name and not by a draw over all groups, so that further rows move none of the
    # groups that they do not join.
    name = min(row.keys[0] for row in rows)
    fraction = int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) / 2**64
    if "held out" in hints:
        return "validation" if fraction < 0.5 else "test"
    if "train" in hints:
        return "train"
    if fraction < shares.test:
        return "test"
    return "validation" if fraction < shares.test + shares.validation else "train"


def _groups(rows: Iterable[tuple[str, ...]]) -> list[int]:
    """The number of each row's group: disjoint sets over the keys (Tarjan 1975)."""
    parents: list[int] = []
    numbers: dict[str, int] = {}

    def root(number: int) -> int:
        while parents[number] != number:
            # Path halving: long chains of rows that each share something with the next stay
            # shallow.
            parents[number] = parents[parents[number]]
            number = parents[number]
        return number

    firsts = []
    for keys in rows:
        indices = []
        for position, key in enumerate(keys):
            # The position is a part of the key: a problem's name that happens to read like another
            # row's hash joins nothing.
            indices.append(numbers.setdefault(f"{position}:{key}", len(numbers)))
            if indices[-1] == len(parents):
                parents.append(indices[-1])
        for number in indices[1:]:
            parents[root(number)] = root(indices[0])
        firsts.append(indices[0])
    return [root(first) for first in firsts]
