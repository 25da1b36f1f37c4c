"""The house of the core in numbers: `python -m tests.tools.arrows`.

A *room* is a module or package directly inside `nip_fn`; an *arrow* is an ordered pair of different
rooms of which the first imports the second anywhere.  An arrow goes *back up* if the layers
contract of pyproject.toml puts the second on the first one's layer or above it.
"""

import ast
import io
import re
import tokenize
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]
CORE = ROOT / "nip_fn"
PACKAGES = (CORE, ROOT / "adapters/nip_fn_adapters", ROOT / "cli/nip_fn_cli")

# Words that say nothing of the type of the thing that is returned (STYLE: a noun or an imperative).
OPENINGS = ("What", "Whether", "How", "Where")

Arrow = tuple[str, str]


class Room(NamedTuple):
    """One room's size and manner, in lines and docstrings."""

    files: int
    code: int  # lines that are not empty, nor of a docstring, nor a comment of their own
    docstrings: int
    comments: int  # that have a line of their own
    openings: Mapping[str, int]  # docstrings by their first word, of `OPENINGS`

    @property
    def comment_share(self) -> float:
        """Own-line comments as a share of all lines that are not empty."""
        return self.comments / max(1, self.code + self.docstrings + self.comments)


def room_of(path: Path) -> str:
    """The room that a source file lies in; `__init__` is the package's own front door."""
    return path.relative_to(CORE).parts[0].removesuffix(".py")


def sources() -> dict[str, list[Path]]:
    """The source files of each room."""
    rooms: dict[str, list[Path]] = {}
    for path in sorted(CORE.rglob("*.py")):
        rooms.setdefault(room_of(path), []).append(path)
    return rooms


def _imported(path: Path) -> Iterator[str]:
    """The full names of the modules that a file imports from the core."""
    for node in ast.walk(_parsed(path)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                # `from nip_fn import keys` names a room where `from nip_fn.keys import key` does.
                yield from (f"{module}.{a.name}" if module == "nip_fn" else module for a in names)


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def arrows(rooms: Mapping[str, Iterable[Path]]) -> set[Arrow]:
    """The arrows between rooms, without those of the front door."""
    found = set()
    for room, paths in rooms.items():
        for name in (name for path in paths for name in _imported(path)):
            package, _, rest = name.partition(".")
            other = rest.partition(".")[0]
            if package == "nip_fn" and other in rooms and "__init__" != room != other:
                found.add((room, other))
    return found


def layers() -> dict[str, int]:
    """The layer of each room by the contract, 0 the highest."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    (ours,) = (
        contract["layers"]
        for contract in contracts["contracts"]
        if contract.get("containers") == ["nip_fn"]
    )
    return {
        room.strip(): level for level, line in enumerate(ours) for room in re.split(r"[|:]", line)
    }


def back_up(found: Iterable[Arrow]) -> set[Arrow]:
    """The arrows that the layers contract forbids."""
    level = layers()
    return {(one, other) for one, other in found if level[other] <= level[one]}


def longest_chain(found: Iterable[Arrow]) -> tuple[str, ...]:
    """A longest chain of rooms of which each imports the next; each room at most once."""
    below: dict[str, list[str]] = {}
    for one, other in sorted(found):
        below.setdefault(one, []).append(other)

    @cache
    def chain(room: str) -> tuple[str, ...]:
        return (room, *max((chain(other) for other in below.get(room, ())), key=len, default=()))

    return max((chain(room) for room in below), key=len, default=())


def docstrings(path: Path) -> list[tuple[str, int]]:
    """Each docstring of a file with the number of its lines, attributes' left out."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = []
    for node in ast.walk(_parsed(path)):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            place = node.body[0]
            found.append((text, (place.end_lineno or place.lineno) - place.lineno + 1))
    return found


def measure(paths: Iterable[Path]) -> Room:
    """The size and manner of a room of these files."""
    files = code = documented = comments = 0
    openings = dict.fromkeys(OPENINGS, 0)
    for path in paths:
        files += 1
        text = path.read_text("utf-8")
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        own = sum(t.type == tokenize.COMMENT and not t.line[: t.start[1]].strip() for t in tokens)
        said = docstrings(path)
        lines = sum(length for _, length in said)
        blank_in_docstrings = sum(length - _filled(doc) for doc, length in said)
        filled = _filled(text)
        comments += own
        documented += lines
        code += filled - own - (lines - blank_in_docstrings)
        for doc, _ in said:
            word = re.match(r"\w*", doc)
            if word and word[0] in openings:
                openings[word[0]] += 1
    return Room(files, code, documented, comments, openings)


def _filled(text: str) -> int:
    return sum(bool(line.strip()) for line in text.splitlines())


def main() -> None:
    """Print the table, and the totals under it."""
    rooms = sources()
    found = arrows(rooms)
    table = Table("room", "files", "code", "docstrings", "comments", "share", *OPENINGS, "arrows")
    for column in table.columns[1:]:
        column.justify = "right"

    def add(name: str, paths: Iterable[Path], arrows: str = "") -> None:
        size = measure(paths)
        numbers = map(str, (size.files, size.code, size.docstrings, size.comments))
        words = [str(size.openings[word] or "") for word in OPENINGS]
        table.add_row(name, *numbers, f"{size.comment_share:.1%}", *words, arrows)

    for room, paths in rooms.items():
        add(room, paths, str(sum(one == room for one, _ in found) or ""))
    table.add_section()
    for package in PACKAGES:
        add(package.name, sorted(package.rglob("*.py")), str(len(found)) if package == CORE else "")
    console = Console(width=110, soft_wrap=True)
    console.print(table)
    up = back_up(found)
    named = "".join(f", {one} -> {other}" for one, other in sorted(up))
    console.print(f"{len(rooms) - 1} rooms, {len(found)} arrows, {len(up)} back up{named}")
    chain = longest_chain(found - up)
    console.print(f"longest chain, {len(chain)} rooms: {' -> '.join(chain)}")


if __name__ == "__main__":
    main()
