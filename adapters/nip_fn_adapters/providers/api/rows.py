"""Training rows in the file format of OpenAI's fine-tuning."""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from nip_fn.game.chat import Chat, Message
from nip_fn.training.losses import DPO, Loss, is_plain
from nip_fn.training.rows import IMITATION, PREFERENCE, Row

_NO_NAME = re.compile(r"[\s<|\\/>]+")  # characters that the API refuses in a speaker's name


def training_file(rows: tuple[Row, ...]) -> bytes:
    """JSON Lines in UTF-8, one for each row in its order; the same rows give the same bytes."""
    return b"".join(msgspec.json.encode(example(row)) + b"\n" for row in rows)


def training_problem(loss: Loss, rows: Iterable[Row]) -> str:
    """The reason why the API cannot train on the rows by the loss; "" if it can."""
    if not is_plain(loss):
        return f"cannot train by {msgspec.json.encode(loss).decode()}"
    weights = PREFERENCE if isinstance(loss, DPO) else IMITATION
    fits = all(row.weights == weights for row in rows)
    return "" if fits else f"takes no rows of such weights for {loss.name}"


def example(row: Row) -> dict[str, Any]:
    """A preference, or a reply to imitate, in its documented form.

    Only the last message of a supervised row is learnt.  The assistant's earlier messages get the
    weight 0: they are rows of their own, and would otherwise be learnt once more here.
    """
    outputs = [[message_of(Message("assistant", reply))] for reply in row.replies]
    if row.is_preference:
        return {
            "input": {"messages": [message_of(message) for message in row.prompt]},
            "preferred_output": outputs[0],
            "non_preferred_output": outputs[1],
        }
    return {"messages": [*_unlearnt(row.prompt), *outputs[0]]}


def _unlearnt(chat: Chat) -> list[dict[str, Any]]:
    weights = {"assistant": {"weight": 0}}
    return [{**message_of(message), **weights.get(message.role, {})} for message in chat]


def message_of(message: Message) -> dict[str, Any]:
    """A message in the form of the API, in training rows as in requests for replies."""
    written = {"role": message.role, "content": message.content}
    if message.name:
        written["name"] = _NO_NAME.sub("_", message.name)[:64]
    return written
