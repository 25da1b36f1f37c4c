"""Parsing of replies; the tables of decision lines here are those of edition 2.

`test_verdict.py` has those of edition 3.
"""

from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from returns.result import Failure, Result, Success

from nip_fn.game.decision import (
    ACCEPT,
    NEITHER,
    REJECT,
    SPECTRA,
    Decision,
    SpectrumName,
    decision_instructions,
    strongest,
)
from nip_fn.game.protocol import Move
from nip_fn.game.reply import (
    Completion,
    FinishReason,
    Reply,
    ReplyError,
    parse_reply,
)
from nip_fn.game.verdict import FindDecision, find_decision, find_last_decision
from nip_fn.protocols import two_provers
from nip_fn.protocols.nip import MAIN, PROVER, VERIFIER

REJECTS, ACCEPTS = SPECTRA["accept_reject"]
HEADERS = ("Question for Expert_1:", "Question for Expert_2:")
BOTH = Move(two_provers.VERIFIER, (0, 1))


def parse(
    text: str | None,
    finish: FinishReason = "stop",
    agent: int = VERIFIER,
    may_decide: bool = True,
) -> Result[Reply, ReplyError]:
    return parse_reply(
        Completion(text, finish, "m"),
        move=Move(agent, (MAIN,)),
        may_decide=may_decide,
        spectrum="accept_reject",
        find=find_last_decision,
    )


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("Decision: accept", "accept"),
        ("Decision: reject", "reject"),
        ("**Decision:** accept.", "accept"),
        ("**Decision**: accept", "accept"),
        ("**Decision: reject**", "reject"),
        ("__Decision__: _reject_", "reject"),
        ("`Decision: accept`", "accept"),
        ('"Decision: accept"', "accept"),
        ("'Decision': 'reject'", "reject"),
        ("> Decision: accept", "accept"),
        ("# Decision: reject!", "reject"),
        ("- Decision: accept", "accept"),
        ("[Decision: accept]", "accept"),
        ("(decision: reject)", "reject"),
        ("DECISION: ACCEPT", "accept"),
        ("decision:accept", "accept"),
        ("Decision :  accept  ", "accept"),
        ("\tDecision:\taccept\r", "accept"),
        ("The bound is off.\n\nDecision: reject\n", "reject"),
        ("Windows.\r\nDecision: reject\r\n", "reject"),
        ("Decision: accept\nThat is all.", "accept"),
        ("Decision: accept\nNo, wait.\nDecision: reject", "reject"),
        ("Decision: perhaps\nDecision: accept", "accept"),
        ("Decision: accept: it is right", "accept"),
        ("Decision: accept, not reject", "accept"),
        ("Decision: accept - sure", "accept"),
    ],
)
def test_a_decision_is_a_line_of_its_own_in_any_dress_and_the_last_one_counts(
    text: str, word: str
) -> None:
    decision = find_last_decision(text, "accept_reject").unwrap()
    assert decision == (ACCEPTS if word == "accept" else REJECTS)
    assert parse(text) == Success(Reply(messages=(), decision=decision))


@pytest.mark.parametrize(
    "text",
    [
        "Decision: accepted",
        "Decision: acceptance",
        "Decision: accept or reject",
        "Decision: accept reject",
        "Decision: accept; reject",
        "Decision: accept | reject",
        "Decision: accept - reject",
        "Decision: accept.  **Decision:** reject",
        "Decision: accept. On second thoughts, __decision__: reject",
        "Decision: not accept",
        "Decision: perhaps",
        "Decision:",
        "Decision: **",
        "Decision: 1",
        "Decision: accept\nDecision: maybe",
    ],
)
def test_a_decision_in_other_words_is_unusable(text: str) -> None:
    assert parse(text) == Failure("invalid_decision")


@pytest.mark.parametrize(
    "text",
    [
        "What would make you say Decision: accept?",
        "My decision: accept",
        "I said the decision: accept was premature.",
        "Question for Expert: is your decision: accept?",
        "Decisions: accept",
        "Decision accept",
        "accept",
        "The Decision is\naccept",
        "1 Decision: accept",
    ],
)
def test_a_mention_is_no_decision(text: str) -> None:
    assert parse(text) == Success(Reply(messages=((MAIN, text),), decision=None))


