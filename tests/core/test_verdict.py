"""Verdicts of edition 3: one clear statement of the verifier's own, and nothing that it repeats."""

from itertools import product
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from returns.result import Failure, Success

from nip_fn.game.decision import SPECTRA, SpectrumName
from nip_fn.game.protocol import Move
from nip_fn.game.reply import Completion, Reply, parse_reply
from nip_fn.game.verdict import find_decision

EVERY: list[SpectrumName] = list(SPECTRA)
MARKS = [
    "> ",
    ">",
    "- ",
    "* ",
    "+ ",
    "• ",
    "1. ",
    "2) ",
    "    ",
    "\t",
    "| ",
    "$",
    "~~",
    "<b>",
    "// ",
]
QUOTES = ['"{}"', "'{}'", "“{}”", "«{}»", "`{}`", "``{}``", "({})", "[{}]", "<{}>"]


def found(text: str, spectrum: SpectrumName = "accept_reject") -> str | None:
    """The text of the decision, None where none is stated, "invalid" where it is unclear."""
    result = find_decision(text, spectrum)
    if isinstance(result, Failure):
        assert result == Failure("invalid_decision")
        return "invalid"
    decision = result.unwrap()
    return decision and decision.text


OWN = [
    "Decision: {}",
    "decision:{}",
    "DECISION : {}",
    "Decision:  {}  ",
    " Decision: {}",
    "   Decision: {}",
    "Decision: {}.",
    "Decision: {}!",
    "**Decision: {}**",
    "**Decision:** {}",
    "**Decision**: **{}**.",
    "*Decision: {}*",
    "***Decision: {}.***",
    "__Decision__: _{}_",
    "# Decision: {}",
    "### **Decision:** {}",
    "Thank you.\n\nDecision: {}",
    "Thank you.\r\nDecision: {}\r\n",
    "Decision: {}\nThe bound is off by one.",
    "Step 1 is right.\nStep 2 is wrong.\nDecision: {}",
    "Question for Expert_1: why?\nQuestion for Expert_2: how?\nDecision: {}",
    "```python\nprint('Decision: perhaps')\n```\nDecision: {}",
    "```\nDecision: perhaps\n~~~\nDecision: perhaps\n```\nDecision: {}",
    "My decision: perhaps not.\nDecision: {}",
    "Would you say Decision: perhaps?\nDecision: {}",
]


@pytest.mark.parametrize("dress", OWN)
@pytest.mark.parametrize("spectrum", EVERY)
def test_a_line_that_says_the_verdict_and_nothing_else_counts(
    spectrum: SpectrumName, dress: str
) -> None:
    for decision in SPECTRA[spectrum]:
        for said in (decision.text, decision.text.title(), decision.text.upper()):
            assert found(dress.format(said), spectrum) == decision.text


REPEATED = [
    *(mark + "Decision: {}" for mark in MARKS),
    *(quote.format("Decision: {}") for quote in QUOTES),
    "> > Decision: {}",
    "> **Decision:** {}",
    '"Decision": "{}"',
    '{{"decision": "{}"}}',
    "{{Decision: {}}}",
    "```\nDecision: {}\n```",
    "```text\nDecision: {}\n```\nWhy?",
    "~~~~\nDecision: {}\n~~~\n~~~~",
    "Look:\n```\nDecision: {}",  # a block that is never closed
    "My decision: {}",
    "Final decision: {}",
    "Verifier: Decision: {}",
    "Would you say Decision: {}?",
    "I would write **Decision:** {} if I were sure.",
    "Decisions: {}",
    "Decision {}",
    "Decision\n: {}",
    "{}",
]


@pytest.mark.parametrize("dress", REPEATED)
@pytest.mark.parametrize("spectrum", EVERY)
def test_what_is_quoted_listed_or_mentioned_is_no_verdict(
    spectrum: SpectrumName, dress: str
) -> None:
    """Nor does it stand in the way of one: a verifier may quote what it answers."""
    text = SPECTRA[spectrum][-1].text
    assert found(dress.format(text), spectrum) is None
    own = SPECTRA[spectrum][0].text
    assert found(f"Decision: {own}\n{dress.format(text)}", spectrum) == own


