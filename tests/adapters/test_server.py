"""Laws of the server's process: it is alone, it says in one line why it cannot start, it ends with
all that it has started, and it lets in whom it should.
"""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nip_fn_cli.main import app
from nip_fn_cli.shown.exits import Exit

from .fleets import is_alive
from .serving import (
    MAIN,
    MODEL,
    Answer,
    Server,
    ask,
    config,
    descendants,
    eventually,
    fake_vllm,
    lora,
    write_adapter,
)

pytest.importorskip("litestar")
from nip_fn_adapters.serving import running

TOKEN = "tk-4f1c9a2e77-only-for-tests"
PARTS = {"name": "some", "file": "adapter_config.json", "job_id": "some"}


def endpoints(server: Server) -> list[tuple[str, str]]:
    """All methods and paths that the server's documentation names."""
    paths: dict[str, Any] = server.ask("/schema/openapi.json").json()["paths"]
    return [(method.upper(), path.format(**PARTS)) for path in paths for method in paths[path]]


EXHAUSTIVE = pytest.mark.exhaustive


@pytest.mark.parametrize("how", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=EXHAUSTIVE)])
def test_it_ends_with_all_that_it_has_started(tmp_path: Path, how: signal.Signals) -> None:
    with Server(tmp_path / "state", "--model", MODEL, *fake_vllm(tmp_path / "vllm")) as server:
        eventually(lambda: server.ask("/vllm/status").json()["status"], lambda s: s == "online")
        assert server.process is not None
        children = descendants(server.process.pid)
        assert len(children) >= 3  # vLLM's reaper, vLLM and its engine
        assert server.end(how) == 0
        assert not any(map(is_alive, children))


def refused(state: Path, *options: str, code: Exit) -> str:
    """The one line of a server that does not start."""
    ended = CliRunner().invoke(app, ("serve", "--port", "0", "--state", str(state), *options))
    assert ended.exit_code == code
    # That there is no vLLM is said before.
    *_, line = ended.stderr.splitlines()
    assert all(told.startswith("nip-fn") for told in ended.stderr.splitlines())
    return line


def test_a_second_server_is_told_that_the_folder_is_in_use(tmp_path: Path) -> None:
    with Server(tmp_path / "state"):
        line = refused(tmp_path / "state", code=Exit.RUN)
        assert line == (
            f"nip-fn: {tmp_path / 'state'} is in use by another server; "
            "stop that one, or choose --state"
        )
    with Server(tmp_path / "state"):
        pass


