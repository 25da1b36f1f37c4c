"""Recordings of strangers: no name leads out of a folder, no code is run, no server is asked."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from returns.pipeline import is_successful

from nip_fn.run import checkpoint
from nip_fn_adapters import load_run
from nip_fn_adapters.data.opening import open_data
from nip_fn_adapters.extensions import load_extension
from nip_fn_adapters.recording.runs import begun
from nip_fn_adapters.recording.store import CHECKPOINT, below
from nip_fn_adapters.trust import is_remembered, remember, server_problem, servers_in
from nip_fn_cli.shown.exits import Exit

from .conftest import SMALL, Finished, RunCli, call_cli
from .forging import frame

PATHS = ("../../../../ESCAPE", "a/b", "/tmp/ESCAPE", "..", ".", "", "\x1b[2J", "a\nb", "a\\b")
READERS = (
    *(("show", "a"), ("replay", "runs/a"), ("report", "runs/a"), ("compare", "a", "a")),
    *(("export", "a", "--to", "trl,openai,hf,csv,arrays"),),
)

Forge = Callable[[Callable[[list[Any]], None]], Path]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The events of an honest run, as plain values."""
    home = tmp_path_factory.mktemp("honest")
    assert call_cli(home, "train", *SMALL, "--run", "a").returncode == 0
    events = begun(home / "runs/a" / CHECKPOINT).unwrap().events
    plain: list[Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(events))
    return plain


@pytest.fixture
def forge(honest: list[Any], tmp_path: Path) -> Forge:
    """`forge(change)` writes the honest run to `runs/a` after `change` was made to its events."""

    def write(change: Callable[[list[Any]], None]) -> Path:
        events = msgspec.msgpack.decode(msgspec.msgpack.encode(honest))
        change(events)
        run = tmp_path / "runs" / "a"
        run.mkdir(parents=True, exist_ok=True)
        frames = b"".join(frame(msgspec.msgpack.encode(event)) for event in events)
        (run / CHECKPOINT).write_bytes(checkpoint.header() + frames)
        return run

    return write


def refused(done: Finished, code: Exit, *words: str) -> None:
    assert done.returncode == code, done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert all(word in line for word in words), line


def with_param(address: str, value: object) -> Callable[[list[Any]], None]:
    def change(events: list[Any]) -> None:
        place = events[0][1]
        *path, last = address.split(".")
        for part in path:
            place = place[int(part) if part.isdigit() else part]
        place[last] = value

    return change


# ------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize("name", PATHS)
def test_a_group_or_an_adapter_with_the_name_of_a_path_is_refused(forge: Forge, name: str) -> None:
    def adapter(events: list[Any]) -> None:
        finished = next(event for event in events if event[0] == "job_finished")
        finished[2] = name

    for change in (with_param("agents.0.shared_model_group", name), adapter):
        problem = str(load_run(forge(change)).failure())
        assert f"{name!r} cannot be the name of a file" in problem
        assert "\n" not in problem


def test_a_forged_group_writes_nothing_outside(
    forge: Forge, run_cli: RunCli, tmp_path: Path
) -> None:
    run = forge(with_param("agents.0.shared_model_group", "../../../../ESCAPE"))
    before = {path for path in tmp_path.parent.rglob("*") if "ESCAPE" in path.name}
    for command in READERS:
        refused(run_cli(*command), Exit.MISMATCH, "cannot be the name of a file")
    assert {path for path in tmp_path.parent.rglob("*") if "ESCAPE" in path.name} == before
    assert [path.name for path in run.iterdir()] == [CHECKPOINT]


def test_no_path_leads_out_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to(tmp_path / "outside")
    for name in (*PATHS, "link"):
        with pytest.raises(PermissionError, match="leads out of"):
            below(tmp_path / "in", name)
    assert below(tmp_path / "in", "a", "b.jsonl") == tmp_path / "in" / "a" / "b.jsonl"


def test_an_export_writes_through_no_link(run_cli: RunCli, forge: Forge, tmp_path: Path) -> None:
    run = forge(lambda events: None)
    (run / "export" / "csv").mkdir(parents=True)
    (tmp_path / "mine").write_text("kept")
    (run / "export" / "csv" / "games.csv").symlink_to(tmp_path / "mine")
    refused(run_cli("export", "a", "--to", "csv"), Exit.SYSTEM, "games.csv", "leads out of")
    assert (tmp_path / "mine").read_text() == "kept"


# -------------------------------------------------------------------------------------------- code

EVIL = "from pathlib import Path\nPath({marker!r}).touch()\n"
GAME = "from nip_fn.protocols.nip import nip as T\n"


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    """A file that is there once code of the stranger's has been run."""
    marker = tmp_path / "WAS_RUN"
    text = EVIL.format(marker=str(marker)) + GAME
    package = tmp_path / f"evil_{tmp_path.name}"
    package.mkdir()
    for file in (tmp_path / "evil.py", package / "__init__.py", package / "inner.py"):
        file.write_text(text)
    return marker


