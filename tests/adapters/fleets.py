"""A machine for vLLM's supervision: a model, adapters, free ports and a fake vLLM."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import SystemRandom
from typing import Any, TypeVar

import aiohttp
from returns.result import Failure, Result, Success

from nip_fn.errors import Problem
from nip_fn_adapters.serving.fleet import Fleet, url_of
from nip_fn_adapters.serving.settings import FleetSettings
from nip_fn_adapters.serving.wire import Needs, Refusal, RestartPolicy

from ..vllm import fake

T = TypeVar("T")
FAKE = Path(fake.__file__)
NEEDS = Needs("m/base")
KEY = "secret"
PATIENCE = 120.0  # seconds for what takes one on a machine that is busy
SOON = RestartPolicy(first_wait=0.01)
Doing = Callable[[Fleet], Coroutine[Any, Any, T]]

# A server that never closes its fleet.  Arguments: FOLDER PORT END COMMAND ...
SERVER = """
import asyncio, sys
from pathlib import Path
from returns.result import Success
from nip_fn_adapters.serving.fleet import Fleet
from nip_fn_adapters.serving.settings import FleetSettings
from nip_fn_adapters.serving.wire import Needs

async def main():
    folder, port, end, *command = sys.argv[1:]
    fleet = Fleet(FleetSettings(tuple(command), Path(folder), "secret", port=int(port)),
                  lambda name: Success(Path(folder) / "model"))
    await fleet.start(Needs("m/base"), {})
    while (await fleet.status()).status != "online":
        await asyncio.sleep(0.02)
    print("online", flush=True)
    if end == "raise":
        raise SystemExit(3)
    await asyncio.sleep(600)

asyncio.run(main())
"""


class Machine:
    """A folder with a model and adapters, and free ports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_ports(2)
        self.model = folder / "model"
        self.model.mkdir()
        (self.model / "config.json").write_text('{"num_attention_heads": 12}')
        config = {"eos_token": {"content": fake.END_TEXT}}
        (self.model / "tokenizer_config.json").write_text(json.dumps(config))

    def settings(self, *fakes: str, **fields: Any) -> FleetSettings:
        command = (sys.executable, str(FAKE), "--fake-folder", str(self.folder), *fakes)
        found = FleetSettings(command, self.folder, KEY, port=self.port, restarts=SOON)
        return found._replace(start_limit=PATIENCE)._replace(**fields)

    def do(self, doing: Doing[T], *fakes: str, **fields: Any) -> T:
        """The value of `doing` with a fleet, which is closed afterwards."""

        async def run() -> T:
            fleet = Fleet(self.settings(*fakes, **fields), self.find)
            try:
                return await doing(fleet)
            finally:
                await fleet.close()

        result = asyncio.run(asyncio.wait_for(run(), 2 * PATIENCE))
        assert not any(map(is_alive, self.pids()))
        return result

    def find(self, name: str) -> Result[Path, Problem]:
        return (
            Success(self.model)
            if name.startswith("m/")
            else Failure(Problem(f"there is no {name}"))
        )

    def adapter(self, name: str) -> Path:
        folder = self.folder / "adapters" / name
        folder.mkdir(parents=True)
        (folder / "adapter_config.json").write_text("{}")
        return folder

    def starts(self, place: int = 0) -> list[dict[str, Any]]:
        """The arguments and environment of each process of a replica."""
        record = self.folder / f"{self.port + place}.jsonl"
        return [json.loads(line) for line in record.read_text().splitlines()]

    def pids(self) -> list[int]:
        """All processes that were ever started."""
        places = [i for i in range(2) if (self.folder / f"{self.port + i}.jsonl").exists()]
        return [pid for place in places for start in self.starts(place) for pid in start["pids"]]

    def kill(self, place: int = 0) -> None:
        """Kill the process that serves, and not its engine."""
        os.kill(self.starts(place)[-1]["pids"][0], signal.SIGKILL)

    async def ask(self, path: str, place: int = 0, body: Any = None) -> Any:
        url = url_of("127.0.0.1", self.port + place) + path
        method, shown = "GET" if body is None else "POST", {"Authorization": f"Bearer {KEY}"}
        async with aiohttp.request(method, url, json=body, headers=shown) as answer:
            return await answer.json(content_type=None)

    async def served(self, place: int = 0) -> list[str]:
        return [model["id"] for model in (await self.ask("/v1/models", place))["data"]]


def free_ports(number: int) -> int:
    """The first of so many ports in a row that nobody uses, and that no connection is given."""
    # Not of `random`, which a training of the same process seeds, so that others draw the same.
    draw = SystemRandom()
    while True:
        port = draw.randrange(10_000, 32_000)  # the kernel gives connections ports above these
        try:
            for later in range(port, port + number):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", later))
        except OSError:
            continue
        return port


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def until(holds: Callable[[], bool]) -> None:
    """Return once it holds: of what other processes do, nothing else tells."""
    async with asyncio.timeout(PATIENCE):
        while not holds():
            await asyncio.sleep(0.02)


async def until_status(fleet: Fleet, wanted: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while (await fleet.status()).status != wanted:
            await asyncio.sleep(0.02)


async def online(fleet: Fleet, needs: Needs = NEEDS) -> None:
    (await fleet.start(needs, {})).unwrap()
    await until_status(fleet, "online")


def refusal(answer: Result[T, Refusal]) -> Refusal:
    return answer.failure()
