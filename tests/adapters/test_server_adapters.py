"""Laws of uploads and publishing: what is served is whole and is what was trained; each owner is
served one adapter; what nobody needs goes from vLLM at once, and from the disk in time.
"""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from nip_fn.game.chat import Message
from nip_fn.training.canary import Score
from nip_fn_adapters.serving.wire import ProbeText, PublishAdapter

from .serving import (
    CONFIG,
    MODEL,
    WEIGHTS,
    Answer,
    Server,
    config,
    eventually,
    fake_vllm,
    lora,
    write_adapter,
)

pytest.importorskip("litestar")
pytest.importorskip("safetensors")

KEPT = 2
PROBES = (
    ProbeText((Message("user", "yes?"),), "yes"),
    ProbeText((Message("user", "no?"),), "no"),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    options = ("--model", MODEL, "--keep-adapters", str(KEPT), "--max-upload-mb", "1")
    with Server(folder / "state", *options, *fake_vllm(folder / "vllm")) as server:
        yield server


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    return write_adapter(tmp_path / "sound", lora())


def publish(server: Server, name: str, owner: str, **others: Any) -> Answer:
    asked = PublishAdapter(owner, **{"probes": PROBES, **others})
    return server.ask(f"/adapters/{name}/publish", "POST", asked)


def listed(server: Server) -> dict[str, dict[str, Any]]:
    """All adapters on the server, by name."""
    return {one["name"]: one for one in server.ask("/adapters").json()}


def answering(server: Server) -> set[str]:
    """The adapters that vLLM has."""
    return {*server.served()} - {MODEL}


def test_an_adapter_is_there_once_both_files_are(server: Server, sound: Path) -> None:
    for file in (WEIGHTS, CONFIG):
        assert "half" not in listed(server)
        content = (sound / file).read_bytes()
        assert server.ask(f"/adapters/half/{file}", "PUT", content).status == 204
    size = sum(file.stat().st_size for file in sound.iterdir())
    assert listed(server)["half"] == {
        "name": "half",
        "bytes": size,
        "owners": [],
        "retired": False,
    }


def test_an_adapters_files_can_be_fetched(server: Server, sound: Path) -> None:
    server.put_adapter("fetched", sound)
    for file in (WEIGHTS, CONFIG):
        assert server.ask(f"/adapters/fetched/{file}").body == (sound / file).read_bytes()
    assert server.ask(f"/adapters/never/{CONFIG}").status == 404
    assert server.ask("/adapters/fetched/other.json").status == 400


def test_what_is_there_is_not_overwritten(server: Server, sound: Path) -> None:
    server.put_adapter("kept", sound)
    server.put_adapter("kept", sound)  # the same again
    before = (server.state / "adapters/kept" / CONFIG).read_bytes()
    answer = server.ask(f"/adapters/kept/{CONFIG}", "PUT", before + b" ")
    assert answer.status == 409
    assert "kept" in answer.detail
    assert (server.state / "adapters/kept" / CONFIG).read_bytes() == before


@pytest.mark.parametrize(
    "name",
    [
        "..",
        "..%2f..%2fx",
        "%2fetc%2fx",
        ".hidden",
        "a%00b",
        "a%2fb",
        "a%5cb",
        "x" * 201,
        "%20",
        "ü",
    ],
)
def test_names_that_are_none_reach_no_disk(server: Server, name: str) -> None:
    before = files(server)
    path = f"/adapters/{name.replace('ü', '%C3%BC')}"
    assert server.ask(f"{path}/{CONFIG}", "PUT", b"{}").status in (400, 404)
    assert publish(server, path.removeprefix("/adapters/"), "run-a").status in (400, 404)
    assert server.ask(path, "DELETE").status in (400, 404, 405)
    assert files(server) == before


def files(server: Server) -> list[Path]:
    """All that is around the server, but for what vLLM may be writing."""
    found = server.state.parent.rglob("*")
    return sorted(path for path in found if "vllm" not in path.parts)


@pytest.mark.parametrize("file", ["config.json", "..%2fserved.json", "adapter_model.bin", "%00"])
def test_only_an_adapters_two_files_are_taken(server: Server, file: str) -> None:
    assert server.ask(f"/adapters/some/{file}", "PUT", b"{}").status in (400, 404)


def test_an_upload_that_is_too_large_is_refused_and_leaves_nothing(server: Server) -> None:
    answer = server.ask(f"/adapters/large/{WEIGHTS}", "PUT", bytes((1 << 20) + 1))
    assert (answer.status, bool(answer.detail)) == (413, True)
    assert not list((server.state / "uploads").rglob("*large*"))
    assert sum(f.stat().st_size for f in (server.state / "uploads").rglob("*")) < 1 << 20


def test_publishing_serves_and_scores(server: Server, sound: Path) -> None:
    server.put_adapter("first", sound)
    answer = publish(server, "first", "run-a")
    assert answer.status == 200, answer.body
    served = answer.json()
    assert served["name"] == "first"
    assert len(served["scores"]) > len(PROBES)  # of each token
    assert served["dtype"] == "float32"
    assert "first" in answering(server)
    assert listed(server)["first"]["owners"] == ["run-a"]
    assert publish(server, "first", "run-a").json() == served  # and again


def test_a_new_one_takes_the_place_of_the_owners_last_alone(server: Server, sound: Path) -> None:
    for name in ("shared", "next"):
        server.put_adapter(name, sound)
    for owner in ("run-b", "run-c"):
        assert publish(server, "shared", owner).status == 200
    assert publish(server, "next", "run-b").status == 200
    assert {"shared", "next"} <= answering(server)
    assert listed(server)["shared"]["owners"] == ["run-c"]
    assert publish(server, "next", "run-c").status == 200
    assert "shared" not in answering(server)
    assert listed(server)["shared"]["retired"]


def test_what_scores_otherwise_than_it_was_trained_to_is_not_served(
    server: Server, sound: Path
) -> None:
    for name in ("good", "stale"):
        server.put_adapter(name, sound)
    scores = publish(server, "good", "run-d").json()["scores"]
    right = tuple(Score(before=score - 3, after=score) for score in scores)
    assert publish(server, "good", "run-d", expected=right).status == 200
    for expected, why in [
        (tuple(Score(score - 3, score + 3) for score in scores), "another model seems to answer"),
        (right[:1], "another tokenizer"),
    ]:
        answer = publish(server, "stale", "run-d", expected=expected)
        assert answer.status == 422
        assert why in answer.detail
        assert "stale" not in answering(server)
    assert listed(server)["good"]["owners"] == ["run-d"]
    assert "good" in answering(server)


def poisoned(folder: Path, change: str) -> Path:
    weights, told = lora(), config()
    if change == "not a finite number":
        next(iter(weights.values()))[0, 0] = np.nan
    if change == "its rank is 128":
        weights, told = lora(rank=128), config(rank=128)
    if change == "made for 'org/other'":
        told = config(model="org/other")
    if change == "made for another model":
        weights = lora(width=64)
    write_adapter(folder, weights, told)
    if change == "file not fully covered":
        whole = (folder / WEIGHTS).read_bytes()
        (folder / WEIGHTS).write_bytes(whole[:-1])
    return folder


@pytest.mark.parametrize(
    "why",
    [
        "not a finite number",
        "its rank is 128",
        "made for 'org/other'",
        "made for another model",
        "file not fully covered",
    ],
)
def test_a_poisoned_adapter_is_refused_and_the_owner_keeps_its_last(
    server: Server, sound: Path, tmp_path: Path, why: str
) -> None:
    # Names of their own: a served name is never used again, and the server is shared.
    cause = "".join(filter(str.isalnum, why))
    name, healthy = f"poisoned-{cause}", f"healthy-{cause}"
    server.put_adapter(healthy, sound)
    published = publish(server, healthy, "run-e")
    assert published.status == 200, published.detail
    server.put_adapter(name, poisoned(tmp_path / "poisoned", why))
    answer = publish(server, name, "run-e")
    assert answer.status == 422
    assert why in answer.detail
    assert name not in answering(server)
    assert healthy in answering(server)
    assert listed(server)[healthy]["owners"] == ["run-e"]


def test_a_missing_adapter_cannot_be_published(server: Server) -> None:
    assert publish(server, "nowhere", "run-a").status == 404


def test_adapters_beyond_those_that_are_kept_go_from_the_disk(server: Server, sound: Path) -> None:
    names = [f"switch-{i}" for i in range(KEPT + 4)]
    for name in names:
        server.put_adapter(name, sound)
        assert publish(server, name, "run-f").status == 200
        assert [one for one in sorted(answering(server)) if one in names] == [name]
    left = listed(server)
    assert [name for name in names if name in left] == names[-KEPT - 1 :]
    assert [left[name]["retired"] for name in names[-KEPT - 1 :]] == [True] * KEPT + [False]


def test_what_is_served_cannot_be_deleted(server: Server, sound: Path) -> None:
    for name in ("wanted", "unwanted"):
        server.put_adapter(name, sound)
    assert publish(server, "wanted", "run-g").status == 200
    assert server.ask("/adapters/wanted", "DELETE").status == 409
    assert server.ask("/adapters/unwanted", "DELETE").status == 204
    assert server.ask("/adapters/unwanted", "DELETE").status == 404
    assert "unwanted" not in listed(server)


def test_owners_and_what_they_are_served_survive_a_kill(tmp_path: Path, sound: Path) -> None:
    def online(server: Server) -> None:
        eventually(lambda: server.ask("/vllm/status").json()["status"], lambda s: s == "online")

    options = ("--model", MODEL, *fake_vllm(tmp_path / "vllm"))
    with Server(tmp_path / "state", *options) as server:
        for name, owner in [("a-1", "run-a"), ("b-1", "run-b"), ("a-2", "run-a")]:
            server.put_adapter(name, sound)
            assert publish(server, name, owner).status == 200
        before = server.ask("/adapters").json()
        server.kill()
        server.start()
        online(server)
        assert server.ask("/adapters").json() == before
        assert answering(server) == {"a-2", "b-1"}
        assert publish(server, "a-2", "run-a").status == 200
    with Server(tmp_path / "state", *options) as server:
        online(server)
        assert answering(server) == {"a-2", "b-1"}


def test_what_does_not_fit_a_vllm_that_is_started_anew_is_not_served(
    tmp_path: Path, sound: Path
) -> None:
    def start(server: Server, rank: int) -> None:
        needs = {"model_name": MODEL, "max_lora_rank": rank}
        assert server.ask("/vllm/start", "POST", needs).status == 202

    wide = write_adapter(tmp_path / "wide", lora(rank=32), config(rank=32))
    with Server(tmp_path / "state", *fake_vllm(tmp_path / "vllm")) as server:
        start(server, 32)
        for name, folder in [("wide", wide), ("narrow", sound)]:
            server.put_adapter(name, folder)
            assert publish(server, name, f"run-{name}").status == 200
        assert server.ask("/vllm/stop", "POST").status == 204
        assert publish(server, "wide", "run-wide").status == 503
        start(server, 8)
        eventually(lambda: server.ask("/vllm/status").json()["status"], lambda s: s == "online")
        assert answering(server) == {"narrow"}
        assert listed(server)["wide"]["retired"]


def test_an_upload_that_breaks_off_leaves_nothing(server: Server, sound: Path) -> None:
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port)) as connection:
        head = f"PUT /adapters/broken/{WEIGHTS} HTTP/1.1\r\nHost: localhost\r\n"
        connection.sendall(f"{head}Content-Length: 1000\r\n\r\n".encode() + bytes(500))
        eventually(lambda: list((server.state / "uploads").glob(".*")), bool)
    eventually(lambda: list((server.state / "uploads").glob(".*")), lambda left: not left)
    assert "broken" not in listed(server)
    server.put_adapter("broken", sound)
    assert "broken" in listed(server)
