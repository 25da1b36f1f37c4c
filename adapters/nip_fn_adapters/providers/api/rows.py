"""Training rows in the file format of OpenAI's fine-tuning."""

import re
from typing import Any

import msgspec

from nip_fn.game.chat import Chat, Message
from nip_fn.training.rows import PreferenceRow, TrainingRow

_NO_NAME = re.compile(r"[\s<|\\/>]+")  # characters that the API refuses in a speaker's name


def training_file(rows: tuple[TrainingRow, ...]) -> bytes:
    """JSON Lines in UTF-8, one for each row in its order; the same rows give the same bytes."""
    return b"".join(msgspec.json.encode(example(row)) + b"\n" for row in rows)


def example(row: TrainingRow) -> dict[str, Any]:
    """A row in the documented form of its method.

    Only the last message of a supervised row is learnt.  The assistant's earlier messages get the
    weight 0: they are rows of their own, and would otherwise be learnt once more here.
    """
    if isinstance(row, PreferenceRow):
        return {
            "input": {"messages": [message_of(message) for message in row.prompt]},
            "preferred_output": _output(row.chosen),
            "non_preferred_output": _output(row.rejected),
        }
    return {"messages": [*_unlearnt(row.prompt), *_output(row.reply)]}


def _unlearnt(chat: Chat) -> list[dict[str, Any]]:
    weights = {"assistant": {"weight": 0}}
    return [{**message_of(message), **weights.get(message.role, {})} for message in chat]


def _output(reply: str) -> list[dict[str, Any]]:
    return [message_of(Message("assistant", reply))]


def message_of(message: Message) -> dict[str, Any]:
    """A message in the form of the API, in training rows as in requests for replies."""
    written = {"role": message.role, "content": message.content}
    if message.name:
        written["name"] = _NO_NAME.sub("_", message.name)[:64]
    return written
