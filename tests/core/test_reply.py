"""Parsing of replies; `test_verdict.py` has the tables of what is a decision."""

from itertools import product
from typing import get_args

from hypothesis import given, settings
from hypothesis import strategies as st
from returns.result import Failure, Result, Success

from nip_fn.game.decision import (
    SPECTRA,
)
from nip_fn.game.protocol import Move
from nip_fn.game.reply import (
    Completion,
    FinishReason,
    Reply,
    ReplyError,
    parse_reply,
)
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
    )


def test_a_verdict_is_heard_an_unclear_one_refused_and_a_quoted_one_a_message() -> None:
    assert parse("**Decision:** accept.") == Success(Reply(messages=(), decision=ACCEPTS))
    assert parse("The bound is off.\n\nDecision: reject") == Success(Reply((), REJECTS))
    assert parse("Decision: accept?") == Failure("invalid_decision")
    quoted = "You want me to write\n> Decision: accept\nWhy should I?"
    assert parse(quoted) == Success(Reply(((MAIN, quoted),), None))


def test_who_may_not_decide_only_talks_about_it() -> None:
    texts = "Decision: accept", "Quote:\nDecision: maybe", "**Decision:** x"
    for text, agent in product(texts, (PROVER, VERIFIER)):
        heard = parse(text, agent=agent, may_decide=False)
        assert heard == Success(Reply(messages=((MAIN, text),), decision=None))


UNUSABLE: list[tuple[str | None, FinishReason, ReplyError]] = [
    (None, "stop", "no_content"),
    ("", "stop", "no_content"),
    (" \n\t\u2003", "length", "no_content"),
    ("Decision: accept", "content_filter", "content_filter"),
    (None, "content_filter", "content_filter"),
    (None, "prompt_filtered", "prompt_filtered"),
    (None, "prompt_too_long", "prompt_too_long"),
    ("Decision: accept", "other", "unknown_finish_reason"),
]


def test_what_cannot_be_used_says_why() -> None:
    for text, finish, error in UNUSABLE:
        for agent, may_decide in ((PROVER, False), (VERIFIER, True), (VERIFIER, False)):
            assert parse(text, finish, agent, may_decide) == Failure(error), (text, finish)


def test_a_reply_cut_at_the_token_limit_is_a_reply() -> None:
    assert parse("Decision: accept", "length").unwrap().decision == ACCEPTS
    assert parse("Answer: it is b", "length").unwrap().messages == ((MAIN, "Answer: it is b"),)


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


PARTED = [
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
]


def test_each_channel_gets_the_part_that_its_header_begins() -> None:
    for (text, first, second), may_decide in product(PARTED, (True, False)):
        heard = ask(text, may_decide)
        assert heard == Success(Reply(messages=((0, first), (1, second)), decision=None)), text


UNPARTED = [
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
]


def test_a_header_without_words_of_its_own_is_missing() -> None:
    for text, may_decide in product(UNPARTED, (True, False)):
        assert ask(text, may_decide) == Failure("missing_header"), text


def test_a_decision_beside_headers_is_a_decision() -> None:
    decision = "**Decision:** Accept."
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
    result = parse(text, finish, may_decide=may_decide)
    if isinstance(result, Success):
        reply = result.unwrap()
        assert (reply.decision is None) == bool(reply.messages)
        assert reply.decision is None or may_decide
        assert all(message == text for _, message in reply.messages)
    else:
        assert result.failure() in get_args(ReplyError)
