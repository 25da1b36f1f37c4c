"""Tables in the width that there is."""

import fcntl
import os
import pty
import struct
import subprocess
import termios
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from nip_fn_cli.shown.printing import lay_out
from nip_fn_cli.shown.table import MARK

from .conftest import COMMAND, SMALL, RunCli

TITLES = (
    "protocol", "model", "datapoints x games", "accuracy [95 %]", "over solo_verifier [95 %]",
    "tokens",
)  # fmt: skip
NIP = "62.7% [57.9%, 67.3%]", "+12.5 [+4.1, +20.9]", "1,234,567"
SOLO = "50.2% [45.3%, 55.1%]", "-", "98,765"
ROWS = (
    ("nip", "gpt-4.1-mini", "1,000 x 8", *NIP),
    ("solo_verifier", "gpt-4.1-mini", "1,000 x 8", *SOLO),
)  # fmt: skip


def laid(width: int | None) -> list[str]:
    return [line.text for line in lay_out(TITLES, ROWS, keys=2, width=width)]


def test_without_a_terminal_each_row_is_a_line() -> None:
    title, *rows = laid(None)
    assert title.split() == " ".join(TITLES).split()
    assert [row.split()[0] for row in rows] == ["nip", "solo_verifier"]
    assert laid(200) == laid(None)


def test_at_105_columns_titles_take_several_lines() -> None:
    first, second, *rows = laid(105)
    assert first.split() == ["datapoints", "over", "solo_verifier"]
    assert second.split()[:4] == ["protocol", "model", "x", "games"]
    assert len(rows) == len(ROWS)


def test_at_80_columns_the_rest_of_the_columns_stands_below() -> None:
    first, second = "\n".join(laid(80)).split("\n\n")
    assert NIP[0] in first
    assert NIP[1] in second
    for part in (first, second):
        assert [line.split()[:2] for line in part.splitlines()[-2:]] == [
            ["nip", "gpt-4.1-mini"],
            ["solo_verifier", "gpt-4.1-mini"],
        ]


def test_at_40_columns_a_row_is_a_block() -> None:
    lines = laid(40)
    assert lines[0] == "nip, gpt-4.1-mini"
    assert lines[1].endswith("1,000 x 8")
    assert f"    {NIP[1]}" in lines


@given(
    st.integers(1, 6).flatmap(
        lambda columns: st.lists(
            st.lists(st.text("ab 1,%界", max_size=24), min_size=columns, max_size=columns),
            min_size=1,
            max_size=5,
        )
    ),
    st.integers(0, 3),
    st.sampled_from((1, 20, 40, 80, 120, 200, None)),
)
def test_no_cell_is_ever_cut(table: list[list[str]], keys: int, width: int | None) -> None:
    titles, *rows = table
    text = "\n".join(line.text for line in lay_out(titles, rows, keys=keys, width=width))
    for cell in (cell for row in rows for cell in row):
        assert cell.rstrip() in text


@given(st.integers(30, 200))
def test_lines_are_no_wider_than_the_terminal(width: int) -> None:
    assert max(map(cell_len, laid(width))) <= width


def on_a_terminal(folder: Path, width: int, *arguments: str) -> list[str]:
    """The lines that the command prints on a terminal of that width."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "TERM": "xterm",
        "NO_COLOR": "1",
    }
    process = subprocess.Popen(
        [COMMAND, *arguments], cwd=folder, env=environment, stdout=follower, stdin=follower,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(follower)
    parts = []
    try:
        while part := os.read(leader, 1 << 16):
            parts.append(part)
    except OSError:  # how Linux says that nobody holds the other end any more
        pass
    os.close(leader)
    assert process.wait() == 0
    return b"".join(parts).decode().splitlines()


@pytest.mark.parametrize("width", [40, 120])
def test_a_run_fits_the_terminal(run_cli: RunCli, tmp_path: Path, width: int) -> None:
    run = run_cli("train", *SMALL, "--run", "r", "--set", "text_rl.test_scheme=all")
    assert run.returncode == 0, run.stderr
    told = [line for line in run.stdout.split("\n\n")[0].splitlines() if line[0] != MARK]
    shown = on_a_terminal(tmp_path, width, "replay", "runs/r")
    plain = [line.replace("\x1b[1m", "").replace("\x1b[0m", "") for line in shown]
    # The digest alone takes 70 columns: it is a line of its own and no table, like a mark's.
    end = next(at for at, line in enumerate(plain) if line.startswith("digest"))
    table = [line for line in plain[:end] if not line.startswith(MARK)]
    assert max(map(len, table)) <= width
    text = "\n".join(table)
    assert "…" not in text
    for row in told[1:]:
        for number in row.split():
            assert number in text
