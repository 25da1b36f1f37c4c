"""Training rows in the conversational format of trl."""

from typing import Any

from nip_fn.game.chat import plain
from nip_fn.training.rows import PreferenceRow, TrainingRow


def trl_row(row: TrainingRow) -> dict[str, Any]:
    """A row as trl takes it: prompt, chosen and rejected, or prompt and completion.

    Both learn nothing but the reply; chats keep no names of speakers.
    """
    prompt = plain(row.prompt)
    if isinstance(row, PreferenceRow):
        return {"prompt": prompt, "chosen": _reply(row.chosen), "rejected": _reply(row.rejected)}
    return {"prompt": prompt, "completion": _reply(row.reply)}


def _reply(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]
