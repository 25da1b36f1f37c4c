"""The first hour of a new user: the documented commands, and the mistakes that people make.

A mistake ends with one line that names what was given, why it cannot be, and a change; whoever
makes that change gets what was asked for.
"""

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main

from nip_fn.protocols.registry import PROTOCOLS
from nip_fn_cli.main import app

from ..docs.pages import WALKED
from ..provider import Provider
from .conftest import Finished, call_cli, plain_environment

ROOT = Path(__file__).parents[2]
KEY = "sk-first-hour"

pytestmark = pytest.mark.xdist_group("first hour")

# ------------------------------------------------------------------------------ what is documented


def documented() -> list[tuple[str, ...]]:
    """The words after `nip-fn` of every command in the README and in docs/, without repetitions.

    Pages that are read from top to bottom are left to tests/docs/test_pages.py.
    """
    pages = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    texts = [path.read_text() for path in pages if path.stem not in WALKED]
    whole = "\n".join(texts).replace("\\\n", " ")
    lines = re.findall(r"^ {4}nip-fn (.*)$", whole, re.MULTILINE)
    return list(dict.fromkeys(tuple(shlex.split(line, comments=True)) for line in lines))


@pytest.mark.parametrize("words", documented(), ids=" ".join)
def test_what_is_documented_can_be_typed(words: tuple[str, ...]) -> None:
    command: Any = typer.main.get_command(app)
    context = command.make_context("nip-fn", list(words))
    # A group leaves the name of its command and the words behind it, for which it has no meaning.
    while hasattr(command, "commands"):
        name, *rest = [*context._protected_args, *context.args]
        command = command.commands[name]
        context = command.make_context(name, rest, parent=context)
    assert context.args == []


# What a command is given to be quick: random words, and little of everything.
DUMMY = ("--provider", "dummy")
LITTLE = (
    *("--set", "rl.rollouts_per_iteration=12", "--set", "malt.num_responses_per_timestep=2"),
    *("--set", "dataset_options.max_test_size=6", "--set", "nip_protocol.max_message_rounds=3"),
    *("--set", "ei.rollouts_per_iteration=12"),
)
QUICK: dict[str, tuple[str, ...]] = {
    "train": (*DUMMY, *LITTLE),
    "eval": (*DUMMY, "--set", "dataset_options.max_test_size=4", "--repeats", "1"),
    "card": (*DUMMY, "--set", "dataset_options.max_test_size=4", "--repeats", "1"),
    "attack": ("--starts", "1", "--iterations", "1", "--datapoints", "2", "--games", "2"),
    "attack exactly": ("--datapoints", "2"),
}
# Needs a GPU, another model, many runs, or a reader; tested elsewhere.
ELSEWHERE = ("serve", "view", "sweep", "doctor", "compare", "data bug")


def quick(words: tuple[str, ...]) -> tuple[str, ...]:
    """The command with what makes it quick, after what was typed."""
    if "--resume" in words or "openai" in words or "examples/open_weights.toml" in words:
        return words
    one = ("--iterations", "1") if words[0] == "train" and "--iterations" not in words else ()
    name = "attack exactly" if "--exact" in words else words[0]
    return (*words, *QUICK.get(name, ()), *one)


@pytest.fixture(scope="module")
def provider(running: Provider) -> Provider:
    running.reset(key=KEY, caching=False)
    return running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, provider: Provider) -> Path:
    """A folder with what the commands name: files, examples, and runs of the first minutes."""
    place = tmp_path_factory.mktemp("first hour")
    shutil.copytree(ROOT / "examples", place / "examples")
    for name, text in FILES.items():
        (place / name).write_text(text)
    (place / "utf16.toml").write_bytes("seed = 1".encode("utf-16"))
    (place / "photos").mkdir()
    first = ("train", "--trainer", "malt", "--seed", "1", "--iterations", "4", "--run", "first")
    assert call_cli(place, *quick(first)).returncode == 0
    for copy in ("a", "b", "NAME", "mine", "theirs"):
        shutil.copytree(place / "runs/first", place / "runs" / copy)
    done = call_cli(place, "eval", *DUMMY, *TEA, "--run", "tested", "--protocol", "nip")
    assert done.returncode == 0
    whole = (place / "runs/first/checkpoint.msgpack").read_bytes()
    (place / "cut.msgpack").write_bytes(whole[:-5])
    return place


