"""Samples through a provider's batch API: slower, at half the price, a wave of requests at a time.

A batch is noted down in the run's folder before it is created, with the requests that it holds.
Whoever goes on with the run asks the same requests again, and finds their batch by them: no request
is paid twice.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace
from returns.result import Failure

from nip_fn_adapters.api import replies
from nip_fn_adapters.api.endpoints import Chats, Endpoint
from nip_fn_adapters.api.jobs import RUN, TAG
from nip_fn_adapters.api.ledger import identity
from nip_fn_adapters.api.pace import Bounds
from nip_fn_adapters.api.persist import RetryTask
from nip_fn_adapters.api.replies import Answered, Capabilities, Problem
from nip_fn_adapters.api.retries import RetryPolicy
from nip_fn_adapters.api.sampler import GOOD_MANNERS, ApiSampler, ClientSettings, Served, Wanted
from nip_fn_adapters.api.uploads import each, ensure_upload, look_for, text_of
from nip_fn_adapters.store import replace_file

URL = "/v1/chat/completions"
WINDOW = "24h"
MOST_LINES, MOST_BYTES = 50_000, 90_000_000  # in one batch
ENDED = ("completed", "failed", "expired", "cancelled")

# A request may be in a few batches, each of which may take a day.
PATIENT = RetryPolicy(max_attempts=4, max_seconds=10 * 86400.0)
UNBOUNDED = Bounds(first=1_000_000, highest=1_000_000)


class Times(NamedTuple):
    """How long to wait for what, in seconds."""

    gather: float = 2.0  # for more requests, after the last that came
    poll: float = 30.0  # between two looks at a batch
    settle: float = 20.0  # until a batch that was asked for is listed, if it was created


GOOD_TIMES = Times()


class Note(msgspec.Struct, frozen=True):
    """A batch that was asked for, whatever came of it."""

    tag: str
    url: str  # of its server
    model: str
    ids: tuple[str, ...]  # of its requests
    asked: float  # when, in s since 1970
    id: str | None = None  # the provider's; None: no answer has come yet
    failed: tuple[str, ...] = ()  # requests that came to nothing in it


class Line(NamedTuple):
    """What a batch says of one request."""

    status: int
    body: bytes
    request_id: str


Told = Line | Problem


class _Waiting(NamedTuple):
    body: bytes
    told: "asyncio.Future[Told]"


_Wave = dict[str, _Waiting]


def batch_sampler(
    run: Path,
    agents: Mapping[str, Served],
    *,
    manners: ClientSettings = GOOD_MANNERS,
    times: Times = GOOD_TIMES,
) -> "BatchSampler":
    """A sampler like `api_sampler`'s, whose requests go in batches noted in the folder `run`."""
    return BatchSampler(run, agents, manners, times)


class BatchSampler(ApiSampler):
    """Fulfils the `Sampler` port."""

    def __init__(
        self, run: Path, agents: Mapping[str, Served], manners: ClientSettings, times: Times
    ) -> None:
        """Ask nothing yet; see `batch_sampler`."""
        super().__init__(agents, manners._replace(policy=PATIENT, bounds=UNBOUNDED))
        self._run, self._times, self._errands = run, times, manners.policy
        self._desks: dict[tuple[Endpoint, str], _Desk] = {}

    async def _exchange(
        self, server: Endpoint, wanted: Wanted, quirks: Capabilities
    ) -> tuple[Answered | Problem, Mapping[str, str]]:
        """What a batch came to for one request."""
        body = replies.body_of(wanted.request, wanted.keys, quirks, wanted.served.caches)
        place = b"".join((wanted.request.agent.encode(), *wanted.keys, body))
        told = await self._desk(server, wanted).ask(
            blake2b(place, digest_size=12).hexdigest(), body
        )
        if isinstance(told, Problem):
            return told, {}
        headers = {"x-request-id": told.request_id}
        if told.status == 200:
            return replies.read_answer(told.body, headers, wanted.request, len(wanted.keys)), {}
        return replies.read_refusal(told.body, told.status), {}

    def _desk(self, server: Endpoint, wanted: Wanted) -> "_Desk":
        place = server, wanted.model
        if place not in self._desks:
            errand = RetryTask(
                server,
                wanted.served.key_variable,
                f"a batch for {wanted.model}",
                self._errands,
                self._manners.tell,
            )
            served = partial(self._served, server)
            self._desks[place] = _Desk(self._run, wanted.model, errand, served, self._times)
        return self._desks[place]


