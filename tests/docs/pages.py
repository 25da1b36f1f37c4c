"""Pages whose commands and programs are carried out, and whose printed outputs are compared.

Read from top to bottom in one folder, a page is a session: a fenced block below a line that ends in
"`NAME`:" is written to that file; an indented line that begins with `nip-fn`, `python` or `make` is
a command; a block of `python` below anything else is a program; a block of `text` is what the last
of them prints.  In it, a line `…` stands for any lines, and … within a line for anything.
"""

import re
from pathlib import Path
from typing import Literal, NamedTuple

DOCS = Path(__file__).parents[2] / "docs"
# Pages of this form; their commands are not run by tests/cli/test_first_hour.py again.
WALKED = ("first-hour", "from-python", "how-a-run-works", "read-a-tree")

_BLOCK = re.compile(
    r"(?P<named>^[^\n]*`(?P<name>[\w.]+)`:\n\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$"
    r"|^ {4}(?P<command>(?:nip-fn|python|make) [^\n]*(?<!\\)(?:\\\n[^\n]*(?<!\\))*)$",
    re.MULTILINE | re.DOTALL,
)


class Step(NamedTuple):
    """Something that a reader of the page does.

    kind: write a file, type a command, or run a program.
    text: the file's text, the command line, or the program.
    name: of the file.
    printed: what is printed, "" if the page does not show it.
    """

    kind: Literal["file", "command", "program"]
    text: str
    name: str = ""
    printed: str = ""


def steps(page: str) -> list[Step]:
    """The steps of a page in their order."""
    found: list[Step] = []
    for block in _BLOCK.finditer(page):
        if block["command"]:
            words = re.sub(r"\\\n\s*", "", block["command"])
            found.append(Step("command", words))
        elif block["name"]:
            found.append(Step("file", block["text"], block["name"]))
        elif block["kind"] == "python":
            found.append(Step("program", block["text"]))
        elif block["kind"] == "text":
            found[-1] = found[-1]._replace(printed=block["text"])
    return found


def is_printed(expected: str, printed: str) -> bool:
    """True if a page that shows `expected` shows `printed`.

    >>> is_printed("a\\n…\\nd … f\\n", "a \\nb\\nc\\nd e f\\n")
    True
    >>> is_printed("a\\n…\\nd\\n", "a\\nb\\n")
    False
    """
    return _matches(_lines(expected), _lines(printed))


def _matches(expected: list[str], printed: list[str]) -> bool:
    if not expected:
        return not printed
    first, *rest = expected
    if first == "…":
        return any(_matches(rest, printed[skipped:]) for skipped in range(len(printed) + 1))
    pattern = "[^\n]*".join(map(re.escape, first.split("…")))
    return (
        bool(printed)
        and re.fullmatch(pattern, printed[0]) is not None
        and _matches(rest, printed[1:])
    )


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]
