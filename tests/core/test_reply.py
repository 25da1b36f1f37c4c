from time import perf_counter
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from returns.result import Failure, Result, Success

from nip_fn.keys import generator, key
from nip_fn.protocols.nip import MAIN, PROVER, VERIFIER
from nip_fn.protocols.protocol import Move
from nip_fn.reply import Completion, FinishReason, Reply, ReplyError, find_decision, parse_reply
from nip_fn.spectra import SPECTRA, decision_instructions

REJECT, ACCEPT = SPECTRA["accept_reject"]


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
    ],
)
def test_a_decision_is_a_line_of_its_own_in_any_dress_and_the_last_one_counts(
    text: str, word: str
) -> None:
    decision = find_decision(text, "accept_reject").unwrap()
    assert decision == (ACCEPT if word == "accept" else REJECT)
    assert parse(text) == Success(Reply(messages=(), decision=decision))


@pytest.mark.parametrize(
    "text",
    [
        "Decision: accepted",
        "Decision: acceptance",
        "Decision: accept or reject",
        "Decision: accept reject",
        "Decision: not accept",
        "Decision: perhaps",
        "Decision:",
        "Decision: **",
        "Decision: 1",
        "Decision: accept: yes",
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
        ("Decision: accept", "other", "unknown_finish_reason"),
    ],
)
def test_what_cannot_be_used_says_why(
    text: str | None, finish: FinishReason, error: ReplyError
) -> None:
    for agent, may_decide in ((PROVER, False), (VERIFIER, True), (VERIFIER, False)):
        assert parse(text, finish, agent, may_decide) == Failure(error)


def test_a_reply_cut_at_the_token_limit_is_a_reply() -> None:
    assert parse("Decision: accept", "length").unwrap().decision == ACCEPT
    assert parse("Answer: it is b", "length").unwrap().messages == ((MAIN, "Answer: it is b"),)


def test_the_instructions_name_forms_that_are_understood() -> None:
    told = decision_instructions("accept_reject")
    quoted = told.split("`")[1::2]
    assert [find_decision(form, "accept_reject").unwrap() for form in quoted] == [ACCEPT, REJECT]


def test_a_message_goes_to_every_channel_of_the_move_and_to_no_other() -> None:
    heard = parse_reply(
        Completion("hello", "stop", "m"),
        move=Move(PROVER, (2, 5)),
        may_decide=False,
        spectrum="accept_reject",
    )
    assert heard.unwrap().messages == ((2, "hello"), (5, "hello"))


PARTS = ["Decision", "decision", ":", "Decision:", "accept", "reject", "**", "_", "`", ">", "#"]
PARTS += ["\n", "\r\n", "\u2028", "\0", "\x1b[31m", "\ud800", " "]
PARTS += ["<|im_end|>", "{{", "{%", "&lt;", "：", "İ", "ﬀ"]

HOSTILE = st.lists(
    st.text(st.characters(), max_size=12)  # surrogates too
    | st.sampled_from(PARTS),
    max_size=12,
).map("".join)


@settings(max_examples=1000)
@given(st.none() | HOSTILE, st.sampled_from(get_args(FinishReason)), st.booleans())
def test_any_text_gives_a_result_that_keeps_the_text(
    text: str | None, finish: FinishReason, may_decide: bool
) -> None:
    _check(text, finish, may_decide)


def test_ten_thousand_hostile_texts_give_results() -> None:
    rng = generator(key(14))
    found = []
    for _ in range(10_000):
        words = [
            PARTS[i] if i < len(PARTS) else chr(int(rng.integers(0x110000)))
            for i in rng.integers(0, len(PARTS) + 6, size=int(rng.integers(0, 16)))
        ]
        found.append(_check("".join(words), "stop", may_decide=True))
    assert {True, False} == {result == Failure("invalid_decision") for result in found}
    assert any(r.value_or(None) and r.unwrap().decision is not None for r in found)


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


@pytest.mark.parametrize(
    "unit",
    ["Decision: x\n", "*", "Decision", ":", "\n", "Decision:", " Decision: accept", "\u2028"],
)
def test_time_is_linear_in_the_text(unit: str) -> None:
    """A megabyte takes what a megabyte takes; quadratic time would take hours."""
    text = (unit * (10**6 // len(unit) + 1))[: 10**6]
    start = perf_counter()
    assert isinstance(parse("." + text + "\n."), Result)
    assert perf_counter() - start < 5
