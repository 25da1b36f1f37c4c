"""No byte that a model, data, a configuration or a server wrote commands a terminal."""

import io
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_fn_cli.shown.terminal import terminal_safe

from .conftest import COMMAND, Finished, call_cli, plain_environment

BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
CONTROLS = "".join(map(chr, (*range(0x20), *range(0x7F, 0xA0)))) + BIDI + "\u2028\u2029"
# Colours that rich would not choose, so that they cannot be mistaken for its own.
COLOUR = "\x1b[38;2;6;6;6m"
ATTACKS = (
    COLOUR,
    "\x1b]52;c;cm0gLXJmIH4=\x07",  # fills the clipboard
    "\x1b]8;;http://evil.example\x1b\\click\x1b]8;;\x1b\\",
    "\x1b]0;a title\x07",
    "\x1b[2J\x1b[H",
    "\x9b2J",
    "wrong\rright",
    "\u202eright\u202c",
)
HOSTILE = " ".join((*ATTACKS, CONTROLS))
READ = HOSTILE.replace("\r", "\n")  # as data are read

# What rich itself sends: colours, and for a live display the cursor.
RICH = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[2K|\x1b\[1A|\r")
ALLOWED = "\t\n"

STRATEGY = f"""
from nip_fn.keys import fold_in, randint
from nip_fn.game.episode import may_decide

ATTACKS, CONTROLS = {ATTACKS!r}, {CONTROLS!r}

def hostile(protocol, datapoint, episode, agent, key):
    cut = randint(fold_in(key, "cut"), len(CONTROLS))
    attack = ATTACKS[randint(fold_in(key, "attack"), len(ATTACKS))]
    text = attack + CONTROLS[cut:] + CONTROLS[:cut]
    decides = may_decide(protocol, len(episode.rounds), agent) and len(episode.rounds) > 1
    return text + ("\\nDecision: accept" if decides else "")

def broken(protocol, datapoint, episode, agent, key):
    raise RuntimeError({HOSTILE!r})
"""
FAST = (
    "--provider", "dummy", "--dataset", "own.jsonl", "--iterations", "1",
    "--set", "nip_protocol.max_message_rounds=4", "--set", "text_rl.test_scheme=all",
    "--set", "rl.rollouts_per_iteration=2", "--set", "dataset_options.max_test_size=1",
)  # fmt: skip


class Terminal(io.TextIOWrapper):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def scripted(strategy: str) -> tuple[str, ...]:
    return tuple(
        word
        for agent in ("prover", "verifier")
        for field in ("model_provider=scripted", f"model_name=own.py:{strategy}")
        for word in ("--set", f"agents.{agent}.{field}")
    )


def commands_in(text: str) -> list[str]:
    """The characters of a text that command a terminal."""
    return [one for one in text if one in CONTROLS and one not in ALLOWED]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data set of hostile texts, and scripts that write them."""
    (tmp_path / "own.py").write_text(STRATEGY)
    rows = [
        {
            "question": f"{HOSTILE} {n}",
            "solution": f"{HOSTILE} {n} {label}",
            "problem_id": f"p{HOSTILE}{n}",
            "difficulty": HOSTILE,
            "label": label,
            "split": split,
        }
        for n, split in enumerate(("train", "validation", "test"))
        for label in (0, 1)
    ]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    bad = json.dumps({**rows[0], "label": HOSTILE})
    (tmp_path / "bad.jsonl").write_text(f"{bad}\n")
    (tmp_path / "bad.toml").write_text(f"{json.dumps(HOSTILE)} = 1\n")
    return tmp_path


def printed(folder: Path, *arguments: object, expected: int = 0, **variables: str) -> Finished:
    """A command, run on a terminal and into a pipe; nothing that it prints commands a terminal."""
    on_terminal = call_cli(
        folder, *arguments, stream=Terminal, TERM="xterm-256color", COLUMNS="200", **variables
    )
    assert on_terminal.returncode == expected, on_terminal.stderr
    for text in (on_terminal.stdout, on_terminal.stderr):
        assert COLOUR not in text
        assert commands_in(RICH.sub("", text)) == []
    piped = call_cli(folder, *arguments, **variables)
    for text in (piped.stdout, piped.stderr):
        assert commands_in(text) == []
    return piped


def look_at_everything(folder: Path, *size: str) -> int:
    """Let every command print hostile replies, data and errors; the number of replies printed."""
    train = (*FAST, *scripted("hostile"), *size)
    printed(folder, "train", *train, "--dry-run")
    told = call_cli(
        folder, "train", *train, "--run", "a", stream=Terminal, TERM="xterm-256color", COLUMNS="90"
    )
    assert told.returncode == 0, told.stderr
    assert commands_in(RICH.sub("", told.stdout + told.stderr)) == []

    run = "runs/a"
    printed(folder, "replay", run)
    printed(folder, "replay", run, "--json")
    printed(folder, "replay", run, "--set", "malt.pair_selection_method=all")
    some = printed(folder, "replay", run, "--transcript", HOSTILE, expected=2).stderr
    replies = 0
    for name in some.rsplit(": ", 1)[1].strip().split(", "):
        shown = printed(folder, "replay", run, "--transcript", name)
        as_json = printed(folder, "replay", run, "--transcript", name, "--json")
        dialogues = json.loads(as_json.stdout)
        replies += sum(len(turn) for one in dialogues for turn in one["rounds"])
        assert shown.stdout.count("\\u0000") >= sum(len(one["rounds"]) for one in dialogues)
        # What is made visible is still the text.
        assert all(one["question"].startswith(READ) for one in dialogues)
    (sampled, *_) = [
        name
        for name in some.rsplit(": ", 1)[1].strip().split(", ")
        if call_cli(folder, "replay", run, "--tree", name).returncode == 0
    ]
    printed(folder, "replay", run, "--tree", sampled)
    printed(folder, "replay", run, "--tree", sampled, "--json")

    printed(folder, "eval", *FAST[:4], *scripted("hostile"), "--protocol", "nip", "--run", "e")
    printed(
        folder, "eval", *FAST[:4], *scripted("hostile"), "--protocol", "nip", "--run", "e", "--json"
    )
    printed(folder, "attack", run, "--strategies", "own.py:hostile", "--best-of", "0")
    printed(folder, "data", "stats", "own.jsonl")
    printed(folder, "data", "stats", "own.jsonl", "--json")
    printed(folder, "data", "check", "own.jsonl")
    printed(folder, "data", "show", "own.jsonl", f"p{READ}0")
    printed(folder, "data", "show", "own.jsonl", HOSTILE, expected=2)
    return replies


def test_no_reply_and_no_data_command_the_terminal(folder: Path) -> None:
    assert look_at_everything(folder, "--set", "rl.num_test_iterations=20") > 100


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_nor_do_100_000_replies(folder: Path) -> None:
    assert look_at_everything(folder, "--set", "rl.num_test_iterations=17000") >= 100_000


def test_no_error_commands_the_terminal(folder: Path) -> None:
    broken = printed(folder, "train", *FAST, *scripted("broken"), expected=9)
    assert "\\u001b]52;" in broken.stderr
    printed(folder, "train", "--dataset", "bad.jsonl", expected=2)
    printed(folder, "train", "bad.toml", expected=2)
    printed(folder, "train", "--protocol", HOSTILE, expected=2)
    printed(folder, "replay", f"runs/{COLOUR}", expected=3)


class Refusing(BaseHTTPRequestHandler):
    """Answers every request with an error that is full of commands."""

    def do_POST(self) -> None:
        body = json.dumps({"error": {"message": HOSTILE, "code": HOSTILE}}).encode()
        self.send_response(400)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def test_no_server_commands_the_terminal(folder: Path) -> None:
    with serving(Refusing) as port:
        asked = (
            "--provider",
            "openai",
            "--model",
            "m",
            "--base-url",
            f"http://127.0.0.1:{port}/v1",
        )
        told = printed(
            folder, "train", *asked, "--dataset", "own.jsonl", "--set",
            "agents._default.freeze_agent=true", OPENAI_API_KEY="k", expected=9,
        )  # fmt: skip
    assert "\\u001b" in told.stderr


@given(st.text(st.sampled_from(CONTROLS + 'ab\\"\ud800é🙂')))
def test_a_visible_text_has_no_commands_and_json_keeps_its_meaning(text: str) -> None:
    assert commands_in(terminal_safe(text)) == []
    assert terminal_safe(terminal_safe(text)) == terminal_safe(text)
    told = json.dumps({text: text}, ensure_ascii=False)
    assert json.loads(terminal_safe(told)) == {text: text}
    if not commands_in(text):
        assert terminal_safe(text) == text


# ----------------------------------------------------------------------------------- closed streams


@pytest.mark.parametrize("closed", ["2>&-", ">&-", "2>&1 | head -n 1"])
def test_a_run_goes_on_when_nobody_reads(folder: Path, closed: str) -> None:
    arguments = " ".join(map(repr, (*FAST, "--run", "a")))
    line = f"set -o pipefail; {COMMAND} train {arguments} {closed}"
    environment = {**plain_environment(folder), "PYTHONUNBUFFERED": "1"}
    told = subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    assert "Traceback" not in told.stderr
    assert "all recorded digests match" in call_cli(folder, "replay", "runs/a").stdout
