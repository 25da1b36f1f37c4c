"""What a language-model server does: it joins vLLM, the shelf of adapters and the queue of jobs."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec.structs import replace
from returns.result import Failure, Result, Success

from nip_fn.config.hosting import LORA_RANKS
from nip_fn.training.jobs import Job, canary_problem
from nip_fn_adapters.local.models import BUILTIN, is_on_hub, model_directory
from nip_fn_adapters.serving.adapter_store import AdapterStore
from nip_fn_adapters.serving.fleet import Fleet
from nip_fn_adapters.serving.queue import Put, Queue, Train
from nip_fn_adapters.serving.settings import INSTALL_VLLM, ServerSettings
from nip_fn_adapters.serving.weights import check_adapter, read_config
from nip_fn_adapters.serving.wire import (
    NAME_PATTERN,
    Needs,
    PublishAdapter,
    Refusal,
    ServedAdapter,
    VllmStatus,
    both,
    lora_rank,
)

LONGEST_JOB_NAME = 190  # characters: with a hash at its end it is an adapter's name
NOT_STARTED = Refusal(503, "vLLM is not started: POST /vllm/start")


class Service:
    """All that the endpoints do."""

    def __init__(self, settings: ServerSettings, fleet: Fleet | None, train: Train) -> None:
        """Find the state again.  Without a fleet there is no vLLM, and only training."""
        self.settings, self._fleet = settings, fleet
        self.shelf = AdapterStore(settings.state, settings.keep_adapters)
        self.queue = Queue(settings.state, train, self._lent, settings.parallel_jobs)
        # Held while an adapter is published, and while trainings have vLLM's memory.
        self._serving = asyncio.Lock()
        self._starting = asyncio.Lock()
        self._is_lent = False
        self._wanted: Needs | None = None  # what vLLM is to run, or to run again, for

    async def open(self) -> Result[None, Refusal]:
        """Serve what was served before, or the model that is the only one to be served."""
        ledger, model = self.shelf.ledger, self.settings.model
        needs = ledger.needs if ledger.is_started else None
        if model is not None and (needs is None or needs.model_name != model):
            needs = Needs(model)
        return Success(None) if needs is None else await self._launch(needs)

    async def close(self) -> None:
        """End vLLM; what is served is noted, and served again by the next `open`."""
        if self._fleet is not None:
            await self._fleet.close()

    async def start(self, needs: Needs) -> Result[VllmStatus, Refusal]:
        """Start vLLM; or start it again where what runs does not suffice."""
        async with self._starting:
            refusal = self._start_problem(needs)
            if refusal is not None:
                return Failure(refusal)
            if self._wanted is not None and self._wanted.model_name == needs.model_name:
                needs = both(self._wanted, needs)
            launched = await self._launch(needs)
            if isinstance(launched, Failure):
                return launched
            self.shelf.note(replace(self.shelf.ledger, needs=needs, is_started=True))
        return Success(await self.status())

    def _start_problem(self, needs: Needs) -> Refusal | None:
        wanted, model, ledger = needs.model_name, self.settings.model, self.shelf.ledger
        if self._fleet is None:
            return Refusal(503, INSTALL_VLLM)
        if model not in (None, wanted):
            return Refusal(409, f"this server serves {model} alone, and {wanted} is asked for")
        if model is None and not _is_free(wanted):
            return Refusal(422, f"a path can only be served by its server: --model {wanted}")
        runs = ledger.needs if ledger.is_started else None
        if runs is not None and (runs.model_name, runs.quantization) != (
            wanted,
            needs.quantization,
        ):
            return Refusal(
                409,
                f"{runs.model_name} (quantization {runs.quantization}) is being served, and "
                f"{wanted} ({needs.quantization}) is asked for; POST /vllm/stop where nobody "
                "needs the former any more, or ask another server",
            )
        return None

    async def _launch(self, needs: Needs) -> Result[None, Refusal]:
        """Start vLLM with all that is served and fits; while it is lent, only plan to."""
        if self._fleet is None:
            return Failure(Refusal(503, INSTALL_VLLM))
        owners = self.shelf.ledger.owners
        misfits = [owner for owner, name in owners.items() if not self._fits(name, needs)]
        if misfits:
            self.shelf.retire(misfits)
        launched: Result[None, Refusal] = Success(None)
        if not self._is_lent:
            launched = await self._fleet.start(needs, self.shelf.loras())
        if isinstance(launched, Success):
            self._wanted = needs
        return launched

    def _fits(self, name: str, needs: Needs) -> bool:
        folder = self.shelf.folder(name)
        config = None if folder is None else read_config(folder).value_or(None)
        return (
            config is not None
            and config.base_model_name_or_path == needs.model_name
            and config.r <= lora_rank(needs.max_lora_rank)
        )

    async def stop(self) -> None:
        """Stop vLLM, until it is asked for again."""
        async with self._starting:
            self._wanted = None
            self.shelf.note(replace(self.shelf.ledger, is_started=False))
            if self._fleet is not None:
                await self._fleet.stop()

    async def sleep(self) -> Result[VllmStatus, Refusal]:
        """Lend vLLM's memory to whoever asks for that."""
        if self._fleet is None or self._wanted is None:
            return Failure(NOT_STARTED)
        slept = Success(None) if self._is_lent else await self._fleet.sleep()
        return slept if isinstance(slept, Failure) else Success(await self.status())

    async def wake(self) -> Result[VllmStatus, Refusal]:
        """Give vLLM its memory back."""
        if self._fleet is None or self._wanted is None:
            return Failure(NOT_STARTED)
        if self._is_lent:
            return Failure(Refusal(409, "trainings have vLLM's memory; it wakes when they end"))
        woken = await self._fleet.wake()
        return woken if isinstance(woken, Failure) else Success(await self.status())

    async def status(self) -> VllmStatus:
        """How the models are served."""
        if self._fleet is None:
            return VllmStatus("not_started", INSTALL_VLLM)
        status = await self._fleet.status()
        if self._is_lent and self._wanted is not None and status.status == "not_started":
            return replace(status, status="asleep", model_name=self._wanted.model_name)
        return status

    @asynccontextmanager
    async def _lent(self) -> AsyncIterator[None]:
        """Inside, trainings have vLLM's memory, unless it goes on serving.

        Whoever leaves by being cancelled ends the server, and vLLM with it.
        """
        if self.settings.keep_serving or self._fleet is None:
            yield
            return
        async with self._serving:
            self._is_lent = True
            if isinstance(await self._fleet.sleep(), Failure):
                await self._fleet.stop()
            yield
            self._is_lent = False
            if self._wanted is not None:
                await self._fleet.wake()
                await self._fleet.start(self._wanted, self.shelf.loras())

    async def publish(self, name: str, asked: PublishAdapter) -> Result[ServedAdapter, Refusal]:
        """Serve an adapter, once it is known to be whole and to be the one that answers."""
        folder = self.shelf.folder(name)
        if folder is None:
            return Failure(Refusal(404, f"there is no adapter {name} on this server"))
        if asked.expected and len(asked.expected) != len(asked.probes):
            return Failure(Refusal(422, "as many scores are expected as there are probes, or none"))
        async with self._serving:
            fleet = self._fleet
            needs = None if fleet is None else fleet.needs
            if fleet is None or needs is None:
                return Failure(NOT_STARTED)
            checked = await asyncio.to_thread(_check, folder, needs)
            if isinstance(checked, Failure):
                return Failure(Refusal(422, f"{name} is not served: {checked.failure()}"))
            return await self._serve(fleet, name, folder, asked)

    async def _serve(
        self, fleet: Fleet, name: str, folder: Path, asked: PublishAdapter
    ) -> Result[ServedAdapter, Refusal]:
        """Load an adapter that is sound, ask it, and let it take the place of the owner's last."""
        was_served = name in self.shelf.ledger.owners.values()
        loaded = await fleet.load(name, folder)
        if isinstance(loaded, Failure):
            return loaded
        scored = await fleet.score(name, asked.probes)
        refusal = scored.failure() if isinstance(scored, Failure) else None
        if isinstance(scored, Success) and asked.expected:
            problem = canary_problem(asked.expected, scored.unwrap())
            refusal = Refusal(422, f"{name} is not served: {problem}") if problem else None
        if refusal is not None:
            if not was_served:
                await fleet.unload(name)
            return Failure(refusal)
        before = self.shelf.give(asked.owner, name)
        if before is not None:
            await fleet.unload(before)
        self.shelf.prune(self.queue.needed())
        return Success(ServedAdapter(name, scored.unwrap()))

    def remove(self, name: str) -> Result[None, Refusal]:
        """Delete an adapter that nobody needs."""
        if self.shelf.folder(name) is None:
            return Failure(Refusal(404, f"there is no adapter {name} on this server"))
        if name in self.shelf.ledger.owners.values():
            return Failure(Refusal(409, f"{name} is being served; publish another one first"))
        if name in self.queue.needed():
            return Failure(Refusal(409, f"a training starts from {name}; cancel it first"))
        self.shelf.remove(name)
        return Success(None)

    def put_job(self, id: str, job: Job) -> Result[Put, Refusal]:
        """Queue a training whose adapter can be served afterwards."""
        problem = None if id in self.queue else self._job_problem(job)
        if problem is not None:
            return Failure(Refusal(422, f"{id} cannot be trained: {problem}"))
        return self.queue.put(id, job)

    def _job_problem(self, job: Job) -> str | None:
        served = self.settings.model or (self._wanted and self._wanted.model_name)
        if not re.fullmatch(NAME_PATTERN, job.name) or len(job.name) > LONGEST_JOB_NAME:
            return f"{job.name!r} cannot be a part of an adapter's name"
        if served not in (None, job.model):
            return f"this server serves {served}, not {job.model}"
        if served is None and not _is_free(job.model):
            return f"a path can only be given by the server: --model {job.model}"
        if not job.rows:
            return "it has no rows"
        if not job.use_lora:
            return "a model whose weights are all trained cannot be loaded into a vLLM that runs"
        if min(job.num_epochs, job.batch_size, job.lora_rank) < 1:
            return "num_epochs, batch_size and lora_rank are 1 or more"
        rank = job.lora_rank
        for name in (job.start, job.reference):
            folder = self._adapter(name)
            if name is not None and folder is None:
                return f"there is no adapter {name} on this server"
            if folder is not None and name == job.start and job.stack:
                rank += read_config(folder).map(lambda config: config.r).value_or(0)
        if rank > LORA_RANKS[-1]:
            return f"what it leaves has rank {rank}, and vLLM serves no rank above {LORA_RANKS[-1]}"
        return None

    def _adapter(self, name: str | None) -> Path | None:
        is_name = name is not None and re.fullmatch(NAME_PATTERN, name)
        return self.shelf.folder(str(name)) if is_name else None


def _check(folder: Path, needs: Needs) -> Result[None, str]:
    """Success where vLLM can serve the adapter as it runs."""
    model, rank = needs.model_name, lora_rank(needs.max_lora_rank)
    return model_directory(model).bind(lambda base: check_adapter(folder, model, base, rank))


def _is_free(model: str) -> bool:
    """Whether a client may choose the model: no paths are taken from clients."""
    return model in BUILTIN or is_on_hub(model)
