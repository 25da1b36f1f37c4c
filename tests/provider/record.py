"""The records in a provider's folder: every request, and its files, jobs and batches.

`log.jsonl` has a line when a request comes and one when it is answered; `objects.jsonl` has one
for each new state of an object.  Nothing is kept back, so a killed provider forgets nothing.
"""

import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

LOG, OBJECTS, FILES = "log.jsonl", "objects.jsonl", "files"
TOKENS = ("prompt_tokens", "cached_tokens", "completion_tokens")


class Came(msgspec.Struct, frozen=True, tag="came"):
    """A request as it came."""

    id: int
    at: float
    kind: str
    method: str
    path: str
    n: int
    model: str | None
    key_ok: bool
    idempotency: str | None
    in_flight: int  # with this one
    bytes: int
    body: msgspec.Raw = msgspec.Raw(b"null")


class Left(msgspec.Struct, frozen=True, tag="left"):
    """The end of a request; one without it was never answered."""

    id: int
    status: int | None  # None: no answer was sent
    fault: str | None
    seconds: float
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


class Counts:
    """Totals over the log."""

    def __init__(self) -> None:
        self.last_id = 0
        self._rows: set[int] = set()
        self.sums: Counter[str] = Counter()
        self.by_kind: Counter[str] = Counter()
        self.by_status: Counter[str] = Counter()

    def add(self, entry: Came | Left) -> None:
        if isinstance(entry, Came):
            self._came(entry)
            return
        row = entry.id in self._rows
        self._rows.discard(entry.id)
        if not row:
            self.by_status[str(entry.status)] += 1
        for name in TOKENS:
            self.sums[f"batch_{name}" if row else name] += getattr(entry, name)

    def _came(self, entry: Came) -> None:
        self.last_id = max(self.last_id, entry.id)
        self.by_kind[entry.kind] += 1
        if entry.kind == "batch-row":
            self._rows.add(entry.id)
            return
        self.sums["requests"] += 1
        self.sums["in_flight_max"] = max(self.sums["in_flight_max"], entry.in_flight)

    def as_dict(self) -> dict[str, Any]:
        names = ("requests", "in_flight_max", *TOKENS, *(f"batch_{name}" for name in TOKENS))
        return {
            **{name: self.sums[name] for name in names},
            "by_kind": dict(self.by_kind),
            "by_status": dict(self.by_status),
        }


class Log:
    """The requests, appended as they come and leave."""

    def __init__(self, folder: Path) -> None:
        self.counts = Counts()
        file = folder / LOG
        if file.exists():
            _mend(file)
            for entry in _entries(file):
                self.counts.add(entry)
        self.in_flight = 0
        self._fd = os.open(file, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
        self._encoder = msgspec.json.Encoder()

    def clear(self) -> None:
        """Forget all requests; the answers to some of them may still come."""
        os.ftruncate(self._fd, 0)
        last, self.counts = self.counts.last_id, Counts()
        self.counts.last_id = last

    def next_id(self) -> int:
        return self.counts.last_id + 1

    def write(self, entry: Came | Left) -> None:
        self.counts.add(entry)
        line = self._encoder.encode(entry)
        os.write(self._fd, line.replace(b"\n", b" ") + b"\n")  # in JSON, a line's end is a space


def _mend(file: Path) -> None:
    """Cut a last line that a crash left incomplete."""
    data = file.read_bytes()
    os.truncate(file, data.rfind(b"\n") + 1)


def _entries(file: Path) -> Iterator[Came | Left]:
    decoder = msgspec.json.Decoder(Came | Left)
    with file.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                yield decoder.decode(line)


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Every request in the order in which they came, each with how it ended."""
    file, found = folder / LOG, dict[int, dict[str, Any]]()
    for entry in _entries(file) if file.exists() else ():
        if isinstance(entry, Came):
            came = {name: getattr(entry, name) for name in Came.__struct_fields__}
            nothing = dict.fromkeys(("status", "fault", "seconds"))
            tokens = dict.fromkeys(TOKENS, 0)
            body = msgspec.json.decode(entry.body)
            request_id = f"req_{entry.id}"
            found[entry.id] = {**came, "body": body, "request_id": request_id, **nothing, **tokens}
        elif entry.id in found:
            found[entry.id].update(msgspec.to_builtins(entry), id=entry.id)
            found[entry.id].pop("type")
    return list(found.values())


class Objects:
    """Files, jobs and batches by id: as dictionaries, oldest first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FILES
        self._folder.mkdir(exist_ok=True)
        self.files, self.jobs, self.batches = read_objects(folder)
        file = folder / OBJECTS
        if file.exists():
            _mend(file)
        self._fd = os.open(file, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)

    def clear(self) -> None:
        """Forget everything."""
        os.ftruncate(self._fd, 0)
        for file in self._folder.iterdir():
            file.unlink()
        self.files, self.jobs, self.batches = {}, {}, {}

    def put(self, table: str, entry: dict[str, Any]) -> dict[str, Any]:
        getattr(self, table)[entry["id"]] = entry
        self._append(table, entry["id"], entry)
        return entry

    def delete(self, table: str, id: str) -> None:
        del getattr(self, table)[id]
        self._append(table, id, None)

    def put_file(self, id: str, name: str, purpose: str, content: bytes) -> dict[str, Any]:
        (self._folder / id).write_bytes(content)
        entry = {
            "id": id,
            "object": "file",
            "bytes": len(content),
            "created_at": int(time.time()),
            "filename": name,
            "purpose": purpose,
            "status": "processed",
        }
        return self.put("files", entry)

    def content(self, id: str) -> bytes:
        return (self._folder / id).read_bytes()

    def _append(self, table: str, id: str, entry: dict[str, Any] | None) -> None:
        os.write(self._fd, msgspec.json.encode((table, id, entry)) + b"\n")


Table = dict[str, dict[str, Any]]


def read_objects(folder: Path) -> tuple[Table, Table, Table]:
    """Files, jobs and batches as they were last written."""
    tables: dict[str, Table] = {"files": {}, "jobs": {}, "batches": {}}
    file = folder / OBJECTS
    for line in file.read_bytes().splitlines(keepends=True) if file.exists() else ():
        if not line.endswith(b"\n"):
            continue
        table, id, entry = msgspec.json.decode(line)
        if entry is None:
            tables[table].pop(id, None)
        else:
            tables[table][id] = entry
    return tables["files"], tables["jobs"], tables["batches"]