class _Desk:
    """The batches of one model at one server."""

    def __init__(
        self,
        run: Path,
        model: str,
        errand: RetryTask,
        served: Callable[[], Awaitable[Chats]],
        times: Times,
    ) -> None:
        self._folder, self._identity, self._model = run / "batches", identity(run), model
        self._errand, self._served, self._times = errand, served, times
        self._waiting: _Wave = {}
        self._gathering: asyncio.Task[None] | None = None
        self._carried: set[asyncio.Task[None]] = set()

    async def ask(self, id: str, body: bytes) -> Told:
        """What a batch says of the request."""
        told: asyncio.Future[Told] = asyncio.get_running_loop().create_future()
        self._waiting[id] = _Waiting(body, told)
        if self._gathering is None or self._gathering.done():
            self._gathering = asyncio.create_task(self._gather())
        return await told

    async def _gather(self) -> None:
        """Send what has come, once nothing more comes for a while."""
        number = -1
        while len(self._waiting) != number:
            number = len(self._waiting)
            await asyncio.sleep(self._times.gather)
        wave, self._waiting = self._waiting, {}
        for note, part in self._parts(wave):
            task = asyncio.create_task(self._carry_out(note, part))
            self._carried.add(task)
            task.add_done_callback(self._carried.discard)

    def _parts(self, wave: _Wave) -> Iterator[tuple[Note, _Wave]]:
        """The wave's requests by batch: those that are in one already, then new batches."""
        for note in self._notes():
            part = {id: wave.pop(id) for id in note.ids if id in wave and id not in note.failed}
            if part:
                yield note, part
        while wave:
            part, size = {}, 0
            for id in list(wave):
                size += len(wave[id].body) + 200
                if part and (len(part) == MOST_LINES or size > MOST_BYTES):
                    break
                part[id] = wave.pop(id)
            yield self._new_note(part), part

    def _notes(self) -> list[Note]:
        """The noted batches of this model and server, the newest first."""
        notes = [
            msgspec.json.decode(file.read_bytes(), type=Note)
            for file in self._folder.glob("*.json")
        ]
        own = (self._errand.server.url, self._model)
        return sorted(
            (note for note in notes if (note.url, note.model) == own), key=lambda n: -n.asked
        )

    def _new_note(self, part: _Wave) -> Note:
        ids = tuple(part)
        number = sum(1 for _ in self._folder.glob("*.json"))
        seed = " ".join((self._identity, str(number), *ids))
        tag = f"nip-fn-{blake2b(seed.encode(), digest_size=10).hexdigest()}"
        note = Note(tag, self._errand.server.url, self._model, ids, asked=0.0)
        self._write(note)
        return note

    def _write(self, note: Note) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        replace_file(self._folder / f"{note.tag}.json", msgspec.json.encode(note))

    async def _carry_out(self, note: Note, part: _Wave) -> None:
        """See a batch through to its end, and tell everybody what it says of theirs."""
        try:
            told = await self._told(note, part)
        except Exception as error:
            for waiting in part.values():
                if not waiting.told.done():
                    waiting.told.set_exception(error)
            return
        for id, waiting in part.items():
            if not waiting.told.done():
                waiting.told.set_result(told[id])

    async def _told(self, note: Note, part: _Wave) -> dict[str, Told]:
        client = (await self._served()).client
        ensured = await self._errand.persist(partial(self._ensure, client, note.tag, part))
        if isinstance(ensured, Failure):
            return dict.fromkeys(part, _gone(ensured.failure()))
        batch = ensured.unwrap()
        while batch.status not in ENDED:
            await asyncio.sleep(self._times.poll)
            looked = await self._errand.persist(partial(client.batches.retrieve, batch.id))
            if isinstance(looked, Failure):
                return dict.fromkeys(part, _gone(looked.failure()))
            batch = looked.unwrap()
        read = await self._errand.persist(partial(_read, client, batch))
        if isinstance(read, Failure):
            return dict.fromkeys(part, _gone(read.failure()))
        undone = _undone(batch)
        told = {id: read.unwrap().get(id, undone) for id in part}
        self._note_failures(note.tag, told)
        return told

    def _note_failures(self, tag: str, told: Mapping[str, Told]) -> None:
        """Note which requests are not to be looked for in that batch again."""
        bad = tuple(id for id, one in told.items() if isinstance(one, Problem) or one.status != 200)
        if bad:
            note = self._note(tag)
            self._write(replace(note, failed=tuple(dict.fromkeys((*note.failed, *bad)))))

    def _note(self, tag: str) -> Note:
        return msgspec.json.decode((self._folder / f"{tag}.json").read_bytes(), type=Note)

    async def _ensure(self, client: Any, tag: str, part: _Wave) -> Any:
        """The batch, created only where it is neither known by its id nor found by its tag.

        To be called again after any failure, and by another process.  One that is gone is created
        anew with what is still wanted of it.
        """
        import openai

        note = self._note(tag)
        try:
            found = await client.batches.retrieve(note.id) if note.id else None
        except openai.NotFoundError:
            found = None
        found = found or await self._find(client, note)
        if not found:
            self._write(replace(note, asked=time.time(), id=None))
            data = b"".join(_row(id, waiting.body) for id, waiting in part.items())
            file = await ensure_upload(client, f"{tag}.jsonl", data, "batch")
            found = await client.batches.create(
                input_file_id=file,
                endpoint=URL,
                completion_window=WINDOW,
                metadata={TAG: tag, RUN: self._identity},
            )
            number, server = len(part), self._errand.server.url
            self._errand.tell(f"batch {text_of(found, 'id')} at {server}: {number:,} requests")
        if text_of(found, "id") != note.id:
            self._write(replace(self._note(tag), asked=time.time(), id=found.id))
        return found

    async def _find(self, client: Any, note: Note) -> Any:
        """The batch as listed; where an answer was lost, the list is given time to show it."""
        lost = note.asked if note.asked and not note.id else None
        return await look_for(partial(_listed, client, note.tag), lost, self._times.settle)


