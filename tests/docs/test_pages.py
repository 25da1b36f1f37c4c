"""Whoever follows a page of docs/ from top to bottom sees what it shows."""

import contextlib
import io
import shlex
import subprocess
import sys
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

import nip_fn as nip

from ..cli.conftest import call_cli, plain_environment
from ..provider import Provider
from .pages import DOCS, WALKED, Step, is_printed, steps

KEY = "sk-pages"
SERVER = "http://localhost:8000/v1"  # in the pages, the address of your own


@pytest.fixture
def provider(running: Provider) -> Provider:
    running.reset(key=KEY, caching=False)
    return running


def typed(folder: Path, provider: Provider, line: str) -> str:
    """What a command prints."""
    program, *words = shlex.split(line.replace(SERVER, provider.url), comments=True)
    if program == "nip-fn":
        done = call_cli(folder, *words, OPENAI_API_KEY=KEY)
    else:
        assert program == "python"
        done = subprocess.run(
            [sys.executable, *words],
            cwd=folder,
            env=plain_environment(folder),
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, f"{line}\n{done.stderr}"
    return done.stdout


def executed(folder: Path, names: dict[str, Any], program: str) -> str:
    """What a program prints; `names` are those of the programs before it."""
    out = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out):
        exec(compile(program, "page", "exec"), names)
    return out.getvalue()


@pytest.mark.parametrize("name", WALKED)
def test_a_page_shows_what_is_seen(
    name: str, tmp_path: Path, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, Any] = {}
    compared = 0
    for step in steps((DOCS / f"{name}.md").read_text("utf-8")):
        printed = ""
        if step.kind == "file":
            (tmp_path / step.name).write_text(step.text, "utf-8")
        elif step.kind == "command" and not step.text.startswith("make"):
            printed = typed(tmp_path, provider, step.text)
        elif step.kind == "program":
            printed = executed(tmp_path, names, step.text)
        if step.printed:
            assert is_printed(step.printed, printed), f"{step.text}\nprints\n{printed}"
            compared += 1
    assert compared >= 3


def test_the_programs_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (DOCS.parent / "README.md").read_text("utf-8")
    library, recorded = (step.text for step in steps(page) if step.kind == "program")
    compose = run_path(str(DOCS.parent / "examples/compose.py"))
    names = {name.lower(): compose[name] for name in ("PROTOCOL", "POINTS", "policy")}
    names["key"] = nip.key(2026)
    executed(tmp_path, names, library)
    assert names["pairs"]
    assert names["trainer"].branching
    settings = (
        "--set",
        "rl.rollouts_per_iteration=8",
        "--set",
        "dataset_options.max_test_size=6",
    )
    words = ("train", "--provider", "dummy", "--iterations", "1", "--run", "first", *settings)
    assert call_cli(tmp_path, *words).returncode == 0
    executed(tmp_path, names, recorded)
    assert names["run"].stages("test")


def test_the_steps_of_a_page_are_found() -> None:
    page = (
        "# A page\n\nSave as `a.py`:\n\n```python\nx = 1\n```\n\nThen:\n\n    nip-fn train \\\n"
        "        --seed 1\n\n```text\n1\n```\n\n```python\nprint(2)\n```\n\n```text\n2\n```\n"
    )
    assert steps(page) == [
        Step("file", "x = 1\n", "a.py"),
        Step("command", "nip-fn train --seed 1", "", "1\n"),
        Step("program", "print(2)\n", "", "2\n"),
    ]
