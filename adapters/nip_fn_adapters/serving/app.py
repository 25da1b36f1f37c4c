"""The server's HTTP interface.  Bodies are the records of `wire`, as JSON."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version as version_of
from typing import Annotated, Any, NoReturn, TypeVar

import msgspec
from litestar import Litestar, Request, Response, Router, delete, get, post, put
from litestar.di import Provide
from litestar.exceptions import HTTPException, ValidationException
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.plugins import JsonRenderPlugin, SwaggerRenderPlugin
from litestar.params import Parameter
from litestar.response import File
from returns.result import Result

from nip_fn.training.tuning import Job
from nip_fn_adapters.serving.service import Service
from nip_fn_adapters.serving.wire import (
    NAME_PATTERN,
    AdapterFile,
    AdapterInfo,
    JobInfo,
    Machine,
    Needs,
    PublishAdapter,
    Refusal,
    ServedAdapter,
    ServerVersion,
    VllmStatus,
)

T = TypeVar("T")
PathName = Annotated[str, Parameter(pattern=NAME_PATTERN)]
BYTES = "application/octet-stream"
logger = logging.getLogger(__name__)


class Error(msgspec.Struct, frozen=True):
    """The body of an answer to a request that was not granted."""

    detail: str  # one line


REASONS = {
    400: "the request cannot be read",
    401: "the token is missing or wrong",
    403: "the request comes from another machine, and no token is set",
    404: "there is no such thing",
    409: "it contradicts what is there",
    413: "the body is too large",
    422: "it was read, and cannot be done",
    502: "vLLM could not do it, or its answer makes no sense",
    503: "vLLM does not run, or does not answer",
}


def _or(*statuses: int) -> dict[int, ResponseSpec]:
    """The documentation of an endpoint's errors: these, and those that all endpoints have."""
    return {
        status: ResponseSpec(Error, generate_examples=False, description=REASONS[status])
        for status in (400, 401, 403, *statuses)
    }


def _granted(result: Result[T, Refusal]) -> T:
    """The value; a refusal is raised as the exception that litestar answers with."""
    return result.alt(_raise).unwrap()


def _raise(refusal: Refusal) -> NoReturn:
    raise HTTPException(status_code=refusal.status, detail=str(refusal))


@get("/health", responses={})
async def health() -> dict[str, str]:
    """Say that the server runs."""
    return {"status": "ok"}


@get("/version", responses={})
async def version() -> ServerVersion:
    """Tell the server's version."""
    return ServerVersion(version_of("nip-fn"))


@post("/vllm/start", status_code=202, responses=_or(404, 409, 413, 422, 503))
async def start_vllm(service: Service, data: Needs) -> VllmStatus:
    """Start vLLM, or start it again if it does not satisfy these needs."""
    return _granted(await service.start(data))


@post("/vllm/stop", status_code=204, responses=_or())
async def stop_vllm(service: Service) -> None:
    """Stop vLLM."""
    await service.stop()


@get("/vllm/status", responses=_or())
async def vllm_status(service: Service) -> VllmStatus:
    """Tell the state of vLLM."""
    return await service.status()


@get("/machine", responses=_or(), sync_to_thread=True)
def machine(service: Service) -> Machine:
    """Tell the memory and the disk of the server's machine."""
    return service.machine()


@get("/adapters", responses=_or())
async def adapters(service: Service) -> tuple[AdapterInfo, ...]:
    """List all adapters."""
    return service.adapters.infos()


@put("/adapters/{name:str}/{file:str}", status_code=204, responses=_or(409, 413))
async def put_adapter(
    service: Service, name: PathName, file: AdapterFile, request: Request[Any, Any, Any]
) -> None:
    """Upload one of an adapter's two files; the adapter is there once both are."""
    _granted(await service.put_adapter(name, file, request.stream()))


@get("/adapters/{name:str}/{file:str}", media_type=BYTES, responses=_or(404))
async def get_adapter(service: Service, name: PathName, file: AdapterFile) -> File:
    """Send one of an adapter's two files."""
    return File(_granted(service.adapters.file(name, file)), media_type=BYTES)


@post("/adapters/{name:str}/publish", status_code=200, responses=_or(404, 409, 413, 422, 502, 503))
async def publish(service: Service, name: PathName, data: PublishAdapter) -> ServedAdapter:
    """Serve an adapter in place of its owner's last; the answer comes once vLLM is online."""
    return _granted(await service.publish(name, data))


