"""Operators that leave out, move or split statements."""

import ast

from nip_fn.code.mutation.context import (
    JUMPS,
    LOOPS,
    SIMPLE,
    Changes,
    Context,
    Edit,
    StatementBlock,
    names,
)
from nip_fn.code.mutation.expressions import Results
from nip_fn.code.mutation.source import Patch, SourceText


def guard_dropped(node: ast.AST, context: Context) -> Results:
    """An `if` that only returns, raises, breaks or continues left out."""
    match node:
        case ast.If(body=[only], orelse=[]) if isinstance(only, JUMPS) and not _elif(node, context):
            yield from _removed(node, context)


def statement_dropped(node: ast.AST, context: Context) -> Results:
    """A call, an augmented assignment, a `break` or a `continue` left out."""
    match node:
        case ast.Expr(value=ast.Call() | ast.Yield() | ast.YieldFrom() | ast.Await()):
            yield from _removed(node, context)
        case ast.AugAssign() | ast.Break() | ast.Continue():
            yield from _removed(node, context)


def update_dropped(node: ast.AST, context: Context) -> Results:
    """An assignment to a variable that has a value already left out."""
    if isinstance(node, ast.Assign):
        first = context.variables(node).first
        stored = [name for target in node.targets for name in names(target, ast.Store)]
        if all(first.get(name, 0) < node.lineno for name in stored):
            yield from _removed(node, context)


def jump_swapped(node: ast.AST, context: Context) -> Results:
    """`break` and `continue` exchanged."""
    if isinstance(node, ast.Break):
        yield ast.Continue()
    if isinstance(node, ast.Continue):
        yield ast.Break()


def else_dropped(node: ast.AST, context: Context) -> Results:
    """The branch of an `else` or `elif` left out."""
    if isinstance(node, (ast.If, *LOOPS)) and node.orelse:
        source, first = context.source, node.orelse[0]
        start, end = source.span(first)[0], source.span(node)[1]
        if not (isinstance(first, ast.If) and _elif(first, context)):
            token = source.token(source.span(node.body[-1])[1], start)
            start = start if token is None else token[0]
        patch = Patch(source.line_start(start), source.line_end(end), "")
        yield Edit(((node, "orelse", []),), ((patch,),))


def elif_to_if(node: ast.AST, context: Context) -> Results:
    """An `elif` that is an `if` of its own."""
    if not (isinstance(node, ast.If) and _elif(node, context)):
        return
    head: ast.AST = context.parent(node)
    parent = head
    while isinstance(head, ast.If) and _elif(head, context):
        head = context.parent(head)
    block = context.block(head)
    start = context.source.span(node)[0]
    body = [*block.body[: block.place + 1], node, *block.body[block.place + 1 :]]
    changes: Changes = ((parent, "orelse", []), (block.owner, block.field, body))
    yield Edit(changes, ((Patch(start, start + len("elif"), "if"),),))


def indented(node: ast.AST, context: Context) -> Results:
    """A statement that stands in the block above it, so that a loop returns too early."""
    if not isinstance(node, SIMPLE):
        return
    block = context.block(node)
    above = block.before
    if not isinstance(above, (*LOOPS, ast.If, ast.With)) or getattr(above, "orelse", []):
        return
    last = above.body[-1]
    if not isinstance(last, JUMPS):
        changes = ((block.owner, block.field, _but(block)), (above, "body", [*above.body, node]))
        yield from _moved(context.source, node, last, changes)


def dedented(node: ast.AST, context: Context) -> Results:
    """The last statement of a block that stands after the block."""
    if not isinstance(node, SIMPLE):
        return
    block = context.block(node)
    around = block.owner
    if not isinstance(around, (*LOOPS, ast.If, ast.With)) or _elif(around, context):
        return
    closing = block.field == "orelse" or not getattr(around, "orelse", [])
    # Outside of its loop a `break` is no Python, or ends another loop.
    leaves = isinstance(around, LOOPS) and isinstance(node, ast.Break | ast.Continue)
    if block.after is None and len(block.body) > 1 and closing and not leaves:
        outer = context.block(around)
        body = [*outer.body[: outer.place + 1], node, *outer.body[outer.place + 1 :]]
        changes = ((around, block.field, _but(block)), (outer.owner, outer.field, body))
        yield from _moved(context.source, node, around, changes)


