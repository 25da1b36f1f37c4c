"""The work of a language-model server: it joins vLLM, the store of adapters and the job queue."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import psutil  # type: ignore[import-untyped]
from msgspec.structs import replace
from returns.pipeline import is_successful
from returns.result import Failure, Result, Success

from nip_fn.config.hosting import LORA_RANKS
from nip_fn.errors import Problem
from nip_fn.training.canary import canary_problem
from nip_fn.training.tuning import Job
from nip_fn_adapters.providers.local.models import builtin_directory, is_on_hub, model_directory
from nip_fn_adapters.results import bind_async
from nip_fn_adapters.serving.adapter_store import AdapterStore
from nip_fn_adapters.serving.fleet import NOT_STARTED, Fleet
from nip_fn_adapters.serving.gpus import gpu_memory
from nip_fn_adapters.serving.queue import Queue, TrainFunction
from nip_fn_adapters.serving.settings import NO_VLLM, ServerSettings
from nip_fn_adapters.serving.vllm import Scored
from nip_fn_adapters.serving.weights import check_adapter, read_config
from nip_fn_adapters.serving.wire import (
    NAME_PATTERN,
    AdapterFile,
    JobInfo,
    Machine,
    Needs,
    PublishAdapter,
    Refusal,
    ServedAdapter,
    VllmStatus,
    combined,
    lora_rank,
)

GIB = 2**30  # bytes
MAX_JOB_NAME = 190  # characters: with a hash at its end it is an adapter's name
TRAINS_ONLY = Refusal(NO_VLLM.problem, remedy=NO_VLLM.remedy, status=503)
PUBLISH_FIRST = "publish another one first"

logger = logging.getLogger(__name__)


class Service:
    """All that the endpoints do."""

    def __init__(self, settings: ServerSettings, fleet: Fleet | None, train: TrainFunction) -> None:
        """Read the state.  Without a fleet there is no vLLM, and only training."""
        self.settings, self._fleet = settings, fleet
        self.adapters = AdapterStore(settings.state, settings.keep_adapters)
        self.queue = Queue(settings.state, train, self._lent, settings.parallel_jobs)
        # Held while an adapter is published, and while trainings have vLLM's memory.
        self._serving = asyncio.Lock()
        self._starting = asyncio.Lock()
        self._is_lent = False
        self._wanted: Needs | None = None  # that vLLM runs for, or will once it has its memory back

    async def open(self) -> Result[None, Refusal]:
        """Serve what was served before, or the only model that is to be served."""
        ledger, model = self.adapters.ledger, self.settings.model
        needs = ledger.needs if ledger.is_started else None
        # The option wins over what was served before the restart: whoever starts the server has
        # just given it.
        if model is not None:
            from_options = Needs(model, self.settings.max_lora_rank, self.settings.max_loras)
            needs = (
                combined(from_options, needs)
                if needs and needs.model_name == model
                else from_options
            )
        return Success(None) if needs is None else await self._launch(needs)

    async def close(self) -> None:
        """End vLLM; what is served is written down, and served again by the next `open`."""
        if self._fleet is not None:
            await self._fleet.close()

    async def start(self, needs: Needs) -> Result[VllmStatus, Refusal]:
        """Start vLLM, or start it again if what runs does not satisfy the needs."""
        # One start at a time: two runs must not each combine their needs with those of a vLLM that
        # does not know the other yet.
        async with self._starting:
            # Runs of one model share a vLLM that satisfies them all, rather than replace it in
            # turns.
            whole = combined(self._wanted, needs)
            allowed = self._check_needs(needs)
            launched = await bind_async(allowed, lambda nothing: self._launch(whole))
            if is_successful(launched):
                ledger = replace(self.adapters.ledger, needs=whole, is_started=True)
                self.adapters.record(ledger)
        status = await self.status()
        return launched.map(lambda nothing: status)

    def _check_needs(self, needs: Needs) -> Result[None, Refusal]:
        requested, model, ledger = needs.model_name, self.settings.model, self.adapters.ledger
        if self._fleet is None:
            return Failure(TRAINS_ONLY)
        if model not in (None, requested):
            problem = f"this server serves {model} alone, and {requested} is asked for"
            return Failure(Refusal(problem, status=409))
        if model is None and not _may_be_chosen(requested):
            problem = f"a path can only be served by its server: --model {requested}"
            return Failure(Refusal(problem))
        # Refused rather than replaced: another run may be sampling from that model.
        runs = ledger.needs if ledger.is_started else None
        if runs is not None and (runs.model_name, runs.quantization) != (
            requested,
            needs.quantization,
        ):
            return Failure(
                Refusal(
                    f"{runs.model_name} (quantization {runs.quantization}) is being served, and "
                    f"{requested} ({needs.quantization}) is asked for",
                    remedy="POST /vllm/stop if nobody needs the former any more, or ask another "
                    "server",
                    status=409,
                )
            )
        return Success(None)

    async def _launch(self, needs: Needs) -> Result[None, Refusal]:
        """Start vLLM with all that is served and fits; while its memory is lent, only plan to."""
        if self._fleet is None:
            return Failure(TRAINS_ONLY)
        owners = self.adapters.ledger.owners
        # vLLM is started with all adapters that are served, and one that does not fit it would keep
        # it from starting.
        misfits = [owner for owner, name in owners.items() if not self._fits(name, needs)]
        if misfits:
            self.adapters.retire(misfits)
        launched: Result[None, Refusal] = Success(None)
        if not self._is_lent:
            launched = await self._fleet.start(needs, self.adapters.served())
        if is_successful(launched):
            self._wanted = needs
        return launched

    def _fits(self, name: str, needs: Needs) -> bool:
        folder = self.adapters.folder(name)
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
            self.adapters.record(replace(self.adapters.ledger, is_started=False))
            if self._fleet is not None:
                await self._fleet.stop()

    async def status(self) -> VllmStatus:
        """The state of vLLM."""
        if self._fleet is None:
            return VllmStatus("not_started", str(NO_VLLM))
        status = await self._fleet.status()
        if self._is_lent and self._wanted is not None and status.status == "not_started":
            return replace(status, status="asleep", model_name=self._wanted.model_name)
        return status

    def machine(self) -> Machine:
        """The memory and the disk of this machine."""
        memory, disk = psutil.virtual_memory(), psutil.disk_usage(str(self.settings.state))
        used = memory.total - memory.available
        return Machine(used / GIB, memory.total / GIB, disk.free / GIB, gpu_memory())

    @asynccontextmanager
    async def _lent(self) -> AsyncIterator[None]:
        """Inside, trainings have vLLM's memory, unless it keeps serving.

        There is no `finally`: only the end of the server cancels this, and that ends vLLM, too.
        """
        if self.settings.keep_serving or self._fleet is None:
            yield
            return
        async with self._serving:
            self._is_lent = True
            # Where vLLM cannot sleep, its memory is free only after its end.
            if not await self._fleet.sleep():
                await self._fleet.stop()
            yield
            self._is_lent = False
            if self._wanted is not None:
                # Both: what was stopped, or given up in the meantime, does not wake; and starting
                # does nothing for one that runs and suffices.
                await self._fleet.wake()
                await self._fleet.start(self._wanted, self.adapters.served())

    async def publish(
        self, name: str, publication: PublishAdapter
    ) -> Result[ServedAdapter, Refusal]:
        """Serve an adapter, after checks that it is whole and that it is the one that answers."""
        folder = self.adapters.folder(name)
        if folder is None:
            return Failure(_no_adapter(name))
        async with self._serving:
            fleet = self._fleet
            needs = None if fleet is None else fleet.needs
            if fleet is None or needs is None:
                return Failure(NOT_STARTED)
            # In a thread: to read gigabytes of weights would hold up every other request.
            checked = await asyncio.to_thread(_check, folder, needs)
            return await bind_async(
                checked.alt(partial(_not_served, name)),
                lambda nothing: self._serve(fleet, name, folder, publication),
            )

    async def _serve(
        self, fleet: Fleet, name: str, folder: Path, publication: PublishAdapter
    ) -> Result[ServedAdapter, Refusal]:
        """Load a sound adapter, score the probes, and replace the owner's adapter by it."""
        # An adapter that another owner is served stays, however it scores now.
        was_served = name in self.adapters.ledger.owners.values()

        async def score(nothing: None) -> Result[Scored, Refusal]:
            scored = await fleet.score(name, publication.probes)
            checked = scored.bind(partial(_check_scores, name, publication))
            if not is_successful(checked) and not was_served:
                await fleet.unload(name)
            return checked

        async def assign(scored: Scored) -> Result[ServedAdapter, Refusal]:
            # Only now: the owner keeps its last adapter until the new one has passed every check.
            before = self.adapters.assign(publication.owner, name)
            logger.info(
                "%s answers for %s, in place of %s", name, publication.owner, before or "none"
            )
            if before is not None:
                await fleet.unload(before)
            self._prune()
            return Success(ServedAdapter(name, *scored))

        return await bind_async(await bind_async(await fleet.load(name, folder), score), assign)

    async def put_adapter(
        self, name: str, file: AdapterFile, content: AsyncIterator[bytes]
    ) -> Result[None, Refusal]:
        """Store one of an adapter's files, in place of the oldest uploads if there are many."""
        put = await self.adapters.put(name, file, content)
        self._prune()
        return put

    def _prune(self) -> None:
        self.adapters.prune(self.queue.needed(), self.queue.trained())

    def remove(self, name: str) -> Result[None, Refusal]:
        """Delete an adapter that nobody needs."""
        if self.adapters.folder(name) is None:
            return Failure(_no_adapter(name))
        if name in self.adapters.ledger.owners.values():
            return Failure(Refusal(f"{name} is being served", remedy=PUBLISH_FIRST, status=409))
        if name in self.queue.needed():
            problem = f"a training starts from {name}"
            return Failure(Refusal(problem, remedy="cancel it first", status=409))
        self.adapters.remove(name)
        return Success(None)

    def put_job(self, job_id: str, job: Job) -> Result[JobInfo, Refusal]:
        """Queue a training whose adapter can be served afterwards."""
        # A job that was accepted once is accepted again, whatever has changed since: its client
        # only repeats a request whose answer was lost.
        problem = "" if job_id in self.queue else self._job_problem(job)
        if problem:
            return Failure(Refusal(f"{job_id} cannot be trained: {problem}"))
        return self.queue.put(job_id, job)

    def _job_problem(self, job: Job) -> str:
        """The reason why a job cannot be trained here; "" if it can."""
        served = self.settings.model or (self._wanted and self._wanted.model_name)
        if not re.fullmatch(NAME_PATTERN, job.name) or len(job.name) > MAX_JOB_NAME:
            return f"{job.name!r} cannot be a part of an adapter's name"
        if served not in (None, job.model):
            return f"this server serves {served}, not {job.model}"
        if served is None and not _may_be_chosen(job.model):
            return f"a path can only be given by the server: --model {job.model}"
        if not job.rows:
            return "it has no rows"
        if not job.use_lora:
            return "a model whose weights are all trained cannot be loaded into a vLLM that runs"
        if min(job.num_epochs, job.batch_size, job.lora_rank) < 1:
            return "num_epochs, batch_size and lora_rank are 1 or more"
        rank = job.lora_rank
        for name in filter(None, (job.start, job.reference)):
            # Looked for only as a name: a client may send anything.
            folder = self.adapters.folder(name) if re.fullmatch(NAME_PATTERN, name) else None
            if folder is None:
                return f"there is no adapter {name} on this server"
            if name == job.start and job.stack:
                # The ranks of a stack add up.  Refused here, since the training would take hours
                # and leave an adapter that can never be served.
                rank += read_config(folder).map(lambda config: config.r).value_or(0)
        if rank > LORA_RANKS[-1]:
            return f"what it leaves has rank {rank}, and vLLM serves no rank above {LORA_RANKS[-1]}"
        return ""


def _no_adapter(name: str) -> Refusal:
    return Refusal(f"there is no adapter {name} on this server", status=404)


def _not_served(name: str, problem: Problem) -> Refusal:
    return Refusal(f"{name} is not served: {problem}")


def _check(folder: Path, needs: Needs) -> Result[None, Problem]:
    """Success if vLLM, as it runs, can serve the adapter."""
    model, rank = needs.model_name, lora_rank(needs.max_lora_rank)
    return model_directory(model).bind(lambda base: check_adapter(folder, model, base, rank))


def _check_scores(
    name: str, publication: PublishAdapter, scored: Scored
) -> Result[Scored, Refusal]:
    """The scores; a failure if they are not those of the model that was trained."""
    problem = canary_problem(publication.expected, *scored) if publication.expected else None
    return Failure(_not_served(name, Problem(problem))) if problem else Success(scored)


def _may_be_chosen(model: str) -> bool:
    """True if a client may choose the model: the server opens no path for a client."""
    return builtin_directory(model) is not None or is_on_hub(model)