@pytest.mark.parametrize("text", ["Decision: accept", "Quote:\nDecision: maybe", "**Decision:** x"])
def test_who_may_not_decide_only_talks_about_it(text: str) -> None:
    for agent in (PROVER, VERIFIER):
        heard = parse(text, agent=agent, may_decide=False)
        assert heard == Success(Reply(messages=((MAIN, text),), decision=None))


@pytest.mark.parametrize(
    ("text", "finish", "error"),
    [
        (None, "stop", "no_content"),
        ("", "stop", "no_content"),
        (" \n\t\u2003", "length", "no_content"),
        ("Decision: accept", "content_filter", "content_filter"),
        (None, "content_filter", "content_filter"),
        (None, "prompt_filtered", "prompt_filtered"),
        (None, "prompt_too_long", "prompt_too_long"),
        ("Decision: accept", "other", "unknown_finish_reason"),
    ],
)
def test_what_cannot_be_used_says_why(
    text: str | None, finish: FinishReason, error: ReplyError
) -> None:
    for agent, may_decide in ((PROVER, False), (VERIFIER, True), (VERIFIER, False)):
        assert parse(text, finish, agent, may_decide) == Failure(error)


def test_a_reply_cut_at_the_token_limit_is_a_reply() -> None:
    assert parse("Decision: accept", "length").unwrap().decision == ACCEPTS
    assert parse("Answer: it is b", "length").unwrap().messages == ((MAIN, "Answer: it is b"),)


@pytest.mark.parametrize("find", [find_decision, find_last_decision])
@pytest.mark.parametrize("spectrum", get_args(SpectrumName))
def test_the_instructions_name_forms_that_are_understood(
    spectrum: SpectrumName, find: FindDecision
) -> None:
    quoted = decision_instructions(spectrum).split("`")[1::2]
    forms = [form for form in quoted if form != "Decision: "]
    understood = [find(form, spectrum).unwrap() for form in forms]
    assert None not in understood
    if forms == quoted:  # every choice is quoted
        assert {d and d.text for d in understood} == {d.text for d in SPECTRA[spectrum]}


# --------------------------------------------------------------------------------------- spectra

THIRD = 1 / 3
SCALES: dict[SpectrumName, list[tuple[str, int, float]]] = {
    "accept_reject": [("reject", REJECT, -1.0), ("accept", ACCEPT, 1.0)],
    "likert_scale_4": [
        ("strongly disagree", REJECT, -1.0),
        ("disagree", REJECT, -0.5),
        ("agree", ACCEPT, 0.5),
        ("strongly agree", ACCEPT, 1.0),
    ],
    "likert_scale_5": [
        ("strongly disagree", REJECT, -1.0),
        ("disagree", REJECT, -0.5),
        ("neither agree nor disagree", NEITHER, 0.0),
        ("agree", ACCEPT, 0.5),
        ("strongly agree", ACCEPT, 1.0),
    ],
    "likert_scale_6": [
        ("strongly disagree", REJECT, -1.0),
        ("disagree", REJECT, -2 * THIRD),
        ("somewhat disagree", REJECT, -THIRD),
        ("somewhat agree", ACCEPT, THIRD),
        ("agree", ACCEPT, 2 * THIRD),
        ("strongly agree", ACCEPT, 1.0),
    ],
    "likert_scale_7": [
        ("strongly disagree", REJECT, -1.0),
        ("disagree", REJECT, -2 * THIRD),
        ("somewhat disagree", REJECT, -THIRD),
        ("neither agree nor disagree", NEITHER, 0.0),
        ("somewhat agree", ACCEPT, THIRD),
        ("agree", ACCEPT, 2 * THIRD),
        ("strongly agree", ACCEPT, 1.0),
    ],
}
UP_TO_10 = [
    ("0", REJECT, -1.0),
    ("1", REJECT, -0.8),
    ("2", REJECT, -0.6),
    ("3", REJECT, -0.4),
    ("4", REJECT, -0.2),
    ("5", NEITHER, 0.0),
    ("6", ACCEPT, 0.2),
    ("7", ACCEPT, 0.4),
    ("8", ACCEPT, 0.6),
    ("9", ACCEPT, 0.8),
    ("10", ACCEPT, 1.0),
]
SCALES["likert_int_scale_11"] = SCALES["out_of_10"] = UP_TO_10
SCALES["out_of_100"] = [
    *((str(n), REJECT, n / 50 - 1) for n in range(50)),
    ("50", NEITHER, 0.0),
    *((str(n), ACCEPT, n / 50 - 1) for n in range(51, 101)),
]

