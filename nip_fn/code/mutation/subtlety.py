"""Which mutants to try first, and how hard a bug is to see."""

from collections.abc import Sequence

from nip_fn.code.mutation.first_order import Mutant
from nip_fn.code.programs import Tally
from nip_fn.keys import Key, fold_in, permutation


def subtlety(tally: Tally) -> float:
    """The share of tests passed, from 0 to 1; 0 if there are none, or if all passed: no error.

    >>> subtlety(Tally(passed=9, wrong=1)), subtlety(Tally(passed=9))
    (0.9, 0.0)
    """
    return 0.0 if tally.all_passed or not tally.tests else tally.passed / tally.tests


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


def draw_order(mutants: Sequence[Mutant], key: Key) -> tuple[Mutant, ...]:
    """The mutants in an order that takes turns between operators, drawn by `key` (consumed).

    A caller that tries only the first few still meets as many kinds of error as possible.
    """
    groups: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        groups.setdefault(mutant.operator, []).append(mutant)
    # Sorted, because the mutants' own order must not decide which operator a number stands for.
    operators = sorted(groups)
    turns = []
    for turn, which in enumerate(permutation(fold_in(key, "operators"), len(operators))):
        group = groups[operators[which]]
        shuffled = permutation(fold_in(key, "mutants", operators[which]), len(group))
        turns += [(round_, turn, group[index]) for round_, index in enumerate(shuffled)]
    return tuple(mutant for *_, mutant in sorted(turns, key=lambda entry: entry[:2]))
