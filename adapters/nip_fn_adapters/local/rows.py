"""The rows of a training as tokens: exactly those that the sampler reads and draws."""

from typing import Any, NamedTuple

from nip_fn.training.jobs import SupervisedRow, TrainingRow
from nip_fn_adapters.local.models import encode_chat, encode_reply

IGNORED = -100  # the label of a token that has no loss


class Encoded(NamedTuple):
    """The rows of a job as tokens."""

    rows: list[dict[str, list[int]]]  # preference: prompt_ids, chosen_ids, rejected_ids;
    # supervised: input_ids and labels, which are IGNORED for the prompt
    max_length: int  # of a prompt with a reply
    truncated: int  # rows whose reply (or either of two) the model cannot hold whole, cut
    dropped: int  # rows whose prompt alone fills the model, left out


def encode_rows(tokenizer: Any, rows: tuple[TrainingRow, ...], context: int | None) -> Encoded:
    """The rows as tokens, nothing cut that fits `context`; all rows are of one kind."""
    encoded = [_tokens(tokenizer, row) for row in rows]
    lengths = [len(prompt) + max(map(len, replies)) for prompt, *replies in encoded]
    max_length = min([max(lengths, default=0), *([context] if context is not None else [])])
    kept = [len(prompt) < max_length for prompt, *_ in encoded]
    cut = [length > max_length for length in lengths]
    return Encoded(
        rows=[_example(max_length, *row) for row, keep in zip(encoded, kept, strict=True) if keep],
        max_length=max_length,
        truncated=sum(keep and long for keep, long in zip(kept, cut, strict=True)),
        dropped=len(rows) - sum(kept),
    )


def _tokens(tokenizer: Any, row: TrainingRow) -> tuple[list[int], ...]:
    """The prompt, and its one reply or its two."""
    replies = (row.reply,) if isinstance(row, SupervisedRow) else (row.chosen, row.rejected)
    # Apart, as the sampler reads the one and draws the other: together, tokens could merge where
    # they meet.
    return encode_chat(tokenizer, row.prompt), *(encode_reply(tokenizer, text) for text in replies)


def _example(
    max_length: int, prompt: list[int], first: list[int], *rejected: list[int]
) -> dict[str, list[int]]:
    """A row as trl's trainer for its kind takes it, cut at its end."""
    room = max_length - len(prompt)
    if rejected:
        (second,) = rejected
        return {"prompt_ids": prompt, "chosen_ids": first[:room], "rejected_ids": second[:room]}
    labels = [IGNORED] * len(prompt) + first
    return {"input_ids": (prompt + first)[:max_length], "labels": labels[:max_length]}