def statements_swapped(node: ast.AST, context: Context) -> Results:
    """Two statements, of which one depends on the other, exchanged."""
    kinds = (ast.Assign, ast.AugAssign, ast.Expr)
    if not isinstance(node, kinds):
        return
    block = context.block(node)
    after = block.after
    if not isinstance(after, kinds) or not _depend(node, after, context):
        return
    body = [*block.body[: block.place], after, node, *block.body[block.place + 2 :]]
    source = context.source
    first = Patch(*source.span(node), source.text(after))
    second = Patch(*source.span(after), source.text(node))
    yield Edit(((block.owner, block.field, body),), ((first, second),))


def assignment_split(node: ast.AST, context: Context) -> Results:
    """`a, b = b, a` done one after the other: `a = b`, then `b = a`."""
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
            pass
        case _:
            return
    if len(targets) != len(values) or any(
        isinstance(element, ast.Starred) for element in (*targets, *values)
    ):
        return
    later = [name for value in values[1:] for name in names(value, ast.Load)]
    # Without a dependence between them the assignments do the same one after the other.
    if set(later).isdisjoint(_changed(targets[0])):
        return
    block, source = context.block(node), context.source
    assignments = [
        ast.Assign([target], value) for target, value in zip(targets, values, strict=True)
    ]
    indent = source.indent(node)
    joint = "; " if indent is None else source.newline + indent
    text = joint.join(
        f"{source.text(target)} = {source.text(value)}"
        for target, value in zip(targets, values, strict=True)
    )
    body = [*block.body[: block.place], *assignments, *block.body[block.place + 1 :]]
    yield Edit(((block.owner, block.field, body),), ((Patch(*source.span(node), text),),))


# ------------------------------------------------------------------------------------------- text


def _elif(node: ast.AST, context: Context) -> bool:
    return isinstance(node, ast.If) and context.source.text(node).startswith("elif")


def _but(block: StatementBlock) -> list[ast.stmt]:
    """The statements of a block without the one at its place."""
    return [*block.body[: block.place], *block.body[block.place + 1 :]]


def _removed(node: ast.AST, context: Context) -> Results:
    """A statement left out, with its lines if it has them alone; `pass` for the last of a block."""
    block, source = context.block(node), context.source
    start, end = source.span(node)
    rest = _but(block)
    first_line, last_line = source.line_start(start), source.line_end(end)
    if not rest:
        rest, patch = [ast.Pass()], Patch(start, end, "pass")
    elif block.after is not None and source.span(block.after)[0] < last_line:
        patch = Patch(start, source.span(block.after)[0], "")
    elif block.before is not None and source.span(block.before)[1] > first_line:
        patch = Patch(source.span(block.before)[1], end, "")
    else:
        patch = Patch(first_line, last_line, "")
    yield Edit(((block.owner, block.field, rest),), ((patch,),))


def _moved(source: SourceText, node: ast.AST, model: ast.AST, changes: Changes) -> Results:
    """A statement written as far to the right as another."""
    old, new = source.indent(node), source.indent(model)
    if old is not None and new is not None:
        start = source.span(node)[0]
        yield Edit(changes, ((Patch(start - len(old), start, new),),))


def _depend(before: ast.stmt, after: ast.stmt, context: Context) -> bool:
    """True if the order of two statements matters, and both can be run in the other order."""
    changed, changed_after = _changed(before), _changed(after)
    used, used_after = names(before, ast.Load), names(after, ast.Load)
    first = context.variables(before).first
    if any(first.get(name) == before.lineno for name in changed & set(used_after)):
        return False
    return bool(changed & {*used_after, *changed_after} or changed_after & set(used))


def _changed(node: ast.AST) -> set[str]:
    """The variables whose value, or whose value's parts, a statement or target changes."""
    variables = set(names(node, ast.Store))
    for part in ast.walk(node):
        match part:
            case ast.Subscript(ctx=ast.Store()) | ast.Attribute(ctx=ast.Store()):
                variables.add(_base(part))
            case ast.Call(func=ast.Attribute(value=value)) if isinstance(node, ast.Expr):
                variables.add(_base(value))
    return variables - {""}


def _base(node: ast.AST) -> str:
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
