"""The house keeps to its plan: few rooms, few arrows between them, none back up."""

from pathlib import Path

import pytest

from ..tools.arrows import (
    ADAPTERS,
    CLI,
    CORE,
    OPENINGS,
    PACKAGES,
    House,
    arrows,
    back_up,
    docstrings,
    longest_chain,
    measure,
    rooms,
)


@pytest.mark.parametrize(
    ("house", "most_rooms", "most_arrows", "most_floors"),
    [(CORE, 16, 80, 11), (ADAPTERS, 21, 49, 6), (CLI, 30, 60, 5)],
    ids=lambda value: value.path.name if isinstance(value, House) else str(value),
)
def test_a_package_has_few_rooms_and_few_arrows_and_none_goes_back_up(
    house: House, most_rooms: int, most_arrows: int, most_floors: int
) -> None:
    pairs = arrows(house)
    assert len(rooms(house)) <= most_rooms
    assert len(pairs) <= most_arrows
    assert len(longest_chain(pairs)) <= most_floors
    assert back_up(house) == set()


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_docstring_begins_with_the_type_of_thing_it_names(package: Path) -> None:
    """Not with "What" or "Whether", which say nothing of what is returned."""
    openings = [
        f"{path}: {doc}"
        for path in sorted(package.rglob("*.py"))
        for doc, _ in docstrings(path)
        if doc.split()[0].strip(",.:") in OPENINGS
    ]
    assert openings == []


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
