"""JSON that other programs have written, with what they write around it."""

import re
from typing import TypeVar

import msgspec

T = TypeVar("T")

# Raised for what is not JSON of the expected form, or is nested too deeply.
UNREADABLE = (ValueError, RecursionError)

_BOM = b"\xef\xbb\xbf"
# Escapes, from left to right: pairs of surrogates, lone ones, and all others.
_ESCAPES = re.compile(
    rb"\\u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}|(\\u[dD][89a-fA-F][\da-fA-F]{2})|\\."
)


def decode_body(content: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """The value of a body; raises one of `UNREADABLE`.

    >>> decode_body(b': OPENROUTER PROCESSING\\n\\n{"a": 1}', msgspec.json.Decoder(dict[str, int]))
    {'a': 1}
    """
    text = content.removeprefix(_BOM).lstrip()
    while text.startswith(b":"):
        # OpenRouter keeps connections open with comments of event streams.
        text = text.partition(b"\n")[2].lstrip()
    try:
        return decoder.decode(text)
    except ValueError:
        if b"\\u" not in text:
            raise
        return decoder.decode(_ESCAPES.sub(_without_half, text))


def _without_half(escape: "re.Match[bytes]") -> bytes:
    """The escape; of half a character, as in a reply that was cut, the replacement character."""
    return b"\\ufffd" if escape[1] else escape[0]