def test_a_port_in_use_is_told(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        line = refused(tmp_path / "state", "--port", port, code=Exit.SYSTEM)
    assert f"127.0.0.1:{port}: " in line
    assert "choose another --host or --port" in line


def test_without_vllm_it_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIP_FN_VLLM", str(tmp_path / "none"))
    assert "there is no such Python" in refused(
        tmp_path / "state", "--model", MODEL, code=Exit.ADAPTER
    )
    with Server(tmp_path / "state") as server:
        answer = server.ask("/vllm/start", "POST", {"model_name": MODEL})
        assert answer.status == 503
        assert ".venv-vllm/bin/pip install vllm" in answer.detail
        assert server.ask("/vllm/status").json()["status"] == "not_started"


PACKAGES = ["litestar", *(pytest.param(name, marks=EXHAUSTIVE) for name in ("uvicorn", "aiohttp"))]


@pytest.mark.parametrize("package", PACKAGES)
def test_without_the_extra_it_says_what_to_install(tmp_path: Path, package: str) -> None:
    without = f"import sys; sys.modules[{package!r}] = None; {MAIN}"
    ended = subprocess.run(
        [sys.executable, "-c", without, "serve", "--state", str(tmp_path / "state")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == Exit.USAGE
    assert ended.stderr == f'nip-fn: the server needs {package}: pip install "nip-fn[serve]"\n'


def test_a_model_that_is_none_is_told(tmp_path: Path) -> None:
    assert "no-such-folder" in refused(
        tmp_path / "state", "--model", "./no-such-folder", code=Exit.USAGE
    )


def test_beyond_this_machine_a_token_is_demanded(tmp_path: Path) -> None:
    line = refused(tmp_path / "state", "--host", "0.0.0.0", code=Exit.USAGE)
    assert "NIP_FN_SERVER_TOKEN" in line


@pytest.fixture(scope="module")
def protected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("protected")
    options = ("--host", "0.0.0.0", "--model", MODEL, *fake_vllm(folder / "vllm"))
    with Server(folder / "state", *options, token=TOKEN) as server:
        server.url = server.url.replace("0.0.0.0", "127.0.0.1")
        yield server


@pytest.mark.parametrize(
    "shown",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        TOKEN,
        f"Basic {TOKEN}",
    ],
)
def test_without_the_token_only_health_and_version_answer(
    protected: Server, shown: str | None
) -> None:
    headers = {} if shown is None else {"Authorization": shown}
    known = endpoints(protected)
    assert len(known) >= 15
    for method, path in [*known, ("GET", "/schema"), ("GET", "/schema/openapi.json"), ("GET", "/")]:
        answer: Answer = ask(f"{protected.url}{path}", method, None, headers)
        if path in ("/health", "/version"):
            assert answer.status == 200
        else:
            assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert answer.detail
            assert TOKEN not in answer.detail


def test_with_the_token_it_answers_whatever_the_host_is_called(protected: Server) -> None:
    assert protected.ask("/adapters", Host="gpu.example.org").status == 200


def test_the_token_is_in_no_file_and_no_argument(protected: Server) -> None:
    eventually(lambda: protected.ask("/vllm/status").json()["status"], lambda s: s == "online")
    assert protected.process is not None
    processes = {protected.process.pid, *descendants(protected.process.pid)}
    for pid in processes:
        assert TOKEN.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    for path in protected.state.rglob("*"):
        assert TOKEN not in path.name
        assert not path.is_file() or TOKEN.encode() not in path.read_bytes()
    assert TOKEN not in protected.said
    (record,) = (protected.state.parent / "vllm").glob("*.jsonl")
    assert f'"VLLM_API_KEY": "{TOKEN}"' in record.read_text()  # vLLM asks for it as well


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("open")
    with Server(folder / "state", *fake_vllm(folder / "vllm")) as server:
        yield server


@pytest.mark.parametrize(
    ("header", "value", "status"),
    [
        ("Host", "evil.example.org", 403),
        ("Host", "127.0.0.1.evil.example.org", 403),
        ("Host", "localhost", 200),
        ("Host", "127.0.0.1:1", 200),
        ("Host", "[::1]:5000", 200),
        ("Origin", "https://evil.example.org", 403),
        ("Origin", "null", 403),
        ("Origin", "http://localhost:3000", 200),
    ],
)
def test_web_pages_elsewhere_cannot_use_a_browser_here(
    server: Server, header: str, value: str, status: int
) -> None:
    assert server.ask("/adapters", **{header: value}).status == status


@pytest.mark.parametrize("first", [b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"])
async def test_half_a_request_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    from litestar import Litestar

    from nip_fn_adapters.serving.app import health

    monkeypatch.setattr(running, "HEAD_SECONDS", 0.3)
    bound, up = running.bind("127.0.0.1", 0).unwrap(), asyncio.Event()
    app = Litestar([health], openapi_config=None)
    serving = asyncio.create_task(running.serve(app, bound, lambda port: up.set()))
    await up.wait()
    reader, writer = await asyncio.open_connection(*bound.getsockname())
    writer.write(first + b"GET /health HTTP/1.1\r\nHost: lo")
    # Its end comes from the server; uvicorn alone would wait for ever.
    told = await asyncio.wait_for(reader.read(), 120.0)
    assert told.count(b"200 OK") == (1 if first else 0)
    writer.close()
    serving.cancel()
    await asyncio.wait([serving])


def test_its_state_is_for_its_user_alone(server: Server) -> None:
    assert server.state.stat().st_mode & 0o007 == 0
    assert (server.state / "vllm.key").stat().st_mode & 0o077 == 0


def test_errors_are_one_line_in_one_form(server: Server) -> None:
    for method, path, body, status in [
        ("GET", "/nothing", None, 404),
        ("PATCH", "/adapters", None, 405),
        ("POST", "/vllm/start", b"{", 400),
        ("POST", "/vllm/start", b"[" * 100_000, 400),
        ("POST", "/vllm/start", b'{"model_name": "\xff"}', 400),
        ("PUT", "/training/jobs/a", b'{"name": "\xed\xa0\x80"}', 400),
        ("POST", "/vllm/start", {"model_name": 3}, 400),
        ("POST", "/vllm/start", {"model_name": "m", "more": 1}, 400),
        ("POST", "/vllm/start", {"model_name": "m", "max_lora_rank": 513}, 400),
        ("POST", "/vllm/start", {"model_name": "./models/secret"}, 422),
        ("POST", "/vllm/start", {"model_name": "/etc"}, 422),
        ("GET", "/training/jobs/none", None, 404),
        ("GET", "/training/jobs/none/log", None, 404),
        ("DELETE", "/training/jobs/none", None, 404),
        ("DELETE", "/adapters/none", None, 404),
        ("POST", "/adapters/none/publish", {"owner": "run-verifier"}, 404),
        ("POST", "/adapters/none/publish", {"owner": "../x"}, 400),
    ]:
        answer = server.ask(path, method, body)
        assert answer.status == status, (path, answer.body)
        assert answer.detail


def test_version_and_documentation_are_served(server: Server) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", server.ask("/version").json()["version"])
    page = server.ask("/schema").body
    assert b"swagger" in page.lower()


def test_it_says_what_happens_and_how_it_is(tmp_path: Path) -> None:
    """In its terminal, and to `nip-fn status`; vLLM is started once for two groups."""
    fakes = fake_vllm(tmp_path / "vllm")
    with Server(tmp_path / "state", "--model", MODEL, *fakes, token=TOKEN) as server:
        status = partial(server.ask, "/vllm/status")
        eventually(lambda: status().json()["status"], lambda s: s == "online")
        needs = {"model_name": MODEL, "max_loras": 2, "max_lora_rank": 64}
        assert server.ask("/vllm/start", "POST", needs).json()["status"] == "online"
        folder = write_adapter(tmp_path / "a", lora(), config())
        server.put_adapter("verifier-0-a", folder)
        assert server.ask("/adapters/verifier-0-a/publish", "POST", {"owner": "x"}).status == 200
        (record,) = (tmp_path / "vllm").glob("*.jsonl")
        os.kill(json.loads(record.read_text())["pids"][0], signal.SIGKILL)
        eventually(lambda: status().json()["replicas"][0]["restarts"], lambda number: number == 1)
        eventually(lambda: status().json()["status"], lambda s: s == "online")
        shown = CliRunner(env={"NIP_FN_SERVER_TOKEN": TOKEN}).invoke(app, ("status", server.url))
        refused = CliRunner(env={"NIP_FN_SERVER_TOKEN": "no"}).invoke(app, ("status", server.url))
    assert shown.exit_code == 0, shown.stderr
    for told in (MODEL, "online", "1 restarts", "GiB used", "GiB free", "answers for x", "none"):
        assert told in shown.stdout
    assert (refused.exit_code, "NIP_FN_SERVER_TOKEN" in refused.stderr) == (Exit.ADAPTER, True)
    said = [line.partition(" vLLM ")[2] for line in server.said.splitlines() if "on port" in line]
    port = fakes[-1]
    assert [
        line.partition(f"on port {port} ")[2].split(";")[0].split(" after")[0] for line in said
    ] == [
        "is starting",
        "is online",
        "has ended: killed by SIGKILL, perhaps by the kernel because memory was short",
        "is starting",
        "is online",
        "was stopped",
    ]
    assert "verifier-0-a answers for x, in place of none" in server.said
    assert TOKEN not in server.said + shown.stdout + shown.stderr


def test_it_starts_one_model_at_a_time_and_one_vllm_for_many_runs(tmp_path: Path) -> None:
    vllm = tmp_path / "vllm"
    with Server(tmp_path / "state", *fake_vllm(vllm)) as server:

        def start(**needs: Any) -> Answer:
            return server.ask("/vllm/start", "POST", {"model_name": MODEL, **needs})

        assert server.ask("/vllm/status").json()["status"] == "not_started"
        assert start(max_lora_rank=8).status == 202
        assert start(max_lora_rank=4).json()["model_name"] == MODEL
        (record,) = eventually(lambda: list(vllm.glob("*.jsonl")), bool)
        assert len(record.read_text().splitlines()) == 1
        assert start(max_lora_rank=20, max_loras=3).status == 202
        arguments = eventually(record.read_text, lambda text: text.count("\n") == 2)
        assert '"--max-lora-rank", "32", "--max-loras", "3"' in arguments
        other = server.ask("/vllm/start", "POST", {"model_name": "org/other"})
        assert other.status == 409
        assert MODEL in other.detail
        assert "org/other" in other.detail
        assert start(quantization="bitsandbytes").status == 409
        server.kill()
        server.start()  # it goes on with the same
        arguments = eventually(record.read_text, lambda text: text.count("\n") == 3)
        assert arguments.splitlines()[2].count('"--max-lora-rank", "32"') == 1
        assert server.ask("/vllm/stop", "POST").status == 204
        server.end()
        server.start()
        assert server.ask("/vllm/status").json()["status"] == "not_started"


def test_a_state_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "served.json").write_text("{")
    assert "cannot be read as a server's folder" in refused(tmp_path / "state", code=Exit.RUN)
