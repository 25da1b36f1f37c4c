"""The words of the prompts that depend on the kind of a solution."""

from collections.abc import Mapping
from typing import NamedTuple

from nip_fn.game.datapoint import Kind


class Wording(NamedTuple):
    """Phrases about a solution, as the templates use them.

    subject: what is accepted or rejected.
    claim: what the verifier finds out: whether ...
    solutions: several of them.
    wrong: what is the matter with those that are not right.
    parts: to ask about.
    quotable: to quote.
    check: what the verifier cannot do.
    alone: what it does instead where nobody helps it.
    """

    subject: str
    claim: str
    solutions: str
    wrong: str
    parts: str
    quotable: str
    check: str
    alone: str


WORDING: Mapping[Kind, Wording] = {
    "code": Wording(
        subject="code",
        claim="a piece of Python code does what a problem asks for",
        solutions="pieces of code",
        wrong="contain a bug, which is often subtle",
        parts="lines",
        quotable="lines of code",
        check="run the code",
        alone="follow what it does",
    ),
    "prose": Wording(
        subject="answer",
        claim="an answer to a question is right",
        solutions="answers",
        wrong="are wrong, often subtly",
        parts="statements",
        quotable="words of the answer",
        check="look the matter up",
        alone="check what the answer says",
    ),
    "choice": Wording(
        subject="answer",
        claim="the chosen option is the right answer to a question",
        solutions="answers",
        wrong="are wrong, though plausible",
        parts="options",
        quotable="words of the options",
        check="look the matter up",
        alone="weigh each option",
    ),
    "number": Wording(
        subject="answer",
        claim="a calculation answers a question with the right number",
        solutions="calculations",
        wrong="go wrong, often in a single step",
        parts="steps",
        quotable="steps of the calculation",
        check="use a calculator",
        alone="work it out",
    ),
}
