"""The command with models behind an API: at the fake provider, over real HTTP."""

import json
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from nip_fn.game.protocol import has_answers
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.registry import PROTOCOLS
from nip_fn.run.events import Replied
from nip_fn_adapters.recording import store
from nip_fn_adapters.recording.store import CHECKPOINT
from nip_fn_cli.shown.exits import Exit

from ..core.games import one_by_one
from ..provider import Provider
from .conftest import COMMAND, Finished, RunCli

KEY = "sk-distinctive-7Qz4vXw2pL9"

FROZEN = (
    "--seed", "5", "--iterations", "1", "--set", "agents._default.freeze_agent=true",
    "--set", "rl.rollouts_per_iteration=12", "--set", "dataset_options.max_test_size=12",
    "--set", "malt.num_responses_per_timestep=2", "--model", "m",
)  # fmt: skip


@pytest.fixture
def provider(running: Provider) -> Provider:
    running.reset(key=KEY, caching=False)
    return running


@pytest.fixture
def train(run_cli: RunCli, provider: Provider) -> RunCli:
    """`train("--run", ...)` at the provider, with its key, in this process."""

    def run(*arguments: object, **variables: str) -> Finished:
        where = ("--provider", "openai", "--base-url", provider.url)
        given = {"OPENAI_API_KEY": KEY, **variables}
        return run_cli("train", *FROZEN, *where, *arguments, **given)

    return run


@pytest.fixture
def train_logged(nip_fn: RunCli, provider: Provider) -> RunCli:
    """The same in a process of its own, where the client logs all that it can.

    It reads the level of its log once, when it is imported.
    """

    def run(*arguments: object) -> Finished:
        where = ("--provider", "openai", "--base-url", provider.url)
        given = {"OPENAI_API_KEY": KEY, "OPENAI_LOG": "debug"}
        return nip_fn("train", *FROZEN, *where, *arguments, **given)

    return run


def digest(finished: Finished) -> str:
    assert finished.returncode == 0, finished.stderr
    (line,) = [line for line in finished.stdout.splitlines() if line.startswith("digest")]
    return line


def traces(folder: Path, *finished: Finished) -> list[str]:
    """Where the key is to be found: in files, or in what was printed."""
    secret = KEY.encode()
    files = [str(path) for path in folder.rglob("*") if path.is_file()]
    found = [file for file in files if secret in Path(file).read_bytes()]
    return found + [text for one in finished for text in (one.stdout, one.stderr) if KEY in text]


def recorded(run: Path) -> list[Replied]:
    events = store.read_recording(run / CHECKPOINT).unwrap().events
    return one_by_one(events)


# ------------------------------------------------------------------------------------ runs


def test_a_run_is_recorded_and_replayed(
    train: RunCli, run_cli: RunCli, provider: Provider, tmp_path: Path
) -> None:
    whole = train("--run", "a")
    replies = recorded(tmp_path / "runs" / "a")
    log = [entry for entry in provider.log() if entry["kind"] == "chat"]
    assert {r.completion.request_id for r in replies} == {e["request_id"] for e in log}
    for name in ("prompt_tokens", "completion_tokens"):
        counted = sum(getattr(reply.completion, name) for reply in replies)
        assert counted == provider.counters()[name]
    replayed = run_cli("replay", "runs/a")
    assert digest(whole).split()[1] in replayed.stdout
    assert "all recorded digests match" in replayed.stdout


@pytest.mark.parametrize(
    ("name", "variable"),
    [("openrouter", "OPENROUTER_API_KEY"), ("openai", "OPENAI_API_KEY"), ("self-hosted", "MINE")],
)
def test_every_provider_plays(
    run_cli: RunCli, provider: Provider, name: str, variable: str
) -> None:
    where = ("--provider", name, "--base-url", provider.url)
    own = ("--set", 'agents._default.api_key_variable="MINE"') if variable == "MINE" else ()
    done = run_cli("train", *FROZEN, *where, *own, **{variable: KEY})
    assert done.returncode == 0, done.stderr
    bodies = [entry["body"] for entry in provider.log()]
    assert not any("prompt_cache_key" in body for body in bodies), "this is not OpenAI's address"


GAMES = [
    name
    for name, make in PROTOCOLS.items()
    if name != "multi_channel_test" and not has_answers(make(HyperParameters()))
]

# Words of prompts about programs, which answers in words are not.
OF_CODE = re.compile(r"python|code|program|bug|particular lines|```", re.I)


