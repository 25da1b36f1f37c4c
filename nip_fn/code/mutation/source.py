"""Source text and the places of syntax nodes in it; small replacements of text."""

import ast
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

_LINE_END = re.compile(r"\r\n|\r|\n")
_TOKEN = re.compile(
    r"#[^\r\n]*|(?P<token>not\b(?:\\\r?\n|\s|#[^\r\n]*)*in\b|is\b(?:\\\r?\n|\s)*not\b"
    r"|[A-Za-z]+|\*\*=?|//=?|<<=?|>>=?|[-+*/%@&|^<>=!]=?)"
)


class Patch(NamedTuple):
    """Characters `start` to `end` of a text, and what is to stand there."""

    start: int
    end: int
    text: str


class SourceText:
    """A program's text, with the places of its syntax tree's nodes."""

    def __init__(self, code: str) -> None:
        """Count the lines of the code, and see how it is written."""
        self.code = code
        self.starts = (0, *(match.end() for match in _LINE_END.finditer(code)))
        self.newline = "\r\n" if "\r\n" in code else "\n"
        # A mutant is written in the manner of its program: quotes or spaces of another kind would
        # give away which line was changed.
        self.quote = '"' if code.count('"') > code.count("'") else "'"
        spaced = len(re.findall(r"\w [-+*] \w", code))
        self.tight = len(re.findall(r"\w[-+*]\w", code)) > spaced

    def offset(self, line: int, column: int) -> int:
        """The character at a line, from 1, and a column in UTF-8 bytes: a place of the parser's."""
        start = self.starts[line - 1]
        # The parser counts bytes; in the common case of plain ASCII they are characters.
        text = self.code[start : start + column]
        if not text.isascii():
            text = self.code[start:].encode()[:column].decode()
        return start + len(text)

    def span(self, node: Any) -> tuple[int, int]:
        """Start and end of a node, in characters."""
        start = self.offset(node.lineno, node.col_offset)
        return start, self.offset(node.end_lineno, node.end_col_offset)

    def text(self, node: ast.AST) -> str:
        """The text of a node."""
        start, end = self.span(node)
        return self.code[start:end]

    def wide(self, node: ast.AST) -> tuple[int, int]:
        """The span of an expression with the parentheses around it alone (not those of a call)."""
        start, end = self.span(node)
        code = self.code
        while True:
            last = len(code[:start].rstrip()) - 1
            right = len(code) - len(code[end:].lstrip())
            if last < 0 or right >= len(code) or code[last] != "(" or code[right] != ")":
                return start, end
            # Parentheses right after a name or a bracket are those of a call.
            if last and (code[last - 1].isalnum() or code[last - 1] in "_)]}\"'"):
                return start, end
            start, end = last, right + 1

    def line_of(self, offset: int) -> int:
        """The line, from 1, of a character."""
        return sum(start <= offset for start in self.starts)

    def line_start(self, offset: int) -> int:
        """Start of the line of a character."""
        return self.starts[self.line_of(offset) - 1]

    def line_end(self, offset: int) -> int:
        """Start of the line after that of a character, or the end of the text."""
        line = self.line_of(offset)
        return self.starts[line] if line < len(self.starts) else len(self.code)

    def indent(self, node: ast.AST) -> str | None:
        """The space before a statement; None where something else stands before it in its line."""
        start = self.span(node)[0]
        space = self.code[self.line_start(start) : start]
        return None if space.strip() else space

    def token(self, start: int, end: int) -> tuple[int, int] | None:
        """The span of the first operator or word between two offsets, comments left out."""
        for match in _TOKEN.finditer(self.code, start, end):
            if match["token"]:
                return match.span()
        return None


def apply(code: str, patches: Iterable[Patch]) -> str | None:
    """The text with all patches made; None where they overlap."""
    pieces, copied = [], 0
    for patch in sorted(patches):
        if patch.start < copied:
            return None
        pieces += [code[copied : patch.start], patch.text]
        copied = patch.end
    return "".join((*pieces, code[copied:]))
