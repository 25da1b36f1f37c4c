"""Batches: chats asked in a file, answered in another one later.

A batch is carried out at the moment when somebody looks at it after its time.
"""

import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from .chat import ChatRequest, Prefixes, Usage, complete, refusal_of
from .faults import BAD, ERRORS, IN_CHAT, Asked, Error, Faults
from .jobs import Json, invalid, missing, page, unique
from .record import Came, Left, Log, Objects
from .settings import Settings

ENDPOINT = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")


class Context(NamedTuple):
    """The parts of the server that carry out batches."""

    objects: Objects
    settings: Settings
    log: Log
    faults: Faults


class Row(NamedTuple):
    """A row of a batch, answered."""

    custom_id: str
    status: int
    body: bytes
    usage: Usage


def on_batches(
    context: Context,
    method: str,
    parts: tuple[str, ...],
    query: dict[str, str],
    body: Any,
    serves: Callable[[str], bool],
) -> Json | Error:
    """Answer a request under /v1/batches."""
    batches = context.objects.batches
    match method, parts:
        case "POST", ("batches",):
            return _create(context, body)
        case "GET", ("batches",):
            now = time.time()
            listed = [b for b in reversed(list(batches.values())) if now >= b["_"]["listed"]]
            return page([_look(context, batch, serves) for batch in listed], query, 20)
        case _, ("batches", id, *_) if id not in batches:
            return missing(f"batch: {id}")
        case "GET", ("batches", id):
            return _look(context, batches[id], serves)
        case "POST", ("batches", id, "cancel"):
            return _cancel(context, batches[id], serves)
    return ERRORS["404"]


def _create(context: Context, body: Any) -> Json | Error:
    objects, settings = context.objects, context.settings
    if not isinstance(body, dict) or body.get("input_file_id") not in objects.files:
        return invalid("No such input file.", "input_file_id")
    if objects.files[body["input_file_id"]]["purpose"] != "batch":
        return invalid("The file's purpose is not 'batch'.", "input_file_id")
    if body.get("endpoint") != ENDPOINT or body.get("completion_window") != "24h":
        return invalid(f"Only {ENDPOINT} within 24h is supported.", "endpoint")
    now = time.time()
    content = objects.content(body["input_file_id"])
    data = blake2b(content, digest_size=16).hexdigest()
    batch = {
        "id": unique(objects.batches, "batch_", data, body.get("metadata")),
        "object": "batch",
        "endpoint": ENDPOINT,
        "errors": None,
        "input_file_id": body["input_file_id"],
        "completion_window": "24h",
        "status": "validating",
        "output_file_id": None,
        "error_file_id": None,
        "created_at": int(now),
        "expires_at": int(now) + 86_400,
        "request_counts": {"total": 0, "completed": 0, "failed": 0},
        "metadata": body.get("metadata"),
        "_": {
            "created": now,
            "seconds": settings.batch_seconds,
            "listed": now + settings.list_lag,
            "outcome": settings.batch_outcome,
        },
    }
    return _shown(objects.put("batches", batch))


def _shown(batch: Json) -> Json:
    return {name: value for name, value in batch.items() if name != "_"}


def _look(context: Context, batch: Json, serves: Callable[[str], bool]) -> Json:
    """The batch as it is now; carried out first where its time has come."""
    plan = batch["_"]
    if batch["status"] in ENDED:
        return _shown(batch)
    if batch["status"] == "cancelling":
        return _shown(_settle(context, batch, "cancelled", _share(batch), serves))
    share = _share(batch)
    if share >= 0.1 and (problems := _problems(_lines(context, batch))):
        changes = {"errors": {"object": "list", "data": problems}, "failed_at": int(time.time())}
        return _shown(context.objects.put("batches", {**batch, **changes, "status": "failed"}))
    if share < 1 or plan["outcome"] == "never":
        steps = ("validating", "in_progress", "finalizing")
        late = share >= 0.95 and plan["outcome"] != "never"
        return {**_shown(batch), "status": steps[(share >= 0.1) + late]}
    if plan["outcome"] == "failed":
        problem = {
            "code": "batch_failed",
            "message": "The batch failed.",
            "line": None,
            "param": None,
        }
        changes = {"errors": {"object": "list", "data": [problem]}, "failed_at": int(time.time())}
        return _shown(context.objects.put("batches", {**batch, **changes, "status": "failed"}))
    part = 1.0 if plan["outcome"] == "completed" else context.settings.batch_share
    return _shown(_settle(context, batch, plan["outcome"], part, serves))


def _share(batch: Json) -> float:
    """The share of its time that is over, from 0 to 1."""
    plan = batch["_"]
    spent = time.time() - plan["created"]
    return min(1.0, spent / plan["seconds"]) if plan["seconds"] > 0 else 1.0


def _cancel(context: Context, batch: Json, serves: Callable[[str], bool]) -> Json | Error:
    now = _look(context, batch, serves)
    if now["status"] in ENDED:
        return invalid(f"The batch has already ended: {now['status']}.")
    changes = {"status": "cancelling", "cancelling_at": int(time.time())}
    return _shown(context.objects.put("batches", {**batch, **changes}))


