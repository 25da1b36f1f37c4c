"""Sampling through a provider's batch API: slower, at half the price, many requests at a time.

A batch is noted in the run's folder before it is created, together with the requests that it holds.
A resumed run makes the same requests again and finds their batch by them, so no request is paid
twice.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace
from returns.pipeline import is_successful
from returns.result import Result, Success

from nip_fn.errors import Problem, one_line
from nip_fn_adapters import clock
from nip_fn_adapters.durable import make_folder, replace_file
from nip_fn_adapters.providers.api import replies
from nip_fn_adapters.providers.api.admission import Permit
from nip_fn_adapters.providers.api.capabilities import Capabilities
from nip_fn_adapters.providers.api.clients import Chats
from nip_fn_adapters.providers.api.endpoints import Endpoint
from nip_fn_adapters.providers.api.jobs import RUN, TAG
from nip_fn_adapters.providers.api.ledger import identity
from nip_fn_adapters.providers.api.pace import Bounds
from nip_fn_adapters.providers.api.persist import RetryTask
from nip_fn_adapters.providers.api.refusals import read_refusal
from nip_fn_adapters.providers.api.replies import Answered
from nip_fn_adapters.providers.api.retries import ONCE, RequestFailure, RetryPolicy
from nip_fn_adapters.providers.api.sampler import (
    DEFAULT_SETTINGS,
    ApiModel,
    ApiQuery,
    ApiSampler,
    ClientSettings,
)
from nip_fn_adapters.providers.api.uploads import (
    delete_file,
    each,
    ensure_upload,
    look_for,
    text_of,
)
from nip_fn_adapters.results import bind_async

URL = "/v1/chat/completions"
WINDOW = "24h"
# Within OpenAI's limits on one batch.
MOST_ROWS, MOST_BYTES = 50_000, 90_000_000
ROW_OVERHEAD = 200  # bytes of a row around the request's own body
ANSWER_OVERHEAD = 1 << 14  # bytes of a row around the replies, at most
ENDED = ("completed", "failed", "expired", "cancelled")

# A request may be part of several batches, each of which may take a day.
POLICY = RetryPolicy(max_attempts=4, max_seconds=10 * 86400.0)
# All requests of a wave must be in flight at once to come together in a batch.
UNBOUNDED = Bounds(first=1_000_000, highest=1_000_000)


class Times(NamedTuple):
    """Waiting times, in seconds."""

    gather: float = 2.0  # for more requests, after the last that arrived
    poll: float = 30.0  # between two looks at a batch
    settle: float = 20.0  # until a batch that was created must be listed


DEFAULT_TIMES = Times()


class BatchNote(msgspec.Struct, frozen=True):
    """The note of a batch that was requested, whether or not it was created."""

    tag: str
    url: str  # of its server
    model: str
    ids: tuple[str, ...]  # of its requests
    most_bytes: int  # of its answers
    asked: float  # when, in s since 1970
    id: str | None = None  # the provider's; None: no answer has come yet
    failed: tuple[str, ...] = ()  # requests that it did not answer
    files: tuple[str, ...] = ()  # once it has ended: the ids of those that are not deleted


class BatchRow(NamedTuple):
    """The answer to one request in the output of a batch."""

    status: int
    body: bytes
    request_id: str


RowOutcome = BatchRow | RequestFailure | Problem  # Problem: no other batch would change it


class _Waiting(NamedTuple):
    body: bytes
    most_bytes: int  # of its answer
    outcome: "asyncio.Future[RowOutcome]"


_Wave = dict[str, _Waiting]  # by the id of the request


def batch_sampler(
    run: Path,
    agents: Mapping[str, ApiModel],
    *,
    settings: ClientSettings = DEFAULT_SETTINGS,
    times: Times = DEFAULT_TIMES,
) -> "BatchApiSampler":
    """A sampler like `api_sampler`'s, whose requests go in batches.

    Args:
        run: the run's folder, in which batches are noted.
        agents: the servers of each agent, by name.
        settings: limits of the client; its retries are those of requests about batches.
        times: how long to wait.
    """
    return BatchApiSampler(run, agents, settings, times)


class BatchApiSampler(ApiSampler):
    """Implements the `Sampler` port."""

    durable = True

    def __init__(
        self, run: Path, agents: Mapping[str, ApiModel], settings: ClientSettings, times: Times
    ) -> None:
        """Send nothing yet; see `batch_sampler`."""
        super().__init__(agents, settings._replace(policy=POLICY, bounds=UNBOUNDED))
        self._run, self._times, self._policy_of_batches = run, times, settings.policy
        self._batches: dict[tuple[Endpoint, str], _Batches] = {}

    # Only the exchange differs from that of `ApiSampler`: retries, what is learnt about the server
    # and the separation of siblings stay as they are.
    async def _exchange(
        self, server: Endpoint, query: ApiQuery, capabilities: Capabilities
    ) -> tuple[Answered | RequestFailure | Problem, Mapping[str, str]]:
        """The outcome of one request, from the batch that holds it."""
        request = query.request
        body = replies.body_of(request, query.keys, capabilities, query.served.is_openai)
        # The keys tell apart requests with equal bodies, and are the same in a resumed run.
        digested = b"".join((request.agent.encode(), *query.keys, body))
        name = blake2b(digested, digest_size=12).hexdigest()
        most_bytes = ANSWER_OVERHEAD + replies.most_bytes(request, len(query.keys))
        outcome = await self._batches_of(server, query).outcome(name, body, most_bytes)
        if not isinstance(outcome, BatchRow):
            return outcome, {}
        if outcome.status != 200:
            return read_refusal(outcome.body, outcome.status), {}
        headers = {"x-request-id": outcome.request_id}
        return replies.read_answer(outcome.body, headers, request, len(query.keys)), {}

    async def delete_files(self) -> None:
        """Delete the files of batches that have ended; tell which cannot be deleted.

        To be called once the replies of these batches are recorded.
        """
        ended = [(batches, batches.with_files()) for batches in self._batches.values()]
        for batches, notes in ended:
            await batches.delete_files(notes)

    def _update_pace(
        self, permit: Permit, got: Answered | RequestFailure, headers: Mapping[str, str]
    ) -> None:
        """Change nothing: a row of a batch says nothing about the load of the server."""

    def _batches_of(self, server: Endpoint, query: ApiQuery) -> "_Batches":
        target = server, query.model
        if target not in self._batches:
            task = RetryTask(
                server,
                query.served.key_variable,
                f"a batch for {query.model}",
                self._policy_of_batches,
                self._settings.tell,
            )
            client = partial(self._client, server)
            self._batches[target] = _Batches(self._run, query.model, task, client, self._times)
        return self._batches[target]


class _Batches:
    """The batches of one model at one server."""

    def __init__(
        self,
        run: Path,
        model: str,
        task: RetryTask,
        chats: Callable[[], Awaitable[Chats]],
        times: Times,
    ) -> None:
        self._folder, self._identity, self._model = run / "batches", identity(run), model
        self._task, self._chats, self._times = task, chats, times
        self._waiting: _Wave = {}
        self._gathering: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[None]] = set()

    async def outcome(self, name: str, body: bytes, most_bytes: int) -> RowOutcome:
        """The outcome of the request with that id and body, once a batch has it.

        An answer to it has at most `most_bytes`.
        """
        outcome: asyncio.Future[RowOutcome] = asyncio.get_running_loop().create_future()
        self._waiting[name] = _Waiting(body, most_bytes, outcome)
        if self._gathering is None or self._gathering.done():
            self._gathering = asyncio.create_task(self._gather())
        return await outcome

    def with_files(self) -> list[BatchNote]:
        """The notes of batches that have ended and whose files are still there."""
        return [note for note in self._notes() if note.files]

    async def delete_files(self, notes: Sequence[BatchNote]) -> None:
        """Delete the files of these batches; see `BatchApiSampler.delete_files`."""
        task = self._task._replace(purpose="deleting files", policy=ONCE)
        client = (await self._chats()).client
        for note in notes:
            for file in note.files:
                deleted = await task.persist(partial(delete_file, client, file))
                if not is_successful(deleted):
                    task.tell(f"{deleted.failure()}; files of batches stay there")
                    return
            self._write(replace(self._read(note.tag), files=()))

    async def _gather(self) -> None:
        """Send the requests that have arrived, once no more arrive for a while."""
        # Replies of one batch arrive together and open the next requests, so a pause without
        # newcomers is the only sign that a wave is complete.
        number = -1
        while len(self._waiting) != number:
            number = len(self._waiting)
            await asyncio.sleep(self._times.gather)
        wave, self._waiting = self._waiting, {}
        try:
            batches = list(self._parts(dict(wave)))
        except Exception as error:
            # Nobody awaits this task: without an outcome, those that wait would do so for ever.
            for waiting in wave.values():
                _fail(waiting.outcome, error, self._folder)
            return
        for note, part in batches:
            task = asyncio.create_task(self._carry_out(note, part))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    def _parts(self, wave: _Wave) -> Iterator[tuple[BatchNote, _Wave]]:
        """The wave's requests by batch: first those in noted batches, then in new ones."""
        # Those of noted batches first: they are paid for, or will be.
        for note in self._notes():
            ids = [name for name in note.ids if name in wave and name not in note.failed]
            if ids:
                yield note, {name: wave.pop(name) for name in ids}
        while wave:
            part: _Wave = {}
            size = 0
            for name in list(wave):
                size += len(wave[name].body) + ROW_OVERHEAD
                if part and (len(part) == MOST_ROWS or size > MOST_BYTES):
                    break
                part[name] = wave.pop(name)
            yield self._new_note(part), part

    def _notes(self) -> list[BatchNote]:
        """The noted batches of this model and server, the newest first."""
        files = self._folder.glob("*.json")
        notes = [msgspec.json.decode(file.read_bytes(), type=BatchNote) for file in files]
        server_and_model = (self._task.server.url, self._model)
        return sorted(
            (note for note in notes if (note.url, note.model) == server_and_model),
            key=lambda n: -n.asked,
        )

    def _new_note(self, part: _Wave) -> BatchNote:
        ids = tuple(part)
        # The number of notes tells apart batches that repeat the same requests after a failure.
        number = sum(1 for _ in self._folder.glob("*.json"))
        seed = " ".join((self._identity, str(number), *ids))
        tag = f"nip-fn-{blake2b(seed.encode(), digest_size=10).hexdigest()}"
        # Written before the batch is created: after a crash between the two, the batch is looked
        # for by this tag.
        most_bytes = replies.SHORT_ANSWER + sum(waiting.most_bytes for waiting in part.values())
        note = BatchNote(tag, self._task.server.url, self._model, ids, most_bytes, asked=0.0)
        self._write(note)
        return note

    def _read(self, tag: str) -> BatchNote:
        return msgspec.json.decode((self._folder / f"{tag}.json").read_bytes(), type=BatchNote)

    def _write(self, note: BatchNote) -> None:
        make_folder(self._folder)
        replace_file(self._folder / f"{note.tag}.json", msgspec.json.encode(note))

    async def _carry_out(self, note: BatchNote, part: _Wave) -> None:
        """Follow a batch to its end, and give each waiting request its outcome."""
        try:
            outcomes = await self._outcomes(note, part)
        except Exception as error:
            # Nobody awaits this task, so a bug in it reaches the run only through those that wait.
            for waiting in part.values():
                _fail(waiting.outcome, error, self._folder)
            return
        for name, waiting in part.items():
            if not waiting.outcome.done():
                waiting.outcome.set_result(outcomes[name])

    async def _outcomes(self, note: BatchNote, part: _Wave) -> Mapping[str, RowOutcome]:
        chats = await self._chats()
        batch = await self._ended_batch(chats.client, note.tag, part)
        reader = chats.client_for(note.most_bytes)
        answers = await bind_async(batch, partial(self._answers, reader, note.tag, part))
        return answers.lash(lambda problem: Success(dict.fromkeys(part, problem))).unwrap()

    async def _answers(
        self, client: Any, tag: str, part: _Wave, batch: Any
    ) -> Result[dict[str, RowOutcome], Problem]:
        """The outcome of each request of a batch that has ended."""
        rows = await self._task.persist(partial(_read_rows, client, batch))
        outcomes: Result[dict[str, RowOutcome], Problem] = rows.map(
            lambda by_name: {name: by_name.get(name, _undone(batch)) for name in part}
        )
        outcomes.map(partial(self._note_end, tag, batch))
        return outcomes

    async def _ended_batch(self, client: Any, tag: str, part: _Wave) -> Result[Any, Problem]:
        """The batch, created if it is not there yet, once it has ended."""
        batch = await self._task.persist(partial(self._ensure, client, tag, part))
        while batch.map(lambda seen: seen.status not in ENDED).value_or(False):
            await asyncio.sleep(self._times.poll)
            batch = await self._task.persist(partial(_retrieve, client, batch.unwrap().id))
        return batch

    def _note_end(self, tag: str, batch: Any, outcomes: Mapping[str, RowOutcome]) -> None:
        """Note the files, and the requests that must not be looked for in that batch again."""
        note = self._read(tag)
        failed = tuple(
            name
            for name, outcome in outcomes.items()
            if not isinstance(outcome, BatchRow) or outcome.status != 200
        )
        ids = (batch.input_file_id, batch.output_file_id, batch.error_file_id)
        failed = tuple(dict.fromkeys((*note.failed, *failed)))
        self._write(replace(note, failed=failed, files=tuple(filter(None, ids))))

    async def _ensure(self, client: Any, tag: str, part: _Wave) -> Any:
        """The batch, created only if it is neither known by its id nor found by its tag.

        To be called again after any failure, and by another process.  A batch that has vanished is
        created anew with the requests that still wait.
        """
        import openai

        note = self._read(tag)
        try:
            batch = await _retrieve(client, note.id) if note.id else None
        except openai.NotFoundError:
            batch = None
        batch = batch or await self._find(client, note)
        if not batch:
            # The time is noted first: it says for how long a list may still lack the new batch.
            self._write(replace(note, asked=clock.wall(), id=None))
            data = b"".join(_input_row(name, waiting.body) for name, waiting in part.items())
            file = await ensure_upload(client, f"{tag}.jsonl", data, "batch")
            batch = await client.batches.create(
                input_file_id=file,
                endpoint=URL,
                completion_window=WINDOW,
                metadata={TAG: tag, RUN: self._identity},
            )
            number, server = len(part), self._task.server.url
            self._task.tell(f"batch {text_of(batch, 'id')} at {server}: {number:,} requests")
        if text_of(batch, "id") != note.id:
            self._write(replace(self._read(tag), asked=clock.wall(), id=batch.id))
        return batch

    async def _find(self, client: Any, note: BatchNote) -> Any:
        """The batch as listed; if an answer was lost, the list is given time to show it."""
        lost = note.asked if note.asked and not note.id else None
        return await look_for(partial(_listed, client, note.tag), lost, self._times.settle)


