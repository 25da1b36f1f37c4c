"""Answers: the one that a reply states, where its move is to state one.

An answer is stated once, on a line of the author's own, after `Final answer:`.  If nothing follows
on that line, the answer is the fenced block below it, such as a program:

    Final answer: 42            Final answer:
    **Final answer:** `42`      ```python
                                print(42)
                                ```

As with verdicts (`game.verdict`), what is quoted does not count, and what is stated twice is
invalid.
"""

import re
from typing import Literal

from returns.result import Failure, Result, Success

from nip_fn.game.lines import FENCE, unfenced

AnswerError = Literal["invalid_answer"]  # no answer, an empty one, or several

MARKER = "Final answer:"  # before an answer, in any case

_STATEMENT = re.compile(r"[^\S\t]{0,3}(?:#{1,6} *)?[*_]*final[ _]answer[\s*_]*:(.*)", re.IGNORECASE)
_DRESS = " \t*_`"

ANSWER_INSTRUCTIONS = (
    f"end your message with a line of its own that says `{MARKER} ` and the answer"
)


def find_answer(text: str) -> Result[str, AnswerError]:
    """The answer that the text states, once.

    >>> find_answer("Seven and five.\\n**Final answer:** `12`").unwrap()
    '12'
    >>> find_answer("Final answer:\\n```python\\nprint(12)\\n```").unwrap()
    'print(12)'
    >>> find_answer("Final answer: 12\\nFinal answer: 13").failure()
    'invalid_answer'
    """
    stated = [
        (offset + len(line), match[1].strip(_DRESS))
        for offset, line in unfenced(text)
        if (match := _STATEMENT.match(line))
    ]
    if len(stated) != 1:
        return Failure("invalid_answer")
    ((end, answer),) = stated
    answer = answer or _block(text[end:].splitlines()[1:])
    return Success(answer) if answer else Failure("invalid_answer")


def _block(lines: list[str]) -> str:
    """The content of a fenced block with which the lines begin; "" if they begin otherwise."""
    first = next((number for number, line in enumerate(lines) if line.strip()), len(lines))
    mark = FENCE.match(lines[first]) if first < len(lines) else None
    if mark is None:
        return ""
    closing = (
        number
        for number, line in enumerate(lines[first + 1 :], first + 1)
        if line.strip().startswith(mark[1]) and not line.strip().strip(mark[1][0])
    )
    block = lines[first + 1 : next(closing, len(lines))]
    return "\n".join(block) if any(map(str.strip, block)) else ""