TEA = ("--dataset", "builtin:tea", "--set", "dataset_options.max_test_size=4")


def row(number: int, **more: Any) -> str:
    right = number % 2
    code = f"def f(x):\n    return x + {number}{'' if right else ' + (x == 2)'}\n"
    tests = [f"f(1) == {number + 1}", f"f(2) == {number + 2}"]
    given = {"question": f"Add {number}.", "solution": code, "label": right, "tests": tests}
    whole = {**given, **more}
    return json.dumps({name: value for name, value in whole.items() if value is not None}) + "\n"


PLAIN = "".join(row(number, tests=None) for number in range(40))
FILES = {
    "my.toml": 'seed = 3\n[rl]\nnum_iterations = 1\n[agents._default]\nmodel_provider = "dummy"\n',
    "my.jsonl": "".join(map(row, range(40))),
    "plain.jsonl": PLAIN,
    "bad.jsonl": PLAIN + "{broken\n",
    "columns.jsonl": '{"prompt": "q", "answer": "a"}\n',
    "label.jsonl": PLAIN + row(7, label="maybe"),
    "my.txt": "question",
    "broken.py": "import nip_fn\ndef game(:\n",
    "syntax.toml": "[rl\nlr = 1\n",
    "protocol.toml": 'protocol = "debate"\n',
    "model.toml": 'model = "builtin:tea"\n',
    "provider.toml": 'provider = "openai"\n',
    "lr.toml": "lr = 1e-4\n",
    "type.toml": '[rl]\nnum_iterations = "three"\n',
    "range.toml": "[rl]\nlr = -1.0\n",
    "agent.toml": '[agents.prover]\nmodel_provider = "OpenRuoter"\n',
    "old.toml": 'trainer = "pure_text_ei"\n[agents._default]\nmodel_provider = "SelfHosted"\n',
    "unset.toml": '[agents._default]\ntemperature = "none"\ntop_p = 0.9\n',
    "judge.jinja": "You judge {{ question }}.",
    "bad.jinja": "You judge {{ quetsion }}.",
    "prices.toml": '[models]\n"m" = { prompt = 1.0, completion = 2.0 }\n',
    "foreign.msgpack": "this is no checkpoint",
}


CHECKING = ("agents.verifier.model_provider=scripted", "agents.verifier.model_name=asks_1")


@pytest.fixture
def type_in(folder: Path, provider: Provider) -> Any:
    """Run a command in the folder, where OPENAI_BASE_URL names the fake provider."""

    def run(words: tuple[str, ...], **variables: str) -> Finished:
        given = {"OPENAI_BASE_URL": provider.url, "OPENAI_API_KEY": KEY, **variables}
        return call_cli(folder, *words, **{name: text for name, text in given.items() if text})

    return run


def runnable() -> list[tuple[str, ...]]:
    """The documented commands in their order, except those that are tried elsewhere."""
    return [one for one in documented() if not {one[0], " ".join(one[:2])} & {*ELSEWHERE}]


@pytest.mark.parametrize("words", runnable(), ids=" ".join)
def test_what_is_documented_works(words: tuple[str, ...], type_in: Any, folder: Path) -> None:
    if words[:2] == ("data", "check") and not shutil.which("bwrap"):
        pytest.skip("bubblewrap is not installed (apt install bubblewrap)")
    if "examples/open_weights.toml" in words:  # without its server: what it would ask for
        words = (*words, "--dry-run")
    if "--run" in words and "--resume" not in words:  # `folder` may have made it
        run = words[words.index("--run") + 1]
        made = (folder / "runs" / run).exists()
        words = tuple(f"{run}-again" if made and word == run else word for word in words)
    if "ID" in words:
        point = call_cli(folder, *words).stderr.rpartition(": ")[2].split(",")[0].strip()
        words = tuple(point if word == "ID" else word for word in words)
    if "--exact" in words:  # dummies have no probabilities
        words = (*words, *(word for field in CHECKING for word in ("--set", field)))
    if "openai" in words:
        words = (*words, *TEA, "--set", "text_rl.fine_tune_poll_seconds=0.05")
    done = type_in(quick(words))
    assert "Traceback" not in done.stderr
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------------------------------- mistakes


