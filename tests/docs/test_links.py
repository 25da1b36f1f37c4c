"""Nothing that a page points to is missing: files, headings, and paths named in backticks."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "llms.txt", "docs/*.md", "examples/**/*.md")
    for path in ROOT.glob(pattern)
)
ROOMS = "docs|examples|tests|nip_fn|adapters|cli"


def prose(page: Path) -> str:
    """Its text without blocks of code."""
    return re.sub(r"^```.*?^```|^ {4}.*?$", "", page.read_text("utf-8"), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """What links to its headings end in, by the rule of GitHub."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    return {
        slug if number == 0 else f"{slug}-{number}"
        for place, slug in enumerate(plain)
        for number in (plain[:place].count(slug),)
    }


def dead(page: Path) -> list[str]:
    """The links and paths of a page that lead nowhere."""
    text, found = prose(page), []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            found.append(target)
    # Capitals stand for a name of your own.
    paths = re.findall(rf"`((?:{ROOMS})/[a-z0-9_./-]*)`", text)
    return found + [path for path in paths if not (ROOT / path).exists()]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_no_dead_link(page: str) -> None:
    assert dead(ROOT / page) == []


def test_a_dead_link_is_found_out(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One: a `two`\n[a](#one-a-two) [b](#one) [c](gone.md) [d](page.md#x)\n`docs/gone.md`\n\n"
        "    [e](code.md)\n"
    )
    assert dead(page) == ["#one", "gone.md", "page.md#x", "docs/gone.md"]


def test_every_page_is_listed_for_machines_and_for_people() -> None:
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    for entrance in ("llms.txt", "README.md"):
        listed = set(re.findall(r"\]\(docs/([\w-]+\.md)\)", (ROOT / entrance).read_text("utf-8")))
        assert listed == pages, entrance


def test_every_page_has_its_place_in_the_navigation_of_the_site() -> None:
    nav = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]["nav"]
    listed = re.findall(r"'([\w/-]+\.md)'", str(nav))
    assert sorted(listed) == sorted(page for page in PAGES if page.endswith(".md"))
