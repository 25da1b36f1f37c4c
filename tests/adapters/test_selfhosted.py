"""Runs whose models are at a language-model server: a fake one, over real HTTP."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nip_fn.run import checkpoint
from nip_fn.run.digest import digest
from nip_fn.run.events import Published
from nip_fn_adapters.providers.api.ledger import identity
from nip_fn_adapters.recording import store
from nip_fn_adapters.serving.wire import TOKEN_VARIABLE

from ..provider import Provider
from .hosted import FakeServer
from .selfhosting import TOKEN, Session, asking, is_readable, params_at, replayed, result_of


@pytest.fixture(scope="module")
def vllm() -> Iterator[Provider]:
    # Cached tokens depend on earlier runs of the same server, and are in the digest.
    with Provider(caching=False) as provider:
        yield provider


@pytest.fixture
def server(vllm: Provider) -> Iterator[FakeServer]:
    with FakeServer(vllm.port) as server:
        yield server


# ------------------------------------------------------------------------------------ whole runs


def test_each_group_is_answered_by_its_own_adapter(
    server: FakeServer, vllm: Provider, tmp_path: Path
) -> None:
    before = len(vllm.log())
    state = Session(server, tmp_path / "run").play().unwrap()
    assert state.stage.name == "done"
    owner = identity(tmp_path / "run")
    lineages = {group.name: [a.name for a in group.lineage] for group in state.groups}
    assert {name: len(names) for name, names in lineages.items()} == {"prover": 2, "verifier": 2}
    assert server.owners == {f"{owner}-{name}": names[-1] for name, names in lineages.items()}
    models = {entry["body"]["model"] for entry in vllm.log()[before:]}
    assert models == {"m", *(names[0] for names in lineages.values())}
    assert set(server.jobs) == {f"{owner}-{g}-{i}" for g in lineages for i in (0, 1)}
    (needs,) = server.needs
    assert (needs.model_name, needs.max_lora_rank, needs.max_loras) == ("m", 12, 2)
    assert len(server.paths("POST", "publish")) == 4, "what is published is not published again"
    assert digest(replayed(tmp_path / "run")) == digest(state)


def test_the_job_of_the_second_iteration_starts_from_the_first_ones_adapter(
    server: FakeServer, tmp_path: Path
) -> None:
    state = Session(server, tmp_path / "run").play().unwrap()
    jobs = {job.name: job for job, _ in server.jobs.values()}
    for group in state.groups:
        assert jobs[f"{group.name}-1"].start == group.lineage[0].name
    assert server.paths("PUT", "/adapters/") == [], "what was trained there is there"


@pytest.mark.parametrize("how", ["stop", "skip"])
def test_a_refused_adapter_stops_the_run_or_is_left_out(
    server: FakeServer, tmp_path: Path, how: str
) -> None:
    run, params = tmp_path / "run", params_at(server, refused_adapters=how)
    server.refused = {"verifier-1-": "model.layers.0 holds NaN"}
    ended = Session(server, run, params=params).play()
    if how == "stop":
        line = str(ended.failure())
        assert line.startswith("verifier-1-")
        assert " is refused for verifier: model.layers.0 holds NaN; " in line
        assert replayed(run).stage.name == "publish"
        server.refused = {}
        ended = Session(server, run, params=params).play()
    state = ended.unwrap()
    assert state.stage.name == "done"
    lineages = {group.name: [a.iteration for a in group.lineage] for group in state.groups}
    assert lineages == {"prover": [0, 1], "verifier": [0, 1] if how == "stop" else [0]}
    assert server.owners[f"{identity(run)}-verifier"] == state.groups[1].serving
    rows = [dict(row.metrics) for row in state.rows if row.stage == "publish"]
    assert [row["adapters_refused"] for row in rows] == [0.0, 0.0 if how == "stop" else 1.0]
    assert digest(replayed(run)) == digest(state)
    assert len(server.jobs) == 4


def test_a_run_that_skips_goes_on_after_a_crash_as_if_there_had_been_none(
    server: FakeServer, tmp_path: Path
) -> None:
    """Killed right after the refusal is recorded."""
    params = params_at(server, refused_adapters="skip")
    server.refused = {"verifier-0-": "it is poisoned"}
    whole = Session(server, tmp_path / "a", params=params).play().unwrap()
    events = store.read_recording(tmp_path / "a" / store.CHECKPOINT).unwrap().events
    at = next(i for i, e in enumerate(events) if isinstance(e, Published) and e.problem)
    killed = store.create(tmp_path / "b").unwrap()
    for event in events[: at + 1]:
        killed.append(checkpoint.frame(event))
    killed.close()
    (tmp_path / "b" / "api").mkdir()
    (tmp_path / "b" / "api" / "identity").write_text(identity(tmp_path / "a"))
    resumed = Session(server, tmp_path / "b", params=params).play().unwrap()
    assert digest(resumed) == digest(whole)
    assert resumed.groups == whole.groups
    assert len(server.jobs) == 4


# ------------------------------------------------------------------------------------ readiness


def test_a_server_that_comes_late_is_waited_for(server: FakeServer, tmp_path: Path) -> None:
    server.stop()
    session = Session(server, tmp_path / "run")
    threading.Timer(0.5, server.start).start()
    assert len(session.ask().unwrap()) == 2
    lines = [line for line in session.told if "waiting for the language-model server" in line]
    assert lines
    assert f"{server.url}: asking for its version: the server cannot be reached" in lines[0]


def test_a_server_that_does_not_come_ends_the_run_with_how_to_start_it(
    server: FakeServer, tmp_path: Path
) -> None:
    server.stop()
    line = str(Session(server, tmp_path / "run", ready=0.5).ask().failure())
    assert is_readable(line)
    assert line.startswith(f"no language-model server answers at {server.url} after ")
    assert "(nip-fn serve --model m)" in line


def test_whoever_stops_need_not_wait_for_a_server(server: FakeServer, tmp_path: Path) -> None:
    server.stop()
    session = Session(server, tmp_path / "run", ready=60.0)

    async def ask() -> None:
        asked = asyncio.ensure_future(result_of(session.sampler(asking())))
        await asyncio.sleep(0.1)
        session.sampler.drain()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asked, 60)

    asyncio.run(ask())


def test_another_kind_of_server_is_told_apart(
    server: FakeServer, vllm: Provider, tmp_path: Path
) -> None:
    server.stop()
    server.port = vllm.port
    line = str(Session(server, tmp_path / "run").ask().failure())
    assert is_readable(line)
    assert "answers, but not as a language-model server" in line


@pytest.mark.parametrize(
    ("change", "refused"), [((1, 0, 0), True), ((0, 1, 0), False), ((0, 0, 1), None)]
)
def test_versions_are_compared(
    server: FakeServer, tmp_path: Path, change: tuple[int, ...], refused: bool | None
) -> None:
    parts = [int(part) for part in server.version.split(".")]
    server.version = ".".join(str(a + b) for a, b in zip(parts, change, strict=True))
    session = Session(server, tmp_path / "run")
    answer = session.ask()
    if refused:
        assert str(answer.failure()).startswith(
            f"the language-model server has nip-fn {server.version}"
        )
    else:
        assert len(answer.unwrap()) == 2
        assert [server.version in line for line in session.told] == [True] * (refused is False)


def test_the_token_is_shown_to_the_server_and_to_vllm(tmp_path: Path) -> None:
    with Provider(key=TOKEN) as vllm, FakeServer(vllm.port, TOKEN) as server:
        assert len(Session(server, tmp_path / "a", token=TOKEN).ask().unwrap()) == 2
        asked = len(server.asked)
        line = str(Session(server, tmp_path / "b").ask().failure())
        assert is_readable(line)
        assert "(401)" in line
        assert f"check {TOKEN_VARIABLE}" in line
        assert len(server.asked) == asked + 2, "it is not asked again"
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and TOKEN in p.read_text("latin-1")]


def test_vllm_is_asked_at_the_port_that_is_written(
    server: FakeServer, vllm: Provider, tmp_path: Path
) -> None:
    server.vllm_port += 1  # where it is for the server; a tunnel leads there by another port
    params = params_at(server)
    agents = tuple(replace(agent, vllm_server_port=vllm.port) for agent in params.agents)
    there = Session(server, tmp_path / "run", params=replace(params, agents=agents))
    assert len(there.ask().unwrap()) == 2


def test_vllm_is_waited_for(server: FakeServer, tmp_path: Path) -> None:
    server.vllm = ["not_started", "starting", "crashed", "starting", "asleep", "online"]
    assert len(Session(server, tmp_path / "run").ask().unwrap()) == 2


@pytest.mark.parametrize(("state", "why"), [("crashed", "out of memory"), ("starting", "starting")])
def test_a_vllm_that_does_not_come_ends_the_run(
    server: FakeServer, tmp_path: Path, state: Any, why: str
) -> None:
    server.vllm = [state]
    line = str(Session(server, tmp_path / "run", online=1.0).ask().failure())
    assert is_readable(line)
    assert f"vLLM at {server.url}: {state}" in line
    assert why in line


def test_a_server_without_vllm_ends_the_run_at_once(server: FakeServer, tmp_path: Path) -> None:
    server.unable = ["vLLM is not installed; pip install vllm"]
    line = str(Session(server, tmp_path / "run").ask().failure())
    assert line == (
        f"{server.url} refuses starting vLLM for m: vLLM is not installed; pip install vllm"
    )
    assert len(server.paths("POST")) == 1


def test_a_gateway_that_is_unable_for_a_moment_is_asked_again(
    server: FakeServer, tmp_path: Path
) -> None:
    server.unable = ["", ""]
    assert len(Session(server, tmp_path / "run").ask().unwrap()) == 2