# Spectra of words, and of numbers up to which.
WORDS: list[SpectrumName] = ["accept_reject"]
WORDS += ["likert_scale_4", "likert_scale_5", "likert_scale_6", "likert_scale_7"]
NUMBERS: list[tuple[SpectrumName, int]] = [
    ("likert_int_scale_11", 10),
    ("out_of_10", 10),
    ("out_of_100", 100),
]
EVERY: list[SpectrumName] = list(SPECTRA)


def found(text: str, spectrum: SpectrumName) -> str | None:
    """The text of the decision, None where there is none, "invalid" where it is unusable."""
    result = find_last_decision(text, spectrum)
    if isinstance(result, Failure):
        assert result == Failure("invalid_decision")
        return "invalid"
    decision = result.unwrap()
    return decision and decision.text


def test_there_is_a_table_for_every_spectrum() -> None:
    assert SCALES.keys() == SPECTRA.keys() == set(get_args(SpectrumName))
    assert {*WORDS, *(name for name, _ in NUMBERS)} == SPECTRA.keys()


@pytest.mark.parametrize("spectrum", EVERY)
def test_every_text_means_what_the_table_says(spectrum: SpectrumName) -> None:
    for decision, (text, discrete, continuous) in zip(
        SPECTRA[spectrum], SCALES[spectrum], strict=True
    ):
        assert decision == Decision(text, discrete, pytest.approx(continuous, abs=1e-12))
        assert (decision.discrete == NEITHER) == (decision.continuous == 0)


@pytest.mark.parametrize("spectrum", EVERY)
def test_the_strongest_decisions_are_the_ends_of_the_spectrum(spectrum: SpectrumName) -> None:
    ends = strongest(spectrum, 0), strongest(spectrum, 1)
    assert [(end.discrete, end.continuous) for end in ends] == [(REJECT, -1.0), (ACCEPT, 1.0)]


DRESSES = [
    "Decision: {}",
    "decision:{}",
    "DECISION : {}",
    "**Decision:** {}",
    "**Decision: {}**",
    "**Decision**: **{}**",
    "__Decision__: _{}_",
    "`Decision: {}`",
    "Decision: `{}`.",
    "Decision: [{}]",
    "(Decision: {})",
    '"Decision": "{}",',
    "> Decision: {}",
    "> > **Decision:** {}!",
    "### Decision: {}",
    "- Decision: {}",
    "* Decision: {}",
    "\t\u3000Decision:\u00a0{}\u2003",
    "Decision: {}.",
    "Decision: {}, because the loop never ends.",
    "Decision: {}: every case is covered.",
    "Decision: {} (I am sure)",
    "Decision: {} - the bound is off",
    "Decision: {} since I found nothing else",
    "Decision: {}\nThank you.",
    "Thank you.\n\nDecision: {}",
    "Thank you.\r\nDecision: {}\r\n",
    "Thank you.\u2028Decision: {}\u2029Goodbye.",
    "Decision: nonsense\nDecision: {}",
    "Did you say Decision: nonsense?\nDecision: {}\nMy decision: nonsense stands.",
]


@pytest.mark.parametrize("dress", DRESSES)
@pytest.mark.parametrize("spectrum", EVERY)
def test_every_decision_of_a_spectrum_is_understood_in_any_dress(
    spectrum: SpectrumName, dress: str
) -> None:
    for text, _, _ in SCALES[spectrum]:
        for said in (text, text.upper(), text.title(), text.replace(" ", "  \t")):
            assert found(dress.format(said), spectrum) == text


