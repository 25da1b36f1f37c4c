"""The values of a parameter, and its default, in words."""

import json
from typing import Any

import msgspec
from msgspec import inspect

from nip_fn.config.schema import Parameter
from nip_fn.config.spelling import DUMMY, EXTRA
from nip_fn.params.agent import OPTIONS
from nip_fn.protocols.registry import PROTOCOLS

OWN = "package.module:NAME or file.py:NAME"
PLAIN = ((inspect.BoolType, "true or false"), (inspect.StrType, "text"))
BOUNDS = (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="))


def values_of(parameter: Parameter) -> str:
    """The values that may be written for a parameter, in words."""
    name = parameter.address.rpartition(".")[2]
    names = tuple(PROTOCOLS) if name == "interaction_protocol" else parameter.meaning.names
    if names:
        return f"{_choices(names)}, {OWN}"
    if name == "model_provider":  # as it is written, which is not as it is recorded
        return _choices((*OPTIONS.values(), DUMMY))
    # The text of extra fields is that of a table.
    return "table or none" if name == EXTRA else _words(parameter.type)


def _words(value_type: inspect.Type) -> str:
    """A type in words."""
    while isinstance(value_type, inspect.Metadata):
        value_type = value_type.type
    match value_type:
        case inspect.LiteralType(values=values):
            return _choices(values)
        case inspect.IntType() | inspect.FloatType():
            return _number_words(value_type)
        case inspect.UnionType(types=types):
            named = sorted(types, key=lambda member: isinstance(member, inspect.NoneType))
            return " or ".join(map(_words, named))
        case inspect.StructType(cls=cls, tag=tag, fields=fields):
            names = ", ".join(field.name for field in fields)
            return f"table {tag or cls.__name__} ({names})" if names else f"table {tag}"
        case inspect.VarTupleType(item_type=item):
            return f"list of {_words(item)}"
        case inspect.NoneType():
            return "none"
    return next(words for plain, words in PLAIN if isinstance(value_type, plain))


def _number_words(value_type: inspect.IntType | inspect.FloatType) -> str:
    name = "int" if isinstance(value_type, inspect.IntType) else "float"
    bounds = [(sign, getattr(value_type, bound)) for bound, sign in BOUNDS]
    limits = [f"{sign} {_number(value)}" for sign, value in bounds if value is not None]
    return " ".join((name, ", ".join(limits))).rstrip()


def _number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _choices(values: Any) -> str:
    return f"one of {', '.join(map(str, values))}"


def default_of(parameter: Parameter) -> str:
    """A default as it would be written in a file."""
    value = msgspec.to_builtins(parameter.default)
    if value is None:
        return "none"
    if parameter.address.endswith(".model_provider"):
        value = OPTIONS[value]
    return value["_type"] if isinstance(value, dict) else json.dumps(value)