async def _listed(client: Any, tag: str) -> Any:
    async for batch in each(client.batches.list(limit=100)):
        if (getattr(batch, "metadata", None) or {}).get(TAG) == tag:
            return batch
    return None


def _row(id: str, body: bytes) -> bytes:
    line = {"custom_id": id, "method": "POST", "url": URL, "body": msgspec.Raw(body)}
    return msgspec.json.encode(line) + b"\n"


class _Response(msgspec.Struct):
    status_code: int
    body: msgspec.Raw
    request_id: str | None = None


class _Output(msgspec.Struct):
    custom_id: str
    response: _Response | None = None


async def _read(client: Any, batch: Any) -> dict[str, Told]:
    """What a batch says of each request; `ValueError` for files that are none."""
    told: dict[str, Told] = {}
    for file in (batch.error_file_id, batch.output_file_id):
        if not file:
            continue
        content = (await client.files.content(file)).content
        for row in content.splitlines():
            output = msgspec.json.decode(row, type=_Output)
            if output.response is not None:
                answer = output.response
                line = Line(answer.status_code, bytes(answer.body), answer.request_id or "")
                told[output.custom_id] = line
    return told


def _undone(batch: Any) -> Problem:
    """What became of a request that an ended batch does not mention."""
    if batch.status != "failed":
        return Problem("server", said=f"the batch {batch.id} {batch.status} before it was done")
    errors: Sequence[Any] = getattr(batch.errors, "data", None) or ()
    first = replies.one_line(getattr(errors[0], "message", "") if errors else "")
    return Problem("refused", 400, f"the batch {batch.id} failed: {first}")


def _gone(line: str) -> Problem:
    """A problem that no other batch would mend."""
    return Problem("refused", said=line)
