import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import nip_fn

ROOT = Path(nip_fn.__file__).parent
SOURCES = sorted(ROOT.rglob("*.py"))
MODULES = [
    ".".join(("nip_fn", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
    for path in SOURCES
]

HEAVY = {"torch", "transformers", "openai", "trl", "peft", "vllm", "accelerate", "safetensors"}
WORLDLY = {"asyncio", "socket", "subprocess", "multiprocessing", "typer", "rich"}

# What reads, writes or runs; none of it belongs in the core.
FORBIDDEN_CALLS = {"open", "print", "input", "eval", "exec", "compile", "__import__", "breakpoint"}
FORBIDDEN_MODULES = {"os", "sys", "io", "time", "random", "secrets", "datetime", "pathlib", "uuid"}


def loaded_by(*modules: str) -> set[str]:
    """The top-level packages that a fresh interpreter holds after importing the modules."""
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return {name.partition(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize("modules", [("nip_fn.run.step",), tuple(MODULES)], ids=["run", "all"])
def test_importing_the_core_loads_nothing_heavy_or_worldly(modules: tuple[str, ...]) -> None:
    bare = loaded_by("site")
    assert (loaded_by(*modules) - bare) & (HEAVY | WORLDLY) == set()


def calls(tree: ast.AST) -> Iterator[str]:
    """The names of all functions that are called by their bare name or as `builtins.name`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            match node.func:
                case ast.Name(id=name) | ast.Attribute(value=ast.Name(id="builtins"), attr=name):
                    yield name


def imported(tree: ast.AST) -> Iterator[str]:
    """The top-level packages that are imported anywhere in a module."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name.partition(".")[0] for alias in names)
            case ast.ImportFrom(module=str(module)):
                yield module.partition(".")[0]


@pytest.mark.parametrize("path", SOURCES, ids=MODULES)
def test_no_module_of_the_core_reads_writes_or_runs_anything(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    assert FORBIDDEN_CALLS.isdisjoint(calls(tree))
    assert (FORBIDDEN_MODULES | HEAVY | WORLDLY).isdisjoint(imported(tree))


@pytest.mark.parametrize("path", SOURCES, ids=MODULES)
def test_no_module_of_the_core_draws_global_random_numbers_or_hashes_by_process(
    path: Path,
) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    assert {"hash", "id"}.isdisjoint(calls(tree))
    draws = {
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("np.random.")
    }
    assert draws <= {"np.random.Generator", "np.random.Philox"}