def _fail(outcome: "asyncio.Future[RowOutcome]", error: Exception, folder: Path) -> None:
    """Fail a waiting request: with a problem if the notes are damaged, else with the error."""
    if outcome.done():
        return
    if not isinstance(error, OSError | msgspec.DecodeError):
        outcome.set_exception(error)
        return
    problem = Problem(
        f"the notes of batches cannot be kept there ({one_line(error)})",
        address=str(folder),
        remedy="restore the folder, so that no batch is paid for twice, and resume the run",
    )
    outcome.set_result(problem)


async def _retrieve(client: Any, batch_id: str) -> Any:
    """The batch with that id; raises `ValueError` if the answer is none."""
    batch = await client.batches.retrieve(batch_id)
    text_of(batch, "status")
    return batch


async def _listed(client: Any, tag: str) -> Any:
    async for batch in each(client.batches.list(limit=100)):
        if (getattr(batch, "metadata", None) or {}).get(TAG) == tag:
            return batch
    return None


def _input_row(name: str, body: bytes) -> bytes:
    row = {"custom_id": name, "method": "POST", "url": URL, "body": msgspec.Raw(body)}
    return msgspec.json.encode(row) + b"\n"


class _Response(msgspec.Struct):
    status_code: int
    body: msgspec.Raw
    request_id: str | None = None


