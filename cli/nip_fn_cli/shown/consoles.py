"""Consoles of rich for tables, bars and coloured text, in which all text is `terminal_safe`."""

import sys
from collections.abc import Iterable
from typing import Any

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from nip_fn_cli.shown.terminal import discard, terminal_safe, unguarded


class Console(rich.console.Console):
    """A console whose text cannot command the terminal, and is no markup."""

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        """A console on standard output, or on standard error."""
        # Texts are data: no brackets in them may be taken for markup, no words for emoji.
        super().__init__(
            file=unguarded(sys.stderr if stderr else sys.stdout),
            width=width,
            highlight=False,
            markup=False,
            emoji=False,
        )

    def render_str(self, text: str, **options: Any) -> Text:
        """The text, made visible before it is measured."""
        return super().render_str(terminal_safe(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments of anything, with their text visible: all that is printed passes here."""
        for segment in super().render(renderable, options):
            # What moves the cursor of a live display is rich's own.
            if segment.control:
                yield segment
                continue
            style = segment.style
            # A link is a command with an address that somebody chose.
            plain = style.update_link(None) if style is not None and style.link else style
            yield Segment(terminal_safe(segment.text), plain)

    def on_broken_pipe(self) -> None:
        """Go on without a reader."""
        discard(self.file)  # type: ignore[arg-type]
