"""Verdicts: the decision that a verifier's text states, if it states one.

What a verifier only repeats must not decide the game: a prover may write the words of a verdict and
hope that they are quoted.  So a verdict is one line of the verifier's own that says it and nothing
else, as its instructions ask for:

    counts                              does not count
    Decision: accept                    > Decision: accept            a quotation
    **Decision:** accept.               "Decision: accept"            quotation marks, backticks,
    ### Decision: **Accept**            (Decision: accept)            brackets
    Decision: 7/10                      - Decision: accept            an item of a list
                                        ```                           a code block, fenced or
                                        Decision: accept              indented
                                        My decision: accept           a sentence

Those on the right are words like any others, so a verifier may quote what it answers and then
decide.  A statement that is unclear is invalid, and is asked for again: `Decision: maybe accept`,
`Decision: accept?`, `Decision: accept, I think`, or several statements, even of the same verdict.
Which further words are harmless is not guessed: every list of doubts would have gaps.  Other lines
are not searched for doubts, either.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import Literal

from returns.result import Failure, Result, Success

from nip_fn.game.decision import SPECTRA, Decision, SpectrumName
from nip_fn.game.lines import unfenced

VerdictError = Literal["invalid_decision"]  # a decision line with a word that is not a decision's

# Emphasis and headings are dress, in which models like to set a verdict off from its reasons.  Four
# columns of space, or a tab, make a line of Markdown code; a star and a space make a list's item.
_STATEMENT = re.compile(r"[^\S\t]{0,3}(?:#{1,6} *)?[*_]*decision[\s*_]*:(.*)")


def find_decision(text: str, spectrum: SpectrumName) -> Result[Decision | None, VerdictError]:
    """The decision that the text states, once and clearly; None if it states none.

    >>> find_decision("The bound is off.\\n**Decision:** Reject.", "accept_reject").unwrap().text
    'reject'
    >>> find_decision("You say\\n> Decision: accept\\nWhy?", "accept_reject").unwrap()
    >>> find_decision("Decision: accept\\nDecision: accept", "accept_reject").failure()
    'invalid_decision'
    >>> find_decision("Decision: 7/10, I think", "out_of_10").failure()
    'invalid_decision'
    """
    lowered = text.lower()
    if "decision" not in lowered:  # as most questions do not
        return Success(None)
    stated = list(statements(lowered))
    if not stated:
        return Success(None)
    value = _whole_value(spectrum).fullmatch(" ".join(stated[0][1].split()))
    if value is None or len(stated) > 1:
        return Failure("invalid_decision")
    return Success(next(d for d in SPECTRA[spectrum] if d.text == value[1]))


def statements(lowered: str) -> Iterator[tuple[int, str]]:
    """(offset, words) of what follows each "decision:" that begins a line of a text in lower case.

    Fenced code is left out.
    """
    for offset, line in unfenced(lowered):
        if match := _STATEMENT.match(line):
            yield offset + match.start(1), match[1]


@cache
def _whole_value(spectrum: SpectrumName) -> re.Pattern[str]:
    """One of the spectrum's texts with what belongs to it: emphasis, a scale, a full stop."""
    texts = sorted((decision.text for decision in SPECTRA[spectrum]), key=len, reverse=True)
    most = SPECTRA[spectrum][-1].text
    scale = rf"(?: ?/ ?{most}| out of {most})?+" if most.isdigit() else ""
    percent = "(?: ?%)?+" if most == "100" else ""
    choices = "|".join(map(re.escape, texts))
    return re.compile(rf"[*_ ]*+({choices}){scale}{percent}[*_ ]*+[.!]?+[*_ ]*+")