@pytest.mark.parametrize(
    "line",
    [
        "My decision: {}",
        "Decisions: {}",
        "Decision {}",
        "Decision - {}",
        "The decision: {}",
        "Would you say Decision: {}?",
        "I will write **Decision:** {} when I am sure.",
        "Question for Expert: is it Decision: {}?",
        "1. Decision: {}",
        "indecision: {}",
        "Decision\n: {}",
        "{}",
    ],
)
@pytest.mark.parametrize("spectrum", EVERY)
def test_a_decision_inside_a_sentence_is_none(spectrum: SpectrumName, line: str) -> None:
    for text, _, _ in SCALES[spectrum]:
        assert found(line.format(text), spectrum) is None


@pytest.mark.parametrize("spectrum", EVERY)
def test_the_last_decision_line_wins_even_where_it_is_invalid(spectrum: SpectrumName) -> None:
    first, last = (strongest(spectrum, label).text for label in (0, 1))
    assert found(f"Decision: {first}\nDecision: {last}", spectrum) == last
    assert found(f"Decision: {last}\nHm.\n**Decision:** {first}\nBye.", spectrum) == first
    assert found(f"Decision: {first}\nDecision: whatever", spectrum) == "invalid"
    assert found(f"Decision: {first}\nDecision:", spectrum) == "invalid"
    assert found(f"Decision: {first}\nno Decision: {last}", spectrum) == first


JOINTS = [" ", ", ", "/", " / ", " | ", "; ", " - ", " – ", " — ", " & ", " or ", ", or ", " and "]
JOINTS += [" to ", "** or **", '" or "', " / Decision: ", ". Decision: ", " ... **decision:** "]


@pytest.mark.parametrize("joint", JOINTS)
@pytest.mark.parametrize("spectrum", EVERY)
def test_two_choices_on_one_line_are_invalid(spectrum: SpectrumName, joint: str) -> None:
    texts = [text for text, _, _ in SCALES[spectrum]]
    pairs = [*pairwise(texts), *pairwise(texts[::-1]), (texts[-1], texts[0])]
    for one, other in pairs:
        if joint.strip() == "/" and other in ("10", "100") and other == texts[-1]:
            continue  # 9/10 is one choice
        assert found(f"Decision: {one}{joint}{other}", spectrum) == "invalid"
        assert found(f"Decision: {one}{joint}{other}, I think", spectrum) == "invalid"


@pytest.mark.parametrize(
    "said",
    [
        "{}ed",
        "{}s",
        "{}able",
        "{}-ish",
        "{}1",
        "{}_",
        "un{}",
        "1{}",
        "not {}",
        "I {}",
        "~{}",
        "={}",
    ],
)
@pytest.mark.parametrize("spectrum", WORDS)
def test_a_word_counts_as_a_whole(spectrum: SpectrumName, said: str) -> None:
    for text, _, _ in SCALES[spectrum]:
        word = said.format(text)
        expected = text if said == "{}_" else "invalid"  # markup
        assert found(f"Decision: {word}", spectrum) == expected
        assert found(f"Decision: {word} because", spectrum) == expected


@pytest.mark.parametrize(
    ("spectrum", "said", "expected"),
    [
        ("likert_scale_4", "strongly agree", "strongly agree"),
        ("likert_scale_4", "agree strongly, on the whole", "agree"),
        ("likert_scale_4", "disagree", "disagree"),
        ("likert_scale_4", "neither agree nor disagree", "invalid"),
        ("likert_scale_4", "somewhat agree", "invalid"),
        ("likert_scale_5", "neither agree nor disagree", "neither agree nor disagree"),
        ("likert_scale_5", "neither agree or disagree", "invalid"),
        ("likert_scale_5", "neither", "invalid"),
        ("likert_scale_5", "agree to disagree", "invalid"),
        ("likert_scale_5", "somewhat disagree", "invalid"),
        ("likert_scale_6", "somewhat agree", "somewhat agree"),
        ("likert_scale_6", "neither agree nor disagree", "invalid"),
        ("likert_scale_6", "somewhat", "invalid"),
        ("likert_scale_7", "strongly disagree", "strongly disagree"),
        ("likert_scale_7", "strongly", "invalid"),
        ("likert_scale_7", "strongly-agree", "invalid"),
        ("likert_scale_7", "accept", "invalid"),
        ("likert_scale_7", "7", "invalid"),
        ("accept_reject", "agree", "invalid"),
        ("accept_reject", "accept\u200b", "invalid"),
        ("accept_reject", "\u200baccept", "invalid"),
        ("accept_reject", "аccept", "invalid"),  # the first letter is Cyrillic
        ("accept_reject", "ａｃｃｅｐｔ", "invalid"),
        ("accept_reject", "accept\u0301", "invalid"),
        ("accept_reject", "accept\ud800", "invalid"),
        ("accept_reject", "accept\0", "invalid"),
        ("accept_reject", "<accept>", "invalid"),
        ("accept_reject", '{"decision": "accept"}', "invalid"),
    ],
)
def test_the_longest_text_wins_and_nothing_is_guessed(
    spectrum: SpectrumName, said: str, expected: str
) -> None:
    assert found(f"Decision: {said}", spectrum) == expected


