"""Operators on comparisons, arithmetic, conditions and constants."""

import ast
from collections.abc import Iterator
from typing import Any

from nip_fn.code.mutation.context import LOOPS, Context, Edit
from nip_fn.code.mutation.rewrite import with_field

Results = Iterator[ast.AST | Edit]

_BOUNDARY = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
_DIRECTION = {ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE}
_NEGATION = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE,
    ast.LtE: ast.Gt, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_ARITHMETIC: dict[type, tuple[type, ...]] = {
    ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.FloorDiv, ast.Add),
    ast.Div: (ast.FloorDiv, ast.Mult), ast.FloorDiv: (ast.Div, ast.Mult), ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,), ast.BitAnd: (ast.BitOr,), ast.BitOr: (ast.BitAnd,),
    ast.BitXor: (ast.BitOr, ast.BitAnd), ast.LShift: (ast.RShift,), ast.RShift: (ast.LShift,),
}  # fmt: skip
_ORDERED = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.LShift, ast.RShift)


def comparison_boundary(node: ast.AST, context: Context) -> Results:
    """`<` and `<=` exchanged, and `>` and `>=`."""
    return _other_comparison(node, _BOUNDARY)


def comparison_direction(node: ast.AST, context: Context) -> Results:
    """`<` and `>` exchanged, and `<=` and `>=`."""
    return _other_comparison(node, _DIRECTION)


def comparison_negated(node: ast.AST, context: Context) -> Results:
    """A comparison turned into its opposite."""
    return _other_comparison(node, _NEGATION)


def _other_comparison(node: ast.AST, table: dict[Any, Any]) -> Results:
    if isinstance(node, ast.Compare):
        for index, op in enumerate(node.ops):
            if type(op) in table:
                yield with_field(node, ops=_with(node.ops, index, table[type(op)]()))


def comparison_dropped(node: ast.AST, context: Context) -> Results:
    """One end of a chain of comparisons left out."""
    match node:
        case ast.Compare(left=left, ops=[first, second], comparators=[middle, right]):
            yield ast.Compare(left, [first], [middle])
            yield ast.Compare(middle, [second], [right])


def arithmetic_operator(node: ast.AST, context: Context) -> Results:
    """Another arithmetic operator."""
    if isinstance(node, ast.BinOp) and not _is_text(node.left) and not _is_text(node.right):
        for op in _ARITHMETIC.get(type(node.op), ()):
            yield with_field(node, op=op())


def augmented_operator(node: ast.AST, context: Context) -> Results:
    """Another operator in an augmented assignment, or none."""
    if isinstance(node, ast.AugAssign):
        if not _is_text(node.value):
            for op in _ARITHMETIC.get(type(node.op), ()):
                yield with_field(node, op=op())
        yield ast.Assign([node.target], node.value)


def operands_swapped(node: ast.AST, context: Context) -> Results:
    """The operands exchanged where the order matters."""
    if isinstance(node, ast.BinOp):
        text = _is_text(node.left) or _is_text(node.right)
        if isinstance(node.op, _ORDERED) or (text and isinstance(node.op, ast.Add)):
            yield with_field(node, left=node.right, right=node.left)


def negation_dropped(node: ast.AST, context: Context) -> Results:
    """A minus sign left out."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield node.operand


def division_rounded(node: ast.AST, context: Context) -> Results:
    """Floor division rounded to the nearest instead."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv):
        yield ast.Call(ast.Name("round", ast.Load()), [with_field(node, op=ast.Div())], [])


def _is_text(node: ast.AST) -> bool:
    """True if an expression is plainly a string or a display, which minus does not know."""
    match node:
        case ast.Constant(value=value):
            return isinstance(value, str | bytes)
        case ast.List() | ast.Tuple() | ast.ListComp() | ast.JoinedStr():
            return True
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _is_text(left) or _is_text(right)
    return False


def _with(items: list[Any], index: int, *new: Any) -> list[Any]:
    """A list with the item at an index replaced by others, or none."""
    return [*items[:index], *new, *items[index + 1 :]]


# -------------------------------------------------------------------------------------- conditions


def boolean_operator(node: ast.AST, context: Context) -> Results:
    """`and` and `or` exchanged."""
    if isinstance(node, ast.BoolOp):
        yield with_field(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())


def operand_dropped(node: ast.AST, context: Context) -> Results:
    """One of the conditions joined by `and` or `or` left out."""
    if isinstance(node, ast.BoolOp):
        for index in reversed(range(len(node.values))):
            rest = _with(node.values, index)
            yield with_field(node, values=rest) if len(rest) > 1 else rest[0]


