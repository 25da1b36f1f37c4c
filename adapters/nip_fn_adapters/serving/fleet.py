"""The vLLM processes of a server: replicas that answer for one base model and its adapters."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import aiohttp
from returns.pipeline import is_successful
from returns.result import Failure, Result, Success

from nip_fn.errors import Problem, collect
from nip_fn.training.canary import Score, canary_problem
from nip_fn_adapters.results import bind_async
from nip_fn_adapters.serving.in_vllm import nip_fn_access as access
from nip_fn_adapters.serving.machines import Gpus, Machines, ThisMachine
from nip_fn_adapters.serving.replica import Replica
from nip_fn_adapters.serving.settings import FleetSettings
from nip_fn_adapters.serving.vllm import Scored, Vllm, end_token, shape_of
from nip_fn_adapters.serving.wire import (
    Launch,
    Needs,
    ProbeText,
    Refusal,
    VllmState,
    VllmStatus,
    combined,
    gpu_shares,
    satisfies,
)

ANSWER_LIMIT = 300.0  # seconds for an answer of a vLLM that is online
NOT_STARTED = Refusal("vLLM has not been started", remedy="POST /vllm/start", status=503)

_WORST_FIRST: tuple[VllmState, ...] = (
    "crashed",
    "server_error",
    "other_error",
    "timeout",
    "not_accepting_connections",
    "starting",
    "asleep",
    "online",
)

T = TypeVar("T")


class Fleet:
    """All vLLM processes of a server; to be used in one event loop, from any of its tasks."""

    def __init__(
        self,
        settings: FleetSettings,
        model_folder: Callable[[str], Result[Path, Problem]],
        machines: Machines | None = None,
    ) -> None:
        """Nothing runs yet.

        Args:
            settings: Those of all replicas.
            model_folder: Finds the folder of a model; it may download it.
            machines: Where they run; None: here.
        """
        self.needs: Needs | None = None  # of what runs, or is to run
        self._settings, self._model_folder = settings, model_folder
        self._machines: Machines = machines or ThisMachine(settings)
        self._replicas: tuple[Replica, ...] = ()
        self._loras: dict[str, Path] = {}  # what all replicas serve, or will once they are online
        self._end_token: str | int = ""
        self._gpus = Gpus((), 0.0)
        self._changing = asyncio.Lock()  # held while processes are started or ended
        self._http: aiohttp.ClientSession | None = None

    async def start(self, needs: Needs, loras: Mapping[str, Path]) -> Result[None, Refusal]:
        """Begin to serve the model and the adapters; they answer once the status is online.

        Nothing happens if what runs satisfies the needs.  If it has the same base model, it is
        started again for both, with its own adapters as well; another model replaces it.
        """
        async with self._changing:
            running = self.needs
            alive = not any(replica.given_up for replica in self._replicas)
            if running is not None and alive and satisfies(running, needs):
                return Success(None)
            same = running is not None and running.model_name == needs.model_name
            whole, kept = combined(running, needs), self._loras if same else {}

            async def replace(planned: tuple[Replica, ...]) -> Result[None, Refusal]:
                ended, self._replicas = self._replicas, planned
                self.needs, self._loras = whole, {**kept, **loras}
                await _all(replica.end() for replica in ended)
                for replica in planned:
                    replica.begin()
                return Success(None)

            # Planned first: if the new model cannot be found, what runs keeps running.
            return await bind_async(await self._plan(whole), replace)

    async def stop(self) -> None:
        """End all processes; once this returns, nothing of them is left."""
        async with self._changing:
            ended, self._replicas = self._replicas, ()
            self.needs, self._loras = None, {}
            await _all(replica.end() for replica in ended)

    async def close(self) -> None:
        """Stop, and release all resources."""
        await self.stop()
        if self._http is not None:
            await self._http.close()

    async def sleep(self) -> bool:
        """Free the GPUs' memory; False if vLLM cannot sleep, or is not online."""
        if not (self._replicas and self._can_sleep):
            return False
        asleep = all(await _all(replica.sleep() for replica in self._replicas))
        if not asleep:
            await self.wake()
        return asleep

    async def wake(self) -> None:
        """Take the GPUs' memory back."""
        await _all(replica.wake() for replica in self._replicas)

    async def status(self) -> VllmStatus:
        """The state of all replicas; each is asked with a short limit."""
        replicas = tuple(await _all(replica.status() for replica in self._replicas))
        if self.needs is None or not replicas:
            return VllmStatus("not_started")
        worst = min(replicas, key=lambda replica: _WORST_FIRST.index(replica.status))
        key = self._settings.key if self._settings.local_only else ""
        return VllmStatus(worst.status, worst.error, self.needs.model_name, replicas, key)

    async def load(self, name: str, folder: Path) -> Result[None, Refusal]:
        """Serve the adapter on all replicas, once they are online, and after every restart.

        422 if vLLM refuses it, 503 if there is no vLLM.
        """
        await _all(replica.look() for replica in self._replicas)
        # A replica may crash, or all may be replaced, while others load: look again until all have.
        while missing := [replica for replica in self._replicas if not replica.has(name)]:
            answers = await _all(replica.load(name, folder) for replica in missing)
            current = zip(missing, answers, strict=True)
            loaded = _each(answer for replica, answer in current if replica in self._replicas)
            # All or nothing: requests are spread over the replicas, and any of them may be asked
            # for the adapter.
            if not is_successful(loaded):
                await self.unload(name)
                return loaded
        if not self._replicas:
            return Failure(NOT_STARTED)
        self._loras[name] = folder
        return Success(None)

    async def unload(self, name: str) -> None:
        """Serve the adapter no more."""
        self._loras.pop(name, None)
        await _all(replica.unload(name) for replica in self._replicas)

    async def score(
        self, adapter: str | None, probes: Sequence[ProbeText]
    ) -> Result[Scored, Refusal]:
        """The log-probabilities of the tokens of the probes' replies and their ends.

        Args:
            adapter: The adapter that scores; None: the base model.
            probes: The replies; tokens past the model's context are left out.

        Returns:
            502 if vLLM cannot score, or the replicas disagree; 503 if there is no vLLM.
        """
        if self.needs is None or not self._replicas:
            return Failure(NOT_STARTED)
        model, end, replicas = adapter or self.needs.model_name, self._end_token, self._replicas
        # Every replica scores: one with other weights would answer its share of the requests
        # unnoticed.
        answers = await _all(
            replica.ask(lambda vllm: vllm.scores(model, end, probes)) for replica in replicas
        )

        def agreed(answers: tuple[Scored, ...]) -> Result[Scored, Refusal]:
            first = tuple(Score(score, score) for score in answers[0].scores)
            for replica, scored in zip(replicas, answers, strict=True):
                if canary_problem(first, *scored):
                    problem = f"{replica.name} does not score {model} as others do"
                    return Failure(Refusal(problem, status=502))
            return Success(answers[0])

        return collect(answers).bind(agreed)

    def _served(self) -> dict[str, Path]:
        """The adapters to start a process with; with a folder that is gone it would not start."""
        return {name: folder for name, folder in self._loras.items() if folder.is_dir()}

    @property
    def _can_sleep(self) -> bool:
        """True on a GPU, if no other machine reaches vLLM.

        Sleep is a part of vLLM's interface for developers, which is no more for every client that
        has the key than it is for strangers.
        """
        is_here = access.is_loopback(self._settings.host)
        return bool(self._gpus.names) and is_here and self._machines.can_sleep

    async def _plan(self, needs: Needs) -> Result[tuple[Replica, ...], Refusal]:
        """Replicas for these needs, not yet begun."""
        looked = await self._machines.look()
        if not is_successful(looked):
            return looked.map(lambda gpus: ())
        self._gpus = looked.unwrap()
        folder = await asyncio.to_thread(self._model_folder, needs.model_name)
        return folder.alt(partial(_refusal, 404)).bind(partial(self._make_replicas, needs))

    def _make_replicas(self, needs: Needs, model: Path) -> Result[tuple[Replica, ...], Refusal]:
        shares = gpu_shares(shape_of(model), *self._gpus, self._settings.replicas)
        taken, there = sum(map(len, shares)), len(self._gpus.names)
        if taken > there and not self._machines.can_share:
            problem = f"{len(shares)} replicas take {taken} GPUs, and {there} are there for them"
            return Failure(Refusal(problem, "--replicas", "ask for fewer", status=409))

        def make(end: str | int) -> tuple[Replica, ...]:
            self._end_token = end
            ports = enumerate(shares, start=self._settings.port)
            return tuple(self._replica(needs, model, port, gpus) for port, gpus in ports)

        return end_token(model).map(make).alt(partial(_refusal, 422))

    def _replica(self, needs: Needs, model: Path, port: int, gpus: tuple[str, ...]) -> Replica:
        settings = self._settings
        launch = Launch(
            needs,
            str(model),
            port,
            settings.host,
            settings.max_model_len,
            tensor_parallel=max(1, len(gpus)),
            can_sleep=self._can_sleep,
            extra=(*_defaults(needs, gpus), *settings.extra),
        )
        if self._http is None:
            headers = {"Authorization": f"Bearer {settings.key}"}
            # Kept connections would break when vLLM is started again.
            connector = aiohttp.TCPConnector(force_close=True)
            self._http = aiohttp.ClientSession(headers=headers, connector=connector)
        limit = min(ANSWER_LIMIT, settings.start_limit)
        vllm = Vllm(self._http, url_of(settings.host, port), limit)
        start = partial(self._machines.start, launch, gpus)
        return Replica(settings, port, vllm, start, self._served)