@pytest.mark.parametrize(
    "address", ["interaction_protocol", "trainer", "malt.pair_selection_method", "a script"]
)
def test_no_code_of_a_recording_is_run_unless_it_is_trusted(
    forge: Forge, run_cli: RunCli, evil: Path, address: str
) -> None:
    def change(events: list[Any]) -> None:
        if address == "a script":
            with_param("agents.0.opponent_scripts", [reference])(events)
        else:
            with_param(address, reference)(events)

    for reference in ("evil.py:T", f"evil_{evil.parent.name}.inner:T"):
        forge(change)
        for command in READERS:
            refused(
                run_cli(*command), Exit.USAGE, reference, "you have not named before", "--trust"
            )
        run_cli("ls")
        resumed = run_cli("train", "--resume", "--run", "a")
        refused(resumed, Exit.USAGE, reference, "you have not named before")
        assert not evil.exists()
    with suppress(Exception):  # it is no trainer and no selector
        run_cli("replay", "runs/a", "--trust")
    assert evil.exists()


def test_a_data_set_of_a_recording_is_not_run_either(
    forge: Forge, evil: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(evil.parent)
    run = load_run(forge(with_param("dataset", "evil.py:T"))).unwrap()
    assert "you have not named before" in str(open_data(run.params).failure())
    assert not evil.exists()


def test_what_the_user_has_written_is_remembered_by_its_source_and_name(
    run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(GAME + "OTHER = T\n")
    assert run_cli("train", *SMALL, "--protocol", "mine.py:T", "--run", "a").returncode == 0
    assert run_cli("replay", "runs/a").returncode == 0
    # The same file elsewhere is the same code.
    (tmp_path / "b").mkdir()
    file.rename(tmp_path / "b" / "mine.py")
    here = (tmp_path / "runs" / "a" / CHECKPOINT).rename(tmp_path / "b" / CHECKPOINT).parent
    environment = {"XDG_CONFIG_HOME": str(tmp_path / ".config")}
    assert call_cli(here, "replay", CHECKPOINT, **environment).returncode == 0
    refused(call_cli(here, "replay", CHECKPOINT), Exit.USAGE, "you have not named before")
    # Another value of it is not.
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ".config"))
    assert is_successful(load_extension(f"{here}/mine.py:T"))
    assert not is_successful(load_extension(f"{here}/mine.py:OTHER"))
    assert (tmp_path / ".config/nip-fn/trusted").stat().st_mode & 0o077 == 0


def test_an_edited_protocol_is_named_as_the_cause(run_cli: RunCli, tmp_path: Path) -> None:
    file = tmp_path / "two.py"
    game = "from nip_fn.protocols.nip import nip\ndef T(params): return nip(params)._replace({})\n"
    file.write_text(game.format("max_message_rounds=5"))
    assert run_cli("train", *SMALL, "--protocol", "two.py:T", "--run", "a").returncode == 0
    # Of another length, since Python knows what it has compiled by its second and its length.
    file.write_text(game.format("max_message_rounds = 1"))
    cause = "two.py:T: its source has changed since the run was started"
    for trust in ((), ("--trust",)):
        for command in (("replay", "runs/a"), ("report", "runs/a"), ("show", "a")):
            done = run_cli(*command, *trust)
            assert done.returncode == Exit.MISMATCH, done.stderr
            line = done.stderr.strip().splitlines()[-1]
            assert cause in line, line
            assert ("does not fit" in line) == bool(trust)
    refused(run_cli("train", "--resume", "--run", "a"), Exit.USAGE, cause)


# ----------------------------------------------------------------------------------------- servers


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"api_base_url": "https://evil.example/v1"}, "server https://evil.example/v1"),
        ({"api_key_variable": "AWS_SECRET_ACCESS_KEY"}, "the key in AWS_SECRET_ACCESS_KEY"),
    ],
)
def test_no_server_of_a_recording_is_asked_unless_it_was_named(
    forge: Forge, run_cli: RunCli, fields: dict[str, object], named: str
) -> None:
    def change(events: list[Any]) -> None:
        for agent in events[0][1]["agents"]:
            agent.update(use_dummy_api=False, model_provider="OpenAI", **fields)
        del events[1:]

    run = forge(change)
    resumed = run_cli(
        "train", "--resume", "--run", "a", OPENAI_API_KEY="k", AWS_SECRET_ACCESS_KEY="s"
    )
    refused(resumed, Exit.USAGE, named, "you have not named before", "--trust")
    params = load_run(run).unwrap().params
    assert server_problem(params) is not None
    remember(servers_in({"agents": {"_default": fields}}))
    assert server_problem(params) is None


def test_servers_on_this_machine_need_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nip_fn.params.agent import AgentParameters
    from nip_fn.params.run import HyperParameters

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    here = AgentParameters(model_provider="SelfHosted")
    assert server_problem(HyperParameters(agents=(here,))) is None
    assert not is_remembered("server http://localhost")
