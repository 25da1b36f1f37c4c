"""Fingerprints of programs: equal for programs that differ only in names and layout.

A program is put down as the list of its syntax tree's nodes, in which each name that the program
binds is a number; the fingerprint is a hash of that list.

>>> fingerprint("def f(a):  # one\\n    return a + 1") == fingerprint("def g(b):\\n\\n  return b+1")
True
>>> fingerprint("def f(a): return a + 1") == fingerprint("def f(a): return a - 1")
False
"""

import ast
import re
import warnings
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Literal

SIZE = 16
# Depth of the deepest syntax tree that is looked at.  Python can manage a few times more, but how
# many times depends on how deep in calls it already is; what a program is must not.
DEEPEST_TREE = 120


def parsed(code: str) -> ast.Module:
    """The syntax tree of code, without warnings.

    Raises SyntaxError for all that is none: another Python, null bytes, lone surrogates, nesting
    that is too deep to parse.
    """
    try:
        # Python warns of dubious escapes in code that is none of ours, once for every solution of a
        # data set.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(code)
    except (ValueError, MemoryError, RecursionError) as error:
        raise SyntaxError(str(error) or "nested too deeply") from None


def fingerprint(code: str) -> str:
    """32 hexadecimal digits, the same for programs whose syntax trees differ only in the names that
    the programs bind themselves, in annotations, docstrings, `pass`, or in a closing
    `if __name__ == "__main__"` that only shows the functions off.

    Attributes, keywords of calls, builtins and constants count.  Text that is no Python of this
    version has a fingerprint of its own kind, of its words and its indentation.  Never raises.
    """
    try:
        return tree_fingerprint(parsed(code))
    except (SyntaxError, RecursionError):
        return _digest(_words(code), b"text")


def tree_fingerprint(tree: ast.Module) -> str:
    """The fingerprint of a syntax tree; SyntaxError for one deeper than `DEEPEST_TREE`."""
    walk = _Walk()
    walk.block(_without_guard(tree.body), walk.module, 0)
    return _digest(walk.resolved(), b"tree")


def _digest(words: list[str], person: bytes) -> str:
    text = "\0".join(words).encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=SIZE, person=person).hexdigest()


# ----------------------------------------------------------------------------------------- scopes

ScopeKind = Literal["module", "class", "function", "comprehension"]


class _Scope:
    """The names that a part of a program binds."""

    __slots__ = ("bound", "declared", "kind", "numbers", "outer", "words")

    def __init__(self, outer: "_Scope | None", kind: ScopeKind) -> None:
        self.outer = outer
        self.kind = kind
        self.bound: set[str] = set()
        self.declared: dict[str, _Scope | None] = {}  # global: the module; nonlocal: None
        self.numbers: dict[str, str] = {}  # of the names bound here
        self.words: dict[str, str] = {}  # for the names seen from here

    def bind(self, name: str) -> None:
        """Note that the name is bound here, or in the scope that it was declared to belong to."""
        if name not in self.declared:
            self.bound.add(name)
        elif (owner := self.declared[name]) is not None:
            owner.bound.add(name)


def _owner(scope: _Scope | None, name: str) -> _Scope | None:
    """The scope that binds the name seen from here; None for one that the program does not bind.

    A name of a class is an attribute as well, and for that not renamed.
    """
    candidate = scope
    while candidate is not None:
        if name in candidate.declared:
            candidate = candidate.declared[name] or candidate.outer
        elif name in candidate.bound and (candidate.kind != "class" or candidate is scope):
            return candidate if candidate.kind != "class" else None
        else:
            candidate = candidate.outer
    return None


# ------------------------------------------------------------------------------------------ trees


