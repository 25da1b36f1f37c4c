"""`nip-fn status`: a language-model server's vLLM, memory, trainings and adapters."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple, TypeVar

import typer
from returns.result import Result
from rich.table import Table

from nip_fn.errors import Problem
from nip_fn_adapters.providers.api.endpoints import NO_KEY, Endpoint, environment
from nip_fn_adapters.providers.selfhosted.client import Client, Timeouts
from nip_fn_adapters.results import bind_async
from nip_fn_adapters.serving.wire import (
    TOKEN_VARIABLE,
    AdapterInfo,
    JobInfo,
    Machine,
    VllmStatus,
)
from nip_fn_cli.shown.exits import or_exit, say
from nip_fn_cli.shown.printing import console

T = TypeVar("T")
SECONDS = 10.0  # for the server to answer
WIDTH = 96  # columns, at most
SHOWN = 5  # adapters that are not served
Line = tuple[str, str, str]  # of what, its name, its state


class Told(NamedTuple):
    """All that a server tells of itself."""

    vllm: VllmStatus
    machine: Machine
    jobs: list[JobInfo]
    adapters: list[AdapterInfo]


def status_command(
    url: Annotated[str, typer.Argument(help="The URL of the server.")],
) -> None:
    """Print the state of a language-model server: its vLLM, memory, trainings and adapters."""
    key = environment().get(TOKEN_VARIABLE, "").strip() or NO_KEY
    timeouts = Timeouts(ready=SECONDS, away=SECONDS, answer=SECONDS)
    client = Client(Endpoint(url.rstrip("/"), key), TOKEN_VARIABLE, timeouts, say)
    report = or_exit(asyncio.run(_ask(client)).alt(lambda problem: problem.of("adapter")))
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for line in lines_of(report):
        table.add_row(*line)
    out = console()
    out.print(table, width=min(WIDTH, out.width))


async def _ask(client: Client) -> Result[Told, Problem]:
    async def get(path: str, into: type[T]) -> Result[T, Problem]:
        return await client.call(f"asking for {path}", "get", path, into)

    async def ask(_: None) -> Result[Told, Problem]:
        vllm, machine = await get("/vllm/status", VllmStatus), await get("/machine", Machine)
        jobs = await get("/training/jobs", list[JobInfo])
        adapters = await get("/adapters", list[AdapterInfo])
        return Result.do(
            Told(v, m, j, a) for v in vllm for m in machine for j in jobs for a in adapters
        )

    start = "nip-fn serve --model NAME"
    return await bind_async(await client.wait_for_ready(start), ask)


def lines_of(report: Told) -> Iterator[Line]:
    """The rows of the table, one for each process, GPU, training and adapter."""
    vllm, machine = report.vllm, report.machine
    yield "vLLM", vllm.model_name or "", _words(vllm.status, vllm.error)
    for replica in vllm.replicas:
        restarts = f"{replica.restarts} restarts" if replica.restarts else ""
        yield "", f"port {replica.port}", _words(replica.status, replica.error, restarts)
    yield "memory", "", f"{machine.memory_used:.1f} of {machine.memory_total:.1f} GiB used"
    for gpu in machine.gpus:
        yield "", gpu.name, f"{gpu.used:.1f} of {gpu.total:.1f} GiB used"
    yield "disk", "", f"{machine.disk_free:.1f} GiB free"
    for title, rows in (
        ("trainings", map(_job, report.jobs)),
        ("adapters", _adapters(report.adapters)),
    ):
        for name, state in rows:
            yield title, name, state
            title = ""
        if title:
            yield title, "none", ""


def _job(job: JobInfo) -> tuple[str, str]:
    progress = job.progress and f"step {job.progress.step} of {job.progress.steps}"
    position = f"{job.place} before it" if job.place else ""
    outcome = job.adapter or job.problem or job.reason
    return job.id, _words(job.status, progress or "", position, outcome)


def _adapters(adapters: Sequence[AdapterInfo]) -> Iterator[tuple[str, str]]:
    """All adapters that are served, and some of the others."""
    yield from (_adapter(adapter) for adapter in adapters if adapter.owners)
    unserved = [adapter for adapter in adapters if not adapter.owners]
    yield from map(_adapter, unserved[:SHOWN])
    if more := unserved[SHOWN:]:
        size = sum(adapter.bytes for adapter in more) / 2**20
        yield f"{len(more)} more", f"replaced, or not served; {size:.1f} MiB"


def _adapter(adapter: AdapterInfo) -> tuple[str, str]:
    served = "answers for " + ", ".join(adapter.owners) if adapter.owners else ""
    state = served or ("replaced" if adapter.retired else "not served")
    return adapter.name, _words(state, f"{adapter.bytes / 2**20:.1f} MiB")


def _words(*phrases: str) -> str:
    return "; ".join(part.replace("_", " ") for part in phrases if part)