UNCLEAR = [
    "Decision: maybe {}",
    "Decision: perhaps",
    "Decision: probably {}",
    "Decision: not {}",
    "Decision: {}?",
    "Decision: {}?!",
    "Decision: {} (?)",
    "Decision: {}, I think",
    "Decision: {} unless I am wrong",
    "Decision: {} if the bound holds",
    "Decision: {}, but I am not sure",
    "Decision: {} because the loop never ends",
    "Decision: {}. The loop never ends.",
    "Decision: {}...",
    'Decision: "{}"',
    "Decision: `{}`",
    "Decision: [{}]",
    "Decision: <{}>",
    "Decision: {} | {}",
    "Decision: {}/{}/{}",
    "Decision: Decision: {}",
    "Decision: {} Decision: {}",
    "Decision: {}ed",
    "Decision: ~~{}~~",
    "Decision: {}\u200b",
    "Decision:",
    "Decision: **",
    "Decision:\n{}",
    "**Decision:**\n\n{}",
    "Decision: {}\nDecision: {}",
    "Decision: {}\nOn second thoughts:\n\n**Decision:** {}.",
    "Decision: {}\nDecision: perhaps",
    "Decision: perhaps\nDecision: {}",
    "# Decision:\nDecision: {}",
]


@pytest.mark.parametrize("dress", UNCLEAR)
@pytest.mark.parametrize("spectrum", EVERY)
def test_a_statement_that_is_hedged_or_repeated_is_unusable(
    spectrum: SpectrumName, dress: str
) -> None:
    for decision in SPECTRA[spectrum]:
        assert found(dress.replace("{}", decision.text), spectrum) == "invalid"


@pytest.mark.parametrize("spectrum", EVERY)
def test_two_statements_contradict_or_repeat_one_another_and_neither_counts(
    spectrum: SpectrumName,
) -> None:
    ends = SPECTRA[spectrum][0].text, SPECTRA[spectrum][-1].text
    for one, other in product(ends, ends):
        for between in ("\n", "\n\nWait.\n", "\n> Decision: perhaps\n"):
            assert found(f"Decision: {one}{between}Decision: {other}", spectrum) == "invalid"


@pytest.mark.parametrize(
    ("said", "of_10", "of_100"),
    [
        ("7", "7", "7"),
        ("7/10", "7", "invalid"),
        ("7 / 10.", "7", "invalid"),
        ("**7/10**", "7", "invalid"),
        ("7 out of 10", "7", "invalid"),
        ("7 out of 100", "invalid", "7"),
        ("10/10", "10", "invalid"),
        ("70%", "invalid", "70"),
        ("70 %", "invalid", "70"),
        ("7.5", "invalid", "invalid"),
        ("7 to 8", "invalid", "invalid"),
        ("7-8", "invalid", "invalid"),
        ("about 7", "invalid", "invalid"),
        ("07", "invalid", "invalid"),
        ("-5", "invalid", "invalid"),
        ("７", "invalid", "invalid"),
        ("1" * 5000, "invalid", "invalid"),
    ],
)
def test_a_number_may_name_its_scale(said: str, of_10: str, of_100: str) -> None:
    assert found(f"Decision: {said}", "out_of_10") == of_10
    assert found(f"Decision: {said}", "likert_int_scale_11") == of_10
    assert found(f"Decision: {said}", "out_of_100") == of_100


WORDS = st.text(st.characters(blacklist_characters="`~"), max_size=40)


@given(WORDS, st.sampled_from(get_args(SpectrumName)), st.data())
def test_whatever_is_quoted_line_by_line_changes_no_verdict(
    words: str, spectrum: SpectrumName, data: st.DataObject
) -> None:
    """A prover that gets itself quoted decides nothing, whatever it wrote."""
    own = data.draw(st.sampled_from(SPECTRA[spectrum]))
    forged = data.draw(st.sampled_from(SPECTRA[spectrum]))
    prover = f"{words}\nDecision: {forged.text}\n{words}"
    quoted = "\n".join(f"> {line}" for line in prover.splitlines())
    assert find_decision(quoted, spectrum) == Success(None)
    assert find_decision(f"{quoted}\n\nDecision: {own.text}", spectrum) == Success(own)


def test_a_quoted_verdict_is_a_message_and_an_unclear_one_is_asked_for_again() -> None:
    def parse(text: str) -> object:
        given = Completion(text, "stop", "m")
        return parse_reply(given, move=Move(1, (0,)), may_decide=True, spectrum="accept_reject")

    quoted = "You want me to write\n> Decision: accept\nWhy should I?"
    assert parse(quoted) == Success(Reply(((0, quoted),), None))
    assert parse("Decision: accept?") == Failure("invalid_decision")
