"""The program around a node, as an operator may ask about it."""

import ast
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from nip_fn.code.fingerprint import is_guard
from nip_fn.code.mutation.source import Patch, SourceText

Function = ast.FunctionDef | ast.AsyncFunctionDef
JUMPS = (ast.Return, ast.Raise, ast.Break, ast.Continue)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.Return, ast.Delete, ast.Break, ast.Continue)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_MARKS = (ast.expr_context, ast.operator, ast.cmpop, ast.boolop, ast.unaryop, ast.pattern, ast.arg)
_BARREN = (
    *(ast.JoinedStr, ast.Assert, ast.Raise, ast.Global, ast.Nonlocal),
    *(ast.Import, ast.ImportFrom, *_MARKS),
)
_UNSEEN = {"annotation", "returns", "decorator_list", "type_params", "bases", "type_comment"}


Changes = tuple[tuple[ast.AST, str, Any], ...]  # of a node, its field becomes the value


class Edit(NamedTuple):
    """A change of the tree, and ways to write it; the first that parses to the tree counts."""

    changes: Changes
    readings: Iterable[tuple[Patch, ...]]


class ExpressionSlot(NamedTuple):
    """The position of a node: in a field of its parent, at a place of the list if it is one."""

    owner: ast.AST
    field: str
    place: int | None


class StatementBlock(NamedTuple):
    """A block of statements, and the place of one of them in it."""

    owner: ast.AST
    field: str
    body: list[ast.stmt]
    place: int

    @property
    def before(self) -> ast.stmt | None:
        """The statement before."""
        return self.body[self.place - 1] if self.place else None

    @property
    def after(self) -> ast.stmt | None:
        """The statement after."""
        return self.body[self.place + 1] if self.place + 1 < len(self.body) else None


class Variables(NamedTuple):
    """The variables of a function, by name: the line of the first binding, and the uses."""

    first: dict[str, int]
    uses: dict[str, set[str]]


class Context:
    """A program and what stands where in it."""

    def __init__(self, code: str, tree: ast.Module) -> None:
        """Take the program apart."""
        self.source = SourceText(code)
        self.tree = tree
        self.slots: dict[ast.AST, ExpressionSlot] = {}
        for owner in ast.walk(tree):
            for field, value in ast.iter_fields(owner):
                if isinstance(value, list):
                    for index, item in enumerate(value):
                        self.slots[item] = ExpressionSlot(owner, field, index)
                elif isinstance(value, ast.AST):
                    self.slots[value] = ExpressionSlot(owner, field, None)
        self._variables: dict[ast.AST, Variables] = {}

    def parent(self, node: ast.AST) -> ast.AST:
        """The node above; the module is above itself."""
        return self.slots[node].owner if node in self.slots else node

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes above, the nearest first."""
        while node in self.slots:
            node = self.slots[node].owner
            yield node

    def function(self, node: ast.AST) -> ast.AST:
        """The function around a node, or the module."""
        scopes = (*_SCOPES, ast.Module)
        return next(
            ancestor
            for ancestor in (*self.ancestors(node), self.tree)
            if isinstance(ancestor, scopes)
        )

    def variables(self, node: ast.AST) -> Variables:
        """The variables of the function around a node."""
        function = self.function(node)
        if function not in self._variables:
            self._variables[function] = _variables(function)
        return self._variables[function]

    def is_number(self, node: ast.AST) -> bool:
        """True if an expression seems to be a whole number."""
        match node:
            case ast.Constant(value=value):
                return type(value) is int
            case ast.Name(id=name):
                return "number" in self.variables(node).uses.get(name, ())
            case ast.BinOp(left=left, right=right):
                return self.is_number(left) or self.is_number(right)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self.is_number(operand)
            case ast.Call(func=ast.Name(id="len")):
                return True
        return False

    def block(self, statement: ast.AST) -> StatementBlock:
        """The statements among which one stands."""
        owner, field, index = self.slots[statement]
        assert index is not None
        return StatementBlock(owner, field, getattr(owner, field), index)


def sites(tree: ast.Module) -> Iterator[ast.AST]:
    """The nodes that a mutant may change, in the order of the source.

    Left out: docstrings, annotations, decorators, imports, f-strings, patterns, assertions, what is
    raised, what cannot be reached, and what `if __name__ == "__main__"` guards.
    """
    for statement in _live(tree.body):
        if not is_guard(statement):
            yield from _below(statement)


def _below(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for field, value in ast.iter_fields(node):
        if field in _UNSEEN or (field == "target" and isinstance(node, ast.AnnAssign)):
            continue
        for part in _live(value) if isinstance(value, list) else [value]:
            if isinstance(part, ast.Raise):
                yield part
            elif isinstance(part, ast.AST) and not isinstance(part, _BARREN):
                yield from _below(part)


def _live(row: list[Any]) -> Iterator[Any]:
    """The parts of a row up to the first statement that goes elsewhere."""
    for part in row:
        if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)):
            yield part
        # What follows a jump is never run, so a change there would be no error at all.
        if isinstance(part, JUMPS):
            return


# -------------------------------------------------------------------------------------- variables


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, without the bodies of functions and classes inside it."""
    queue: list[ast.AST] = [function]
    for node in queue:
        yield node
        if node is function or not isinstance(node, _SCOPES):
            queue += ast.iter_child_nodes(node)