def not_dropped(node: ast.AST, context: Context) -> Results:
    """A `not` left out."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand


def condition_negated(node: ast.AST, context: Context) -> Results:
    """The condition of an `if`, a `while` or a comprehension turned into its opposite."""
    owner, field, _ = context.slots.get(node, (node, "", None))
    asks = field == "test" and isinstance(owner, ast.If | ast.While)
    # Plain comparisons are for `comparison_negated`: hardly anybody writes `not a < b`.
    plain = isinstance(node, ast.Compare) and len(node.ops) == 1
    obvious = isinstance(node, ast.Constant | ast.UnaryOp)
    if isinstance(node, ast.expr) and (asks or field == "ifs") and not plain and not obvious:
        yield ast.UnaryOp(ast.Not(), node)


def branches_swapped(node: ast.AST, context: Context) -> Results:
    """The values of a conditional expression exchanged."""
    if isinstance(node, ast.IfExp):
        yield with_field(node, body=node.orelse, orelse=node.body)


def while_once(node: ast.AST, context: Context) -> Results:
    """A `while` that is an `if`."""
    # With a `break` in it an `if` would not parse, or would end the loop around it.
    if isinstance(node, ast.While) and not node.orelse and not _jumps(node.body):
        yield ast.If(node.test, node.body, [])


def _jumps(body: list[ast.stmt]) -> bool:
    """True if statements break or continue the loop that they stand in."""
    for statement in body:
        if isinstance(statement, ast.Break | ast.Continue):
            return True
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            inside = getattr(statement, field, [])
            if field == "body" and isinstance(statement, (*LOOPS, ast.FunctionDef, ast.ClassDef)):
                continue
            if inside and _jumps(inside):
                return True
    return False


# --------------------------------------------------------------------------------------- constants


def initial_value(node: ast.AST, context: Context) -> Results:
    """Another value to start a variable with."""
    owner, field, _ = context.slots.get(node, (node, "", None))
    if field == "value" and isinstance(owner, ast.Assign) and _is_name(owner.targets[0]):
        match node:
            case ast.Constant(value=0 | 1 as value) if type(value) is int:
                yield ast.Constant(1 - value)
            case ast.Constant(value=None):
                yield ast.Constant(0)
            case ast.Subscript(slice=ast.Constant(value=0)):
                yield ast.Constant(0)
            case _ if _is_infinite(node):
                yield ast.Constant(0)


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name)


def _is_infinite(node: ast.AST) -> bool:
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _is_infinite(operand)
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=str())]):
            return True
        case ast.Attribute(value=ast.Name(id="math"), attr="inf"):
            return True
    return False


def integer_off_by_one(node: ast.AST, context: Context) -> Results:
    """An integer one larger or one smaller.

    Left out are results that nobody writes (`+ 0`, `// 1`), and those that another operator on the
    comparison gives as well (`> 0` and `>= 1`).
    """
    if not (isinstance(node, ast.Constant) and type(node.value) is int):
        return
    parent = context.parent(node)
    odd: tuple[int, ...] = ()
    if isinstance(parent, ast.BinOp | ast.AugAssign | ast.UnaryOp):
        odd = (-1, 0) if isinstance(parent.op, ast.Add | ast.Sub | ast.USub) else (-1, 0, 1)
    if isinstance(parent, ast.Compare) and parent.comparators == [node]:
        odd = (node.value + _STEP.get(type(parent.ops[0]), 0),)
    for value in (node.value + 1, node.value - 1):
        if value not in odd:
            yield ast.Constant(value) if value >= 0 else ast.UnaryOp(ast.USub(), ast.Constant(1))


_STEP = {ast.Gt: -1, ast.LtE: -1, ast.GtE: 1, ast.Lt: 1}


def increment_dropped(node: ast.AST, context: Context) -> Results:
    """A `+ 1` or `- 1` left out: `n + 1` becomes `n`."""
    match node:
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=ast.Constant(value=1)):
            yield left


def boolean_flipped(node: ast.AST, context: Context) -> Results:
    """`True` and `False` exchanged."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)


def float_changed(node: ast.AST, context: Context) -> Results:
    """Another floating-point number."""
    if isinstance(node, ast.Constant) and isinstance(node.value, float):
        yield ast.Constant(node.value + 1.0 if node.value < 1.0 else node.value - 1.0)


def string_changed(node: ast.AST, context: Context) -> Results:
    """A string without its last character, or a space where there was none."""
    if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        return
    owner, field, _ = context.slots[node]
    text = context.source.text(node)
    is_argument = isinstance(owner, ast.Call) and called(owner) in ("float", "open", "getattr")
    # A key that is in no dictionary raises at once.
    is_key = field == "slice" or (isinstance(owner, ast.Dict) and field == "keys")
    if is_argument or is_key or text[1:-1] != node.value:
        return
    if node.value == "":
        yield ast.Constant(" ")
    elif node.value == " " or 2 <= len(node.value) <= 40:
        yield ast.Constant(node.value[:-1])


def called(node: ast.AST) -> str | None:
    """The name of the function or method that a node calls."""
    match node:
        case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
            return name
    return None
