"""Names of values in a configuration: built-in ones, and references to a user's own.

A record holds names, so that it stays data.  Values are built from it by `nip_fn.config.trainers`
and `nip_fn.protocols.registry`.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from returns.result import Failure, Result, Success

from nip_fn.errors import Problem

T = TypeVar("T")

BUILT_IN_TRAINERS = ("malt", "ei", "reinforce")
# Those that grow the same trees, and learn from them in their own ways.
TREE_TRAINERS = frozenset({"malt", "reinforce"})
VALUE_BACKUPS = ("children", "leaves")
PAIR_RULES = ("positive_negative", "about_mean", "interval", "best_worst", "all")

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


def look_up(
    registry: Mapping[str, T], name: object, *, address: str, noun: str, variable: str
) -> Result[T, Problem]:
    """The value of that name in a registry, or the problem of a name that is not in it.

    Args:
        registry: Values by name.
        name: The name as it was given; it may be of any type.
        address: The parameter that holds the name.
        noun: For what it should name, such as "trainer".
        variable: The registry's name in Python, to which a script adds values of its own.
    """
    if not isinstance(name, str) or not (name in registry or is_reference(name)):
        return Failure(unknown_name(address, name, noun, tuple(registry)))
    if name in registry:
        return Success(registry[name])
    return Failure(
        Problem(
            f"{name!r} has not been registered",
            address,
            f"a command that is given the name loads it; in a script, set {variable}[{name!r}] "
            "before reading parameters",
        )
    )
