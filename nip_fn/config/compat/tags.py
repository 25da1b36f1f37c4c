"""The `_type` keys of the *nip* library: each table may name the class that it stands for."""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import inspect

from nip_fn.config.schema import WRITTEN, record_of, type_below
from nip_fn.errors import Problem

Path = tuple[Any, ...]  # keys that lead to a value; in a well-formed table all of them are strings

# The names that `_type` may have in the table at an address; `to_dict` writes the first.
TYPE_NAMES: dict[str, tuple[str, ...]] = {
    "": ("HyperParameters",),
    "agents.*": ("CodeValidationAgentParameters", "PureTextAgentParameters"),
    "agents.*.agent_lr_factor": ("LrFactors",),
    "agents.*.body_lr_factor": ("LrFactors",),
    "rl": ("RlTrainerParameters",),
    "text_rl": ("TextRlParameters",),
    "ei": ("PureTextEiParameters",),
    "malt": ("PureTextMaltParameters",),
    "protocol_common": ("CommonProtocolParameters",),
    "nip_protocol": ("NipProtocolParameters", "LongProtocolParameters"),
    "debate_protocol": ("DebateProtocolParameters",),
    "mnip_protocol": ("MnipProtocolParameters",),
    "dummy": ("DummyParameters",),
    "code_validation": ("CodeValidationParameters",),
    "dataset_options": ("DatasetParameters",),
}


def _type_names(path: Path) -> tuple[str, ...]:
    """The names that `_type` may have in the table at a path; () if there is no such table."""
    if len(path) > 1 and path[0] == "agents":
        path = ("agents", "*", *path[2:])
    return TYPE_NAMES.get(".".join(map(str, path)), ())


def tagged(table: Mapping[str, Any], path: Path = ()) -> dict[str, Any]:
    """The table, with its `_type` in every table in it."""
    names = _type_names(path)
    inner = {
        name: tagged(value, (*path, name)) if isinstance(value, dict) else value
        for name, value in table.items()
    }
    return {"_type": names[0], **inner} if names else inner


def type_problems(
    value: Any, expected: inspect.Type | None = WRITTEN, path: Path = ()
) -> Iterator[Problem]:
    """A problem for each `_type` that names a class of another table."""
    if not isinstance(value, Mapping):
        return
    names = _type_names(path)
    if names and "_type" in value and value["_type"] not in names:
        yield Problem(
            f"{value['_type']!r} does not belong here",
            ".".join(map(str, (*path, "_type"))),
            f"expected {' or '.join(names)}",
        )
    for name, inner in value.items():
        below = type_below(expected, value, name)
        yield from type_problems(inner, below, (*path, name)) if below else ()


def without_extras(
    value: Any, expected: inspect.Type | None = WRITTEN, path: Path = (), *, ignore: bool
) -> Any:
    """The value without `_type` keys that are no parameters and, if `ignore`, unknown keys.

    A schedule's `_type` is a parameter of ours, too: it chooses the kind of schedule, and stays.

    Args:
        value: A table, or any value in one, which is returned as it is.
        expected: The type that belongs at the path.
        path: The keys that lead to the value.
        ignore: Also leave out keys that name no parameter.
    """
    record = record_of(expected, value) if isinstance(value, Mapping) else None
    if not isinstance(record, inspect.StructType | inspect.VarTupleType):
        return value
    known = {name: type_below(expected, value, name) for name in value}
    return {
        name: without_extras(inner, known[name], (*path, name), ignore=ignore)
        for name, inner in value.items()
        if known[name] or not (ignore or (name == "_type" and _type_names(path)))
    }
