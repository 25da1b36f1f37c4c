"""Fifty adapters, one after the other: what the server and its vLLM hold does not grow."""

from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from nip_fn.game.chat import Message
from nip_fn_adapters.serving.wire import ProbeText, PublishAdapter

from ..adapters.fleets import free_ports
from ..adapters.serving import Server, config, eventually, lora, write_adapter
from .conftest import MODEL

SWITCHES, SETTLED = 50, 12  # by then, vLLM keeps as many adapters in memory as it ever does
KEPT = 3
GROWTH = 64.0  # MiB of resident memory, of the server or vLLM; 6 to 34 were seen on a busy machine
PROBE = ProbeText((Message("user", "is it right? "),), "no no no")


class Use(NamedTuple):
    """The memory and files of processes."""

    processes: int
    resident: float  # MiB
    files: int

    def __str__(self) -> str:
        return f"{self.resident:7.1f} MiB and {self.files} open files in {self.processes} processes"


def use(processes: list[psutil.Process]) -> Use:
    """The memory and files of these processes now."""
    resident = sum(one.memory_info().rss for one in processes) / 2**20
    return Use(len(processes), resident, sum(one.num_fds() for one in processes))


def test_memory_and_files_stay_flat_and_old_adapters_go(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_ports(1)
    names = [f"switch-{i}" for i in range(SWITCHES)]
    state = tmp_path / "state"
    given = ("--model", MODEL, "--vllm-port", str(port), "--keep-adapters", str(KEPT))
    with Server(state, *given) as server:
        assert server.process is not None
        own = psutil.Process(server.process.pid)
        eventually(
            lambda: server.ask("/vllm/status").json(), lambda told: told["status"] == "online"
        )
        uses: list[tuple[Use, Use]] = []
        scores: list[list[float]] = []
        for i, name in enumerate(names):
            folder = write_adapter(tmp_path / name, lora(seed=i), config(model=MODEL))
            server.put_adapter(name, folder)
            publish = PublishAdapter("run-verifier", (PROBE,))
            answer = server.ask(f"/adapters/{name}/publish", "POST", publish)
            assert answer.status == 200, answer.body
            scores.append(answer.json()["scores"])
            uses.append((use([own]), use(own.children(recursive=True))))
        listed = server.served()
        on_disk = {one["name"] for one in server.ask("/adapters").json()}
    with capsys.disabled():
        print()
        for i in (0, SETTLED, SWITCHES - 1):
            print(f"switch {i:2}: server {uses[i][0]}; vLLM {uses[i][1]}")
    assert listed == [MODEL, names[-1]]
    assert on_disk == set(names[-1 - KEPT :]) == {path.name for path in state.glob("adapters/*")}
    # Each answered for itself.
    assert len({round(sum(tokens), 3) for tokens in scores}) == SWITCHES
    for settled, last in zip(uses[SETTLED], uses[-1], strict=True):
        assert last.resident - settled.resident < GROWTH
        assert last.files <= settled.files + 2  # a connection may be open still
        assert last.processes == settled.processes