def test_no_prompt_about_an_answer_in_prose_speaks_of_code(
    run_cli: RunCli, provider: Provider, tmp_path: Path
) -> None:
    """Under every game, for every agent, in tests, trainings and the card."""
    rows = [
        {"question": f"Is {n} even?", "solution": f"It is, as {n} says.", "label": int(n % 2 == 0)}
        for n in range(40)
    ]
    (tmp_path / "own.jsonl").write_text("".join(map("{}\n".format, map(json.dumps, rows))))
    where = ("--provider", "openai", "--base-url", provider.url, "--dataset", "own.jsonl")
    games = [word for game in GAMES for word in ("--protocol", game)]
    tested = run_cli("eval", "--model", "m", *games, "--limit", "2", *where, OPENAI_API_KEY=KEY)
    assert tested.returncode == 0, tested.stderr
    assert "own.jsonl, answers in prose: 2 of 40 test (50% right)" in tested.stderr
    little = ("--set", "rl.rollouts_per_iteration=2", "--set", "dataset_options.max_test_size=2")
    trained = run_cli("train", *FROZEN, *little, *where, "--run", "r", OPENAI_API_KEY=KEY)
    assert trained.returncode == 0, trained.stderr
    assert "data own.jsonl, answers in prose: " in trained.stderr
    retested = run_cli("retest", "r", OPENAI_API_KEY=KEY)
    assert retested.returncode == 0, retested.stderr
    prompts = [entry["body"]["messages"][0]["content"] for entry in provider.log()]
    assert len(set(prompts)) >= 2 * len(GAMES)
    assert not [prompt for prompt in prompts if OF_CODE.search(prompt)]


def test_models_are_compared(run_cli: RunCli, provider: Provider) -> None:
    where = ("--provider", "openai", "--base-url", provider.url, "--json")
    size = ("--set", "dataset_options.max_test_size=12")
    done = run_cli("eval", "--model", "a", "--model", "b", *size, *where, OPENAI_API_KEY=KEY)
    assert done.returncode == 0, done.stderr
    tests: list[dict[str, Any]] = json.loads(done.stdout)["tests"]
    assert [(one["model"], one["protocol"]) for one in tests] == [
        (model, protocol) for model in "ab" for protocol in ("nip", "solo_verifier")
    ]
    assert {entry["model"] for entry in provider.log()} == {"a", "b"}


def test_the_key_may_be_in_a_file(run_cli: RunCli, provider: Provider, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"OPENAI_API_KEY={KEY}\n")
    where = ("--provider", "openai", "--base-url", provider.url)
    done = run_cli("train", *FROZEN, *where)
    assert done.returncode == 0, done.stderr
    assert traces(tmp_path / "runs", done) == []


def test_no_more_connections_are_opened_than_the_system_allows(
    provider: Provider, tmp_path: Path, environment: dict[str, str]
) -> None:
    provider.configure(latency=0.1)
    many = (*FROZEN, "--set", "dataset_options.max_test_size=30")
    command = [COMMAND, "train", *many, "--provider", "openai", "--base-url", provider.url]
    done = subprocess.run(
        ["bash", "-c", 'ulimit -n 150; exec "$@"', "_", *command],
        cwd=tmp_path,
        env={**environment, "OPENAI_API_KEY": KEY},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert provider.counters()["in_flight_max"] == 150 - 128


# ------------------------------------------------------------------------------------ stopped


def start(provider: Provider, tmp_path: Path, environment: dict[str, str], *options: str) -> Any:
    """The command in the background."""
    where = ("--provider", "openai", "--base-url", provider.url, "--run", "b")
    return subprocess.Popen(
        [COMMAND, "train", *FROZEN, *where, *options],
        cwd=tmp_path,
        env={**environment, "OPENAI_API_KEY": KEY},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_chats(provider: Provider, number: int) -> None:
    deadline = time.monotonic() + 60
    while len(provider.log()) < number:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    "how", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.exhaustive)]
)
def test_a_run_that_is_stopped_goes_on_and_asks_for_nothing_again(
    train: RunCli,
    provider: Provider,
    tmp_path: Path,
    environment: dict[str, str],
    how: signal.Signals,
) -> None:
    expected = digest(train("--run", "a"))
    before = len(provider.log())
    provider.configure(latency=0.3)
    process = start(provider, tmp_path, environment)
    wait_for_chats(provider, before + 20)
    process.send_signal(how)
    _, said = process.communicate(timeout=60)
    provider.configure(latency=0.0)
    kept = recorded(tmp_path / "runs" / "b")
    resumed = train("--resume", "--run", "b")
    assert digest(resumed) == expected
    log = provider.log()[before:]
    answers = {entry["request_id"]: str(entry["body"]) for entry in log}
    asked = list(answers.values())
    again = {body for body in asked if asked.count(body) > 1}
    assert not again & {answers[reply.completion.request_id] for reply in kept}
    if how == signal.SIGINT:
        assert process.returncode == Exit.INTERRUPTED
        assert "stopped; nothing is lost, resume with: nip-fn train --resume --run b" in said
        assert again == set(), "what was under way has been waited for"
    assert traces(tmp_path / "runs", resumed) == []


