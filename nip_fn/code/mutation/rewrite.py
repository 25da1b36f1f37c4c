"""From a changed syntax node to changed text: as few characters as will do.

`readings` gives ways to write a change, the least first; whoever asks parses them and takes the
first whose tree is the one that was meant.  That check is what makes parentheses come right.
"""

import ast
import re
from collections.abc import Iterator
from typing import Any

from nip_fn.code.mutation.source import Patch, SourceText

_SIGNS: dict[type, str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.Pow: "**", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<",
    ast.RShift: ">>", ast.And: "and", ast.Or: "or", ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<",
    ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Is: "is", ast.IsNot: "is not", ast.In: "in",
    ast.NotIn: "not in",
}  # fmt: skip
_LOOSE = (ast.BinOp, ast.BoolOp, ast.Compare, ast.UnaryOp, ast.IfExp, ast.Lambda, ast.NamedExpr)
_LISTS = {"args", "keywords", "values", "elts"}


def readings(source: SourceText, old: ast.AST, new: ast.AST) -> Iterator[tuple[Patch, ...]]:
    """Ways to write `new` where `old` stands, the least change first.

    What is new in `new` has no place; what has one stands for the text at that place.
    """
    small = _small(source, old, new)
    if small is not None:
        yield tuple(small)
        if isinstance(old, ast.expr):
            yield _enclosed(source, old, small)
            yield tuple(small) + tuple(_around_operands(source, old))
    if isinstance(old, ast.expr):
        start, end = source.wide(old)
        inner_start, inner_end = source.span(old)
        for wrap in (False, True):
            text = rendered(source, new, wrap)
            yield (Patch(start, end, text),)
            yield (Patch(inner_start, inner_end, text),)
            yield (Patch(inner_start, inner_end, f"({text})"),)
    elif small is None:
        yield (Patch(*source.span(old), rendered(source, new, False)),)


def with_field(node: Any, **fields: Any) -> Any:
    """A copy of a node with other fields, and without a place."""
    unchanged = {name: getattr(node, name) for name in node._fields if hasattr(node, name)}
    return type(node)(**(unchanged | fields))


def rendered(source: SourceText, new: ast.AST, wrap: bool) -> str:
    """The text of a new node, in which old ones keep their text (in parentheses, if they may need
    them and `wrap` says so)."""
    if has_place(new):
        return _piece(source, new, wrap)
    # Old parts keep their own text, comments included: names stand for them while the new part is
    # written, and are replaced afterwards.
    holes: list[ast.AST] = []
    text = ast.unparse(ast.fix_missing_locations(_with_holes(new, holes)))
    if source.tight:
        text = re.sub(r"(?<=\w) ([-+]) (?=\w)", r"\1", text)
    # `ast.unparse` has one style; what it writes anew is brought nearer to the program's.
    if source.quote == '"' and '"' not in text and "\\" not in text:
        text = text.replace("'", '"')
    return re.sub(r"hole_(\d+)_", lambda match: _piece(source, holes[int(match[1])], wrap), text)


def has_place(node: ast.AST) -> bool:
    """True if a node stands in the source."""
    return hasattr(node, "lineno")


def _piece(source: SourceText, node: ast.AST, wrap: bool) -> str:
    text = source.text(node)
    return f"({text})" if wrap and isinstance(node, _LOOSE) else text


def _with_holes(node: ast.AST, holes: list[ast.AST]) -> Any:
    """A copy of a new node, in which names of holes stand for the old nodes."""
    if has_place(node) and isinstance(node, ast.expr):
        holes.append(node)
        return ast.Name(f"hole_{len(holes) - 1}_", ast.Load())

    def fill(value: Any) -> Any:
        if isinstance(value, list):
            return [fill(item) for item in value]
        return _with_holes(value, holes) if isinstance(value, ast.AST) else value

    return type(node)(**{name: fill(value) for name, value in ast.iter_fields(node)})


def _enclosed(source: SourceText, node: ast.AST, patches: list[Patch]) -> tuple[Patch, ...]:
    start, end = source.span(node)
    return (Patch(start, start, "("), *patches, Patch(end, end, ")"))


def _around_operands(source: SourceText, node: ast.AST) -> Iterator[Patch]:
    for operand in ast.iter_child_nodes(node):
        if isinstance(operand, _LOOSE):
            start, end = source.span(operand)
            yield from (Patch(start, start, "("), Patch(end, end, ")"))


# ------------------------------------------------------------------------------------ differences


