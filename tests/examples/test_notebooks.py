"""The notebooks run from top to bottom in an empty folder, and print what is stored in them."""

import ast
import asyncio
import contextlib
import inspect
import io
import json
from pathlib import Path
from typing import Any

import pytest

from ..cli.conftest import _registries  # noqa: F401

NOTEBOOKS = Path(__file__).parents[2] / "examples" / "notebooks"


def executed(notebook: dict[str, Any], folder: Path) -> list[str]:
    """What each cell of code prints; cells with a value at their end are for Jupyter alone."""
    return asyncio.run(_executed(notebook, folder))


async def _executed(notebook: dict[str, Any], folder: Path) -> list[str]:
    # As in Jupyter all cells run in one event loop, and `await` may stand at their top level.
    names: dict[str, Any] = {}
    printed = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            text, out = "".join(cell["source"]), io.StringIO()
            code = compile(text, cell["id"], "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            with contextlib.chdir(folder), contextlib.redirect_stdout(out):
                value = eval(code, names)
                if inspect.iscoroutine(value):
                    await value
            printed.append(out.getvalue())
    return printed


@pytest.mark.parametrize("name", ["analyse", "compose"])
def test_a_notebook_prints_what_is_stored_in_it(name: str, tmp_path: Path) -> None:
    notebook = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text("utf-8"))
    stored = [
        "".join(text for output in cell["outputs"] for text in output["text"])
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]
    assert executed(notebook, tmp_path) == stored
    assert sum(bool(text) for text in stored) >= 5


def test_experiments_are_carried_out_in_a_notebook(tmp_path: Path) -> None:
    notebook = json.loads((NOTEBOOKS / "from_python.ipynb").read_text("utf-8"))
    train, compare, card, attack, report, problem = executed(notebook, tmp_path)
    assert "<Run runs/trained: nip, malt, tea, done, iteration 1, " in train
    assert compare.startswith("an honest prover: +")
    assert "nip, liar: " in card
    assert attack.endswith(" of wrong claims are accepted\n")
    assert report.startswith("report.html\n40 games: ")
    assert problem.startswith("run - runs/trained holds a run already")