@pytest.mark.parametrize(("grace", "signals"), [("60", 2), ("0.2", 1)])
def test_a_second_signal_or_the_end_of_the_grace_stops_at_once(
    train: RunCli,
    provider: Provider,
    tmp_path: Path,
    environment: dict[str, str],
    grace: str,
    signals: int,
) -> None:
    train("--run", "a")
    before = len(provider.log())
    provider.configure(latency=30.0)
    process = start(provider, tmp_path, environment, "--set", f"text_rl.stop_grace_seconds={grace}")
    wait_for_chats(provider, before + 4)
    began = time.monotonic()
    for _ in range(signals):
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
    _, said = process.communicate(timeout=60)
    assert time.monotonic() - began < 25
    assert f"(at most {float(grace):,.0f} s)" in said
    assert "Traceback" not in said
    assert process.returncode == Exit.INTERRUPTED
    assert traces(tmp_path / "runs") == []


# ------------------------------------------------------------------------------------ refused


def test_without_a_key_nothing_is_asked_and_no_run_begins(
    train: RunCli, provider: Provider, tmp_path: Path
) -> None:
    done = train("--run", "a", OPENAI_API_KEY="")
    assert done.returncode == Exit.USAGE
    assert done.stderr.splitlines()[-1].startswith(
        "nip-fn: agents.prover: provider openai needs an API key; set OPENAI_API_KEY in the "
    )
    assert not (tmp_path / "runs" / "a").exists()
    assert provider.log() == []


def test_training_where_there_is_none_is_refused_with_a_way_out(
    run_cli: RunCli, provider: Provider
) -> None:
    where = ("--provider", "openrouter", "--model", "m", "--base-url", provider.url)
    done = run_cli("train", *where, OPENROUTER_API_KEY=KEY)
    assert done.returncode == Exit.USAGE
    assert "openrouter trains no models; freeze the agent" in done.stderr
    assert provider.log() == []


def test_a_misspelt_model_is_told_with_a_remedy_that_works_alone(
    train: RunCli, provider: Provider
) -> None:
    provider.configure(models=["m-1"])
    done = train("--run", "typo")
    assert done.returncode == Exit.ADAPTER
    last = done.stderr.splitlines()[-1]
    assert last.endswith(
        "; check the name of the model, and --base-url; this run keeps its parameters: start a new "
        "one that differs"
    )
    assert "resume with" not in done.stderr


def test_help_does_not_wait_for_the_client() -> None:
    """The packages of an API are imported by what uses them alone."""
    import sys

    code = "import sys, nip_fn_cli.main, nip_fn_cli.commands.train; print('openai' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# ------------------------------------------------------------------------------------ secrets

FATAL = ("401", "402", "403", "404-model", "400", "422", "429-quota")
LASTING = ("404-model", "422")  # a parameter is at fault
TRANSIENT = (
    "429", "500", "502", "503", "reset", "reset-mid-body", "lost", "malformed", "empty-choices",
    "null-content", "content_filter", "length", "refusal", "wrong-n", "error-200", "413",
    "400-context",
)  # fmt: skip


def leaves_no_trace(folder: Path, *finished: Finished) -> bool:
    """With everything that the client is able to log."""
    assert not any("Traceback" in one.stderr for one in finished)
    assert list(folder.rglob(CHECKPOINT))
    return traces(folder, *finished) == []


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=() if fault == "401" else pytest.mark.exhaustive)
        for fault in FATAL
    ],
)
def test_the_key_is_in_no_file_and_no_line_where_the_run_ends(
    train_logged: RunCli, provider: Provider, tmp_path: Path, fault: str
) -> None:
    """The provider quotes the key at a 401."""
    provider.configure(faults=[{"fault": fault, "match": {"kind": "chat", "after": 6}}])
    done = train_logged("--run", "a")
    assert done.returncode == Exit.ADAPTER
    assert leaves_no_trace(tmp_path / "runs", done)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"nip-fn: {provider.url}: ")
    again = "all replies so far are kept, resume with: nip-fn train --resume --run a --runs runs"
    assert last.endswith("start a new one that differs" if fault in LASTING else again)


def test_the_key_is_in_no_file_and_no_line_where_the_run_goes_on(
    train_logged: RunCli, provider: Provider, tmp_path: Path
) -> None:
    faults = [
        {"fault": fault, "match": {"kind": "chat", "nth": 2 + turn}}
        for turn, fault in enumerate(TRANSIENT)
    ]
    provider.configure(faults=faults)
    done = train_logged("--run", "a")
    assert done.returncode == 0, done.stderr
    assert {entry["fault"] for entry in provider.log()} == {None, *TRANSIENT}
    assert leaves_no_trace(tmp_path / "runs", done)


def test_the_key_is_found_where_it_is(tmp_path: Path) -> None:
    """What the tests above rely on."""
    (tmp_path / "file").write_bytes(b"\x00" + KEY.encode() + b"\x00")
    assert traces(tmp_path) == [str(tmp_path / "file")]
    assert len(traces(tmp_path / "no", Finished([], 0, KEY, f"key: {KEY}"))) == 2