@delete("/adapters/{name:str}", responses=_or(404, 409))
async def remove_adapter(service: Service, name: PathName) -> None:
    """Delete an adapter that is not served."""
    _granted(service.remove(name))


@get("/training/jobs", responses=_or())
async def jobs(service: Service) -> tuple[JobInfo, ...]:
    """List all jobs in the order in which they are trained, without their logs."""
    return service.queue.infos()


@get("/training/jobs/{job_id:str}", responses=_or(404))
async def job(service: Service, job_id: PathName) -> JobInfo:
    """Tell the state of a job."""
    _known(service, job_id)
    return service.queue.info(job_id)


@put("/training/jobs/{job_id:str}", responses=_or(409, 413, 422))
async def put_job(service: Service, job_id: PathName, data: Job) -> JobInfo:
    """Queue a job, unless this very job has been queued before and has not failed."""
    return _granted(service.put_job(job_id, data))


@delete("/training/jobs/{job_id:str}", responses=_or(404, 409))
async def cancel_job(service: Service, job_id: PathName) -> None:
    """Cancel a job that has not ended."""
    _known(service, job_id)
    _granted(await service.queue.cancel(job_id))


@get("/training/jobs/{job_id:str}/log", media_type="text/plain", responses=_or(404))
async def job_log(service: Service, job_id: PathName) -> str:
    """Send the end of a training's log."""
    _known(service, job_id)
    return service.queue.log(job_id)


def _known(service: Service, job_id: str) -> None:
    if job_id not in service.queue:
        raise HTTPException(status_code=404, detail=f"there is no job {job_id} on this server")


def _tell(request: Request[Any, Any, Any], error: HTTPException) -> Response[Error]:
    """The answer to a request that failed: one line."""
    return Response(Error(_line(error)), status_code=error.status_code, headers=error.headers)


def _line(error: HTTPException) -> str:
    """The error and, for a request that cannot be read, the place of each mistake."""
    if not isinstance(error, ValidationException) or not isinstance(error.extra, list):
        return error.detail
    mistakes = [f"{mistake.get('key', 'body')}: {mistake['message']}" for mistake in error.extra]
    return "; ".join([error.detail, *mistakes])


def _unreadable(problem: str, request: Request[Any, Any, Any], error: Exception) -> Response[Error]:
    return Response(Error(problem), status_code=400)


def _bug(request: Request[Any, Any, Any], error: Exception) -> Response[Error]:
    # The traceback stays in the log: it may quote what other clients have sent.
    logger.error("%s %s", request.method, request.url.path, exc_info=error)
    return Response(Error("the server failed; its log says why"), status_code=500)


ENDPOINTS = (
    health,
    version,
    start_vllm,
    stop_vllm,
    vllm_status,
    machine,
    adapters,
    publish,
    remove_adapter,
    jobs,
    job,
    put_job,
    cancel_job,
    job_log,
)


def make_app(service: Service) -> Litestar:
    """The application over a service, which it opens and closes."""
    settings = service.settings
    uploads = Router(
        "/",
        route_handlers=[get_adapter, put_adapter],
        request_max_body_size=settings.max_upload_bytes,
    )

    @asynccontextmanager
    async def life(app: Litestar) -> AsyncIterator[None]:
        # Logged, not raised: a server whose vLLM cannot start still trains, and may be asked for
        # another model.
        opened = await service.open()
        opened.alt(lambda refusal: logger.error("%s", refusal))
        working = asyncio.create_task(service.queue.work())
        try:
            yield
        finally:
            working.cancel()
            await asyncio.wait([working])
            await service.close()

    return Litestar(
        [*ENDPOINTS, uploads],
        lifespan=[life],
        dependencies={"service": Provide(lambda: service, sync_to_thread=False)},
        exception_handlers={
            HTTPException: _tell,
            RecursionError: partial(_unreadable, "the JSON is nested too deeply"),
            UnicodeDecodeError: partial(_unreadable, "the JSON is not UTF-8 text"),
            Exception: _bug,
        },
        request_max_body_size=settings.max_json_bytes,
        openapi_config=OpenAPIConfig(
            title="nip-fn language-model server",
            version=version_of("nip-fn"),
            use_handler_docstrings=True,
            render_plugins=[SwaggerRenderPlugin(), JsonRenderPlugin()],
        ),
        logging_config=None,
    )
