"""The help of every command, read as its reader reads it: on a terminal of eighty columns."""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, cast

import pytest
import typer.main
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from nip_fn_cli.main import app
from nip_fn_cli.shown.helping import CommandGroup

from .conftest import RunCli

WIDTH = 78  # the text in eighty columns
Words = tuple[str, ...]


def commands(command: TyperCommand | TyperGroup, above: Words = ()) -> Iterator[tuple[Words, Any]]:
    """The command, and all that are below it, each with the words that lead to it."""
    yield above, command
    for name, below in command.commands.items() if isinstance(command, TyperGroup) else ():
        yield from commands(cast("TyperCommand", below), (*above, name))


COMMANDS = dict(commands(cast("TyperGroup", typer.main.get_command(app))))


@pytest.fixture(params=COMMANDS, ids=lambda words: " ".join(words) or "nip-fn")
def words(request: pytest.FixtureRequest) -> Words:
    return cast("Words", request.param)


@pytest.fixture
def shown(words: Words, run_cli: RunCli) -> str:
    done = run_cli(*words, "--help", COLUMNS="80")
    assert done.returncode == 0
    return done.stdout


def test_all_commands_are_found() -> None:
    assert {("train",), ("data", "bug")} <= set(COMMANDS)
    assert len(COMMANDS) >= 25


def test_a_group_lists_its_commands_by_their_first_sentences(words: Words) -> None:
    """Which are written out in the group, so that to list commands imports none of them."""
    group = COMMANDS[words]
    if isinstance(group, CommandGroup):
        firsts = {
            name: " ".join((command.help or "").split("\n\n")[0].split())
            for name, command in group.commands.items()
        }
        assert group.sentences == firsts


def test_help_has_no_names_of_types_and_no_formulas(shown: str) -> None:
    assert not re.search(r"<\w|\brange\b|[<>]=|\bTEXT\b|\bFLOAT\b|\[required\]|\bbool\b", shown)


def test_help_fills_its_lines(shown: str) -> None:
    lines = shown.splitlines()
    assert max(map(len, lines)) <= WIDTH
    for line, following in pairwise(lines):
        column = len(following) - len(following.lstrip())
        # The lines go on one below the other, in the same column of the same paragraph.
        goes_on = following.strip() and line[column:].strip() and not line[:column].strip()
        if goes_on and not re.match(r"-|[A-Z]\S*  |\w+ {2,}", following.strip()):
            assert len(f"{line} {following.split()[0]}") > WIDTH, (line, following)


def test_help_is_made_of_sentences(words: Words) -> None:
    command = COMMANDS[words]
    for text in (command.help, *(param.help for param in command.params)):
        assert re.fullmatch(r"[A-Z$.].*[.?]", text.strip(), re.DOTALL), text
        assert not re.search(r"\s[.,;:]\s|\bAs for\b", text), text


def test_values_have_words_and_flags_have_none(words: Words, shown: str) -> None:
    for param in COMMANDS[words].params:
        is_flag = isinstance(param, TyperOption) and param.is_flag
        assert is_flag == (not param.metavar), param.name
        longest = max(param.secondary_opts or param.opts, key=len)
        names = param.metavar if isinstance(param, TyperArgument) else longest
        value = f" {param.metavar}" if isinstance(param, TyperOption) and param.metavar else ""
        assert re.search(rf"^  .*{re.escape(f'{names}{value}')}(  |$)", shown, re.MULTILINE)


def test_limits_and_defaults_are_told_in_words(run_cli: RunCli) -> None:
    serve = " ".join(run_cli("serve", "--help").stdout.split())
    assert "The port of this server. [default: 5000; 0 to 65535]" in serve
    assert "The number of trainings to run at once. [default: 1; at least 1]" in serve
    check = " ".join(run_cli("data", "check", "--help").stdout.split())
    assert "--prove / --no-prove Run the tests of all solutions. [default: yes]" in check


def test_an_argument_has_the_same_name_in_help_usage_and_errors(run_cli: RunCli) -> None:
    told = run_cli("sweep")
    assert told.stderr.startswith("Usage: nip-fn sweep [OPTIONS] STUDY\n")
    assert "Missing argument 'STUDY'" in told.stderr
    assert "\n  STUDY  " in run_cli("sweep", "--help").stdout


def test_a_number_beyond_its_limit_is_refused_in_words(run_cli: RunCli) -> None:
    told = run_cli("sweep", "study.toml", "--jobs", "0").stderr.splitlines()[-1]
    assert "--jobs" in told
    assert "greater than or equal to 1" in told


def test_a_problem_names_the_options_of_the_command(run_cli: RunCli) -> None:
    """The functions behind a command name their parameters, for whoever calls them in Python."""
    for words, option in (("train", "--run"), ("eval", "--run"), ("sweep s.toml", "--name")):
        refused = run_cli(*words.split(), option, "../a")
        assert refused.stderr.startswith(f"nip-fn: {option} ../a: "), refused.stderr
