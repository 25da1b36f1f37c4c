"""Whatever crashes, what is to be served is served again, and nothing is left behind."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytest.importorskip("aiohttp")

from nip_fn_adapters.serving.fleet import Fleet
from nip_fn_adapters.serving.wire import RestartPolicy

from .fleets import NEEDS, PATIENCE, SERVER, Machine, is_alive, online, refusal, until, until_status


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return Machine(tmp_path)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, "raise"])
def test_nothing_outlives_a_server_that_does_not_close(
    machine: Machine, end: signal.Signals | str
) -> None:
    command = machine.settings().command
    arguments = (str(machine.folder), str(machine.port), str(end), *command)
    with subprocess.Popen(
        (sys.executable, "-c", SERVER, *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"online\n"
        if isinstance(end, signal.Signals):
            assert all(map(is_alive, machine.pids()))
            server.send_signal(end)
        server.wait(PATIENCE)

    asyncio.run(until(lambda: not any(map(is_alive, machine.pids()))))


def test_what_outlives_a_server_and_its_reaper_is_ended_by_the_next_server(
    machine: Machine,
) -> None:
    """As where the kernel kills both because memory is short, and vLLM does not obey SIGTERM."""
    command = machine.settings("--fake-deaf").command
    arguments = (str(machine.folder), str(machine.port), "killed", *command)
    with subprocess.Popen(
        (sys.executable, "-c", SERVER, *arguments), stdout=subprocess.PIPE
    ) as old:
        assert old.stdout is not None
        assert old.stdout.readline() == b"online\n"
        orphans = machine.pids()
        reaper = os.getsid(orphans[0])
        old.send_signal(signal.SIGSTOP)  # it must not notice, and end what is left
        os.kill(reaper, signal.SIGKILL)
        old.kill()
    assert all(map(is_alive, orphans))

    async def doing(fleet: Fleet) -> None:
        await online(fleet)
        assert not any(map(is_alive, orphans))
        assert (await fleet.status()).replicas[0].restarts == 0

    machine.do(doing)


def test_a_command_ends_although_its_reaper_is_killed() -> None:
    """As Ray kills the children of a worker that ends, and not their children."""
    sleeping = (sys.executable, "-c", "import time; time.sleep(300)")
    reaper = subprocess.Popen(
        (sys.executable, "-m", "nip_fn_adapters.processes.reaper", *sleeping),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert reaper.stdout is not None
    command = psutil.Process(int(reaper.stdout.readline()))
    reaper.kill()
    reaper.communicate()
    assert psutil.wait_procs([command], timeout=60)[1] == []


def test_a_port_that_an_earlier_server_still_has_is_waited_for(machine: Machine) -> None:
    """A vLLM whose server was killed gives its port up within seconds; that is no crash."""

    async def doing(fleet: Fleet) -> None:
        with socket.create_server(("127.0.0.1", machine.port)):
            (await fleet.start(NEEDS, {})).unwrap()
            async with asyncio.timeout(PATIENCE):
                while "cannot be used" not in (status := await fleet.status()).error:
                    await asyncio.sleep(0.02)
            assert status.status == "starting"
        await until_status(fleet, "online")
        assert (await fleet.status()).replicas[0].restarts == 0

    machine.do(doing, restarts=RestartPolicy(most=0))


def test_after_a_crash_the_adapters_are_there_before_the_port_answers(machine: Machine) -> None:
    """Those that are loaded in the meantime are there when that is said to be done."""

    async def doing(fleet: Fleet) -> None:
        await online(fleet)
        one, two = machine.adapter("one"), machine.adapter("two")
        (await fleet.load("one", one)).unwrap()
        machine.kill()
        (await fleet.load("two", two)).unwrap()
        assert await machine.served() == ["m/base", "one", "two"]
        assert (await fleet.status()).replicas[0].restarts == 1
        machine.kill()
        await until_status(fleet, "starting")
        await until_status(fleet, "online")
        assert await machine.served() == ["m/base", "one", "two"]
        modules = [start["arguments"] for start in machine.starts()]
        assert f"one={one}" in modules[1]
        assert f"two={two}" not in modules[1]
        assert {f"one={one}", f"two={two}"} <= {*modules[2]}
        assert not any(is_alive(pid) for start in machine.starts()[:2] for pid in start["pids"])

    machine.do(doing)


def test_what_always_crashes_is_given_up_with_its_reason_until_it_is_asked_for_again(
    machine: Machine,
) -> None:
    async def doing(fleet: Fleet) -> None:
        (await fleet.start(NEEDS, {})).unwrap()
        folder = machine.adapter("a")
        problem = refusal(await fleet.load("a", folder))
        assert problem.status == 503
        status = await fleet.status()
        assert status.status == "crashed"
        assert status.replicas[0].restarts == len(machine.starts()) == 4
        for said in (str(problem), status.error):
            assert "\n" not in said
            assert "ValueError: no memory is left" in said
            assert f"vllm-{machine.port}.log" in said
        await online(fleet)
        (await fleet.load("a", folder)).unwrap()
        assert (await fleet.status()).replicas[0].restarts == 0

    machine.do(doing, "--fake-fail-starts", "4")
    logs = sorted(path.name for path in (machine.folder / "logs").glob("*.log*"))
    name = f"vllm-{machine.port}.log"
    assert logs == [name, *(f"{name}.{i}" for i in range(1, 5))]
    assert "listening" in (machine.folder / "logs" / name).read_text()


def test_an_adapter_that_ends_vllm_is_refused_and_the_others_are_served_on(
    machine: Machine,
) -> None:
    async def doing(fleet: Fleet) -> None:
        await online(fleet)
        (await fleet.load("good", machine.adapter("good"))).unwrap()
        problem = refusal(await fleet.load("poison", machine.adapter("poison")))
        assert problem.status == 422
        assert "ended 2 times" in str(problem)
        await until_status(fleet, "online")
        assert await machine.served() == ["m/base", "good"]

    machine.do(doing, "--fake-crash-at", "poison")


def test_what_is_unloaded_stays_away(machine: Machine) -> None:
    """Also if vLLM was being started with it, or its folder is deleted first."""

    async def doing(fleet: Fleet) -> None:
        await online(fleet)
        names = ("one", "two", "three")
        for name in names:
            (await fleet.load(name, machine.adapter(name))).unwrap()
        await fleet.unload("one")
        assert await machine.served() == ["m/base", "two", "three"]
        (machine.folder / "go").unlink()
        machine.kill()
        await until(lambda: len(machine.starts()) == 2)
        await fleet.unload("two")
        (machine.folder / "go").touch()
        (await fleet.load("four", machine.adapter("four"))).unwrap()
        assert await machine.served() == ["m/base", "three", "four"]
        (machine.folder / "adapters" / "three" / "adapter_config.json").unlink()
        (machine.folder / "adapters" / "three").rmdir()
        machine.kill()
        await until_status(fleet, "starting")
        await until_status(fleet, "online")
        assert await machine.served() == ["m/base", "four"]

    (machine.folder / "go").touch()
    machine.do(doing, "--fake-hold")


def test_whatever_is_killed_all_replicas_serve_the_same(machine: Machine) -> None:
    """Adapters come and go at the same time as replicas crash."""

    async def doing(fleet: Fleet) -> None:
        await online(fleet)
        names = [f"a{i}" for i in range(8)]

        async def switch(name: str, old: str | None) -> None:
            (await fleet.load(name, machine.adapter(name))).unwrap()
            if old is not None:
                await fleet.unload(old)

        async def chain(names: list[str]) -> None:
            for name, old in zip(names, [None, *names], strict=False):
                await switch(name, old)

        async def crash(place: int, starts: int) -> None:
            machine.kill(place)
            await until(lambda: len(machine.starts(place)) == starts)

        async def crashes() -> None:
            for place, starts in ((0, 2), (1, 2), (0, 3), (1, 3)):
                await crash(place, starts)

        await asyncio.gather(chain(names[::2]), chain(names[1::2]), crashes())
        await until_status(fleet, "online")
        for place in range(2):
            assert sorted(await machine.served(place)) == ["a6", "a7", "m/base"]

    machine.do(doing, replicas=2, restarts=RestartPolicy(first_wait=0.01, most=9))
