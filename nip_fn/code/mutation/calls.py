"""Operators on calls of functions and methods."""

import ast

from nip_fn.code.mutation.context import Context
from nip_fn.code.mutation.expressions import Results, called
from nip_fn.code.mutation.rewrite import with_field

# Functions that take the same arguments, so that the wrong one runs and answers: a call that fails
# at once is found by the first test.
_FUNCTIONS: dict[str, tuple[str, ...]] = {
    "min": ("max",), "max": ("min",), "any": ("all",), "all": ("any",), "floor": ("ceil",),
    "ceil": ("floor",), "round": ("int",), "bisect_left": ("bisect_right",),
    "bisect_right": ("bisect_left",), "bisect": ("bisect_left",), "combinations": ("permutations",),
    "permutations": ("combinations",), "float": ("int",), "gcd": ("min",),
}  # fmt: skip
_METHODS: dict[str, tuple[str, ...]] = {
    "strip": ("rstrip", "lstrip"), "lstrip": ("strip",), "rstrip": ("strip",),
    "startswith": ("endswith",), "endswith": ("startswith",), "find": ("rfind",),
    "rfind": ("find",), "index": ("rindex",), "upper": ("lower",), "lower": ("upper",),
    "isalpha": ("isalnum",), "isalnum": ("isalpha",), "isdigit": ("isalnum",),
    "isupper": ("islower",), "islower": ("isupper",), "popleft": ("pop",),
    "appendleft": ("append",), "union": ("intersection",), "intersection": ("union",),
    "issubset": ("issuperset",), "issuperset": ("issubset",), "extend": ("append",),
    "keys": ("values",), "values": ("keys",), "rjust": ("ljust",), "ljust": ("rjust",),
    "partition": ("rpartition",), "rpartition": ("partition",), "difference": ("union",),
}  # fmt: skip
_PLAIN = {
    "capitalize", "casefold", "copy", "keys", "ljust", "lower", "lstrip", "removeprefix",
    "removesuffix", "replace", "rjust", "rstrip", "splitlines", "strip", "swapcase", "title",
    "upper", "values", "zfill",
}  # fmt: skip
_WRAPPERS = {
    "abs",
    "sorted",
    "set",
    "int",
    "round",
    "str",
    "tuple",
    "frozenset",
    "deepcopy",
    "dict",
}
_BUILTINS = {"min", "max", "any", "all", "round", "int", "float"}
_WITH_DEFAULT = {"get", "enumerate", "sum", "pow", "pop"}
# The order of arguments means nothing to these, or the wrong one fails at once.
_ANY_ORDER = {
    "min", "max", "gcd", "lcm", "hypot", "isclose", "isinstance", "issubclass", "range", "getattr",
    "hasattr", "setattr", "map", "filter", "reduce", "enumerate", "sum", "round", "int", "open",
    "sorted", "iter", "next", "product", "set", "partial", "insert", "heappush", "heappop",
}  # fmt: skip


def function_swapped(node: ast.AST, context: Context) -> Results:
    """Another function of the same kind: `min` for `max`, `any` for `all`."""
    match node:
        case ast.Call(func=ast.Name(id=name) as function):
            is_global = name not in context.variables(node).first
            for substitute in _FUNCTIONS.get(name, ()) if is_global else ():
                if substitute in _BUILTINS or name not in _BUILTINS:
                    yield with_field(node, func=ast.Name(substitute, function.ctx))
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="math" | "bisect" | "itertools"), attr=name)
        ):
            for substitute in _FUNCTIONS.get(name, ()):
                if substitute not in _BUILTINS:
                    yield with_field(node, func=with_field(node.func, attr=substitute))


def method_swapped(node: ast.AST, context: Context) -> Results:
    """Another method of the same kind: `rfind` for `find`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        for substitute in _METHODS.get(node.func.attr, ()):
            yield with_field(node, func=with_field(node.func, attr=substitute))


def append_at_front(node: ast.AST, context: Context) -> Results:
    """`append` at the wrong end of a list, or `insert`."""
    match node:
        case ast.Call(func=ast.Attribute(attr="append") as method, args=[item]):
            yield _method(node, method, "insert", [ast.Constant(0), item])
        case ast.Call(
            func=ast.Attribute(attr="insert") as method, args=[ast.Constant(value=0), item]
        ):
            yield _method(node, method, "append", [item])


def pop_end(node: ast.AST, context: Context) -> Results:
    """`pop` at the wrong end of a list."""
    match node:
        case ast.Call(func=ast.Attribute(attr="pop") as method, args=[]):
            yield _method(node, method, "pop", [ast.Constant(0)])
        case ast.Call(func=ast.Attribute(attr="pop") as method, args=[ast.Constant(value=0)]):
            yield _method(node, method, "pop", [])


def _method(node: ast.Call, method: ast.Attribute, name: str, args: list[ast.expr]) -> ast.Call:
    func = method if method.attr == name else with_field(method, attr=name)
    return ast.Call(func, args, node.keywords)


def sort_reversed(node: ast.AST, context: Context) -> Results:
    """`reverse=` put in or left out where something is sorted."""
    if isinstance(node, ast.Call) and called(node) in ("sorted", "sort"):
        rest = [keyword for keyword in node.keywords if keyword.arg != "reverse"]
        if len(rest) == len(node.keywords):
            rest = [*rest, ast.keyword("reverse", ast.Constant(True))]
        yield with_field(node, keywords=rest)


def key_dropped(node: ast.AST, context: Context) -> Results:
    """`key=` or `default=` left out."""
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            if keyword.arg in ("key", "default"):
                rest = [argument for argument in node.keywords if argument is not keyword]
                yield with_field(node, keywords=rest)


def default_dropped(node: ast.AST, context: Context) -> Results:
    """The last argument left out where it may be: the default of `get`, the start of a count."""
    match node:
        case ast.Call(args=[_, *rest]) if rest and called(node) in _WITH_DEFAULT:
            yield with_field(node, args=node.args[:-1])
        case ast.Call(func=ast.Attribute(attr="split"), args=[_]):
            yield with_field(node, args=[])
        case ast.Call(func=ast.Attribute(attr="split"), args=[], keywords=[]):
            yield with_field(node, args=[ast.Constant(" ")])


def method_dropped(node: ast.AST, context: Context) -> Results:
    """A method that returns a changed copy left out: `word.lower()` is `word`."""
    match node:
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in _PLAIN:
            yield value


def call_dropped(node: ast.AST, context: Context) -> Results:
    """A function that returns a changed copy left out: `abs(x)` is `x`."""
    match node:
        case ast.Call(func=ast.Name(id=name), args=[value, *_]) if name in _WRAPPERS:
            if not isinstance(value, ast.Starred | ast.GeneratorExp):
                yield value


def copy_dropped(node: ast.AST, context: Context) -> Results:
    """A copy left out, so that two names stand for one list."""
    match node:
        case ast.Subscript(
            value=value, slice=ast.Slice(lower=None, upper=None, step=None), ctx=ast.Load()
        ):
            yield value
        case ast.Call(
            func=ast.Name(id="list"),
            args=[ast.Name() | ast.Attribute() | ast.Subscript() as value],
        ):
            yield value


def arguments_swapped(node: ast.AST, context: Context) -> Results:
    """Two arguments in a row exchanged."""
    if isinstance(node, ast.Call) and called(node) not in _ANY_ORDER:
        for index, (first, second) in enumerate(zip(node.args, node.args[1:], strict=False)):
            if not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
                args = [*node.args[:index], second, first, *node.args[index + 2 :]]
                yield with_field(node, args=args)
