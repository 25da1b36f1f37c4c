"""The notebooks run from top to bottom in an empty folder, and print what is stored in them."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from ..cli.conftest import _registries  # noqa: F401

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))


def executed(notebook: dict[str, Any], folder: Path) -> list[str]:
    """What each cell of code prints; cells with a value at their end are for Jupyter alone."""
    names: dict[str, Any] = {}
    printed = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            out = io.StringIO()
            with contextlib.chdir(folder), contextlib.redirect_stdout(out):
                exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
            printed.append(out.getvalue())
    return printed


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_is_stored_in_it(path: Path, tmp_path: Path) -> None:
    notebook = json.loads(path.read_text("utf-8"))
    stored = [
        "".join(text for output in cell["outputs"] for text in output["text"])
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]
    assert executed(notebook, tmp_path) == stored
    assert sum(bool(text) for text in stored) >= 5
