"""One vLLM process, kept running."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import aiohttp
import msgspec
from returns.result import Failure, Result, Success

from nip_fn_adapters.api.replies import one_line
from nip_fn_adapters.serving import wire as serving
from nip_fn_adapters.serving.guarded import Guarded, last_words, why
from nip_fn_adapters.serving.settings import check_port
from nip_fn_adapters.serving.vllm import Vllm
from nip_fn_adapters.serving.wire import Refusal, RestartPolicy, VllmState, restart_after

BEAT = 0.2  # seconds between two looks at a vLLM that is starting
TRIES = 2  # of a request at which vLLM's process ends: the request may be why
NOTICE = 10.0  # seconds within which a vLLM whose engine died has ended

T = TypeVar("T")


class Plan(NamedTuple):
    """How a vLLM is run."""

    host: str
    port: int
    command: Callable[[Mapping[str, Path]], tuple[str, ...]]  # that serves these adapters
    environment: Mapping[str, str]
    log: Path
    start_limit: float  # seconds
    restarts: RestartPolicy


class _Life:
    """One process of those that follow one another."""

    def __init__(self, process: Guarded, loaded: set[str]) -> None:
        self.process, self.loaded = process, loaded
        self.online = False  # it has been
        self.late = False  # it was not within the limit
        self.over = asyncio.Event()


class Replica:
    """A vLLM that is started again when it crashes, with the adapters that are to be served."""

    def __init__(self, plan: Plan, vllm: Vllm, served: Callable[[], Mapping[str, Path]]) -> None:
        """Nothing runs before `begin`; `served` tells what is to be served by then."""
        self.given_up = False
        self._plan, self._vllm, self._served = plan, vllm, served
        self._reason = ""  # why the last process ended
        self._crashes: list[float] = []
        self._life: _Life | None = None
        self._task: asyncio.Task[None] | None = None
        self._loading = asyncio.Lock()
        self._settled = asyncio.Event()  # it is online, or never will be
        self._awake = asyncio.Event()
        self._awake.set()

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return f"vLLM on port {self._plan.port}"

    def begin(self) -> None:
        """Keep it running."""
        self._task = asyncio.create_task(self._keep_running())

    async def end(self) -> None:
        """End it; once this returns, nothing of it is left."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._give_up(f"{self.name} was stopped")

    async def status(self) -> serving.Replica:
        """How it is now."""
        state, error = await self._state()
        return serving.Replica(self._plan.port, state, error, len(self._crashes))

    def has(self, adapter: str) -> bool:
        """Whether the process that runs now was told to serve that adapter."""
        return self._life is not None and adapter in self._life.loaded

    async def load(self, adapter: str, folder: Path) -> Result[None, Refusal]:
        """Serve the adapter, as soon as vLLM is online; 422 where it refuses the adapter."""

        async def load(vllm: Vllm) -> Result[None, str]:
            life = self._life
            if life is None or adapter in life.loaded:  # the next request finds out
                return Success(None)
            answer = await vllm.load(adapter, folder)
            if isinstance(answer, Success):
                life.loaded.add(adapter)
            return answer.map(lambda _: None)

        async with self._loading:
            return await self.ask(422, load)

    async def unload(self, adapter: str) -> None:
        """Serve the adapter no more, if it is served."""
        life = self._life
        if life is None or not life.online or adapter not in life.loaded:
            return  # what is not to be served is unloaded as soon as vLLM is online
        life.loaded.discard(adapter)
        with suppress(aiohttp.ClientError, TimeoutError):
            await self._vllm.unload(adapter)

    async def sleep(self) -> Result[None, Refusal]:
        """Lend its memory; while it sleeps, no process is started."""
        if self._life is None or not self._life.online:
            return Failure(Refusal(409, f"{self.name} is not online, and cannot sleep"))
        self._awake.clear()
        answer = await self._call(502, Vllm.sleep)
        if isinstance(answer, Failure):
            self._awake.set()
        return answer.map(lambda _: None)

    async def wake(self) -> Result[None, Refusal]:
        """Take the memory back, if it sleeps; a process that died in its sleep is started."""
        life = self._life
        if life is not None and not self._awake.is_set():
            answer = await self._call(502, Vllm.wake)
            if isinstance(answer, Failure) and not await self._ends(life):
                return answer.map(lambda _: None)
        self._awake.set()
        return Success(None)

    async def ask(
        self, refused: int, call: Callable[[Vllm], Awaitable[Result[T, str]]]
    ) -> Result[T, Refusal]:
        """What `call` gives once vLLM is online; it is made again if vLLM ends meanwhile.

        Its failure is one with the status `refused`; 503 where vLLM cannot be had.
        """
        for _ in range(TRIES):
            absent = await self._until_settled()
            if absent is not None:
                return Failure(Refusal(503, absent))
            life = self._life
            answer = await self._call(refused, call)
            if isinstance(answer, Success) or not await self._ends(life):
                return answer
        if self.given_up:
            return Failure(Refusal(503, self._reason))
        return Failure(Refusal(refused, f"{self.name} ended {TRIES} times at it: {self._reason}"))

    async def _call(
        self, refused: int, call: Callable[[Vllm], Awaitable[Result[T, str]]]
    ) -> Result[T, Refusal]:
        """What `call` gives, its failure or exception as a refusal."""
        try:
            answer = await call(self._vllm)
        except TimeoutError:
            limit = f"{self._vllm.limit:g} s"
            return Failure(Refusal(503, f"{self.name} does not answer within {limit}"))
        except aiohttp.ClientError as error:
            return Failure(Refusal(503, f"{self.name} breaks off: {one_line(error)}"))
        except msgspec.DecodeError as error:
            return Failure(Refusal(502, f"{self.name} answers nonsense: {one_line(error)}"))
        return answer.alt(lambda said: Refusal(refused, f"{self.name}: {said}"))

    async def _ends(self, life: _Life | None) -> bool:
        """Whether the process has ended, or is about to: it answers, but its engine is dead."""
        if life is None or (await self._vllm.health())[0] in ("online", "timeout"):
            return life is None or life.over.is_set()
        with suppress(TimeoutError):
            await asyncio.wait_for(life.over.wait(), NOTICE)
        return life.over.is_set()

    async def _until_settled(self) -> str | None:
        """Return once vLLM is online and awake; or why that cannot be waited for."""
        try:
            async with asyncio.timeout(self._plan.start_limit):
                while not (self._settled.is_set() and self._awake.is_set()):
                    await self._awake.wait()
                    await self._settled.wait()
        except TimeoutError:
            return f"{self.name} was not ready within {self._plan.start_limit:g} s"
        return self._reason if self.given_up else None

    async def _state(self) -> tuple[VllmState, str]:
        if self.given_up:
            return "crashed", self._reason
        if not self._awake.is_set():
            return "asleep", ""
        if self._life is None or not self._life.online:
            return "starting", self._reason
        return await self._vllm.health()

    async def _keep_running(self) -> None:
        """Start it, and again after each crash, until that is given up."""
        policy = self._plan.restarts
        while True:
            await self._awake.wait()
            self._reason = await self._live()
            self._crashes.append(time.monotonic())
            pause = restart_after(self._crashes, policy)
            if pause is None:
                self._give_up(
                    f"{self.name} crashed more than {policy.most} times in {policy.window:g} s, "
                    f"the last time with: {self._reason}; see {self._plan.log}"
                )
                return
            await asyncio.sleep(pause)

    def _give_up(self, reason: str) -> None:
        self.given_up, self._reason = True, reason
        self._settled.set()

    async def _live(self) -> str:
        """One process, from its start to its end; why it ended."""
        plan, served = self._plan, self._served()
        try:
            check_port(plan.host, plan.port)
            process = Guarded(plan.command(served), plan.environment, plan.log)
        except OSError as error:
            return one_line(error)
        life = self._life = _Life(process, set(served))
        coming = asyncio.create_task(self._bring_online(life))
        try:
            code = await process.wait()
        finally:
            coming.cancel()
            self._life = None
            self._settled.clear()
            await process.end()
            life.over.set()
        if life.late:
            return f"it was not online within {plan.start_limit:g} s: {last_words(plan.log)}"
        return why(code, plan.log)

    async def _bring_online(self, life: _Life) -> None:
        """Settled once it is online, with no adapter that is not to be served any more."""
        try:
            async with asyncio.timeout(self._plan.start_limit):
                while (await self._vllm.health())[0] != "online":
                    await asyncio.sleep(BEAT)
        except TimeoutError:
            life.late = True
            await life.process.end()
            return
        life.online, self._reason = True, ""
        for adapter in life.loaded - self._served().keys():
            await self.unload(adapter)
        self._settled.set()
