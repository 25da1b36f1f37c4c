"""Tables on standard output, laid out for the width that there is."""

from collections.abc import Sequence
from textwrap import wrap
from typing import NamedTuple

from rich.cells import cell_len

from nip_fn_cli.shown.consoles import Console
from nip_fn_cli.shown.terminal import terminal_safe

WIDTH = 180  # of output that does not go to a terminal
GAP = "  "  # between columns


class Line(NamedTuple):
    """A line of a table.

    text: the line.
    bold: true for titles.
    """

    text: str
    bold: bool = False


class _Column(NamedTuple):
    """A column.

    title: its title, a line or several.
    cells: one a row.
    left: flush left; otherwise flush right.
    """

    title: tuple[str, ...]
    cells: tuple[str, ...]
    left: bool

    @property
    def width(self) -> int:
        return max(map(cell_len, (*self.title, *self.cells)))


def console(width: int | None = None) -> Console:
    """A console for standard output that prints texts as they are, without markup.

    Unless a width is given, it is that of the terminal, or `WIDTH` if there is none.
    """
    # rich takes a pipe for a terminal of 80 columns.
    out = Console(width=width)
    if width is not None:
        return out
    return out if out.is_terminal else Console(width=WIDTH)


def print_rows(titles: Sequence[str], rows: Sequence[Sequence[str]], *, keys: int = 1) -> None:
    """Print a table in the width of the terminal; each row in one line if there is no terminal."""
    out = console()
    # Made visible before they are measured, and each in one line.
    headings, *cells = (
        [terminal_safe(text).replace("\n", "\\n").expandtabs(1) for text in row]
        for row in (titles, *rows)
    )
    for line in lay_out(headings, cells, keys=keys, width=out.width if out.is_terminal else None):
        out.print(line.text, style="bold" if line.bold else None, soft_wrap=True)


def lay_out(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    keys: int = 1,
    width: int | None = None,
) -> tuple[Line, ...]:
    """The lines of a table in a given width, every cell whole.

    A table with one line a row, if that fits; otherwise one with its titles on several lines;
    otherwise several of these below each other, with a part of the columns each; otherwise a block
    of lines for each row.

    Args:
        titles: A title for each column.
        rows: The rows, a cell for each column.
        keys: The number of columns, from the left, that name a row.  They stand in each part, flush
            left unless they are numbers; all others are flush right.
        width: In columns of a terminal; None for as many as it takes.
    """
    columns = [
        _Column((title,), cells, number < keys and not all(map(str.isdecimal, cells)))
        for number, title in enumerate(titles)
        for cells in [tuple(row[number] for row in rows)]
    ]
    if width is None or _width(columns) <= width:
        return _lines(columns)
    tables = _parts([_narrow(column) for column in columns], keys, width)
    if tables is None:
        return _blocks(columns, keys, width)
    return tuple(line for part in tables for line in (Line(""), *_lines(part)))[1:]


def _width(columns: Sequence[_Column]) -> int:
    return sum(column.width for column in columns) + len(GAP) * (len(columns) - 1)


def _narrow(column: _Column) -> _Column:
    """The column with its title on as many lines as make it no wider than need be."""
    (title,) = column.title
    widest = max(map(cell_len, (*title.split(), *column.cells)), default=0)
    lines = wrap(title, max(1, widest), break_long_words=False, break_on_hyphens=False)
    return column._replace(title=tuple(lines) or ("",))


def _parts(columns: Sequence[_Column], keys: int, width: int) -> list[list[_Column]] | None:
    """The columns in as few parts as fit the width; None if some column does not."""
    named = list(columns[:keys])
    tables = [named]
    for column in columns[keys:]:
        if _width([*tables[-1], column]) > width:
            tables.append(named)
        tables[-1] = [*tables[-1], column]
    return None if any(_width(part) > width for part in tables) else tables


def _lines(columns: Sequence[_Column]) -> tuple[Line, ...]:
    height = max(len(column.title) for column in columns)
    # The last line of each title stands directly above the cells.
    above = [
        (*[""] * (height - len(column.title)), *column.title, *column.cells) for column in columns
    ]
    return tuple(
        Line(GAP.join(map(_padded, row, columns)).rstrip(), bold=number < height)
        for number, row in enumerate(zip(*above, strict=True))
    )


def _padded(text: str, column: _Column) -> str:
    space = " " * (column.width - cell_len(text))
    return text + space if column.left else space + text


def _blocks(columns: Sequence[_Column], keys: int, width: int) -> tuple[Line, ...]:
    """A block for each row: what names it, then a line for each cell that is not empty."""
    lines: list[Line] = []
    widest = max((cell_len(column.title[0]) for column in columns[keys:]), default=0)
    for number in range(len(columns[0].cells)):
        named = [(column.title[0], column.cells[number]) for column in columns[:keys]]
        lines.append(Line(", ".join(_named(*name) for name in named if name[1]), bold=True))
        for column in columns[keys:]:
            title, text = column.title[0], column.cells[number]
            line = f"{GAP}{title}{' ' * (widest - cell_len(title))}{GAP}{text}"
            if text:
                whole = cell_len(line) <= width
                lines += map(Line, [line] if whole else [f"{GAP}{title}", f"{GAP * 2}{text}"])
    return tuple(lines)


def _named(title: str, text: str) -> str:
    return f"{title} {text}" if text.isdecimal() else text
