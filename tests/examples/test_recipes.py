"""Every recipe works at tiny scale, in random words, and its forecasts are as printed."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
import typer.main

from nip_fn_cli.main import app

from ..adapters.hub_cache import cached, without_hub
from ..cli.conftest import call_cli
from ..cli.test_first_hour import DUMMY, LITTLE, QUICK
from ..core.benchmark_rows import gsm8k
from ..docs.pages import is_printed, steps

RECIPES = Path(__file__).parents[2] / "examples" / "recipes"
NAMES = sorted(path.parent.name for path in RECIPES.glob("*/README.md"))


def read(name: str) -> str:
    return (RECIPES / name / "README.md").read_text("utf-8")


def tiny(words: tuple[str, ...]) -> tuple[str, ...]:
    """The command, with dummies for models and little of everything."""
    if words[0] == "sweep" and "--dry-run" in words:
        return (*words, "--seeds", "1")
    if "--dry-run" in words or "--from" in words[:2]:
        return words
    if "--budget" in words:  # dummies have no prices
        at = words.index("--budget")
        words = (*words[:at], *words[at + 2 :])
    if words[0] == "sweep":
        return (*words, *DUMMY, *LITTLE, "--set", "rl.num_iterations=1", "--seeds", "1")
    one = ("--iterations", "1") if words[0] == "train" and "--iterations" not in words else ()
    return (*words, *QUICK.get(words[0], ()), *one)


@pytest.fixture
def hub(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of the hub with the tables that a recipe takes from there, in their form."""
    if name != "gsm8k":
        return
    without_hub(monkeypatch, tmp_path)
    cached(tmp_path, "gsm8k", {"train": gsm8k(0, 600), "test": gsm8k(600, 1000)})


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("name", NAMES)
def test_the_commands_of_a_recipe_work(name: str, tmp_path: Path) -> None:
    shutil.copytree(RECIPES.parent, tmp_path / "examples")
    commands = [step for step in steps(read(name)) if step.kind == "command"]
    assert commands
    for step in commands:
        words = tuple(shlex.split(step.text)[1:])
        if words[0] == "serve":
            typer.main.get_command(app).commands["serve"].make_context("serve", [*words[1:]])  # type: ignore[attr-defined]
            continue
        done = call_cli(tmp_path, *tiny(words))
        assert done.returncode == 0, f"{step.text}\n{done.stderr}"
        if step.printed:
            assert is_printed(step.printed, done.stdout), done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_says_what_it_needs_and_what_to_expect(name: str) -> None:
    text = read(name)
    assert "**Needs**" in text
    assert re.search(r"\*\*(Expect|Forecast|Not run)", text)
    assert f"({name}/README.md)" in (RECIPES / "README.md").read_text("utf-8")