def _lines(context: Context, batch: Json) -> list[bytes]:
    content = context.objects.content(batch["input_file_id"])
    return [line for line in content.splitlines() if line.strip()]


def _problems(lines: Sequence[bytes]) -> list[Json]:
    """The problems that make a whole batch fail."""
    seen: set[str] = set()
    models: set[str] = set()
    found = []
    for number, line in enumerate(lines, 1):
        problem = _problem(line, seen, models)
        if problem:
            code, message = problem
            found.append({"code": code, "line": number, "message": message, "param": None})
    return found


def _problem(line: bytes, seen: set[str], models: set[str]) -> tuple[str, str] | None:
    try:
        row = msgspec.json.decode(line)
        id, method, url, model = row["custom_id"], row["method"], row["url"], row["body"]["model"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return "invalid_json_line", "This line is not parseable as a request."
    if id in seen:
        return "duplicate_custom_id", "The custom_id occurs more than once."
    if (method, url) != ("POST", ENDPOINT):
        return "invalid_url", "The URL is not that of the batch."
    if models and model not in models:
        return "mismatched_model", "All requests of a batch must be of one model."
    seen.add(id)
    models.add(model)
    return None


def _settle(
    context: Context, batch: Json, status: str, part: float, serves: Callable[[str], bool]
) -> Json:
    """Carry out the first `part` of the rows, and write both files."""
    lines, objects = _lines(context, batch), context.objects
    rows = [msgspec.json.decode(line) for line in lines]
    done = int(part * len(rows))
    prefixes = Prefixes()
    answered = [_answer(context, row, prefixes, serves) for row in rows[:done]]
    good = [row for row in answered if row.status == 200]
    bad = [_line(row) for row in answered if row.status != 200]
    bad += [_undone(row["custom_id"], status) for row in rows[done:]]
    mixed = sorted(good, key=lambda row: blake2b(row.custom_id.encode()).digest())
    usage = [sum(values) for values in zip(*(row.usage for row in good), strict=True)] or [0, 0, 0]
    changes = {
        "status": status,
        f"{status}_at": int(time.time()),
        "output_file_id": _write(objects, batch["id"], "output", list(map(_line, mixed))),
        "error_file_id": _write(objects, batch["id"], "errors", bad),
        "request_counts": {"total": len(rows), "completed": len(good), "failed": len(bad)},
        "usage": {
            "input_tokens": usage[0],
            "input_tokens_details": {"cached_tokens": usage[1]},
            "output_tokens": usage[2],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage[0] + usage[2],
        },
    }
    return objects.put("batches", {**batch, **changes})


def _answer(context: Context, row: Json, prefixes: Prefixes, serves: Callable[[str], bool]) -> Row:
    """One row as a chat would be answered, and logged as one of the kind "batch-row"."""
    raw = msgspec.json.encode(row["body"])
    id, model = context.log.next_id(), row["body"]["model"]
    fault = context.faults.pick(Asked("batch-row", "POST", ENDPOINT, raw, model))
    name = fault.fault if fault else None
    n = row["body"].get("n") or 1
    body = msgspec.Raw(raw) if context.settings.log_bodies else msgspec.Raw(b"null")
    came = (id, time.time(), "batch-row", "POST", ENDPOINT, n, model, True, None, 0)
    context.log.write(Came(*came, bytes=len(raw), body=body))
    status, sent, usage = _chat(context.settings, row["body"], prefixes, name, id, serves)
    context.log.write(Left(id, status, name, 0.0, *usage[:3]))
    return Row(row["custom_id"], status, sent, usage)


def _chat(
    settings: Settings,
    body: Json,
    prefixes: Prefixes,
    fault: str | None,
    id: int,
    serves: Callable[[str], bool],
) -> tuple[int, bytes, Usage]:
    error = ERRORS.get(fault or "")
    try:
        chat = msgspec.convert(body, ChatRequest)
    except msgspec.ValidationError as problem:
        return 400, Error(400, str(problem), BAD).body(), Usage()
    error = error or refusal_of(chat, body, settings)
    error = error or (None if serves(chat.model) else ERRORS["404-model"])
    if error:
        as_json = error._replace(status=400).body()  # also where a gateway would send HTML
        return error.status, as_json, Usage()
    own = fault if fault in IN_CHAT else None
    sent, usage = complete(chat, settings, prefixes, own, f"{id:x}")
    return 200, sent, usage


def _line(row: Row) -> Json:
    response = {"status_code": row.status, "request_id": "", "body": msgspec.Raw(row.body)}
    return {
        "id": f"batch_req_{row.custom_id}",
        "custom_id": row.custom_id,
        "response": response,
        "error": None,
    }


def _undone(custom_id: str, status: str) -> Json:
    error = {"code": f"batch_{status}", "message": f"This request was not executed: {status}."}
    return {
        "id": f"batch_req_{custom_id}",
        "custom_id": custom_id,
        "response": None,
        "error": error,
    }


def _write(objects: Objects, batch_id: str, name: str, lines: Sequence[Json]) -> str | None:
    """The id of a file with these lines; None where there are none."""
    if not lines:
        return None
    content = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    id = unique(objects.files, "file-", batch_id, name)
    objects.put_file(id, f"{batch_id}_{name}.jsonl", "batch_output", content)
    return id
