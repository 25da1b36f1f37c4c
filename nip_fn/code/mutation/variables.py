"""Operators on variables and defaults."""

import ast

from nip_fn.code.mutation.context import Context, Function, names
from nip_fn.code.mutation.expressions import Results

MOST = 2  # wrong variables tried at a place

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def wrong_variable(node: ast.AST, context: Context) -> Results:
    """Another variable of the function, of those that are used alike if there are any."""
    if not (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)):
        return
    parent, field, _ = context.slots[node]
    first, uses = context.variables(node)
    inner = _inner_names(node, context)
    if node.id not in first and node.id not in inner:
        return
    if isinstance(parent, ast.Call) and field == "func":
        return
    earlier = [name for name, line in first.items() if line < node.lineno]
    node_uses = uses.get(node.id, set())
    ranked = sorted(
        (
            -len(node_uses & uses.get(name, set())),
            len(node_uses ^ uses.get(name, set())),
            index,
            name,
        )
        for index, name in enumerate(dict.fromkeys((*inner, *earlier)))
        if name != node.id and not _clash(node_uses, uses.get(name, set()))
    )
    alike = [name for shared, *_, name in ranked if shared]
    for name in alike[:MOST] or [name for *_, name in ranked[:1]]:
        yield ast.Name(name, node.ctx)


def _clash(uses: set[str], substitute_uses: set[str]) -> bool:
    """True if variables are used so differently that one for the other fails at once."""
    numbers = "number" in uses, "number" in substitute_uses
    holders = bool(uses & _HOLDING), bool(substitute_uses & _HOLDING)
    return (
        "function" in substitute_uses or (numbers[0] and holders[1]) or (numbers[1] and holders[0])
    )


_HOLDING = {"sequence", "object"}


def _inner_names(node: ast.AST, context: Context) -> list[str]:
    """The variables of the comprehensions and lambdas around a node."""
    inner: list[str] = []
    below = node
    for above in context.ancestors(node):
        if isinstance(above, ast.Lambda):
            inner += [
                parameter.arg
                for parameter in ast.walk(above.args)
                if isinstance(parameter, ast.arg)
            ]
        if isinstance(above, _COMPREHENSIONS) and below not in above.generators:
            for part in above.generators:
                inner += names(part.target, ast.Store)
        if isinstance(above, ast.comprehension) and below in above.ifs:
            inner += names(above.target, ast.Store)
        if isinstance(above, ast.stmt):
            break
        below = above
    return inner


def mutable_default(node: ast.AST, context: Context) -> Results:
    """A default that all calls share, where `None` stood for a new list, set or dict."""
    if not (isinstance(node, ast.Constant) and node.value is None):
        return
    arguments = context.parent(node)
    if not isinstance(arguments, ast.arguments):
        return
    function = context.parent(arguments)
    if not isinstance(function, Function):
        return
    taken = [*arguments.posonlyargs, *arguments.args]
    named = dict(zip(reversed(arguments.defaults), reversed(taken), strict=False))
    named.update(zip(arguments.kw_defaults, arguments.kwonlyargs, strict=True))  # type: ignore[arg-type]
    value = _made_anew(function, named[node].arg)
    if value is not None:
        yield value


def _made_anew(function: Function, name: str) -> ast.expr | None:
    """The value that `if name is None: name = ...` makes, if it is empty and mutable."""
    for statement in function.body:
        match statement:
            case ast.If(
                test=ast.Compare(left=ast.Name(id=tested), ops=[ast.Is()]),
                body=[ast.Assign(targets=[ast.Name(id=target)], value=value)],
            ) if tested == target == name:
                if ast.unparse(value) in ("[]", "{}", "set()", "list()", "dict()"):
                    return value
    return None