class Mistake(NamedTuple):
    """Something that people type.

    typed: the words after `nip-fn`, as in a shell.
    code: the exit code.
    told: what the last line says: what was given, why it cannot be, what to do.
    mended: the command with the change that the line asks for; "" if there is none to type.
    variables: of the environment, for the mistake alone.
    """

    typed: str
    code: int
    told: tuple[str, ...]
    mended: str = ""
    variables: tuple[tuple[str, str], ...] = ()


TRAIN = "train --provider dummy --iterations 1 " + " ".join(LITTLE)
TESTED = "train --iterations 0 --set text_rl.test_scheme=all " + " ".join(TEA)
OPENAI = f"{TESTED} --provider openai --model m"

MISTAKES = [
    # names
    Mistake("trian", 2, ("trian", "train")),
    Mistake(f"{TRAIN} --trainer mlat", 2, ("'mlat'", "'malt'"), f"{TRAIN} --trainer malt"),
    Mistake(f"{TRAIN} --protocol debat", 2, ("'debat'", "'debate'"), f"{TRAIN} --protocol debate"),
    Mistake(
        f"{OPENAI} --provider opnai",
        2,
        ("--provider", "'opnai'", "'openai'", "self-hosted"),
        OPENAI,
    ),
    Mistake(
        f"{TESTED} agent.toml", 2, ("agent.toml", "model_provider", "'OpenRuoter'", "openrouter")
    ),
    Mistake(
        f"{TRAIN} --set protocol=debate",
        2,
        ("protocol", "no such parameter", "'interaction_protocol'"),
        f"{TRAIN} --set interaction_protocol=debate",
    ),
    Mistake(f"{TRAIN} protocol.toml", 2, ("protocol.toml: protocol", "'interaction_protocol'")),
    Mistake(f"{TRAIN} model.toml", 2, ("model.toml: model", "'agents._default.model_name'")),
    Mistake(
        f"{TRAIN} provider.toml", 2, ("provider.toml: provider", "'agents._default.model_provider'")
    ),
    Mistake(f"{TRAIN} lr.toml", 2, ("lr.toml: lr", "'rl.lr'"), f"{TRAIN} --set rl.lr=1e-4"),
    Mistake(
        f"{TRAIN} --set rl.num_iteration=3",
        2,
        ("rl.num_iteration", "'num_iterations'"),
        f"{TRAIN} --set rl.num_iterations=1",
    ),
    Mistake(
        f"{TRAIN} --set agents.verfier.temperature=1",
        2,
        ("agents.verfier", "verifier"),
        f"{TRAIN} --set agents.verifier.temperature=1",
    ),
    Mistake(
        f"{TRAIN} --set agents.verifier.model=m",
        2,
        ("agents.verifier.model", "'agents.verifier.model_name'"),
        f"{TRAIN} --set agents.verifier.model_name=m",
    ),
    Mistake(f"{TRAIN} --set seed", 2, ("--set seed", "--set rl.lr=1e-4"), f"{TRAIN} --set seed=4"),
    # files
    Mistake(f"{TRAIN} nope.toml", 2, ("nope.toml", "No such file"), f"{TRAIN} my.toml"),
    Mistake(f"{TRAIN} syntax.toml", 2, ("syntax.toml", "line 1")),
    Mistake(f"{TRAIN} utf16.toml", 2, ("utf16.toml", "UTF-8")),
    Mistake(f"{TRAIN} my.txt", 2, ("my.txt", ".toml, .json, .json5 or .yaml")),
    Mistake(
        f"{TRAIN} --protocol broken.py:GAME",
        2,
        ("interaction_protocol: broken.py:GAME: SyntaxError: ", "broken.py, line 2); correct it"),
    ),
    Mistake(f"{TRAIN} type.toml", 2, ("type.toml: rl.num_iterations", "`int`", "'three'", "8")),
    Mistake(f"{TRAIN} range.toml", 2, ("range.toml: rl.lr", "> 0.0", "-1.0")),
    Mistake(
        f"{TRAIN} --set agents.verifier.system_prompt_template_path=nope.jinja",
        2,
        ("nope.jinja", "system_prompt_template_path"),
        f"{TRAIN} --set agents.verifier.system_prompt_template_path=judge.jinja",
    ),
    Mistake(
        f"{TRAIN} --set agents.verifier.system_prompt_template_path=bad.jinja",
        2,
        ("quetsion", "question"),
    ),
    Mistake(f"{TRAIN} --protocol nope.py:game", 2, ("nope.py",)),
    # what excludes something else
    Mistake(
        f"{TRAIN} --set agents._default.temperature=1 --set agents._default.top_p=0.9",
        2,
        ("temperature", "top_p", "keep one"),
        f"{TRAIN} unset.toml",
    ),
    # models
    Mistake(
        f"{TESTED} --model gpt-4.1-mini",
        2,
        ("gpt-4.1-mini", "--provider openai"),
        f"{TESTED} --model gpt-4.1-mini --provider openai",
    ),
    Mistake(OPENAI, 2, ("openai", "OPENAI_API_KEY"), OPENAI, (("OPENAI_API_KEY", ""),)),
    Mistake(
        f"{OPENAI} --run refused",
        9,
        ("401", "OPENAI_API_KEY", "train --resume --run refused"),
        "train --resume --run refused",
        (("OPENAI_API_KEY", "wrong"),),
    ),
    Mistake(
        f"{OPENAI} --base-url 127.0.0.1:9",
        2,
        ("127.0.0.1:9", "not the address", "https://api.openai.com/v1"),
        OPENAI,
    ),
    Mistake(
        f"{OPENAI} --base-url 127.0.0.1:9 --dry-run", 2, ("127.0.0.1:9", "not the address"), OPENAI
    ),
    Mistake(
        f"train --provider openrouter --model m --dry-run {' '.join(LITTLE)}",
        2,
        ("openrouter trains no models", "freeze_agent=true"),
        f"train --provider openrouter --model m --dry-run {' '.join(LITTLE)} "
        "--set agents._default.freeze_agent=true",
    ),
    Mistake(
        f"{OPENAI} --budget 1",
        2,
        ("--budget", "m", "--prices"),
        f"{OPENAI} --budget 1 --prices prices.toml",
    ),
    # runs
    Mistake(
        f"{TRAIN} --run first",
        3,
        ("runs/first", "--resume --run first"),
        "train --resume --run first",
    ),
    Mistake(
        "train --resume --run first --seed 9",
        2,
        ("seed", "leave the option out"),
        "train --resume --run first",
    ),
    Mistake("train --resume", 2, ("--run NAME", "first"), "train --resume --run first"),
    Mistake("train --resume --run frist", 3, ("runs/frist", "without --resume")),
    Mistake(f"{TRAIN} --run ../../x", 2, ("--run ../../x", "--run x"), f"{TRAIN} --run x"),
    Mistake("train --resume --run runs/first", 2, ("--run first",), "train --resume --run first"),
    Mistake(
        "train --more-iterations 1 --run first",
        2,
        ("--more-iterations", "--resume"),
    ),
    Mistake("train --resume --run first --dry-run", 2, ("--dry-run", "--resume")),
    Mistake("card --relabel 4", 2, ("--relabel", "--from")),
    # data
    Mistake(f"{TRAIN} --dataset photos", 2, ("photos", ".jsonl"), f"{TRAIN} --dataset my.jsonl"),
    Mistake(f"{TRAIN} --dataset my.txt", 2, ("my.txt", ".jsonl")),
    Mistake(f"{TRAIN} --dataset nope.jsonl", 2, ("nope.jsonl", "no such file")),
    Mistake(f"{TRAIN} --dataset builtin:pyhton", 2, ("builtin:pyhton", "builtin:python")),
    Mistake(f"{TRAIN} --dataset columns.jsonl", 2, ("columns.jsonl", "'prompt'", "label")),
    Mistake(
        f"{TRAIN} --dataset bad.jsonl",
        2,
        ("1 bad row", "--skip-bad-rows"),
        f"{TRAIN} --dataset bad.jsonl --skip-bad-rows",
    ),
    Mistake(
        f"{TRAIN} --dataset label.jsonl",
        2,
        ("1 bad row", "--skip-bad-rows"),
        f"{TRAIN} --dataset label.jsonl --skip-bad-rows",
    ),
    Mistake(
        "data show builtin:python run-lenghts",
        2,
        ("run-lenghts", "'run-lengths'"),
        "data show builtin:python run-lengths",
    ),
    Mistake("data show builtin:tea zzz", 2, ("zzz", "nip-fn data show builtin:tea")),
    Mistake(
        "data bug plain.jsonl --provider dummy --model m --out o.jsonl",
        2,
        ("plain.jsonl", "tests", "add(1, 2) == 3"),
    ),
    # recordings
    Mistake("replay runs/frist", 3, ("runs/frist", "checkpoint.msgpack"), "replay runs/first"),
    Mistake("replay foreign.msgpack", 6, ("foreign.msgpack",)),
    Mistake("replay runs/first --tree zzz", 2, ("'zzz'", "some of its datapoints are")),
    Mistake("replay runs/tested/nip --tree x", 2, ("grows trees", "--transcript x")),
    Mistake("replay runs/first --tree x --iteration 99", 2, ("--iteration 99", "choose from 0, 1")),
    Mistake("replay runs/first --set rl.lr=1e-3", 2, ("--set",)),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.typed[-60:])
