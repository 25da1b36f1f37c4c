"""The door between nip-fn and a terminal: what models, data and servers wrote cannot command it.

Everything that a command prints passes `terminal_safe`: plain text in the streams that
`guard_streams` puts in place, and text in tables and bars in `consoles.Console`.
"""

import os
import re
import sys
from typing import Any, TextIO

# Control characters (C0 but for tab and newline, DEL, C1), which move the cursor, rename the window
# or fill the clipboard; Unicode's Bidi_Control, which makes a text read differently from what it
# is; its two line separators, at which some programs begin a line of a log; and surrogates, which
# no stream can encode.
_COMMANDS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
    "\u2028\u2029"
    "\ud800-\udfff]"
)


def terminal_safe(text: str) -> str:
    r"""The text with each character that could command a terminal written out as `\uXXXX`.

    JSON has the same notation, and so stays the same JSON.  Lines that end as on Windows end in a
    newline alone.

    >>> terminal_safe("\x1b]52;c;cm0=\x07 ok")
    '\\u001b]52;c;cm0=\\u0007 ok'
    """
    return _COMMANDS.sub(lambda match: f"\\u{ord(match[0]):04x}", text.replace("\r\n", "\n"))


class VisibleStream:
    """A text stream that `terminal_safe` text is written to, and that outlives its reader."""

    def __init__(self, stream: TextIO) -> None:
        """Write to `stream`."""
        # Consoles of rich write their own commands, so they look for what is behind a stream under
        # this name.  Ours make texts visible themselves.
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        """Write the text; into nothing if nobody reads any more."""
        try:
            self.rich_proxied_file.write(terminal_safe(text))
        except BrokenPipeError:
            discard(self.rich_proxied_file)
        return len(text)

    def flush(self) -> None:
        """Hand over what was written."""
        try:
            self.rich_proxied_file.flush()
        except BrokenPipeError:
            discard(self.rich_proxied_file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def discard(stream: TextIO) -> None:
    """Send all that is still written to a stream into nothing.

    A run goes on without a reader, as in `nip-fn train | head`: what it samples is paid for.
    """
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, stream.fileno())
    os.close(nothing)


def unguarded(stream: TextIO) -> TextIO:
    """The stream behind a guarded one, for a console that makes texts visible itself."""
    hidden: TextIO = getattr(stream, "rich_proxied_file", stream)
    return hidden


def guard_streams() -> None:
    """Make standard output and standard error visible streams, for the rest of this process."""
    # For the rest of it, since a traceback, too, may quote a model.
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the shell, as with 2>&-
            stream = open(os.devnull, "w")  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # in a locale without Unicode
        setattr(sys, name, VisibleStream(unguarded(stream)))
