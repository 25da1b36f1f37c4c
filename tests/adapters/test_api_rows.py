"""What is uploaded for a fine-tuning, byte by byte."""

import msgspec

from nip_fn.game.chat import Message
from nip_fn.training.rows import imitated, preference
from nip_fn_adapters.providers.api.rows import training_file

PROMPT = (
    Message("system", "Judge — fairly."),
    Message("user", "It is right.", name="prover"),
    Message("assistant", "Why?"),
    Message("user", "Because\nit is.", name="prover"),
)


def test_a_supervised_row_is_the_documented_line_and_teaches_its_last_message_alone() -> None:
    data = training_file((imitated(PROMPT, "Decision: accept"),))
    assert data.decode() == (
        '{"messages":[{"role":"system","content":"Judge — fairly."},'
        '{"role":"user","content":"It is right.","name":"prover"},'
        '{"role":"assistant","content":"Why?","weight":0},'
        '{"role":"user","content":"Because\\nit is.","name":"prover"},'
        '{"role":"assistant","content":"Decision: accept"}]}\n'
    )


def test_a_preference_is_the_documented_line() -> None:
    data = training_file((preference(PROMPT, "no", "yes"),))
    assert data.decode() == (
        '{"input":{"messages":[{"role":"system","content":"Judge — fairly."},'
        '{"role":"user","content":"It is right.","name":"prover"},'
        '{"role":"assistant","content":"Why?"},'
        '{"role":"user","content":"Because\\nit is.","name":"prover"}]},'
        '"preferred_output":[{"role":"assistant","content":"no"}],'
        '"non_preferred_output":[{"role":"assistant","content":"yes"}]}\n'
    )


def test_there_is_a_line_for_each_row_in_its_order() -> None:
    rows = tuple(imitated(PROMPT, f"a\n\u2028{i}") for i in range(3))
    lines = training_file(rows).split(b"\n")
    assert lines.pop() == b""
    replies = [msgspec.json.decode(line)["messages"][-1]["content"] for line in lines]
    assert replies == [row.replies[0] for row in rows]
    assert training_file(()) == b""


def test_a_speaker_is_named_as_the_api_allows() -> None:
    chat = (Message("user", "Hello", name=f"The <Boss> {'x' * 100}"),)
    (line,) = training_file((imitated(chat, "Hi"),)).splitlines()
    name = msgspec.json.decode(line)["messages"][0]["name"]
    assert name.startswith("The_Boss_x")
    assert len(name) == 64
