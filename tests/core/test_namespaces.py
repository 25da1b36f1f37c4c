"""The top level is page one of the documentation; the rest is in namespaces, by kind."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import nip_fn as nip

from ..tools.arrows import PACKAGES

ROOT = Path(__file__).parents[2]
NAMESPACES = (
    *(nip.config, nip.export, nip.game, nip.protocols, nip.run, nip.schedules),
    *(nip.selectors, nip.stats, nip.testing, nip.training, nip.trees),
)
# The library's part of the README, and the pages and examples that one reads next.
PAGE_ONE = (
    *("docs/games.md", "docs/from-python.md", "docs/training.md", "docs/how-a-run-works.md"),
    *("examples/compose.py", "examples/own_protocol.py", "examples/own_trainer.py"),
)
EVERYWHERE = (nip, *NAMESPACES)


@cache
def page_one() -> str:
    library = (ROOT / "README.md").read_text("utf-8").partition("## As a library")[2]
    return library.partition("\n## ")[0] + "".join(
        (ROOT / name).read_text("utf-8") for name in PAGE_ONE
    )


def test_the_top_level_has_at_most_sixty_names() -> None:
    assert len(nip.__all__) <= 60


@pytest.mark.parametrize("name", nip.__all__)
def test_a_name_of_the_top_level_is_on_page_one(name: str) -> None:
    assert re.search(rf"\bnip\.{name}\b|`{name}`", page_one())


@pytest.mark.parametrize("name", nip.__all__)
def test_help_explains_the_fields_of_a_record(name: str) -> None:
    """All but parameters, which `nip-fn params` explains."""
    record = getattr(nip, name)
    if isinstance(record, type) and record is not nip.HyperParameters:
        fields = getattr(record, "_fields", getattr(record, "__struct_fields__", ()))
        assert [field for field in fields if f"\n    {field}: " not in record.__doc__] == []


@pytest.mark.parametrize("namespace", NAMESPACES, ids=lambda namespace: namespace.__name__)
def test_a_namespace_says_what_is_in_it(namespace: ModuleType) -> None:
    words = set(re.findall(r"\w+", namespace.__doc__ or ""))
    assert set(namespace.__all__) <= words
    assert namespace.__name__.removeprefix("nip_fn.") in re.findall(r"\w+", nip.__doc__ or "")


def test_a_name_is_the_same_thing_in_all_namespaces() -> None:
    meanings: dict[str, object] = {}
    for namespace in EVERYWHERE:
        for name in namespace.__all__:
            assert meanings.setdefault(name, getattr(namespace, name)) is getattr(namespace, name)


def defined(path: Path) -> Iterator[str]:
    """The public names that a module defines at its top level."""
    for node in ast.parse(path.read_text("utf-8")).body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield name
            case ast.AsyncFunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]):
                yield name


def test_nothing_else_in_the_three_packages_has_a_name_of_the_library() -> None:
    exported = {name for namespace in EVERYWHERE for name in namespace.__all__}
    modules: dict[str, list[str]] = {}
    for path in (path for package in PACKAGES for path in sorted(package.rglob("*.py"))):
        for name in exported.intersection(defined(path)):
            modules.setdefault(name, []).append(path.relative_to(ROOT).as_posix())
    assert {name: paths for name, paths in modules.items() if len(paths) > 1} == {}
