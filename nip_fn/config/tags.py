"""What belongs where in a written configuration, and the `_type` keys of the *nip* library."""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import inspect

from nip_fn.params.run import HyperParameters

Path = tuple[Any, ...]  # the keys that lead to a value; in a sound table all of them are strings

# What `_type` may say in the table at an address; the first is what `to_dict` writes.
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

# What a whole configuration is, agents aside: a table by name where the record has a tuple.
WRITTEN: inspect.Type = inspect.type_info(HyperParameters)


def type_names(path: Path) -> tuple[str, ...]:
    """What `_type` may say in the table at a path; () where it says nothing to us."""
    if len(path) > 1 and path[0] == "agents":
        path = ("agents", "*", *path[2:])
    return TYPE_NAMES.get(".".join(map(str, path)), ())


def tagged(table: Mapping[str, Any], path: Path = ()) -> dict[str, Any]:
    """The table, every table in it with its `_type`."""
    names = type_names(path)
    inner = {
        name: tagged(value, (*path, name)) if isinstance(value, dict) else value
        for name, value in table.items()
    }
    return {"_type": names[0], **inner} if names else inner


def type_problems(
    value: Any, expected: inspect.Type | None = WRITTEN, path: Path = ()
) -> Iterator[str]:
    """Where `_type` names a class that does not belong there."""
    if not isinstance(value, Mapping):
        return
    names = type_names(path)
    if names and "_type" in value and value["_type"] not in names:
        address, known = ".".join(map(str, (*path, "_type"))), " or ".join(names)
        yield f"{address}: {value['_type']!r} does not belong here; expected {known}"
    for name, inner in value.items():
        below = type_below(expected, value, name)
        yield from type_problems(inner, below, (*path, name)) if below else ()


def without_extras(
    value: Any, expected: inspect.Type | None = WRITTEN, path: Path = (), *, ignore: bool
) -> Any:
    """The value without `_type` keys that are no parameters and, if `ignore`, unknown keys."""
    if not isinstance(value, Mapping):
        return value
    known = {name: type_below(expected, value, name) for name in value}
    return {
        name: without_extras(inner, known[name], (*path, name), ignore=ignore)
        for name, inner in value.items()
        if known[name] or not (ignore or (name == "_type" and type_names(path)))
    }


def type_below(
    expected: inspect.Type | None, table: Mapping[Any, Any], name: Any
) -> inspect.Type | None:
    """What belongs at a key of a table; None where nothing does."""
    match record_of(expected, table):
        case inspect.VarTupleType(item_type=item):
            return item
        case inspect.StructType(tag_field=tag, fields=fields):
            known = {field.name: field.type for field in fields}
            return inspect.StrType() if tag is not None and name == tag else known.get(name)
    return None


def record_of(expected: inspect.Type | None, value: Mapping[Any, Any]) -> inspect.Type | None:
    """Which of the types that belong somewhere describes this table."""
    match expected:
        case inspect.Metadata(type=inner):
            return record_of(inner, value)
        case inspect.UnionType(types=types):
            records = [one for one in types if isinstance(one, inspect.StructType)]
            named = [one for one in records if one.tag == value.get("_type")]
            return next(iter(named or records), None)
    return expected
