"""The house of the core keeps to its plan: few rooms, few arrows between them, none back up."""

from pathlib import Path

import pytest

from ..tools.arrows import OPENINGS, PACKAGES, arrows, back_up, docstrings, measure, sources


def test_there_are_at_most_16_rooms_and_80_arrows_and_none_goes_back_up() -> None:
    rooms = sources()
    found = arrows(rooms)
    assert len(rooms) - 1 <= 16
    assert len(found) <= 80
    assert back_up(found) == set()


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_docstring_begins_with_the_type_of_thing_it_names(package: Path) -> None:
    """Not with "What" or "Whether", which say nothing of what is returned."""
    told = [
        f"{path}: {doc}"
        for path in sorted(package.rglob("*.py"))
        for doc, _ in docstrings(path)
        if doc.split()[0].strip(",.:") in OPENINGS
    ]
    assert told == []


def test_lines_are_counted_by_what_they_hold(tmp_path: Path) -> None:
    source = tmp_path / "sample.py"
    source.write_text('''
class Sample:
    """Whether it

    is counted."""

    # Here.
    value = "# not here"  # nor here
''')
    size = measure([source])
    assert (size.files, size.code, size.docstrings, size.comments) == (1, 2, 3, 1)
    assert size.openings == {"What": 0, "Whether": 1, "How": 0, "Where": 0}