NUMBER_LINES = [
    ("{n}", True),
    ("{n}.", True),
    ("{n}/{most}", True),
    ("{n} / {most}", True),
    ("{n}/{most}.", True),
    ("**{n}/{most}**, I think", True),
    ("{n} out of {most}", True),
    ("{n} OUT OF {most}: it is likely", True),
    ("{n} (out of {most})", True),
    ("{n}, as nothing is wrong", True),
    ("{n}.5", False),
    ("{n},5", False),
    ("{n}:5", False),
    ("{n}1000", False),
    ("{n}e1", False),
    ("{n}th", False),
    ("{n}_0", False),
    ("0{n}", False),
    ("00{n}", False),
    (".{n}", False),
    ("-{n}", False),
    ("+{n}", False),
    ("\u2212{n}", False),
    ("2{n}0", False),
    ("0x{n}", False),
    ("${n}$", False),
    ("about {n}", False),
    ("{n}\u00bd", False),
    ("{n}\u0660", False),  # an Arabic zero
    ("{n}/7{most}", False),
    ("{n}/{most}0", False),
    ("{n} / {most}0", False),
    ("{n} out of {most}0", False),
    ("{n} out of 5", False),
    ("{n}/{most}/{most}", False),
    ("{n} out of {most} or 3", False),
    ("{n}/{most} or 3/{most}", False),
    ("{n} to 12", False),
    ("{n}-12", False),
]


@pytest.mark.parametrize(("said", "valid"), NUMBER_LINES)
@pytest.mark.parametrize(("spectrum", "most"), NUMBERS)
def test_a_number_counts_as_a_whole_and_in_its_range(
    spectrum: SpectrumName, most: int, said: str, valid: bool
) -> None:
    for n in range(most + 1):
        line = "Decision: " + said.format(n=n, most=most)
        assert found(line, spectrum) == (str(n) if valid else "invalid")


@pytest.mark.parametrize(
    ("said", "of_10", "of_100"),
    [
        ("7", "7", "7"),
        ("70%", "invalid", "70"),
        ("70 %", "invalid", "70"),
        ("70%, I think", "invalid", "70"),
        ("**70%**", "invalid", "70"),
        ("7%", "invalid", "7"),
        ("70%/100", "invalid", "invalid"),
        ("70%%", "invalid", "invalid"),
        ("7.0%", "invalid", "invalid"),
        ("70% or 80%", "invalid", "invalid"),
        ("100%", "invalid", "100"),
        ("101%", "invalid", "invalid"),
        ("11", "invalid", "11"),
        ("101", "invalid", "invalid"),
        ("1000", "invalid", "invalid"),
        ("7/10", "7", "invalid"),
        ("7/100", "invalid", "7"),
        ("7 out of 10", "7", "invalid"),
        ("7 out of 100", "invalid", "7"),
        ("7 out of 10%", "invalid", "invalid"),
        ("-5", "invalid", "invalid"),
        (".5", "invalid", "invalid"),
        ("0.5", "invalid", "invalid"),
        ("07", "invalid", "invalid"),
        ("7e1", "invalid", "invalid"),
        ("７", "invalid", "invalid"),
        ("٧", "invalid", "invalid"),
        ("７０", "invalid", "invalid"),
        ("²", "invalid", "invalid"),
        ("seven", "invalid", "invalid"),
        ("accept", "invalid", "invalid"),
        ("NaN", "invalid", "invalid"),
        ("1" * 5000, "invalid", "invalid"),
    ],
)
def test_a_number_is_read_on_its_own_scale(said: str, of_10: str, of_100: str) -> None:
    line = f"**Decision:** {said}"
    assert found(line, "out_of_10") == found(line, "likert_int_scale_11") == of_10
    assert found(line, "out_of_100") == of_100


