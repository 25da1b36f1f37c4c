"""`nip-fn view`: a run that is looked at while it is written."""

import asyncio
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from http.client import HTTPConnection
from pathlib import Path

import pytest

import nip_fn as nip
from nip_fn.run import checkpoint
from nip_fn_adapters.recording.following import Followed, follow

from ..tools.browser import Page, chromium, complaints
from ..tools.hostile_run import hostile_events
from .conftest import RunCli
from .test_report import needs_chromium


@cache
def frames() -> list[bytes]:
    return [checkpoint.header(), *map(checkpoint.frame, hostile_events())]


def half() -> int:
    return len(frames()) // 2


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """The first half of a recording, and a torn event."""
    path = tmp_path / "runs/goes-on/checkpoint.msgpack"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"".join(frames()[: half()]) + frames()[half()][:7])
    return path


def test_a_port_in_use_is_told_with_an_option_that_view_has(
    recording: Path, run_cli: RunCli
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_cli("view", "goes-on", "--port", port)
    assert done.returncode == 10
    assert f"127.0.0.1:{port}: Address already in use; choose another --port; " in done.stderr


def go_on(path: Path) -> None:
    """Write the rest."""
    with path.open("ab") as file:
        file.write(frames()[half()][7:] + b"".join(frames()[half() + 1 :]))


@pytest.fixture
def url(recording: Path, start: Callable[..., "subprocess.Popen[str]"]) -> Iterator[str]:
    """The address of a server that follows the recording."""
    server = start("view", "goes-on", "--port", 0)
    assert server.stdout is not None
    yield server.stdout.readline().strip()
    server.send_signal(signal.SIGINT)
    assert server.wait(20) == 0


def get(url: str, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    connection = HTTPConnection(url.removeprefix("http://"), timeout=30)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def told(found: Followed) -> tuple[object, ...]:
    """All that a page could say of a run."""
    name, replayed, version, _ = found.subject
    trees = [tree.path_N for stage in replayed.stages for tree in stage.batch.trees]
    return name, version, nip.digest(replayed.state), replayed.num_events, trees, found.size


def test_what_is_followed_is_what_a_whole_replay_derives(recording: Path) -> None:
    """However the events came: at once, or by and by with torn ones between them."""
    known = follow(recording).unwrap()
    assert known.subject.replayed.num_events == half() - 1
    go_on(recording)
    later = follow(recording, known).unwrap()
    assert told(later) == told(follow(recording).unwrap())
    assert later.subject.replayed.state.faults == ()
    assert later.subject.replayed.num_events == len(frames()) - 1
    assert told(follow(recording, later).unwrap()) == told(later)
    recording.write_bytes(b"".join(frames()[:4]))  # another run in its place
    assert follow(recording, later).unwrap().subject.replayed.num_events == 3


def test_a_page_from_elsewhere_sees_nothing(url: str, recording: Path) -> None:
    status, page = get(url, "/")
    assert status == 200
    assert "It is under way" in page
    assert get(url, "/events") == (200, str(half() - 1))
    assert get(url, "/", Host="evil.example")[0] == 403
    assert get(url, "/events", Origin="http://evil.example")[0] == 403
    assert get(url, "/", method="POST")[0] == 405
    recording.unlink()
    assert get(url, "/")[0] == 200


@needs_chromium
async def test_the_page_follows_the_run_and_keeps_what_is_open(
    url: str, recording: Path, tmp_path: Path
) -> None:
    async with chromium(tmp_path / "profile") as page:
        await page.open(url)
        assert "under way" in await page.run("document.querySelector('.lede').textContent")
        box = "document.getElementById('r0-tree-0-0')"
        await page.run(f"{box}.open = true")
        go_on(recording)
        await finished(page)
        assert await page.run(f"{box}.open")
        assert await page.run("document.querySelector('.tools').checkVisibility()")
        assert await page.run("typeof window.pwned") == "undefined"
        asked, console, problems = complaints(page)
        assert (console, problems) == ([], [])
        assert all(one.startswith(f"{url}/") for one in asked)


async def finished(page: Page) -> None:
    """Return once the page tells that the run has ended."""
    for _ in range(600):
        if "finished" in await page.run("document.querySelector('.lede').textContent"):
            return
        await asyncio.sleep(0.1)
    raise TimeoutError