def test_a_mistake_is_told_in_a_line_whose_remedy_works(mistake: Mistake, type_in: Any) -> None:
    done = type_in(tuple(shlex.split(mistake.typed)), **dict(mistake.variables))
    assert done.returncode == mistake.code, done.stderr
    assert "Traceback" not in done.stderr
    told = done.stderr.strip().splitlines()[-1]
    assert all(word in told for word in mistake.told), told
    if mistake.mended:
        mended = type_in(tuple(shlex.split(mistake.mended)))
        assert mended.returncode == 0, mended.stderr


@pytest.mark.parametrize(
    "typed",
    [
        "-h",
        "train -h",
        "data show -h",
        f"{TRAIN} --set agents.verifier.temperature=none",
        f"{TRAIN} --set agents.verifier.lora_alpha=32",
        "train --provider dummy --iterations 1 --set rl.frames_per_batch=9",
        f"{TRAIN} old.toml",
        "data show builtin:python",
    ],
)
def test_what_is_only_another_way_to_say_it_works(typed: str, type_in: Any) -> None:
    done = type_in(tuple(shlex.split(typed)))
    assert done.returncode == 0, done.stderr


def test_the_hour_has_sixty_commands() -> None:
    assert len(MISTAKES) + len(runnable()) >= 60


def test_a_refused_command_leaves_nothing_behind(folder: Path, type_in: Any) -> None:
    before = sorted(path.name for path in (*folder.iterdir(), *(folder / "runs").iterdir()))
    bug = ("data", "bug", "plain.jsonl", "--provider", "dummy", "--model", "m")
    type_in((*bug, "--out", "bugs-of-none.jsonl"))
    type_in((*shlex.split(TESTED), "--model", "gpt-4.1-mini"))
    assert sorted(path.name for path in (*folder.iterdir(), *(folder / "runs").iterdir())) == before


