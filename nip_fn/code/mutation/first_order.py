"""All programs that differ from a program by one small error."""

import ast
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from nip_fn.code.fingerprint import parsed, tree_fingerprint
from nip_fn.code.mutation import calls, expressions, sequences, statements, variables
from nip_fn.code.mutation.context import SIMPLE, Context, Edit, sites
from nip_fn.code.mutation.rewrite import readings
from nip_fn.code.mutation.source import Patch, apply

Operator = Callable[[ast.AST, Context], Iterator[ast.AST | Edit]]

# The more telling name comes first: of two operators that make the same mutant, the first counts.
OPERATORS: dict[str, Operator] = {
    operator.__name__: operator
    for operator in (
        sequences.range_bound,
        sequences.slice_bound,
        sequences.slice_bound_dropped,
        sequences.reversal_dropped,
        sequences.index_shifted,
        expressions.initial_value,
        variables.mutable_default,
        calls.append_at_front,
        calls.pop_end,
        calls.sort_reversed,
        calls.key_dropped,
        calls.default_dropped,
        calls.copy_dropped,
        calls.method_dropped,
        calls.call_dropped,
        calls.function_swapped,
        calls.method_swapped,
        calls.arguments_swapped,
        expressions.comparison_boundary,
        expressions.comparison_direction,
        expressions.comparison_negated,
        expressions.comparison_dropped,
        expressions.arithmetic_operator,
        expressions.augmented_operator,
        expressions.operands_swapped,
        expressions.negation_dropped,
        expressions.division_rounded,
        expressions.boolean_operator,
        expressions.operand_dropped,
        expressions.not_dropped,
        expressions.condition_negated,
        expressions.branches_swapped,
        expressions.while_once,
        expressions.increment_dropped,
        expressions.integer_off_by_one,
        expressions.boolean_flipped,
        expressions.float_changed,
        expressions.string_changed,
        statements.guard_dropped,
        statements.statement_dropped,
        statements.update_dropped,
        statements.jump_swapped,
        statements.else_dropped,
        statements.elif_to_if,
        statements.indented,
        statements.dedented,
        statements.statements_swapped,
        statements.assignment_split,
        variables.wrong_variable,
    )
}


class Mutant(msgspec.Struct, frozen=True):
    """A program with one error, and where it is."""

    code: str
    operator: str  # its name in OPERATORS
    line: int  # the first that changed, from 1
    before: str  # the text there
    after: str  # and what stands there now


def mutants(code: str) -> tuple[Mutant, ...]:
    """Every program that one operator makes of the code at one place, in the order of the places.

    Only what changes is written anew: comments and layout stay.  No two have the same fingerprint,
    and none that of the code.  Raises SyntaxError for code that does not parse (see `parsed`).

    >>> [mutant.after for mutant in mutants("def f(a): return a < 3")][:3]
    ['a <= 3', 'a > 3', 'a >= 3']
    """
    tree = parsed(code)
    seen = {tree_fingerprint(tree)}
    context = Context(code, tree)
    mutants = []
    for node in list(sites(tree)):
        for name, operator in OPERATORS.items():
            # A list, because `_written` changes the tree for a moment, and an operator must not
            # look at it then.
            for result in list(operator(node, context)):
                edit = result if isinstance(result, Edit) else _put(node, result, context)
                written = _written(edit, context)
                if written is None:
                    continue
                mutated, patches, print_ = written
                # Two operators can make the same program, and one mutant can equal another but for
                # names.
                if print_ not in seen:
                    seen.add(print_)
                    mutants.append(_mutant(name, node, mutated, patches, context))
    return tuple(mutants)


def _put(node: ast.AST, new: ast.AST, context: Context) -> Edit:
    """The edit that puts a new node where one stands."""
    owner, field, index = context.slots[node]
    value: Any = new
    if index is not None:
        value = list(getattr(owner, field))
        value[index] = new
    return Edit(((owner, field, value),), readings(context.source, node, new))


def _written(edit: Edit, context: Context) -> tuple[str, tuple[Patch, ...], str] | None:
    """The text of an edit, its patches and its fingerprint; None if no reading parses to the tree
    that the edit makes."""
    target: list[Any] | None = None
    for patches in edit.readings:
        text = apply(context.source.code, patches)
        if text is None:
            continue
        try:
            tree = parsed(text)
            # The tree that is meant is only needed if some reading parses at all.
            if target is None:
                target = _shape_after(edit, context.tree)
            # Parsing decides whether a reading says what was meant.  Rules for when parentheses are
            # needed would be a second grammar of Python, with faults of its own.
            if shape(tree) == target:
                return text, patches, tree_fingerprint(tree)
        except SyntaxError:
            continue
    return None


def _shape_after(edit: Edit, tree: ast.Module) -> list[Any]:
    """The shape of the tree with the changes made; the tree is as before afterwards."""
    before = [(owner, field, getattr(owner, field)) for owner, field, _ in edit.changes]
    try:
        for owner, field, value in edit.changes:
            setattr(owner, field, value)
        return shape(tree)
    finally:
        for owner, field, value in before:
            setattr(owner, field, value)


def shape(tree: ast.AST) -> list[Any]:
    """Everything that a tree says, without the positions of its nodes, as a flat list.

    `a and (b and c)` has the shape of `a and b and c`, which does the same.
    """
    out: list[Any] = []
    rest: list[Any] = [tree]
    while rest:
        item = rest.pop()
        if isinstance(item, ast.AST):
            node_type = item.__class__
            out.append(node_type)
            if node_type is ast.Constant:
                out.append(f"{item.value.__class__.__name__} {item.value!r}")  # type: ignore[attr-defined]
                continue
            for field in node_type._fields:
                value = getattr(item, field, None)
                if node_type is ast.BoolOp and field == "values":
                    value = list(_joined(item))
                if value.__class__ is list:
                    out.append(len(value))
                    rest += value
                else:
                    rest.append(value)
        else:
            out.append(item)
    return out


def _joined(node: Any) -> Iterator[ast.expr]:
    for value in node.values:
        if isinstance(value, ast.BoolOp) and type(value.op) is type(node.op):
            yield from _joined(value)
        else:
            yield value


def _mutant(
    name: str, node: ast.AST, mutated: str, patches: tuple[Patch, ...], context: Context
) -> Mutant:
    """The record of a mutant: the text of the node, where it is all inside, or of the patches."""
    code = context.source.code
    start, end = min(patch.start for patch in patches), max(patch.end for patch in patches)
    line = context.source.line_of(start)
    if isinstance(node, (ast.expr, *SIMPLE)):
        span = context.source.span(node)
        start, end = min(start, span[0]), max(end, span[1])
    tail = len(code) - end
    return Mutant(mutated, name, line, code[start:end], mutated[start : len(mutated) - tail])
