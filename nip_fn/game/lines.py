"""Lines of a text that are its author's own words, and not quoted as a block of code."""

import re
from collections.abc import Iterator

FENCE = re.compile(r"[^\S\t]{0,3}(`{3,}+(?=[^`]*$)|~{3,}+)")


def unfenced(text: str) -> Iterator[tuple[int, str]]:
    """(offset, line) for each line outside of fenced code; an open fence reaches to the end."""
    fence, offset = "", 0
    for whole in text.splitlines(keepends=True):
        (line,) = whole.splitlines()
        mark = FENCE.match(line)
        if not fence and mark:
            fence = mark[1]
        elif not fence:
            yield offset, line
        elif mark and mark[1].startswith(fence) and line.strip() == mark[1]:
            fence = ""
        offset += len(whole)
