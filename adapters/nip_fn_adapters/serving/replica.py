"""The supervision of one vLLM process: started again when it crashes, and never left behind."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from returns.pipeline import is_successful
from returns.result import Failure, Result, Success

from nip_fn_adapters import clock
from nip_fn_adapters.serving.machines import Adapters, Process, Tell
from nip_fn_adapters.serving.settings import FleetSettings
from nip_fn_adapters.serving.vllm import Vllm
from nip_fn_adapters.serving.wire import (
    Refusal,
    ReplicaStatus,
    VllmState,
    restart_after,
)

POLL_SECONDS = 0.2  # between two looks at a vLLM that is starting
TRIES = 2  # of a request during which vLLM's process ends: the request may be the cause
NOTICE_SECONDS = 10.0  # within which a vLLM whose engine has died ends
WATCH_SECONDS = 10.0  # between two questions whether its engine is alive

logger = logging.getLogger(__name__)

T = TypeVar("T")
# Begins to start a process that serves these adapters, or says why it cannot.
Start = Callable[[Adapters, Tell], Awaitable[Result[Process, str]]]


class _Run:
    """One process of those that follow one another."""

    def __init__(self, process: Process, loaded: set[str]) -> None:
        self.process, self.loaded = process, loaded
        self.online = False  # it is, or has been
        self.fault = ""  # for which it was ended
        self.over = asyncio.Event()


class Replica:
    """A vLLM that is started again when it crashes, with the adapters that are to be served."""

    def __init__(
        self,
        settings: FleetSettings,
        port: int,
        vllm: Vllm,
        start: Start,
        served: Adapters,
    ) -> None:
        """Nothing runs before `begin`.

        Args:
            settings: Those of all replicas.
            port: The replica's own.
            vllm: The client of the process on that port.
            start: Starts a process that serves these adapters.
            served: Gives the adapters that are to be served now.
        """
        self.given_up, self.name = False, vllm.name
        self._settings, self._port = settings, port
        self._vllm, self._start, self._served = vllm, start, served
        self._reason = ""  # why the last process ended, or the next one has to wait
        self._crashes: list[float] = []  # times
        self._run: _Run | None = None
        self._task: asyncio.Task[None] | None = None
        self._loading = asyncio.Lock()
        self._settled = asyncio.Event()  # it is online, or never will be
        self._awake = asyncio.Event()
        self._awake.set()

    def begin(self) -> None:
        """Start it, and keep it running."""
        self._task = asyncio.create_task(self._supervise())

    async def end(self) -> None:
        """End it; once this returns, nothing of it is left."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._give_up(f"{self.name} was stopped")

    async def status(self) -> ReplicaStatus:
        """Its state now."""
        state, error = await self._state()
        return ReplicaStatus(self._port, state, error, len(self._crashes))

    async def _state(self) -> tuple[VllmState, str]:
        if self.given_up:
            return "crashed", self._reason
        if not self._awake.is_set():
            return "asleep", ""
        if self._run is None or not self._run.online:
            return "starting", self._reason
        return await self._vllm.health()

    def has(self, adapter: str) -> bool:
        """True if the process that runs now was given that adapter."""
        return self._run is not None and adapter in self._run.loaded

    async def look(self) -> None:
        """Notice adapters that the process was given and serves no more."""
        run = self._run
        if run is not None and run.online and self._awake.is_set():
            run.loaded &= (await self._vllm.models()).value_or(frozenset(run.loaded))

    async def load(self, adapter: str, folder: Path) -> Result[None, Refusal]:
        """Serve the adapter, as soon as vLLM is online; 422 if vLLM refuses the adapter."""

        async def load(vllm: Vllm) -> Result[None, Refusal]:
            run = self._run
            if run is None or adapter in run.loaded:  # the next request notices if it has ended
                return Success(None)
            answer = await vllm.load(adapter, await run.process.place(adapter, folder))
            if is_successful(answer):
                run.loaded.add(adapter)
            return answer

        # One at a time: vLLM refuses an adapter that another request has just loaded.
        async with self._loading:
            return await self.ask(load, blamed=422)

    async def unload(self, adapter: str) -> None:
        """Stop serving the adapter, if it is served."""
        run = self._run
        # A process that is starting is rid of unwanted adapters as soon as it is online.
        if run is not None and run.online and adapter in run.loaded:
            run.loaded.discard(adapter)
            await self._vllm.unload(adapter)

    async def sleep(self) -> bool:
        """True once its memory is free; while it sleeps, no process is started."""
        if self._run is None or not self._run.online:
            return False
        # Before the request, so that nothing is sent to a vLLM that is falling asleep.
        self._awake.clear()
        asleep = is_successful(await self._vllm.sleep())
        if not asleep:
            self._awake.set()
        return asleep

    async def wake(self) -> None:
        """Take the memory back, if it sleeps; a process that died in its sleep is started."""
        run = self._run
        if run is not None and not self._awake.is_set():
            woken = is_successful(await self._vllm.wake())
            if not (woken or await self._ends(run)):
                return
        self._awake.set()

    async def ask(
        self, call: Callable[[Vllm], Awaitable[Result[T, Refusal]]], *, blamed: int = 502
    ) -> Result[T, Refusal]:
        """The answer to `call` once vLLM is online; it is made again if vLLM ends meanwhile.

        `blamed` is the status of a refusal if vLLM ends at each try; 503 if there is no vLLM.
        """
        for _ in range(TRIES):
            absent = await self._until_settled()
            if absent:
                return Failure(Refusal(absent, status=503))
            run = self._run
            answer = await call(self._vllm)
            if is_successful(answer) or run is None:
                return answer
            if not await self._ends(run):
                run.process.note_life()
                return answer
        if self.given_up:
            return Failure(Refusal(self._reason, status=503))
        ended = f"{self.name} ended {TRIES} times at it: {self._reason}"
        return Failure(Refusal(ended, status=blamed))

    async def _ends(self, run: _Run) -> bool:
        """True if the process has ended, or is about to: it answers, but its engine is dead."""
        if (await self._vllm.health())[0] not in ("online", "timeout"):
            with suppress(TimeoutError):
                await asyncio.wait_for(run.over.wait(), NOTICE_SECONDS)
        return run.over.is_set()

    async def _until_settled(self) -> str:
        """The reason why vLLM will not be online and awake; "" once it is."""
        try:
            async with asyncio.timeout(self._settings.start_limit):
                while not (self._settled.is_set() and self._awake.is_set()):
                    await self._awake.wait()
                    await self._settled.wait()
        except TimeoutError:
            return f"{self.name} was not ready within {self._settings.start_limit:g} s"
        return self._reason if self.given_up else ""

    async def _supervise(self) -> None:
        """Start it, and again after each crash, until that is given up."""
        policy = self._settings.restarts
        while True:
            # One that has died in its sleep stays away until its memory is given back.
            await self._awake.wait()
            self._reason = await self._run_once()
            self._crashes.append(clock.monotonic())
            pause = restart_after(self._crashes, policy)
            if pause is not None:
                message = "%s has ended: %s; it is started again in %g s"
                logger.warning(message, self.name, self._reason, pause)
            else:
                self._give_up(
                    f"{self.name} crashed more than {policy.most} times in {policy.window:g} s, "
                    f"the last time with: {self._reason}; see {self._settings.log(self._port)}"
                )
                return
            await asyncio.sleep(pause)

    def _give_up(self, reason: str) -> None:
        logger.info("%s", reason)
        self.given_up, self._reason = True, reason
        self._settled.set()

    async def _run_once(self) -> str:
        """The reason why one process ended, after it has."""
        served = dict[str, Path]()

        def adapters() -> Mapping[str, Path]:  # as late as can be: the start may have to wait
            served.update(self._served())
            return served

        begun = await self._start(adapters, self._delayed)
        if not is_successful(begun):
            return begun.failure()
        process = begun.unwrap()
        # vLLM loads the adapters of its command line before its port answers.
        run = self._run = _Run(process, set(served))
        logger.info("%s is starting; its log is %s", self.name, self._settings.log(self._port))
        watching = asyncio.create_task(self._watch(run))
        try:
            reason = await process.wait()
        finally:
            watching.cancel()
            self._run = None
            self._settled.clear()
            await process.end()
            run.over.set()
        return run.fault or reason

    def _delayed(self, reason: str) -> None:
        self._reason = reason

    async def _watch(self, run: _Run) -> None:
        """End it if it is not online in time, or hangs later on."""
        begun, limit = clock.monotonic(), self._settings.start_limit
        try:
            async with asyncio.timeout(limit):
                while (await self._vllm.health())[0] != "online":
                    await asyncio.sleep(POLL_SECONDS)
            logger.info("%s is online after %.0f s", self.name, clock.monotonic() - begun)
            await self._settle(run)
            await self._until_it_hangs(run)
            run.fault = f"its engine answered nothing for {self._settings.hang_limit:g} s"
        except TimeoutError:
            run.fault = f"it was not online within {limit:g} s"
        await run.process.end()

    async def _settle(self, run: _Run) -> None:
        """Settle, now that it is online, without adapters that were unloaded in the meantime."""
        run.online, self._reason = True, ""
        for adapter in run.loaded - self._served().keys():
            await self.unload(adapter)
        self._settled.set()

    async def _until_it_hangs(self, run: _Run) -> None:
        """Return once its engine answers nothing, although it is awake."""
        while True:
            await self._awake.wait()
            is_alive = await self._vllm.is_alive(self._settings.hang_limit)
            if is_alive is None and self._awake.is_set():
                return
            if is_alive:
                run.process.note_life()
            await asyncio.sleep(min(WATCH_SECONDS, self._settings.hang_limit))
