"""Text of models, made harmless to read: what would not show, or would reorder the rest, shows."""

import re

# Controls but tab and newline, soft hyphens, marks of direction, invisible separators and fillers,
# tags (in which text can be smuggled past a reader), and halves of surrogate pairs: more than a
# terminal must be kept from (`terminal_safe` of nip_fn_cli).  The joiners U+200C and U+200D
# stay: Persian and emoji are written with them.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u180e\u200b\u200e\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e0fff]"
)


def visible(text: str) -> str:
    r"""The text with each character that cannot be seen as `\uXXXX`, lines ended by newlines alone.

    >>> visible("a\x1b[31m\r\nb\u202e")
    'a\\u001b[31m\nb\\u202e'
    """
    return _UNSEEN.sub(_written, text.replace("\r\n", "\n"))


def _written(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
