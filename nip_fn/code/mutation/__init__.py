"""Programs with one error each, made from correct ones by changing their text in one place.

    mutants      all that the operators make of a program
    draw_order   the order in which to try them: kinds of error take turns
    subtlety     how many tests a program with an error still passes

What is meant is a change of the syntax tree; what is made is the least change of the text that
parses to the changed tree, so that layout does not tell a wrong program from a right one.
"""

from nip_fn.code.mutation.first_order import OPERATORS, Mutant, mutants
from nip_fn.code.mutation.subtlety import draw_order, edit_distance, subtlety

__all__ = [
    "OPERATORS",
    "Mutant",
    "draw_order",
    "edit_distance",
    "mutants",
    "subtlety",
]
