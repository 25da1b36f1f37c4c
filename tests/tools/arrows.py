"""The house in numbers, package by package: `python -m tests.tools.arrows`.

A *room* is a module or package directly inside one of the three packages; the modules of
`cli/nip_fn_cli/commands` are a room each, and so are the providers.  An *arrow* is an ordered pair
of different rooms of one package of which the first imports the second anywhere.  It goes *back up*
if the layers contract of pyproject.toml puts the second on the first one's layer or above it.  The
*floors* are the rooms of the longest chain of arrows.
"""

import ast
import io
import re
import tokenize
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]


class House(NamedTuple):
    """A package whose rooms are counted.

    path: its folder.
    wings: folders of it of which every member is a room.
    doors: modules of it that only re-export.
    """

    path: Path
    wings: tuple[str, ...] = ()
    doors: tuple[str, ...] = ()


CORE = House(ROOT / "nip_fn", doors=("schedules", "selectors", "stats"))
ADAPTERS = House(ROOT / "adapters/nip_fn_adapters", ("providers",))
CLI = House(ROOT / "cli/nip_fn_cli", ("commands",))
HOUSES = (CORE, ADAPTERS, CLI)
PACKAGES = tuple(house.path for house in HOUSES)

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


def rooms(house: House) -> dict[str, list[Path]]:
    """The source files of each room; the front door `__init__` is of none, and so is a wing's."""
    found: dict[str, list[Path]] = {}
    for path in sorted(house.path.rglob("*.py")):
        if name := _room(path.relative_to(house.path).with_suffix("").parts, house):
            found.setdefault(name, []).append(path)
    return found


def _room(parts: Sequence[str], house: House) -> str:
    """The room of a module, given by its names below the package; "" for that of a front door."""
    depth = 2 if parts and parts[0] in house.wings else 1
    front_doors = ((), ("__init__",), *((name,) for name in (*house.wings, *house.doors)))
    if tuple(parts) in front_doors or parts[depth - 1] == "__init__":
        return ""
    return ".".join(parts[:depth])


def _imported(path: Path) -> Iterator[str]:
    """The full names that a file imports."""
    for node in ast.walk(_parsed(path)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                yield from (f"{module}.{alias.name}" for alias in names)


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def arrows(house: House) -> set[Arrow]:
    """The arrows between the rooms of a package."""
    files = rooms(house)
    found = set()
    for room, paths in files.items():
        for name in (name for path in paths for name in _imported(path)):
            package, *parts = name.split(".")
            target = _room(parts, house) if package == house.path.name else ""
            if target in files and target != room:
                found.add((room, target))
    return found


def layers(house: House) -> dict[str, int]:
    """The layer of each room by the package's contract, 0 the highest."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    (lines,) = (
        contract["layers"]
        for contract in contracts["contracts"]
        if contract.get("containers") == [house.path.name]
    )
    named = {
        name.strip(): level for level, line in enumerate(lines) for name in re.split(r"[|:]", line)
    }
    return {room: named.get(room, named.get(room.partition(".")[0], -1)) for room in rooms(house)}


def back_up(house: House) -> set[Arrow]:
    """The arrows that the layers contract forbids, and those between the members of a wing."""
    level = layers(house)
    return {(room, target) for room, target in arrows(house) if level[target] <= level[room]}


def longest_chain(found: Iterable[Arrow]) -> tuple[str, ...]:
    """A longest chain of rooms of which each imports the next; each room at most once."""
    below: dict[str, list[str]] = {}
    for room, target in sorted(found):
        below.setdefault(room, []).append(target)

    @cache
    def chain(room: str) -> tuple[str, ...]:
        return (room, *max((chain(target) for target in below.get(room, ())), key=len, default=()))

    return max((chain(room) for room in below), key=len, default=())


def docstrings(path: Path) -> list[tuple[str, int]]:
    """Each docstring of a file with the number of its lines, attributes' left out."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = []
    for node in ast.walk(_parsed(path)):
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            lines = node.body[0]
            texts.append((text, (lines.end_lineno or lines.lineno) - lines.lineno + 1))
    return texts


def measure(paths: Iterable[Path]) -> Room:
    """The size and manner of a room of these files."""
    files = code = documented = comments = 0
    openings = dict.fromkeys(OPENINGS, 0)
    for path in paths:
        files += 1
        text = path.read_text("utf-8")
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        own_line = sum(
            t.type == tokenize.COMMENT and not t.line[: t.start[1]].strip() for t in tokens
        )
        texts = docstrings(path)
        lines = sum(length for _, length in texts)
        blank_in_docstrings = sum(length - _filled(doc) for doc, length in texts)
        filled = _filled(text)
        comments += own_line
        documented += lines
        code += filled - own_line - (lines - blank_in_docstrings)
        for doc, _ in texts:
            word = re.match(r"\w*", doc)
            if word and word[0] in openings:
                openings[word[0]] += 1
    return Room(files, code, documented, comments, openings)


def _filled(text: str) -> int:
    return sum(bool(line.strip()) for line in text.splitlines())


def main() -> None:
    """Print the table, and the totals under it."""
    table = Table("room", "files", "code", "docstrings", "comments", "share", *OPENINGS, "arrows")
    for column in table.columns[1:]:
        column.justify = "right"

    def add(name: str, paths: Iterable[Path], count: int) -> None:
        size = measure(paths)
        numbers = map(str, (size.files, size.code, size.docstrings, size.comments))
        words = [str(size.openings[word] or "") for word in OPENINGS]
        table.add_row(name, *numbers, f"{size.comment_share:.1%}", *words, str(count or ""))

    totals = []
    for house in HOUSES:
        found, up = arrows(house), back_up(house)
        for room, paths in rooms(house).items():
            add(room, paths, sum(source == room for source, _ in found))
        table.add_section()
        add(house.path.name, sorted(house.path.rglob("*.py")), len(found))
        table.add_section()
        chain = longest_chain(found - up)
        named = "".join(f", {source} -> {target}" for source, target in sorted(up))
        totals += [
            f"{house.path.name}: {len(rooms(house))} rooms, {len(found)} arrows, "
            f"{len(chain)} floors, {len(up)} back up{named}",
            f"    {' -> '.join(chain)}",
        ]
    console = Console(width=110, soft_wrap=True)
    console.print(table)
    for line in totals:
        console.print(line)


if __name__ == "__main__":
    main()
