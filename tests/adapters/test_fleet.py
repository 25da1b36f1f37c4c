"""The options and requests of vLLM, with a fake vLLM in processes of its own."""

import asyncio
import socket
from pathlib import Path

import pytest
from returns.result import Result, Success

pytest.importorskip("aiohttp")

from nip_fn.game.chat import Message
from nip_fn.training.canary import PROBE_TOKENS
from nip_fn_adapters.serving import gpus
from nip_fn_adapters.serving.fleet import Fleet
from nip_fn_adapters.serving.machines import Gpus, ThisMachine
from nip_fn_adapters.serving.wire import GpuMemory, Needs, ProbeText, Refusal, RestartPolicy

from ..vllm import fake
from .fleets import NEEDS, Machine, is_alive, online, refusal, until, until_status

PROBE = ProbeText((Message("system", "be good"), Message("user", "well?", "Ann")), "yes.")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return Machine(tmp_path)


def test_it_is_started_with_what_is_asked_for_and_ended_whole(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that outlives its server, and that ignores being asked, is ended, too."""
    monkeypatch.setenv("VLLM_API_KEY", "of somebody else")

    async def doing(fleet: Fleet) -> None:
        assert (await fleet.status()).status == "not_started"
        assert refusal(await fleet.load("a", machine.adapter("a"))).status == 503
        await online(fleet, Needs("m/base", max_lora_rank=17, max_loras=2))
        status = await fleet.status()
        assert (status.model_name, [one.port for one in status.replicas]) == (
            "m/base",
            [machine.port],
        )
        assert all(map(is_alive, machine.pids()))
        (await fleet.load("b", machine.adapter("b"))).unwrap()  # which asks for a key
        await fleet.stop()
        assert not any(map(is_alive, machine.pids()))
        assert (await fleet.status()).status == "not_started"
        assert fleet.needs is None

    machine.do(doing, extra=("--dtype", "bfloat16"))
    [start] = machine.starts()
    told = " ".join(start["arguments"])
    assert f"--model {machine.model} --served-model-name m/base --host 127.0.0.1" in told
    assert "--max-lora-rank 32 --max-loras 2" in told
    assert told.index("--dtype float32") < told.index("--dtype bfloat16")
    assert "secret" not in told
    environment = start["environment"]
    assert environment["VLLM_API_KEY"] == "secret"
    assert environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"
    assert environment["HF_HUB_OFFLINE"] == environment["DO_NOT_TRACK"] == "1"
    assert "VLLM_SERVER_DEV_MODE" not in environment


def test_a_start_is_told_from_a_crash_and_waited_for(machine: Machine) -> None:
    async def doing(fleet: Fleet) -> None:
        (await fleet.start(NEEDS, {})).unwrap()
        loading = asyncio.create_task(fleet.load("a", machine.adapter("a")))
        await until(lambda: (machine.folder / f"{machine.port}.jsonl").exists())
        status = await fleet.status()
        assert (status.status, status.error) == ("starting", "")
        assert not loading.done()
        (machine.folder / "go").touch()
        (await loading).unwrap()
        assert await machine.served() == ["m/base", "a"]

    machine.do(doing, "--fake-hold")


def test_what_never_answers_is_ended(machine: Machine) -> None:
    async def doing(fleet: Fleet) -> None:
        (await fleet.start(NEEDS, {})).unwrap()
        await until_status(fleet, "crashed")
        status = await fleet.status()
        assert "it was not online within 0.5 s" in status.error

    machine.do(doing, "--fake-never", start_limit=0.5, restarts=RestartPolicy(most=0))


def test_what_hangs_is_told_and_not_waited_for_without_end(machine: Machine) -> None:
    async def doing(fleet: Fleet) -> None:
        await online(fleet)
        await machine.ask("/fake/hang", body={})
        status = await fleet.status()
        assert (status.status, status.error) == ("timeout", "it does not answer within 2 s")
        problem = refusal(await fleet.score(None, [PROBE]))
        assert (problem.status, "does not answer within 6 s" in str(problem)) == (503, True)

    machine.do(doing, start_limit=6.0)


def test_a_vllm_whose_engine_hangs_is_started_again(machine: Machine) -> None:
    """Its port goes on answering: only a question that its engine answers can tell."""

    async def doing(fleet: Fleet) -> None:
        await online(fleet)
        (await fleet.load("a", machine.adapter("a"))).unwrap()
        await machine.ask("/fake/hang?engine", body={})
        assert (await fleet.status()).status == "online"
        await until(lambda: len(machine.starts()) == 2)
        await until_status(fleet, "online")
        assert await machine.served() == ["m/base", "a"]
        assert (await fleet.status()).replicas[0].restarts == 1

    machine.do(doing, hang_limit=0.5)


def test_a_port_that_another_program_uses_is_named(machine: Machine) -> None:
    async def doing(fleet: Fleet) -> None:
        (await fleet.start(NEEDS, {})).unwrap()
        await until_status(fleet, "crashed")
        assert f"port {machine.port} of 127.0.0.1 cannot be used" in (await fleet.status()).error

    with socket.create_server(("127.0.0.1", machine.port)):
        machine.do(doing, port_limit=0.5, restarts=RestartPolicy(most=0))
    assert machine.pids() == []


def test_an_adapter_that_is_refused_is_served_nowhere(machine: Machine) -> None:
    async def doing(fleet: Fleet) -> None:
        await online(fleet)
        empty = machine.folder / "empty"
        empty.mkdir()
        problem = refusal(await fleet.load("bad", empty))
        assert problem.status == 422
        assert f"vLLM on port {machine.port}" in str(problem)
        assert "No adapter found" in str(problem)
        assert await machine.served(0) == await machine.served(1) == ["m/base"]
        (await fleet.load("good", machine.adapter("good"))).unwrap()
        assert await machine.served(0) == await machine.served(1) == ["m/base", "good"]

    machine.do(doing, replicas=2)


def expected(model: str, probe: ProbeText = PROBE) -> list[float]:
    chat = [{"role": said.role, "content": said.content} for said in probe.chat]
    before, scores = fake.chat_tokens(chat), list[float]()
    for token in [*fake.tokens_of(probe.reply), fake.END][:PROBE_TOKENS]:
        if len(before) < fake.LENGTH:
            scores.append(fake.log_probability(model, before, token))
            before = [*before, token]
    return scores


def test_scores_are_of_the_tokens_of_replies_and_of_their_ends(machine: Machine) -> None:
    said = "x" * (fake.LENGTH // 2)
    room = fake.LENGTH - len(fake.chat_tokens([{"role": "user", "content": said}]))
    user = (Message("user", said),)
    probes = [
        ProbeText((Message("user", ""),), "x" * (PROBE_TOKENS + 5)),
        PROBE,
        ProbeText(PROBE.chat, ""),
        ProbeText(user, "x" * (room - 1)),  # fills the model
        ProbeText(user, "x" * (room + 5)),
        ProbeText((Message("user", "x" * fake.LENGTH),), "nothing of it fits"),
    ]

    async def doing(fleet: Fleet) -> None:
        await online(fleet)
        (await fleet.load("one", machine.adapter("one"))).unwrap()
        for adapter in (None, "one"):
            scored = (await fleet.score(adapter, probes)).unwrap()
            each = [expected(adapter or "m/base", probe) for probe in probes]
            assert [len(scores) for scores in each] == [
                PROBE_TOKENS,
                len(PROBE.reply) + 1,
                1,
                room,
                room,
                0,
            ]
            assert scored.scores == pytest.approx([score for scores in each for score in scores])
            assert scored.dtype == "float32"
        problem = refusal(await fleet.score("two", probes))
        assert problem.status == 502
        assert "does not exist" in str(problem)

    machine.do(doing)


class OneGpu(ThisMachine):
    """A machine that has a GPU, in name, which vLLMs cannot share: as of a Ray cluster."""

    can_share = False

    async def look(self) -> Result[Gpus, Refusal]:
        return Success(Gpus(("0",), 80.0))


def test_replicas_that_there_are_no_gpus_for_are_refused(machine: Machine) -> None:
    settings = machine.settings(replicas=2)

    async def doing() -> Refusal:
        fleet = Fleet(settings, machine.find, OneGpu(settings))
        return refusal(await fleet.start(NEEDS, {}))

    assert "2 replicas take 2 GPUs, and 1 are there" in str(asyncio.run(doing()))


def test_a_replica_that_scores_otherwise_is_named(machine: Machine) -> None:
    async def doing(fleet: Fleet) -> None:
        await online(fleet)
        problem = refusal(await fleet.score(None, [PROBE]))
        assert problem.status == 502
        assert f"port {machine.port + 1}" in str(problem)

    machine.do(doing, "--fake-skew", str(machine.port + 1), replicas=2)


def test_what_suffices_goes_on_and_what_does_not_is_started_for_both(machine: Machine) -> None:
    async def doing(fleet: Fleet) -> None:
        await online(fleet, Needs("m/base", max_lora_rank=9, max_loras=2))
        one = machine.adapter("one")
        (await fleet.load("one", one)).unwrap()
        (await fleet.start(Needs("m/base", max_lora_rank=16), {})).unwrap()
        assert len(machine.starts()) == 1
        problem = refusal(await fleet.start(Needs("other"), {}))
        assert problem == Refusal("there is no other", status=404)
        assert fleet.needs == Needs("m/base", 9, 2)
        await online(fleet, Needs("m/base", max_lora_rank=32))
        assert fleet.needs == Needs("m/base", 32, 2)
        assert await machine.served() == ["m/base", "one"]
        await online(fleet, Needs("m/new"))
        assert fleet.needs == Needs("m/new")
        assert await machine.served() == ["m/new"]
        assert [is_alive(start["pids"][0]) for start in machine.starts()] == [False, False, True]

    machine.do(doing)


def test_a_command_that_is_not_there_is_named(machine: Machine) -> None:
    async def doing(fleet: Fleet) -> None:
        problem = refusal(await fleet.start(NEEDS, {}))
        assert (problem.status, "/nowhere/python" in str(problem)) == (503, True)
        assert fleet.needs is None

    machine.do(doing, command=("/nowhere/python", "-m", "vllm"))


def test_it_sleeps_only_on_a_gpu_that_only_this_machine_reaches(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def doing(fleet: Fleet) -> None:
        assert not await fleet.sleep()
        await online(fleet)
        assert not await fleet.sleep()
        assert (await fleet.status()).status == "online"

    machine.do(doing)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    machine.do(doing, host="0.0.0.0")
    assert "VLLM_SERVER_DEV_MODE" not in machine.starts()[-1]["environment"]


def test_while_it_sleeps_nothing_is_started_and_adapters_wait(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")

    async def doing(fleet: Fleet) -> None:
        await online(fleet)
        assert await fleet.sleep()
        assert await machine.ask("/is_sleeping") == {"is_sleeping": True}
        assert (await fleet.status()).status == "asleep"
        loading = asyncio.create_task(fleet.load("a", machine.adapter("a")))
        await fleet.wake()
        assert await machine.ask("/is_sleeping") == {"is_sleeping": False}
        (await loading).unwrap()
        assert (await fleet.status()).status == "online"
        assert await fleet.sleep()
        machine.kill()
        await until(lambda: not any(map(is_alive, machine.pids())))
        assert (await fleet.status()).status == "asleep"
        assert len(machine.starts()) == 1
        await fleet.wake()
        await until_status(fleet, "online")
        assert await machine.served() == ["m/base", "a"]

    machine.do(doing)
    assert "--enable-sleep-mode" in machine.starts()[0]["arguments"]


def test_each_replica_has_its_own_gpus(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(10))))

    async def doing(fleet: Fleet) -> None:
        await online(fleet)

    machine.do(doing, replicas=2)
    for place, own in ((0, "0,1,2,3"), (1, "5,6,7,8")):
        [start] = machine.starts(place)
        assert start["environment"]["CUDA_VISIBLE_DEVICES"] == own
        told = " ".join(start["arguments"])
        assert "--tensor-parallel-size 4" in told  # of 12 attention heads
        assert "--dtype" not in told


def test_gpus_are_found_by_nvidias_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus.visible_gpus() == ()
    tool = tmp_path / "nvidia-smi"
    rows = ("NVIDIA H200, 512, 143771", "NVIDIA GB10, [N/A], [N/A]")
    tool.write_text("".join(("#!/bin/sh\n", *(f"echo '{row}'\n" for row in rows))))
    tool.chmod(0o755)
    assert gpus.visible_gpus() == ("0", "1")
    first, second = gpus.gpu_memory()
    assert (first.name, first.used, round(first.total)) == ("NVIDIA H200", 0.5, 140)
    assert second == GpuMemory("NVIDIA GB10", 0.0, 0.0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-1")
    assert gpus.visible_gpus() == ("3", "GPU-1")


def test_an_adapter_that_vllm_has_lost_is_loaded_again(machine: Machine) -> None:
    async def doing(fleet: Fleet) -> None:
        await online(fleet)
        folder = machine.adapter("a")
        (await fleet.load("a", folder)).unwrap()
        await machine.ask("/v1/unload_lora_adapter", body={"lora_name": "a"})
        assert "a" not in await machine.served()
        (await fleet.load("a", folder)).unwrap()
        assert "a" in await machine.served()

    machine.do(doing)
