"""The rows of a training as tokens: exactly those that the sampler reads and draws."""

from typing import Any, NamedTuple

from nip_fn.game.chat import Chat
from nip_fn.training.packing import TokenRow
from nip_fn.training.rows import Row
from nip_fn_adapters.providers.local.models import encode_chat, encode_reply


class Encoded(NamedTuple):
    """The rows of a job as tokens, without those that are dropped."""

    rows: list[TokenRow]
    chats: list[Chat]  # their prompts
    weights: list[tuple[float, ...]]  # of their replies
    max_length: int  # of a prompt with a reply
    truncated: int  # rows of which the model cannot hold a reply whole, cut
    dropped: int  # rows whose prompt alone fills the model, left out


def encode_rows(tokenizer: Any, rows: tuple[Row, ...], context: int | None) -> Encoded:
    """The rows as tokens, nothing cut that fits `context`."""
    encoded = [_tokens(tokenizer, row) for row in rows]
    lengths = [len(row.prompt) + max(map(len, row.replies)) for row in encoded]
    max_length = min([max(lengths, default=0), *([context] if context is not None else [])])
    kept = [index for index, row in enumerate(encoded) if len(row.prompt) < max_length]
    return Encoded(
        rows=[_cut(encoded[index], max_length) for index in kept],
        chats=[rows[index].prompt for index in kept],
        weights=[rows[index].weights for index in kept],
        max_length=max_length,
        truncated=sum(lengths[index] > max_length for index in kept),
        dropped=len(rows) - len(kept),
    )


def _tokens(tokenizer: Any, row: Row) -> TokenRow:
    """The prompt and its replies."""
    # Apart, as the sampler reads the one and draws the other: together, tokens could merge where
    # they meet.
    return TokenRow(
        encode_chat(tokenizer, row.prompt),
        tuple(encode_reply(tokenizer, reply) for reply in row.replies),
    )


def _cut(row: TokenRow, max_length: int) -> TokenRow:
    """The row, with replies that end where the model's context does."""
    room = max_length - len(row.prompt)
    return TokenRow(row.prompt, tuple(reply[:room] for reply in row.replies))
