"""The rows of a training as tokens: exactly those that the sampler reads and draws."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nip_fn.game.chat import Chat
from nip_fn.training.packing import TokenRow
from nip_fn.training.rows import Row
from nip_fn_adapters.providers.local.models import encode_chat, encode_reply

Floats = NDArray[np.float64]


class Encoded(NamedTuple):
    """The rows of a job as tokens, without those that are dropped."""

    rows: list[TokenRow]
    chats: list[Chat]  # their prompts
    weights: list[tuple[float, ...]]  # of their replies
    sampler: list[tuple[Floats, ...]]  # of these, the recorded log-probabilities; NaN if unknown
    max_length: int  # of a prompt with a reply
    truncated: int  # rows of which the model cannot hold a reply whole, cut
    dropped: int  # rows whose prompt alone fills the model, left out
    retokenized: int = 0  # replies whose text would be other tokens than were sampled


def encode_rows(tokenizer: Any, rows: tuple[Row, ...], context: int | None) -> Encoded:
    """The rows as tokens, nothing cut that fits `context`."""
    recorded = [_recorded(row) for row in rows]
    texts = [[encode_reply(tokenizer, reply) for reply in row.replies] for row in rows]
    encoded = [
        # Apart, as the sampler reads the one and draws the other: together, tokens could merge
        # where they meet.
        TokenRow(
            encode_chat(tokenizer, row.prompt),
            tuple(tokens or text for (tokens, _), text in zip(sampled, by_text, strict=True)),
        )
        for row, sampled, by_text in zip(rows, recorded, texts, strict=True)
    ]
    lengths = [len(row.prompt) + max(map(len, row.replies)) for row in encoded]
    max_length = min([max(lengths, default=0), *([context] if context is not None else [])])
    kept = [index for index, row in enumerate(encoded) if len(row.prompt) < max_length]
    return Encoded(
        rows=[_cut(encoded[index], max_length) for index in kept],
        chats=[rows[index].prompt for index in kept],
        weights=[rows[index].weights for index in kept],
        sampler=[
            tuple(
                _scores(values, len(reply))[: max_length - len(encoded[index].prompt)]
                for (_, values), reply in zip(recorded[index], encoded[index].replies, strict=True)
            )
            for index in kept
        ],
        max_length=max_length,
        truncated=sum(lengths[index] > max_length for index in kept),
        dropped=len(rows) - len(kept),
        retokenized=sum(
            # A reply that was cut has no end token, which the text alone cannot tell.
            bool(tokens) and tokens not in (text, text[:-1])
            for index in kept
            for (tokens, _), text in zip(recorded[index], texts[index], strict=True)
        ),
    )


def _recorded(row: Row) -> list[tuple[list[int], Floats]]:
    """The ids and the log-probabilities of each reply as it was sampled; empty if unknown."""
    return [
        (tokens.ids.tolist(), tokens.log_probabilities.astype(np.float64))
        if tokens is not None and tokens.id_bytes
        else ([], np.empty(0))
        for tokens in row.tokens or (None,) * len(row.replies)
    ]


def _scores(recorded: Floats, size: int) -> Floats:
    """The recorded log-probabilities of so many tokens; NaN where there are none."""
    return recorded if len(recorded) == size else np.full(size, np.nan)


def _cut(row: TokenRow, max_length: int) -> TokenRow:
    """The row, with replies that end where the model's context does."""
    room = max_length - len(row.prompt)
    return TokenRow(row.prompt, tuple(reply[:room] for reply in row.replies))
