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
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any

SIZE = 16
# Depth of the deepest syntax tree that is looked at.  Python can manage a few times more, but how
# many times depends on how deep in calls it already is; what a program is must not.
DEEPEST_TREE = 120


def syntax_tree(code: str) -> ast.Module:
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
    the programs bind themselves (one for one, over the whole program), in annotations, docstrings
    and `pass`.

    Attributes, keywords of calls, builtins and constants count.  Text that is no Python of this
    version has a fingerprint of its own kind, of its words and its indentation.  Never raises.
    """
    try:
        return _digest(_nodes(syntax_tree(code)), b"tree")
    except (SyntaxError, ValueError):  # a hexadecimal number may be too long to write in decimal
        return _digest(_words(code), b"text")


def _digest(words: Iterable[str], person: bytes) -> str:
    text = "\0".join(words).encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=SIZE, person=person).hexdigest()


# ------------------------------------------------------------------------------------------ trees

# The fields that name variables; those of imports see `_names`.
_NAMES: dict[type, str] = {
    ast.Name: "id",
    ast.arg: "arg",
    ast.FunctionDef: "name",
    ast.AsyncFunctionDef: "name",
    ast.ClassDef: "name",
    ast.ExceptHandler: "name",
    ast.Global: "names",
    ast.Nonlocal: "names",
    ast.MatchAs: "name",
    ast.MatchStar: "name",
    ast.MatchMapping: "rest",
}
_UNSEEN = {"annotation", "ctx", "kind", "returns", "type_comment", "type_params"}


def _nodes(tree: ast.Module) -> Iterator[str]:
    """The nodes of a tree, each list with its length.

    Raises SyntaxError for a tree deeper than `DEEPEST_TREE`.
    """
    bound = _bound(tree)
    numbers: dict[str, int] = {}
    # Not by recursion, whose limit depends on the depth of the caller.
    stack: list[tuple[Any, int]] = [(tree, 0)]
    while stack:
        part, depth = stack.pop()
        if depth > DEEPEST_TREE:
            raise SyntaxError("nested too deeply")
        if isinstance(part, ast.AnnAssign) and part.value:  # one without is idle
            part = ast.Assign([part.target], part.value)
        if isinstance(part, ast.AST):
            yield type(part).__name__
            for name in _names(part):
                yield str(numbers.setdefault(name, len(numbers))) if name in bound else f".{name}"
            stack += ((field, depth + 1) for field in _fields(part))
        elif isinstance(part, list):
            items = [item for item in part if not _is_idle(item)]
            yield f"[{len(items)}"
            stack += ((item, depth) for item in items)
        else:
            # With its type, as 1, 1.0 and True are one value to Python.
            yield f"{type(part).__name__} {part!r}"


def _fields(node: ast.AST) -> list[Any]:
    """The fields of a node that count, but for the names of variables."""
    if isinstance(node, ast.alias):
        # `import a.b` binds `a`, where `import a.b as c` binds the inner module.
        return [node.name, node.asname is None and "." in node.name]
    unseen = {*_UNSEEN, _NAMES.get(type(node))}
    return [getattr(node, field) for field in node._fields if field not in unseen]


def _is_idle(node: Any) -> bool:
    """True if a node is a statement that does nothing: `pass`, a docstring, a bare annotation."""
    match node:
        case ast.Pass() | ast.Expr(value=ast.Constant()) | ast.AnnAssign(value=None):
            return True
    return False


def _names(node: ast.AST) -> list[str]:
    """The names of variables that stand in a node itself."""
    if isinstance(node, ast.alias):
        return [node.asname or node.name.partition(".")[0]]
    names = getattr(node, _NAMES.get(type(node), ""), None)
    return names if isinstance(names, list) else [names] if names else []


def _bound(tree: ast.Module) -> set[str]:
    """The names that a program binds, but for those that it also binds in the body of a class.

    A name of a class is an attribute as well, and for that not renamed.
    """
    bound, attributes = set[str](), set[str]()
    stack: list[tuple[ast.AST, bool]] = [(tree, False)]
    while stack:
        node, in_class = stack.pop()
        if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
            (attributes if in_class else bound).update(_names(node))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            in_class = isinstance(node, ast.ClassDef)
        stack += ((child, in_class) for child in ast.iter_child_nodes(node))
    return bound - attributes


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