def test_a_cut_recording_is_read_as_far_as_it_goes(type_in: Any) -> None:
    done = type_in(("replay", "cut.msgpack"))
    assert done.returncode == 5
    pasted = re.search(r"look at them with: nip-fn (.* --until \d+);", done.stderr)
    assert pasted
    assert type_in(tuple(shlex.split(pasted[1]))).returncode == 0


def test_a_warning_ends_in_a_command_that_can_be_pasted(type_in: Any) -> None:
    told = type_in((*shlex.split(TRAIN), "--run", "with a space"))
    pasted = re.search(r"without a verdict; .* with: nip-fn (.*)", told.stderr)
    assert pasted, told.stderr
    shown = type_in(tuple(shlex.split(pasted[1])))
    assert shown.returncode == 0, shown.stderr
    assert "the first in full: nip-fn replay" in shown.stdout


def test_a_base_url_may_lack_its_v1(folder: Path, type_in: Any, provider: Provider) -> None:
    host = provider.url.removesuffix("/v1")
    for number, url in enumerate((host, f"{host}/")):
        done = type_in((*shlex.split(OPENAI), "--base-url", url, "--run", f"bare-{number}"))
        assert done.returncode == 0, done.stderr


def test_the_usual_variable_of_another_server_is_honoured_and_said(
    type_in: Any, provider: Provider
) -> None:
    told = type_in((*shlex.split(OPENAI), "--run", "usual")).stderr
    assert f"{provider.url}, as OPENAI_BASE_URL says" in told
    older = {"OPENAI_BASE_URL": "", "OPENAI_API_BASE": provider.url}
    told = type_in((*shlex.split(OPENAI), "--run", "older"), **older).stderr
    assert "as OPENAI_API_BASE says" in told
    chosen = type_in((*shlex.split(OPENAI), "--base-url", provider.url, "--run", "chosen"))
    assert "OPENAI_BASE_URL" not in chosen.stderr


