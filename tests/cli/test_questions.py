"""The page of eight questions: each command is answered in the form that is printed there."""

import re
import shlex
from pathlib import Path

import pytest

from .conftest import call_cli
from .test_first_hour import quick

PAGE = (Path(__file__).parents[2] / "docs" / "questions.md").read_text("utf-8")
(SETUP,) = re.findall(r"^    nip-fn (train .*)$", PAGE, re.MULTILINE)
QUESTIONS = re.findall(
    r"^## ([^\n]*\?)\n\n    nip-fn ([^\n]*)\n\n```text\n(.*?)\n```$", PAGE, re.MULTILINE | re.DOTALL
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run of the page, played in random words."""
    place = tmp_path_factory.mktemp("questions")
    done = call_cli(place, *quick(tuple(shlex.split(SETUP))))
    assert done.returncode == 0, done.stderr
    return place


def form(line: str) -> str:
    """A line without its numbers, ids and widths."""
    return re.sub(r"\b[0-9a-f]{16}\b|[-+]?\d[\d,.]*", "#", " ".join(line.split()))


def test_the_page_has_eight_questions() -> None:
    assert len(QUESTIONS) == len(re.findall("^## ", PAGE, re.MULTILINE)) == 8


@pytest.mark.parametrize(("question", "command", "answer"), QUESTIONS)
def test_a_question_is_answered(folder: Path, question: str, command: str, answer: str) -> None:
    words = shlex.split(command)
    if "ID" in words:
        point = call_cli(folder, *words).stderr.rpartition(": ")[2].split(",")[0].strip()
        words[words.index("ID")] = point
    done = call_cli(folder, *words)
    assert done.returncode == 0, done.stderr
    first = form(answer.splitlines()[0])
    # A right solution in one run may be a buggy one in the other.
    assert first.replace("(right)", "(buggy)") in {
        form(line).replace("(right)", "(buggy)") for line in done.stdout.splitlines()
    }, question
