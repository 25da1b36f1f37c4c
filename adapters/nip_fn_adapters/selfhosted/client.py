"""Requests to a language-model server: `nip_fn.serving` has what is said."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import aiohttp
import httpx2
import msgspec
import openai
from returns.result import Failure, Result, Success

from nip_fn_adapters.api.endpoints import Endpoint, make_client
from nip_fn_adapters.api.persist import RetryTask
from nip_fn_adapters.api.problems import describe, failure_of
from nip_fn_adapters.api.replies import one_line
from nip_fn_adapters.api.retries import TRANSIENT, RequestFailure, RetryPolicy, kind_of
from nip_fn_adapters.serving.wire import Refusal, Version, compatibility

T = TypeVar("T")

REFUSING = frozenset({"model", "too_large", "refused", "conflict"})
# Asking again does not help where the server itself says that vLLM cannot do it; a gateway may.
UNABLE = (502, 503)

CHUNK = 1 << 20  # bytes of a file that are sent at a time
WHERE = "language_model_server_scheme_host and language_model_server_port"


class Timeouts(NamedTuple):
    """How long to wait for what, in seconds."""

    ready: float = 300.0  # for the server to answer at the beginning of a sitting
    away: float = 7200.0  # in all, for a server that has answered to be reached again
    online: float = 1800.0  # for vLLM to answer, from when it was asked to start
    crashed: float = 30.0  # of these, for one that has crashed to be started again
    answer: float = 60.0  # for a request
    publish: float = 1800.0  # for one that vLLM may have to be woken for
    poll: float = 5.0  # between two looks, at most: the first come sooner
    limit: float = 24 * 3600.0  # for a job to end, from when this process began to look
    remind: float = 10.0  # between two lines about what is waited for


PATIENT = Timeouts()


class Trouble(NamedTuple):
    """Why a server does not do what it was asked."""

    line: str  # for people: who, what and why
    refusal: Refusal | None = None  # in its own words; None: it fails, or cannot be reached


class Client(NamedTuple):
    """What there is to say to one server."""

    server: Endpoint
    key_variable: str  # the environment variable that holds its token
    patience: Timeouts = PATIENT
    tell: Callable[[str], None] = lambda line: None

    async def call(
        self,
        purpose: str,
        method: str,
        path: str,
        into: type[T],
        *,
        body: msgspec.Struct | Path | None = None,
        timeout: float | None = None,
    ) -> Result[T, Trouble]:
        """What the server answers; it is asked again as long as that may help.

        `purpose` is for people; `body`, a record or a file.
        """
        policy = RetryPolicy(max_attempts=3, max_away=self.patience.away)
        task = RetryTask(self.server, self.key_variable, purpose, policy, self.tell, advice)
        wanted = partial(self._exchange, method, path, into, body, timeout or self.patience.answer)
        answer = await task.persist(wanted)
        if isinstance(answer, Failure):
            return Failure(Trouble(str(answer.failure())))
        got: T | Refusal = answer.unwrap()
        if isinstance(got, Refusal):
            return Failure(Trouble(f"{self.server.url} refuses {purpose}: {got.reason}", got))
        return Success(got)

    async def wait_for_ready(self, start: str) -> Result[None, str]:
        """Success once the server answers, and its version fits ours; `start`: how to start it."""
        began = reminded = time.monotonic()
        while True:
            try:
                wait = self.patience.remind
                answer = await self._exchange("get", "/version", Version, None, wait)
                return self._fitting(answer)
            except (openai.OpenAIError, aiohttp.ClientError, OSError) as error:
                failure = failure_of(error)
            line = str(describe(self.server, "its version", failure))
            if failure.kind not in TRANSIENT:
                return Failure("; ".join(filter(None, (line, advice(failure, self.key_variable)))))
            waited = time.monotonic() - began
            if waited >= self.patience.ready:
                return Failure(
                    f"no language-model server answers at {self.server.url} after {waited:.0f} s; "
                    f"start one there ({start}), or check {WHERE}"
                )
            if time.monotonic() - reminded >= self.patience.remind:
                reminded = time.monotonic()
                left = self.patience.ready - waited
                self.tell(f"waiting for the language-model server, {left:.0f} s more: {line}")
            await asyncio.sleep(min(1.0, self.patience.remind, self.patience.ready - waited))

    def _fitting(self, answer: Version | Refusal) -> Result[None, str]:
        if isinstance(answer, Refusal):
            return Failure(
                f"{self.server.url} answers, but not as a language-model server ({answer.reason}); "
                f"check {WHERE}"
            )
        found = compatibility(version("nip-fn"), answer.version)
        if found.value_or(""):
            self.tell(found.unwrap())
        return found.map(lambda warning: None)

    async def _exchange(
        self,
        method: str,
        path: str,
        into: type[T],
        body: msgspec.Struct | Path | None,
        timeout: float,
    ) -> T | Refusal:
        """One request and its answer; raises what the client raises."""
        content: Any = None
        if isinstance(body, Path):
            content, kind = _chunks(body), "application/octet-stream"
        elif body is not None:
            content, kind = msgspec.json.encode(body), "application/json"
        options: Any = {"headers": {"Content-Type": kind}} if content else {}
        given = {"content": content} if content else {}
        async with make_client(self.server, timeout=timeout, connections=1) as client:
            send = getattr(client, method)
            try:
                answer = await send(path, cast_to=httpx2.Response, options=options, **given)
            except openai.APIStatusError as error:
                status, said = error.status_code, _said(error.response)
                if kind_of(status) in REFUSING or (said and status in UNABLE):
                    return Refusal(status, said or f"status {status}")
                own = {"message": said}
                raise openai.APIStatusError(said, response=error.response, body=own) from None
        try:
            return msgspec.json.decode(answer.content or b"null", type=into)
        except msgspec.DecodeError as error:
            return Refusal(answer.status_code, f"it does not answer as one does: {one_line(error)}")


async def _chunks(file: Path) -> AsyncIterator[bytes]:
    """A file's bytes."""
    with file.open("rb") as opened:
        while chunk := await asyncio.to_thread(opened.read, CHUNK):
            yield chunk


def _said(answer: httpx2.Response) -> str:
    """The one line that the server gives with an error; "" where another answers for it."""
    try:
        return one_line(msgspec.json.decode(answer.content, type=_Error).detail)
    except msgspec.DecodeError:
        return ""


class _Error(msgspec.Struct):
    detail: str


def advice(failure: RequestFailure, key_variable: str | None) -> str:
    """What to do where a language-model server cannot be dealt with; "" where nothing helps."""
    if failure.kind == "key":
        return f"check {key_variable}, in the environment or in a file .env, here and there"
    if failure.kind == "connection":
        return f"check that nip-fn serve runs there, and {WHERE}"
    return ""
