"""Configurations as TOML: complete, and readable again by `tomllib` and `from_dict`."""

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from textwrap import wrap
from typing import Any

from nip_fn.config.codec import to_dict
from nip_fn.params.agent import OPTIONS
from nip_fn.params.run import DEFAULT_AGENT, HyperParameters

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_WIDTH = 98  # of a line of comment, without its "# "


def to_toml(
    params: HyperParameters,
    comments: Mapping[str, str] | None = None,
    active: Iterable[str] | None = None,
) -> str:
    r"""All parameters as a file of TOML, which `from_dict` reads as `params` again.

    What all agents share stands in `agents._default`, and None is written as "none".

    Args:
        params: The parameters.
        comments: A comment by address, to stand above its parameter.
        active: Addresses; all other parameters are commented out.  None: all are active.

    What is said in either of a field of one agent holds for all of them.

    >>> print(to_toml(HyperParameters())[:72])
    trainer = "malt"
    dataset = "builtin:python"
    interaction_protocol = "nip"
    """
    places = None if active is None else {_place(address.split(".")) for address in active}
    # Reversed, so that the comment of a table goes before those of its fields.
    entries = reversed(tuple((comments or {}).items()))
    above = {_place(address.split(".")): text for address, text in entries}
    tables = [
        "\n".join(chain(_header(section), _lines(section, fields, above, places)))
        for section, fields in _sections(params)
    ]
    return "\n\n".join(tables) + "\n"


def _sections(params: HyperParameters) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """(its header, its values) of each table, the top level first: a header ends it."""
    table = to_dict(params)
    yield (), {name: value for name, value in table.items() if not isinstance(value, dict)}
    for name, values in table.items():
        if name == "agents":
            for agent, fields in _shared(values).items():
                yield (name, agent), fields
        elif isinstance(values, dict):
            yield (name,), values


def _shared(agents: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The table of agents in which `_default` has all that is the same for all of them."""
    tables = [
        {**fields, "model_provider": OPTIONS[fields["model_provider"]]}
        for fields in agents.values()
    ]
    common = {
        name: value
        for name, value in (tables[0] if tables else {}).items()
        if name != "name" and all(fields[name] == value for fields in tables)
    }
    differing = {
        agent: {k: v for k, v in fields.items() if k != "name" and k not in common}
        for agent, fields in zip(agents, tables, strict=True)
    }
    return {
        DEFAULT_AGENT: common,
        **{agent: fields for agent, fields in differing.items() if fields},
    }


def _header(section: tuple[str, ...]) -> Iterator[str]:
    if section:
        yield f"[{'.'.join(map(_key, section))}]"


def _lines(
    section: tuple[str, ...],
    fields: Mapping[str, Any],
    comments: Mapping[tuple[str, ...], str],
    active: Container[tuple[str, ...]] | None,
) -> Iterator[str]:
    for name, value in fields.items():
        key = _place((*section, name))
        if comment := comments.get(key):
            yield from (
                "",
                *(f"# {line}" for line in wrap(comment, _WIDTH, break_on_hyphens=False)),
            )
        mark = "" if active is None or key in active else "#"
        yield f"{mark}{_key(name)} = {_value(value)}"


def _place(names: Sequence[str]) -> tuple[str, ...]:
    """The section and the name of a parameter; a field of any agent has one place."""
    # A field of one agent may be written in the table of another, or in `_default`.
    return ("agents", names[2]) if names[0] == "agents" else tuple(names[:2])


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _value(value: Any) -> str:
    match value:
        case None:
            return '"none"'  # TOML has no null
        case bool():
            return "true" if value else "false"
        case str():
            return _text(value)
        case list() | tuple():
            return f"[{', '.join(map(_value, value))}]"
        case dict():
            return f"{{{', '.join(f'{_key(k)} = {_value(v)}' for k, v in value.items())}}}"
    return repr(value)


def _text(text: str) -> str:
    # A string of JSON is one of TOML, which does not allow DEL in it.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