# --------------------------------------------------------------------------------------- headers


def ask(
    text: str,
    may_decide: bool = True,
    move: Move = BOTH,
    headers: tuple[str, ...] = HEADERS,
) -> Result[Reply, ReplyError]:
    return parse_reply(
        Completion(text, "stop", "m"),
        move=move,
        may_decide=may_decide,
        spectrum="accept_reject",
        headers=headers,
    )


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [
        (
            "Question for Expert_1: why?\nQuestion for Expert_2: how?",
            "Question for Expert_1: why?",
            "Question for Expert_2: how?",
        ),
        (
            "Question for Expert_2: how?\n\nQuestion for Expert_1: why?\n",
            "Question for Expert_1: why?",
            "Question for Expert_2: how?",
        ),
        (
            "QUESTION FOR EXPERT_1: why?\r\nquestion for expert_2: how?\r\n",
            "QUESTION FOR EXPERT_1: why?",
            "question for expert_2: how?",
        ),
        (
            "Question for Expert 1: why?\nquestion for expert 2: how?",
            "Question for Expert 1: why?",
            "question for expert 2: how?",
        ),
        (
            "**Question for Expert_1:** why?\n\n**Question for Expert_2:** how?",
            "Question for Expert_1:** why?",
            "Question for Expert_2:** how?",
        ),
        (
            "**Question for Expert_1**: why?\n\n**Question for Expert 2** : how?",
            "Question for Expert_1**: why?",
            "Question for Expert 2** : how?",
        ),
        (
            "__Question for Expert_1:__ why?\n# Question for Expert_2:\nhow?",
            "Question for Expert_1:__ why?",
            "Question for Expert_2:\nhow?",
        ),
        (
            "> Question for Expert_1: why?\n> Question for Expert_2: how?",
            "Question for Expert_1: why?",
            "Question for Expert_2: how?",
        ),
        (
            "Question for Expert_1:\n\nline 1\n\nline 2\n\nQuestion for Expert_2:\nhow?",
            "Question for Expert_1:\n\nline 1\n\nline 2",
            "Question for Expert_2:\nhow?",
        ),
        (
            "Let me see.  I am not sure.\nQuestion for Expert_1: why? Question for Expert_2: how?",
            "Question for Expert_1: why?",
            "Question for Expert_2: how?",
        ),
        (
            "Question for Expert_1: why?\nQuestion for Expert_2: how?\nQuestion for Expert_1: so?",
            "Question for Expert_1: why?",
            "Question for Expert_2: how?\nQuestion for Expert_1: so?",
        ),
        (
            "Question for Expert_2: is my decision: accept?\nQuestion for Expert_1: 🦉\ud800\0",
            "Question for Expert_1: 🦉\ud800\0",
            "Question for Expert_2: is my decision: accept?",
        ),
    ],
)
def test_each_channel_gets_the_part_that_its_header_begins(
    text: str, first: str, second: str
) -> None:
    for may_decide in (True, False):
        heard = ask(text, may_decide)
        assert heard == Success(Reply(messages=((0, first), (1, second)), decision=None))


