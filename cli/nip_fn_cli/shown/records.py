"""Records on standard output, as JSON."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec


def print_json(value: Any) -> None:
    """Print a value of records, tables, sequences and paths."""
    print(json.dumps(plain(value), indent=2, ensure_ascii=False))


def plain(value: Any) -> Any:
    """The value as JSON has it, records as objects and paths as texts.

    >>> plain((Path("runs/a"), {"seed": 1}))
    ['runs/a', {'seed': 1}]
    """
    match value:
        case Mapping():
            return {name: plain(entry) for name, entry in value.items()}
        case tuple() if hasattr(value, "_asdict"):
            return plain(value._asdict())
        case msgspec.Struct():
            return plain(msgspec.structs.asdict(value))
        case list() | tuple():
            return [plain(entry) for entry in value]
    return msgspec.to_builtins(value, enc_hook=str)  # paths as texts