def names(node: ast.AST, context: type[ast.expr_context]) -> list[str]:
    """The names in a node that are loaded, or stored."""
    return [
        name.id
        for name in ast.walk(node)
        if isinstance(name, ast.Name) and isinstance(name.ctx, context)
    ]


def _variables(function: ast.AST) -> Variables:
    first: dict[str, int] = {}
    uses: dict[str, set[str]] = {}
    hidden = set()
    for node in own_nodes(function):
        if isinstance(node, ast.Global | ast.Nonlocal):
            # A name that belongs to another scope may hold anything, so it is not offered in place
            # of a local one.
            hidden.update(node.names)
        if isinstance(node, ast.comprehension):
            hidden.update(names(node.target, ast.Store))
        if isinstance(node, ast.Lambda):
            hidden.update(
                parameter.arg for parameter in ast.walk(node.args) if isinstance(parameter, ast.arg)
            )
        for name, line in _bound(node):
            first[name] = min(line, first.get(name, line))
        for name, use in _uses(node):
            uses.setdefault(name, set()).add(use)
    ordered = sorted((line, name) for name, line in first.items() if name not in hidden)
    return Variables({name: line for line, name in ordered}, uses)


def _bound(node: ast.AST) -> Iterator[tuple[str, int]]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id, node.lineno
    if isinstance(node, ast.arg) and node.arg not in ("self", "cls"):
        yield node.arg, 0


def _uses(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Pairs of (name, use) for the parts of a node that are plain names."""
    match node:
        case ast.For(target=target, iter=source) | ast.comprehension(target=target, iter=source):
            yield from _iterated(target, source)
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            yield from ((name, use) for use in _kind(value))
        case ast.AugAssign(target=ast.Name(id=name), value=ast.Constant(value=int())):
            yield name, "number"
        case ast.AugAssign(target=ast.Name(id=name), value=ast.Name(id=other)):
            yield from ((name, "added"), (other, "added"))
        case ast.BinOp(left=left, op=ast.Add(), right=right) if not _is_number(right):
            yield from (
                (operand.id, "added") for operand in (left, right) if isinstance(operand, ast.Name)
            )
        case ast.BinOp(left=left, right=right):
            yield from (
                (operand.id, "number") for operand in (left, right) if isinstance(operand, ast.Name)
            )
        case ast.Compare(left=left, comparators=[right]):
            yield from _compared(left, node.ops[0], right)
        case ast.Subscript(value=ast.Name(id=name)):
            yield name, "sequence"
        case ast.Call(func=ast.Name(id=function), args=args):
            yield function, "function"
            use = _PARAMETERS.get(function)
            yield from (
                (operand.id, use) for operand in args if use and isinstance(operand, ast.Name)
            )
        case ast.Attribute(value=ast.Name(id=name), attr=attr):
            yield from ((name, attr), (name, "object"))


_PARAMETERS = {
    "range": "number", "abs": "number", "len": "sequence", "sorted": "sequence",
    "sum": "sequence", "list": "sequence", "set": "sequence", "enumerate": "sequence",
    "zip": "sequence", "reversed": "sequence",
}  # fmt: skip


def _iterated(target: ast.expr, source: ast.expr) -> Iterator[tuple[str, str]]:
    stored = names(target, ast.Store)
    match source:
        case ast.Call(func=ast.Name(id="range")):
            yield from ((name, "number") for name in stored)
        case ast.Call(func=ast.Name(id="enumerate")):
            yield stored[0], "number"
        case ast.Name(id=name):
            yield name, "sequence"
            yield from ((item, "item") for item in stored)


def _compared(left: ast.expr, op: ast.cmpop, right: ast.expr) -> Iterator[tuple[str, str]]:
    if isinstance(op, ast.In | ast.NotIn):
        if isinstance(right, ast.Name):
            yield right.id, "sequence"
        return
    number = _is_number(left) or _is_number(right)
    for operand in (left, right):
        if isinstance(operand, ast.Name):
            yield operand.id, "number" if number else "compared"


def _is_number(node: ast.expr) -> bool:
    return "number" in _kind(node)


def _kind(value: ast.expr) -> tuple[str, ...]:
    """The kind of a value, as far as its form tells it: a number, a sequence, or ()."""
    match value:
        case ast.Constant(value=number) if type(number) is int:
            return ("number",)
        case ast.Call(func=ast.Name(id="len" | "sum" | "int" | "abs")):
            return ("number",)
        case ast.BinOp(op=ast.Sub() | ast.FloorDiv() | ast.Mod()):
            return ("number",)
        case ast.BinOp(op=ast.Add(), right=right):
            return _kind(right)
        case ast.List() | ast.ListComp() | ast.Dict() | ast.Set() | ast.DictComp() | ast.SetComp():
            return ("sequence",)
        case ast.Call(func=ast.Name(id="list" | "sorted" | "set" | "dict")):
            return ("sequence",)
    return ()
