"""Chats: what a model is shown before it replies."""

from typing import Literal

import msgspec


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str
    name: str | None = None  # the speaker, for providers that keep it


Chat = tuple[Message, ...]


def plain(chat: Chat) -> list[dict[str, str]]:
    """The chat as chat templates and trainers take it, without names of speakers."""
    return [{"role": message.role, "content": message.content} for message in chat]