class _Walk:
    """Writes a tree down; names are filled in at the end, when all that is bound is known."""

    def __init__(self) -> None:
        self.out: list[str] = []
        self.names: list[tuple[int, _Scope, str]] = []
        self.module = _Scope(None, "module")

    def resolved(self) -> list[str]:
        """The words of the tree, with a number for each name that is bound."""
        out, count = self.out, 0
        for index, scope, name in self.names:
            word = scope.words.get(name)
            if word is None:
                owner = _owner(scope, name)
                if owner is None:
                    word = "." + name
                elif (number := owner.numbers.get(name)) is not None:
                    word = number
                else:
                    word = owner.numbers[name] = str(count)
                    count += 1
                scope.words[name] = word
            out[index] = word
        return out

    def bind(self, name: str, scope: _Scope) -> None:
        """Write down a name that is bound in the scope."""
        scope.bind(name)
        # Names are filled in later, because a function may use what is bound only below it.
        self.names.append((len(self.out), scope, name))
        self.out.append("")

    def block(self, body: list[ast.stmt], scope: _Scope, depth: int) -> None:
        """Write down statements, without those that do nothing."""
        self.out.append("{")
        for statement in body:
            node_type = statement.__class__
            # A docstring is a constant in a statement of its own, and so is any other text that
            # does nothing.
            if node_type is ast.Pass or (node_type is ast.Expr and _is_constant(statement)):
                continue
            self.node(statement, scope, depth)
        self.out.append("}")

    def node(self, node: Any, scope: _Scope, depth: int) -> None:
        """Write down a node and all below it."""
        node_type = node.__class__
        if node_type is ast.Name:
            if node.ctx.__class__ is not ast.Load:
                scope.bind(node.id)
            self.names.append((len(self.out), scope, node.id))
            self.out.append("")
        elif node_type is ast.Constant:
            # With its type, as 1, 1.0 and True are one value to Python.
            self.out.append(f"{node.value.__class__.__name__} {node.value!r}")
        # Counted here and not left to Python's recursion limit, which depends on the caller's
        # depth: a program must have one fingerprint wherever it is asked for.
        elif depth > DEEPEST_TREE:
            raise SyntaxError("nested too deeply")
        elif (special := _SPECIAL.get(node_type)) is not None:
            special(self, node, scope, depth + 1)
        else:
            self.fields(node, scope, depth + 1)

    def fields(self, node: Any, scope: _Scope, depth: int) -> None:
        """Write down a node that opens no scope."""
        out, write, node_type = self.out, self.node, node.__class__
        label, fields = _LAYOUTS.get(node_type) or _layout(node_type)
        out.append(label)
        for field in fields:
            value = getattr(node, field)
            if value.__class__ is not list:
                if isinstance(value, _LEAVES):
                    out.append(value.__class__.__name__)
                elif isinstance(value, ast.AST):
                    write(value, scope, depth)
                else:
                    out.append(repr(value))
            elif field in _BLOCKS:
                self.block(value, scope, depth)
            else:
                out.append("[")
                for item in value:
                    if isinstance(item, ast.AST):
                        write(item, scope, depth)
                    else:
                        out.append(repr(item))
                out.append("]")


def _is_constant(statement: Any) -> bool:
    return isinstance(statement.value, ast.Constant)


_LEAVES = (ast.operator, ast.boolop, ast.unaryop)
_BLOCKS = frozenset({"body", "orelse", "finalbody"})
_UNSEEN = frozenset({"annotation", "ctx", "kind", "returns", "type_comment", "type_params"})
_BINDS: dict[type, str] = {
    ast.ExceptHandler: "name",
    ast.MatchAs: "name",
    ast.MatchStar: "name",
    ast.MatchMapping: "rest",
}
_LAYOUTS: dict[type, tuple[str, tuple[str, ...]]] = {}  # filled as classes are met


def _layout(node_type: type[ast.AST]) -> tuple[str, tuple[str, ...]]:
    """The name of a class of nodes, and its fields that count."""
    unseen = {*_UNSEEN, _BINDS.get(node_type)}
    layout = (
        node_type.__name__,
        tuple(field for field in node_type._fields if field not in unseen),
    )
    return _LAYOUTS.setdefault(node_type, layout)


def _function(walk: _Walk, node: Any, scope: _Scope, depth: int) -> None:
    walk.out.append(node.__class__.__name__)
    walk.bind(node.name, scope)
    for decorator in node.decorator_list:
        walk.node(decorator, scope, depth)
    walk.block(node.body, _arguments(walk, node.args, scope, depth), depth)


def _lambda(walk: _Walk, node: Any, scope: _Scope, depth: int) -> None:
    walk.out.append("Lambda")
    walk.node(node.body, _arguments(walk, node.args, scope, depth), depth)


def _arguments(walk: _Walk, args: ast.arguments, scope: _Scope, depth: int) -> _Scope:
    """Write down arguments; the scope of the body that follows."""
    for default in (*args.defaults, *args.kw_defaults):
        if default is None:
            walk.out.append("required")
        else:
            walk.node(default, scope, depth)
    inner = _Scope(scope, "function")
    for mark, group in (
        ("(", args.posonlyargs),
        ("/", args.args),
        ("*", [args.vararg]),
        (",", args.kwonlyargs),
        ("**", [args.kwarg]),
    ):
        walk.out.append(mark)
        for arg in group:
            if arg is not None:
                walk.bind(arg.arg, inner)
    return inner


def _class(walk: _Walk, node: Any, scope: _Scope, depth: int) -> None:
    walk.out.append("ClassDef")
    walk.bind(node.name, scope)
    for part in (*node.decorator_list, *node.bases, *node.keywords):
        walk.node(part, scope, depth)
    walk.block(node.body, _Scope(scope, "class"), depth)


def _comprehension(walk: _Walk, node: Any, scope: _Scope, depth: int) -> None:
    walk.out.append(node.__class__.__name__)
    inner = _Scope(scope, "comprehension")
    for index, part in enumerate(node.generators):
        # Python evaluates the first iterable outside of the comprehension.
        walk.node(part.iter, inner if index else scope, depth)
        walk.out.append("async" if part.is_async else "for")
        walk.node(part.target, inner, depth)
        for condition in part.ifs:
            walk.out.append("if")
            walk.node(condition, inner, depth)
    walk.out.append("of")
    for field in node._fields:
        if field != "generators":
            walk.node(getattr(node, field), inner, depth)