@pytest.mark.parametrize(
    "text",
    [
        "Why?",
        "Question for Expert_1: why?",
        "Question for Expert_2: how?",
        "Question for Expert_1: why?\nQuestion for Expert_3: how?",
        "Question for Expert_1: why?\nQuestion for Expert_2 how?",
        "Question for Expert_1: why?\nQuestion for Expert_22: how?",
        "Question for Expert_1: why?\nMyQuestion for Expert_2: how?",
        "Question for Expert_1: why?\nQuestion for Expert2: how?",
        "Question for Expert_1: why?\nQuestion for Expert_2：how?",
        "Question for Expert_1:\nQuestion for Expert_2: how?",
        "Question for Expert_1: why?\nQuestion for Expert_2:",
        "Question for Expert_1: why?\nQuestion for Expert_2: \n\t ",
        "Question for Expert_1: why?\nQuestion for Expert_2:\u00a0\u2003\u2028",
        "**Question for Expert_1:**\n\n**Question for Expert_2:** how?",
        "__Question for Expert_1:__\n\n__Question for Expert_2:__ how?",
        "# Question for Expert_1:\n> # Question for Expert_2: how?",
        "Question for Expert_1: Question for Expert_2: nested",
        "Question for Expert_1:Question for Expert_1:",
        "Question for Question for Expert_1: Expert_2: nested",
        '{"Question for Expert_1": "why?", "Question for Expert_2": "how?"}',
    ],
)
def test_a_header_without_words_of_its_own_is_missing(text: str) -> None:
    for may_decide in (True, False):
        assert ask(text, may_decide) == Failure("missing_header")


@pytest.mark.parametrize("decision", ["Decision: accept", "**Decision:** Accept."])
def test_a_decision_beside_headers_is_a_decision(decision: str) -> None:
    questions = "Question for Expert_1: why?\nQuestion for Expert_2: how?"
    for text in (f"{questions}\n{decision}", f"{decision}\n{questions}"):
        assert ask(text) == Success(Reply(messages=(), decision=ACCEPTS))
        heard = ask(text, may_decide=False).unwrap()
        assert [channel for channel, _ in heard.messages] == [0, 1]
        assert heard.decision is None
    assert ask(f"{questions}\nDecision: perhaps") == Failure("invalid_decision")
    assert ask(f"Question for Expert_1: why?\n{decision}") == Success(Reply((), ACCEPTS))
    assert ask(decision, may_decide=False) == Failure("missing_header")


def test_a_single_channel_gets_the_whole_text_whatever_headers_it_holds() -> None:
    text = "  Hello.\nQuestion for Expert_2: how?\n"
    heard = ask(text, move=Move(two_provers.PROVER0, (0,)), may_decide=False, headers=())
    assert heard == Success(Reply(messages=((0, text),), decision=None))


def test_channels_go_with_headers_in_the_order_of_the_move() -> None:
    text = "Question for Expert_1: why?\nQuestion for Expert_2: how?"
    heard = ask(text, move=Move(PROVER, (5, 2)), headers=HEADERS[::-1])
    assert heard.unwrap().messages == (
        (5, "Question for Expert_2: how?"),
        (2, "Question for Expert_1: why?"),
    )


# --------------------------------------------------------------------------------------- any text

PARTS = ["Decision", "decision", ":", "Decision:", "accept", "reject", "**", "_", "`", ">", "#"]
PARTS += ["\n", "\r\n", "\u2028", "\0", "\x1b[31m", "\ud800", " "]
PARTS += ["<|im_end|>", "{{", "{%", "&lt;", "：", "İ", "ﬀ"]

HOSTILE = st.lists(
    st.text(st.characters(), max_size=12)  # surrogates too
    | st.sampled_from(PARTS),
    max_size=12,
).map("".join)


@settings(max_examples=200)
@given(st.none() | HOSTILE, st.sampled_from(get_args(FinishReason)), st.booleans())
def test_any_text_gives_a_result_that_keeps_the_text(
    text: str | None, finish: FinishReason, may_decide: bool
) -> None:
    _check(text, finish, may_decide)


def _check(text: str | None, finish: FinishReason, may_decide: bool) -> Result[Reply, ReplyError]:
    result = parse(text, finish, may_decide=may_decide)
    if isinstance(result, Success):
        reply = result.unwrap()
        assert (reply.decision is None) == bool(reply.messages)
        assert reply.decision is None or may_decide
        assert all(message == text for _, message in reply.messages)
    else:
        assert result.failure() in get_args(ReplyError)
    return result
