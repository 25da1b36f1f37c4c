"""Plain values as text that any Python reads back.

Runs inside the sandbox, on values that may lie about themselves: only methods of the built-in
types are called on them.  The standard library only.
"""

from typing import Any

DEEPEST = 100  # Python's own parser reads no more than 200 levels


class TooLong(Exception):
    """The text would be longer than allowed."""


class Writer:
    """Writes values; raises TooLong once all of it would exceed `room` characters."""

    def __init__(self, room: int) -> None:
        """With room for this many characters."""
        self._room = room

    def write(self, value: Any, depth: int = 0) -> str:
        """The literal of a value: its own type, or the built-in type that it derives from.

        Any other value is written as "<type>", which is equal to no literal.

        >>> Writer(100).write([{"a": (1,)}, frozenset({2, 1}), 1e999, iter([])])
        "[{'a': (1,)}, {1, 2}, 1e999, <list_iterator>]"
        """
        if depth > DEEPEST:
            raise RecursionError(f"the value is nested deeper than {DEEPEST} levels")
        value_type = type(value)
        if issubclass(value_type, list):
            return self._inside("[", "]", list.__iter__(value), depth)
        if issubclass(value_type, tuple):
            end = ",)" if tuple.__len__(value) == 1 else ")"
            return self._inside("(", end, tuple.__iter__(value), depth)
        if issubclass(value_type, dict):
            return self._dict(value, depth)
        if issubclass(value_type, set | frozenset):
            return self._set(value, value_type, depth)
        return self._leaf(value, value_type)

    def _inside(self, begin: str, end: str, values: Any, depth: int) -> str:
        self._take(2)
        return begin + ", ".join([self._item(value, depth) for value in values]) + end

    def _item(self, value: Any, depth: int) -> str:
        self._take(2)
        return self.write(value, depth + 1)

    def _dict(self, value: Any, depth: int) -> str:
        self._take(2)
        pairs = [
            f"{self._item(key, depth)}: {self._item(item, depth)}"
            for key, item in dict.items(value)
        ]
        return "{" + ", ".join(pairs) + "}"

    def _set(self, value: Any, value_type: type, depth: int) -> str:
        base = set if issubclass(value_type, set) else frozenset
        self._take(5)
        texts = sorted(self._item(item, depth) for item in base.__iter__(value))
        return "{" + ", ".join(texts) + "}" if texts else "set()"

    def _leaf(self, value: Any, value_type: type) -> str:
        if value is None or value_type is bool:
            text = str(value)
        elif issubclass(value_type, int):
            self._take(int.bit_length(value) // 4)  # a little more than the digits
            return int.__repr__(value)
        elif issubclass(value_type, float):
            text = float.__repr__(value).replace("inf", "1e999")
        elif issubclass(value_type, str):
            self._take(str.__len__(value))
            return str.__repr__(value)
        elif issubclass(value_type, bytes):
            self._take(bytes.__len__(value))
            return bytes.__repr__(value)
        else:
            text = f"<{value_type.__name__}>"
        self._take(len(text))
        return text

    def _take(self, characters: int) -> None:
        self._room -= characters
        if self._room < 0:
            raise TooLong