def _walrus(walk: _Walk, node: Any, scope: _Scope, depth: int) -> None:
    around = scope
    # A walrus binds in the function around its comprehensions (PEP 572).
    while around.kind == "comprehension" and around.outer is not None:
        around = around.outer
    walk.out.append("NamedExpr")
    walk.bind(node.target.id, around)
    walk.node(node.value, scope, depth)


def _annotated(walk: _Walk, node: Any, scope: _Scope, depth: int) -> None:
    # An annotation does nothing at run time, so what remains is an assignment, or nothing but the
    # fact that the name is local.
    if node.value is not None:
        walk.fields(ast.Assign([node.target], node.value), scope, depth)
    elif isinstance(node.target, ast.Name):
        scope.bind(node.target.id)


def _imported(walk: _Walk, node: Any, scope: _Scope, depth: int) -> None:
    # `import a.b` binds `a`, where `import a.b as c` binds the inner module.
    whole = node.asname is None and "." in node.name
    walk.out += ["alias", "whole" if whole else "part", node.name]
    walk.bind(node.asname or node.name.partition(".")[0], scope)


def _declaration(walk: _Walk, node: Any, scope: _Scope, depth: int) -> None:
    for name in node.names:
        scope.declared[name] = walk.module if isinstance(node, ast.Global) else None
        walk.out.append(node.__class__.__name__)
        walk.bind(name, scope)


def _capture(walk: _Walk, node: Any, scope: _Scope, depth: int) -> None:
    name = getattr(node, _BINDS[node.__class__])
    if name is None:
        walk.out.append("nameless")
    else:
        walk.bind(name, scope)
    walk.fields(node, scope, depth)


_SPECIAL: dict[type, Callable[[_Walk, Any, _Scope, int], None]] = {
    ast.FunctionDef: _function,
    ast.AsyncFunctionDef: _function,
    ast.Lambda: _lambda,
    ast.ClassDef: _class,
    ast.ListComp: _comprehension,
    ast.SetComp: _comprehension,
    ast.DictComp: _comprehension,
    ast.GeneratorExp: _comprehension,
    ast.NamedExpr: _walrus,
    ast.AnnAssign: _annotated,
    ast.alias: _imported,
    ast.Global: _declaration,
    ast.Nonlocal: _declaration,
    **dict.fromkeys(_BINDS, _capture),
}


def is_guard(statement: ast.stmt) -> bool:
    """True if a statement is `if __name__ == "__main__":` without an else."""
    match statement:
        case ast.If(
            test=ast.Compare(
                left=ast.Name(id="__name__"),
                ops=[ast.Eq()],
                comparators=[ast.Constant(value="__main__")],
            ),
            orelse=[],
        ):
            return True
    return False


def _without_guard(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements of a module, as if a guard that closes it were not there.

    What it guards stays, as if unguarded, unless it only shows off functions defined before:
    calls and assertions that read no input, and are no plain `main()`.
    """
    if not body or not is_guard(body[-1]):
        return body
    # A guarded `main()` is the program; guarded examples are not, and authors differ in whether
    # they leave any.
    guarded: list[ast.stmt] = body[-1].body  # type: ignore[attr-defined]
    defines = any(isinstance(statement, _DEFINITIONS) for statement in body)
    shows = all(map(_shows_off, guarded))
    return body[:-1] if defines and shows else [*body[:-1], *guarded]


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _shows_off(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Name(), args=[], keywords=[])):
            return False
        case ast.Expr(value=ast.Call()) | ast.Assert():
            return not any(
                getattr(node, "id", getattr(node, "attr", None)) in ("input", "stdin", "open")
                for node in ast.walk(statement)
            )
    return False


# ------------------------------------------------------------------------------------------- text

_TOKENS = re.compile(
    r"""(?P<comment>\#[^\n]*)
      | (?P<text>\"{3}(?:[^\\]|\\.)*?\"{3}|'{3}(?:[^\\]|\\.)*?'{3}
                |"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<line>(?:[^\S\n]*\n)+[^\S\n]*)
      | (?P<space>[^\S\n]+)
      | (?P<word>\w+)
      | (?P<mark>.)""",
    re.VERBOSE | re.DOTALL,
)


def _words(code: str) -> list[str]:
    """The words of a text, without comments; a new line is the width of its indentation."""
    unix = code.replace("\r\n", "\n").replace("\r", "\n").strip("\n")
    words: list[str] = []
    # Good enough for another Python, or for pseudocode: solutions that do not parse still need to
    # be told from one another, or the same one could stand in two splits.
    for token in _TOKENS.finditer(unix):
        if token.lastgroup == "line":
            width = len(token[0].rpartition("\n")[2].expandtabs(8))
            if words and words[-1].startswith("\n"):
                words.pop()
            words.append(f"\n{width}")
        elif token.lastgroup not in ("comment", "space"):
            words.append(token[0])
    while words and words[-1].startswith("\n"):
        words.pop()
    return words