def test_a_run_is_resumed_with_another_key_and_server(type_in: Any, provider: Provider) -> None:
    first = (
        *shlex.split(OPENAI),
        "--base-url",
        provider.url.replace("/v1", "/v2"),
        "--run",
        "moved",
    )
    assert type_in(first, OPENAI_API_KEY="wrong").returncode == 9
    resume = ("train", "--resume", "--run", "moved", "--base-url", provider.url)
    variable = ("--set", "agents._default.api_key_variable=MINE")
    again = type_in((*resume, *variable), OPENAI_API_KEY="wrong", MINE="wrong, too")
    # What it says to type holds the changes, which are recorded nowhere.
    assert again.returncode == 9
    typed = again.stderr.rpartition("resume with: nip-fn ")[2]
    done = type_in(tuple(shlex.split(typed)), OPENAI_API_KEY="wrong", MINE=KEY)
    assert done.returncode == 0, done.stderr
    assert type_in(("replay", "runs/moved")).returncode == 0


def test_a_protocol_that_a_program_registered_is_asked_for_by_name(
    type_in: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as program:
        program.setitem(PROTOCOLS, "mine", PROTOCOLS["adp"])
        assert type_in((*shlex.split(TRAIN), "--protocol", "mine", "--run", "own")).returncode == 0
    done = type_in(("replay", "runs/own"))
    assert done.returncode == 8
    assert "'mine' was registered by the program" in done.stderr


# --------------------------------------------------------------------------------- real processes

NIP_FN = f"{shlex.quote(sys.executable)} -c 'from nip_fn_cli.entry import main; main()'"


def shell(folder: Path, script: str) -> Finished:
    """A script of bash in the folder, in which `nip-fn` is this command."""
    return subprocess.run(
        ["bash", "-c", f'nip-fn() {{ {NIP_FN} "$@"; }}\n{script}'],
        cwd=folder,
        env=plain_environment(folder),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_full_disk_names_the_file_and_how_to_go_on(folder: Path) -> None:
    limited = shell(
        folder, f"ulimit -f 16; PYTHONDONTWRITEBYTECODE=1 nip-fn {TRAIN} --run full"
    )  # KiB that a file may have
    assert limited.returncode == 10, limited.stderr
    line = limited.stderr.strip().splitlines()[-1]
    assert line.startswith("nip-fn: runs/full/")
    typed = line.rpartition("resume with: nip-fn ")[2]
    assert call_cli(folder, *shlex.split(typed)).returncode == 0
    assert call_cli(folder, "replay", "runs/full").returncode == 0


def test_whoever_stops_reading_finds_no_bug(folder: Path) -> None:
    done = shell(folder, f"nip-fn {TRAIN} --run unread 2>&1 | head -1; echo ${{PIPESTATUS[0]}}")
    assert done.stdout.splitlines()[-1] == "0"  # what it samples is paid for, so it goes on
    assert "Traceback" not in done.stdout + done.stderr
    assert call_cli(folder, "replay", "runs/unread").returncode == 0


@pytest.mark.parametrize("seconds", [0.1, 0.3])
def test_an_early_interrupt_is_a_line(folder: Path, seconds: float) -> None:
    # The interpreter itself must be up: before, an interrupt ends it like any program.
    script = "from nip_fn_cli.entry import main; print('up', flush=True); main()"
    started = subprocess.Popen(
        [sys.executable, "-c", script, "train"],
        cwd=folder,
        env=plain_environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "up\n"
    time.sleep(seconds)
    started.send_signal(signal.SIGINT)
    _, told = started.communicate(timeout=60)
    assert started.returncode in (130, -signal.SIGINT)
    assert "Traceback" not in told