def _defaults(needs: Needs, gpus: Sequence[str]) -> tuple[str, ...]:
    """The options of ours that the user's may override."""
    # An adapter that is unloaded stays in vLLM's memory until newer ones take its place.  One that
    # is served and loses its place, because it was not asked for, is read again from its folder.
    in_memory = max(8, 2 * needs.max_loras)
    options = ("--max-cpu-loras", str(in_memory), "--disable-uvicorn-access-log")
    # On a CPU, vLLM 0.32 dies of a prompt that it reads in several parts for a request with a seed
    # ("CPU Generator does not use offset"), and every request of a run has one.
    on_cpu = ("--dtype", "float32", "--no-enable-chunked-prefill", "--enable-prefix-caching")
    return options if gpus else (*options, *on_cpu)


def url_of(host: str, port: int) -> str:
    """The address at which this machine reaches a server that listens there."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


async def _all(calls: Iterable[Awaitable[T]]) -> list[T]:
    """The results of all calls, made at the same time."""
    return list(await asyncio.gather(*calls))


def _each(answers: Iterable[Result[None, Refusal]]) -> Result[None, Refusal]:
    """Success if all are; otherwise the first failure."""
    return collect(answers).map(lambda nothing: None)


def _refusal(status: int, problem: Problem) -> Refusal:
    return Refusal(problem.problem, problem.address, problem.remedy, status=status)
