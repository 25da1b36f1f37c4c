"""Operators on ranges, slices and indices."""

import ast
from collections.abc import Iterator

from nip_fn.code.mutation.context import Context
from nip_fn.code.mutation.expressions import Results
from nip_fn.code.mutation.rewrite import with_field


def nudged(node: ast.expr) -> Iterator[ast.expr]:
    """An expression one less and one more, as one would write it: `n + 1` becomes `n`."""
    match node:
        case ast.Constant(value=value) if type(value) is int:
            if value:
                yield ast.Constant(value - 1)
            yield ast.Constant(value + 1)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)) if type(value) is int:
            yield ast.UnaryOp(ast.USub(), ast.Constant(value + 1))
            yield ast.UnaryOp(ast.USub(), ast.Constant(value - 1)) if value > 1 else ast.Constant(0)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=ast.Constant(value=1)):
            yield left
            yield with_field(node, right=ast.Constant(2))
        case ast.BinOp(op=ast.Add() | ast.Sub(), right=ast.Constant(value=int() as value)):
            yield with_field(node, right=ast.Constant(value - 1))
            yield with_field(node, right=ast.Constant(value + 1))
        case _:
            yield ast.BinOp(node, ast.Sub(), ast.Constant(1))
            yield ast.BinOp(node, ast.Add(), ast.Constant(1))


def range_bound(node: ast.AST, context: Context) -> Results:
    """A range that begins or ends one earlier or later, or has no step."""
    match node:
        case ast.Call(func=ast.Name(id="range"), args=[stop], keywords=[]):
            for bound in nudged(stop):
                yield with_field(node, args=[bound])
            yield with_field(node, args=[ast.Constant(1), stop])
        case ast.Call(func=ast.Name(id="range"), args=[start, stop, *step], keywords=[]):
            for bound in nudged(start):
                if step or not _is_constant(bound, 0):  # that one is written `range(stop)`
                    yield with_field(node, args=[bound, stop, *step])
            for bound in nudged(stop):
                yield with_field(node, args=[start, bound, *step])
            if step:
                yield with_field(node, args=[start, stop])
            elif not _is_constant(start, 0):
                yield with_field(node, args=[stop])


def _is_constant(node: ast.AST | None, value: int) -> bool:
    return isinstance(node, ast.Constant) and node.value == value


def slice_bound(node: ast.AST, context: Context) -> Results:
    """A slice that begins or ends one earlier or later."""
    if isinstance(node, ast.Slice):
        if node.lower is not None:
            for bound in nudged(node.lower):
                if not _is_constant(bound, 0):
                    yield with_field(node, lower=bound)
        if node.upper is not None:
            for bound in nudged(node.upper):
                if not _is_constant(bound, 0):
                    yield with_field(node, upper=bound)


def slice_bound_dropped(node: ast.AST, context: Context) -> Results:
    """A slice without its beginning, its end or its step."""
    if isinstance(node, ast.Slice):
        if node.lower is not None and not _is_constant(node.lower, 0):
            yield with_field(node, lower=None)
        if node.upper is not None:
            yield with_field(node, upper=None)
        if node.step is not None and (node.lower is not None or node.upper is not None):
            yield with_field(node, step=None)


def reversal_dropped(node: ast.AST, context: Context) -> Results:
    """`x[::-1]`, `reversed(x)` or `x.reverse()` left out: `x`."""
    match node:
        case ast.Subscript(
            value=value,
            slice=ast.Slice(
                lower=None,
                upper=None,
                step=ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=1)),
            ),
        ):
            yield value
        case ast.Call(func=ast.Name(id="reversed"), args=[value]):
            yield value


def index_shifted(node: ast.AST, context: Context) -> Results:
    """The item before, or after; the last instead of the first."""
    match node:
        case ast.Subscript(slice=ast.Constant(value=0)):
            yield with_field(node, slice=ast.UnaryOp(ast.USub(), ast.Constant(1)))
            yield with_field(node, slice=ast.Constant(1))
        case ast.Subscript(
            slice=ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=1)) as index
        ):
            yield from (with_field(node, slice=shifted) for shifted in nudged(index))
        case ast.Subscript(slice=index) if context.is_number(index):
            yield from (with_field(node, slice=shifted) for shifted in nudged(index))
