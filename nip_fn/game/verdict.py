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
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Literal

from returns.result import Failure, Result, Success

from nip_fn.game.decision import SPECTRA, Decision, SpectrumName

VerdictError = Literal["invalid_decision"]  # a decision line with a word that is not a decision's
FindDecision = Callable[[str, SpectrumName], Result[Decision | None, VerdictError]]

# Emphasis and headings are dress, in which models like to set a verdict off from its reasons.  Four
# columns of space, or a tab, make a line of Markdown code; a star and a space make a list's item.
_STATEMENT = re.compile(r"[^\S\t]{0,3}(?:#{1,6} *)?[*_]*decision[\s*_]*:(.*)")
_FENCE = re.compile(r"[^\S\t]{0,3}(`{3,}+(?=[^`]*$)|~{3,}+)")

# Edition 2: a line of its own that begins with "Decision:", in whatever markup.
_ANY_STATEMENT = re.compile(
    r"[\s>#*_`\"'(\[-]*decision[\s*_`\"']*:[\s*_`\"'(\[]*(.*)", re.IGNORECASE
)


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
    lines = (line for line in _own_lines(lowered) if "decision" in line)
    stated = [said[1] for line in lines if (said := _STATEMENT.match(line))]
    if not stated:
        return Success(None)
    value = _whole_value(spectrum).fullmatch(" ".join(stated[0].split()))
    if value is None or len(stated) > 1:
        return Failure("invalid_decision")
    return Success(next(d for d in SPECTRA[spectrum] if d.text == value[1]))


def _own_lines(text: str) -> Iterable[str]:
    """The lines outside of fenced code; a fence that is never closed reaches to the end."""
    return _outside(text) if "```" in text or "~~~" in text else text.splitlines()


def _outside(text: str) -> Iterator[str]:
    fence = ""
    for line in text.splitlines():
        mark = _FENCE.match(line)
        if not fence and mark:
            fence = mark[1]
        elif not fence:
            yield line
        elif mark and mark[1].startswith(fence) and line.strip() == mark[1]:
            fence = ""


@cache
def _whole_value(spectrum: SpectrumName) -> re.Pattern[str]:
    """One of the spectrum's texts with what belongs to it: emphasis, a scale, a full stop."""
    texts = sorted((decision.text for decision in SPECTRA[spectrum]), key=len, reverse=True)
    most = SPECTRA[spectrum][-1].text
    scale = rf"(?: ?/ ?{most}| out of {most})?+" if most.isdigit() else ""
    percent = "(?: ?%)?+" if most == "100" else ""
    choices = "|".join(map(re.escape, texts))
    return re.compile(rf"[*_ ]*+({choices}){scale}{percent}[*_ ]*+[.!]?+[*_ ]*+")


# --------------------------------------------------------------------------------------- edition 2


def find_last_decision(text: str, spectrum: SpectrumName) -> Result[Decision | None, VerdictError]:
    """The last line of the form `Decision: <text>`, tolerant of case and markup (edition 2).

    The text is taken as a whole, never in part; words may follow it, a second choice may not.

    >>> find_last_decision("> Decision: 6\\nDecision: 7/10, I think", "out_of_10").unwrap().text
    '7'
    >>> find_last_decision("What would make you say Decision: accept?", "accept_reject").unwrap()
    >>> find_last_decision("Decision: accepted", "accept_reject").failure()
    'invalid_decision'
    """
    # The last line that decides, and only whole words.  The *nip* library takes the first mention
    # of the marker anywhere and matches beginnings: a question that quotes it is a decision there,
    # "7.5" is 7 and "accepted" is "accept".
    for line in reversed(text.splitlines()):
        said = _ANY_STATEMENT.match(line)
        if said:
            value = _first_value(spectrum).match(" ".join(said[1].split()).lower())
            if not value:
                return Failure("invalid_decision")
            return Success(next(d for d in SPECTRA[spectrum] if d.text == value[1]))
    return Success(None)


@cache
def _first_value(spectrum: SpectrumName) -> re.Pattern[str]:
    """One of the spectrum's texts, not followed by more of a word or number, or by another one."""
    texts = sorted((decision.text for decision in SPECTRA[spectrum]), key=len, reverse=True)
    choices = "|".join(map(re.escape, texts))
    most = SPECTRA[spectrum][-1].text
    scale = rf"(?: ?/ ?{most}| out of {most})?+" if most.isdigit() else ""
    percent = "%?+" if most == "100" else ""
    ends = r"(?=[*_`\"')\].,;:!?]*(?: |$))"
    other = r"\d+" if most.isdigit() else choices
    joint = r"[*_`\"' ,;/|&–—-]*(?:(?:or|and|to|out of)\W+)?"
    second = rf"(?!{joint}(?:{other})\b|.*decision[\W_]+(?:{other})\b)"
    return re.compile(rf"({choices}){scale}{percent}{ends}{second}")