class _OutputRow(msgspec.Struct):
    custom_id: str
    response: _Response | None = None


async def _read_rows(client: Any, batch: Any) -> dict[str, BatchRow]:
    """The answers in a batch's files, by request; raises `ValueError` if they are malformed."""
    rows: dict[str, BatchRow] = {}
    # Rows with an error status are in a file of their own.
    for file in (batch.error_file_id, batch.output_file_id):
        if not file:
            continue
        content = (await client.files.content(file)).content
        for line in content.splitlines():
            output = msgspec.json.decode(line, type=_OutputRow)
            if output.response is not None:
                answer = output.response
                row = BatchRow(answer.status_code, bytes(answer.body), answer.request_id or "")
                rows[output.custom_id] = row
    return rows


def _undone(batch: Any) -> RequestFailure:
    """The failure of a request that an ended batch does not mention."""
    if batch.status != "failed":
        message = f"the batch {batch.id} {batch.status} midway"
        return RequestFailure("server", message=message, reached=False)
    # The provider refused the batch as a whole: another one would be refused, too.
    errors: Sequence[Any] = getattr(batch.errors, "data", None) or ()
    first = one_line(getattr(errors[0], "message", "") if errors else "")
    return RequestFailure("refused", 400, f"the batch {batch.id} failed: {first}")