def _small(source: SourceText, old: Any, new: Any) -> list[Patch] | None:
    """The patches inside `old` that make it `new`; None where it must be written anew."""
    if isinstance(old, ast.AugAssign) and isinstance(new, ast.Assign):
        return _sign(source, old.target, old.value, "=")
    if isinstance(old, ast.While) and isinstance(new, ast.If):
        start = source.span(old)[0]
        return [Patch(start, start + len("while"), "if")]
    if type(old) is not type(new) or has_place(new):
        return None
    patches: list[Patch] = []
    for field in old._fields:
        before, after = getattr(old, field, None), getattr(new, field, None)
        field_patches = [] if before is after else _field(source, old, field, before, after)
        if field_patches is None:
            return None
        patches += field_patches
    return patches


def _field(source: SourceText, old: Any, field: str, before: Any, after: Any) -> list[Patch] | None:
    if field == "op" and isinstance(old, ast.BinOp):
        return _sign(source, old.left, old.right, _SIGNS[type(after)])
    if field == "op" and isinstance(old, ast.AugAssign):
        return _sign(source, old.target, old.value, _SIGNS[type(after)] + "=")
    if field == "op" and isinstance(old, ast.BoolOp):
        return _signs(source, old.values, [after] * (len(old.values) - 1))
    if field == "ops" and len(before) == len(after):
        return _signs(source, [old.left, *old.comparators], after)
    if field == "attr":
        end = source.span(old)[1]
        return [Patch(end - len(before), end, after)]
    if isinstance(before, ast.expr) and isinstance(after, ast.AST):
        return _child(source, before, after)
    if isinstance(before, list) and isinstance(after, list):
        return _items(source, old, field, before, after)
    return None


def _sign(source: SourceText, before: ast.AST, after: ast.AST, sign: str) -> list[Patch] | None:
    span = source.token(source.span(before)[1], source.span(after)[0])
    return None if span is None else [Patch(*span, sign)]


def _signs(source: SourceText, operands: list[ast.expr], signs: list[Any]) -> list[Patch] | None:
    patches = []
    for before, after, sign in zip(operands[:-1], operands[1:], signs, strict=True):
        span = source.token(source.span(before)[1], source.span(after)[0])
        if span is None:
            return None
        word = _SIGNS[type(sign)]
        if source.code[slice(*span)].split() != word.split():
            patches.append(Patch(*span, word))
    return patches


def _child(source: SourceText, before: ast.AST, after: ast.AST) -> list[Patch]:
    small = _small(source, before, after)
    if small is not None:
        return small
    return [Patch(*source.wide(before), rendered(source, after, False))]


def _items(
    source: SourceText, old: Any, field: str, before: list[Any], after: list[Any]
) -> list[Patch] | None:
    if len(before) == len(after):
        pairs = [pair for pair in zip(before, after, strict=True) if pair[0] is not pair[1]]
        if all(isinstance(item, ast.expr) for pair in pairs for item in pair):
            return [patch for pair in pairs for patch in _child(source, *pair)]
        return None
    if field not in _LISTS:
        return None
    gone = [item for item in before if item not in after]
    if len(gone) == len(before) - len(after) == 1:
        return _without(source, old, field, gone[0])
    if len(after) == len(before) + 1 and after[:-1] == before and isinstance(old, ast.Call):
        return _with_more(source, old, after[-1])
    return None


def _all_items(old: Any, field: str) -> list[Any]:
    items = [*old.args, *old.keywords] if isinstance(old, ast.Call) else getattr(old, field)
    return sorted(items, key=lambda item: (item.lineno, item.col_offset))


def _without(source: SourceText, old: Any, field: str, gone: ast.AST) -> list[Patch]:
    """Take an item and the comma or operator beside it out of a row."""
    items = _all_items(old, field)
    index = items.index(gone)
    start, end = source.wide(gone)
    if index:
        return [Patch(source.wide(items[index - 1])[1], end, "")]
    if len(items) > 1:
        return [Patch(start, source.wide(items[1])[0], "")]
    return [Patch(start, end, "")]


def _with_more(source: SourceText, old: ast.Call, item: ast.AST) -> list[Patch]:
    """Put one more argument at the end of a call."""
    text = ast.unparse(ast.fix_missing_locations(_with_holes(item, [])))
    items = _all_items(old, "args")
    if items:
        end = source.wide(items[-1])[1]
        return [Patch(end, end, f", {text}")]
    end = source.span(old)[1] - 1
    return [Patch(end, end, text)]
