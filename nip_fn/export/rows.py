"""Training rows in the conversational format of trl."""

from typing import Any

from nip_fn.game.chat import plain
from nip_fn.training.rows import Row


def trl_row(row: Row) -> dict[str, Any]:
    """A row as trl takes it: prompt, chosen and rejected, or prompt and completion.

    Replies of other weights become completions and weights, for a trainer of one's own.  Nothing
    but the replies is learnt; chats keep no names of speakers.
    """
    prompt, replies = plain(row.prompt), [_reply(reply) for reply in row.replies]
    if row.is_preference:
        return {"prompt": prompt, "chosen": replies[0], "rejected": replies[1]}
    if row.is_imitation:
        return {"prompt": prompt, "completion": replies[0]}
    return {"prompt": prompt, "completions": replies, "weights": row.weights}


def _reply(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]
