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

READS_OR_RUNS = {"open", "print", "input", "eval", "exec", "compile", "__import__", "breakpoint"}


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


# Imports are held by import-linter's contracts; what needs none is held here.
def test_no_module_of_the_core_reads_writes_or_runs_anything() -> None:
    for path in SOURCES:
        assert READS_OR_RUNS.isdisjoint(calls(ast.parse(path.read_text("utf-8")))), path


def test_no_module_of_the_core_draws_global_random_numbers_or_hashes_by_process() -> None:
    for path in SOURCES:
        tree = ast.parse(path.read_text("utf-8"))
        assert {"hash", "id"}.isdisjoint(calls(tree)), path
        attributes = {
            ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)
        }
        assert "np.random" not in attributes, path
