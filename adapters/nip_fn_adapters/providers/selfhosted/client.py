"""Requests to a language-model server; `serving.wire` has their bodies."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import aiohttp
import httpx2
import msgspec
import openai
from returns.result import Failure, Result, Success

from nip_fn.errors import Problem, one_line
from nip_fn_adapters import clock
from nip_fn_adapters.decoding import UNREADABLE
from nip_fn_adapters.providers.api.clients import MOST_BYTES, make_client
from nip_fn_adapters.providers.api.endpoints import Endpoint
from nip_fn_adapters.providers.api.persist import RetryTask
from nip_fn_adapters.providers.api.problems import describe, failure_of, remedy_for
from nip_fn_adapters.providers.api.refusals import kind_of_failure
from nip_fn_adapters.providers.api.retries import TRANSIENT, RequestFailure, RetryPolicy
from nip_fn_adapters.serving.wire import Refusal, ServerVersion, compatibility

T = TypeVar("T")

REFUSING = frozenset({"address", "model", "too_large", "refused", "conflict"})
# With these, asking again does not help if the server itself says that vLLM cannot do it.  A
# gateway in front of it uses the same, and then it does help.
UNABLE = (502, 503)

CHUNK = 1 << 20  # bytes of a file that are sent at a time
MOST_ADAPTER = 16 << 30  # bytes of a file that is fetched
ADDRESS = "language_model_server_scheme_host and language_model_server_port"


class Timeouts(NamedTuple):
    """The limits on waiting, in seconds."""

    ready: float = 300.0  # for the server to answer, at the beginning of a session
    away: float = 7200.0  # in total, for a server that has answered to be reached again
    online: float = 1800.0  # for vLLM to answer, from when it was asked to start
    crashed: float = 30.0  # of these, for one that has crashed to be started again
    answer: float = 60.0  # for a request
    publish: float = 1800.0  # for a request that may have to wait until trainings return the memory
    poll: float = 5.0  # between two looks, at most: the first come sooner
    limit: float = 24 * 3600.0  # for a job to end, from when this process began to look
    remind: float = 10.0  # between two lines about what delays the run


DEFAULT_TIMEOUTS = Timeouts()


class Client(NamedTuple):
    """The client of one language-model server.

    A failure is a `Refusal` if the server itself answers with one; any other problem means that it
    fails, or cannot be reached.
    """

    server: Endpoint
    key_variable: str  # the environment variable that holds its token
    timeouts: Timeouts = DEFAULT_TIMEOUTS
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
    ) -> Result[T, Problem]:
        """The server's answer; the request is repeated as long as that may help.

        Args:
            purpose: A noun phrase for messages.
            method: The HTTP method, in lower case.
            path: The path on the server.
            into: The type of the answer's body, which is JSON; `bytes`: the body itself.
            body: A record, or a file, to send.
            timeout: Seconds for one try; None: `timeouts.answer`.
        """
        policy = RetryPolicy(max_attempts=3, max_outage=self.timeouts.away)
        task = RetryTask(self.server, self.key_variable, purpose, policy, self.tell, _remedy_for)
        limit = timeout or self.timeouts.answer
        answer: Result[Result[T, Refusal], Problem] = await task.persist(
            partial(self._exchange, method, path, into, body, limit)
        )
        address = f"{self.server.url} refuses {purpose}"
        return answer.bind(lambda got: got.alt(lambda refusal: replace(refusal, address=address)))

    async def wait_for_ready(self, start: str) -> Result[None, Problem]:
        """Success once the server answers, and its version fits ours.

        `start` is the command that starts it, for the message if it does not answer.
        """
        # Not through `RetryTask`: a server that has just been started may take minutes to answer,
        # which is no reason to give up or to back off.
        began = reminded = clock.monotonic()
        while True:
            try:
                remind = self.timeouts.remind
                return self._check(
                    await self._exchange("get", "/version", ServerVersion, None, remind)
                )
            except (openai.OpenAIError, aiohttp.ClientError, OSError) as error:
                failure = failure_of(error)
            if failure.kind not in TRANSIENT:
                remedy = _remedy_for(failure, self.key_variable)
                return Failure(
                    describe(self.server, "asking for its version", failure, remedy=remedy)
                )
            waited = clock.monotonic() - began
            if waited >= self.timeouts.ready:
                message = (
                    f"no language-model server answers at {self.server.url} after {waited:.0f} s"
                )
                return Failure(
                    Problem(message, remedy=f"start one there ({start}), or check {ADDRESS}")
                )
            if clock.monotonic() - reminded >= self.timeouts.remind:
                reminded = clock.monotonic()
                seconds_left = self.timeouts.ready - waited
                line = describe(self.server, "asking for its version", failure)
                self.tell(
                    f"waiting for the language-model server, {seconds_left:.0f} s more: {line}"
                )
            await asyncio.sleep(min(1.0, self.timeouts.remind, self.timeouts.ready - waited))

    def _check(self, answer: Result[ServerVersion, Refusal]) -> Result[None, Problem]:
        """Success if it is a language-model server whose version fits; it may be warned of."""
        checked = answer.alt(
            lambda refusal: Problem(
                f"{self.server.url} answers, but not as a language-model server "
                f"({refusal.problem})",
                remedy=f"check {ADDRESS}",
            )
        ).bind(lambda server: compatibility(version("nip-fn"), server.version))
        return checked.map(lambda warning: self.tell(warning) if warning else None)

    async def _exchange(
        self,
        method: str,
        path: str,
        into: type[T],
        body: msgspec.Struct | Path | None,
        timeout: float,
    ) -> Result[T, Refusal]:
        """One request and its answer; raises what the client raises."""
        content: Any = None
        if isinstance(body, Path):
            content, content_type = _chunks(body), "application/octet-stream"
        elif body is not None:
            content, content_type = msgspec.json.encode(body), "application/json"
        options: Any = {"headers": {"Content-Type": content_type}} if content else {}
        payload = {"content": content} if content else {}
        # A client for each request: they are few, and a kept connection would break with a server
        # that is started again.
        most_bytes = MOST_ADAPTER if into is bytes else MOST_BYTES
        async with make_client(
            self.server, timeout=timeout, connections=1, finds_base=False, most_bytes=most_bytes
        ) as client:
            send = getattr(client, method)
            try:
                answer = await send(path, cast_to=httpx2.Response, options=options, **payload)
            except openai.APIStatusError as error:
                status, detail = error.status_code, _detail(error.response)
                if kind_of_failure(status) in REFUSING or (detail and status in UNABLE):
                    return Failure(Refusal(detail or f"status {status}", status=status))
                raise
        if into is bytes:  # a file
            return Success(answer.content)
        try:
            return Success(msgspec.json.decode(answer.content or b"null", type=into))
        except UNREADABLE as error:
            message = f"it does not answer as one does: {one_line(error)}"
            return Failure(Refusal(message, status=answer.status_code))


async def _chunks(file: Path) -> AsyncIterator[bytes]:
    """A file's bytes."""
    with file.open("rb") as opened:
        # In pieces, and in a thread: an adapter may have gigabytes, and the run samples meanwhile.
        while chunk := await asyncio.to_thread(opened.read, CHUNK):
            yield chunk


def _detail(answer: httpx2.Response) -> str:
    """The line that the server gives with an error; "" if another program answers for it."""
    try:
        return one_line(msgspec.json.decode(answer.content, type=_Error).detail)
    except UNREADABLE:
        return ""


class _Error(msgspec.Struct):
    detail: str


def _remedy_for(failure: RequestFailure, key_variable: str | None) -> str:
    """A change that helps if a language-model server cannot be used; "" if there is none."""
    if failure.kind in ("key", "forbidden"):
        return f"check {key_variable}, in the environment or in a file .env, here and there"
    if failure.kind == "connection":
        return f"check that nip-fn serve runs there, and {ADDRESS}"
    if failure.kind == "moved":
        return f"check {ADDRESS}"
    return remedy_for(failure, key_variable) if failure.kind == "proxy" else ""
