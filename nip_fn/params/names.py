"""Names of values in a configuration: built-in ones, and references to a user's own.

A record holds names, so that it stays data.  Values are built from it by `nip_fn.training.registry`
and `nip_fn.protocols.registry`.
"""

import difflib
import re
from collections.abc import Sequence
from typing import Any

from nip_fn.errors import Problem

BUILT_IN_TRAINERS = ("malt", "ei")
VALUE_BACKUPS = ("children", "leaves")
PAIR_RULES = ("positive_negative", "about_mean", "interval", "best_worst", "all")

# The registries of trainers, of pair selectors and of backups.  They are here so that a
# configuration can be checked against them; `nip_fn.training.registry` gives them their types and
# built-in values.
TRAINERS: dict[str, Any] = {}
SELECTORS: dict[str, Any] = {}
BACKUPS: dict[str, Any] = {}

# Valid in Python and in ECMAScript, since it is in the JSON Schema of a configuration, too.
REFERENCE = r"^(?!builtin:|hf:)([A-Za-z_]\w*(\.[A-Za-z_]\w*)*|.+\.py):[A-Za-z_]\w*$"


# File systems allow 255 bytes; a group's or an adapter's name has others before or after it.
MOST_NAME = 200


def is_reference(name: str) -> bool:
    """True if the name refers to a value of the user's own.

    >>> is_reference("my_package.trainers:TRAINER"), is_reference("examples/own.py:TRAINER")
    (True, True)
    >>> is_reference("malt"), is_reference("builtin:tea")
    (False, False)
    """
    return re.match(REFERENCE, name) is not None


def is_plain_name(name: str) -> bool:
    """True if a file or folder can be called that: no path, visible, and not too long.

    >>> is_plain_name("prover-0-dda01a5f"), is_plain_name("ft:gpt-4o-mini:lab::9b")
    (True, True)
    >>> any(map(is_plain_name, ("", "..", "a/b", "/etc/passwd", "a\\\\b", "\\x1b[2J", "a" * 201)))
    False
    """
    # Recordings may come from strangers, and some of their names become those of files.  What does
    # not print has no place in one either: nobody would see where it is written.
    is_word = name.isprintable() and not set(name) & set("/\\") and bool(name.strip(". "))
    return is_word and len(name.encode()) <= MOST_NAME


def name_problem(name: str, address: str) -> Problem | None:
    """The problem of a name that is not plain (see `is_plain_name`); None if it is."""
    if is_plain_name(name):
        return None
    remedy = "choose a word of letters, digits, - and _"
    return Problem(f"{name[:MOST_NAME]!r} cannot be the name of a file", address, remedy)


def name_schema(names: Sequence[str]) -> dict[str, Any]:
    """The JSON Schema of a name that is either known or a reference."""
    return {"anyOf": [{"enum": list(names)}, {"pattern": REFERENCE}]}


def unknown_name(address: str, name: object, noun: str, names: Sequence[str]) -> Problem:
    """The problem of a name that is neither known nor a reference.

    Args:
        address: The parameter that holds the name.
        name: The name as it was given; it may be of any type.
        noun: A noun for what it should name, such as "trainer".
        names: The built-in names.

    Returns:
        A problem whose remedy begins with the nearest known name, if there is a near one.
    """
    near = difflib.get_close_matches(str(name), names, n=1)
    guess = f"did you mean {near[0]!r}? " if near else ""
    return Problem(
        f"{name!r} is not a {noun}",
        address,
        f"{guess}choose from {', '.join(names)}, or write package.module:NAME or file.py:NAME",
    )
