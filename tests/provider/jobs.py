"""Files and fine-tuning jobs.

What a job is at any time follows from how it was created, when, and whether it was cancelled.  Ids
are hashes of contents, so that the same training has the same name in every run.
"""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from .faults import BAD, ERRORS, Error
from .record import Objects
from .replies import count_tokens
from .settings import Settings

Json = dict[str, Any]
QUEUED, RUNNING = 0.1, 0.2  # when a job enters these, as shares of its time
AUTO = {"n_epochs": 3, "batch_size": 1, "learning_rate_multiplier": 1.8, "beta": 0.1}


def missing(what: str) -> Error:
    """That there is no such thing."""
    return Error(404, f"No such {what}.", BAD, None, "id")


def invalid(message: str, param: str | None = None) -> Error:
    """That a request makes no sense."""
    return Error(400, message, BAD, "invalid_value", param)


def unique(table: Json, prefix: str, *parts: object) -> str:
    """An id that depends on the parts, and on how many of the kind there are."""
    count = 0
    while True:
        data = msgspec.json.encode((parts, count), enc_hook=str)
        found = f"{prefix}{blake2b(data, digest_size=10).hexdigest()}"
        if found not in table:
            return found
        count += 1


def page(entries: Sequence[Json], query: dict[str, str], limit: int) -> Json:
    """The entries (newest first) after `after`, at most `limit`."""
    ids = [entry["id"] for entry in entries]
    start = ids.index(query["after"]) + 1 if query.get("after") in ids else 0
    end = start + int(query.get("limit", limit))
    data = entries[start:end]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
    return {"object": "list", "data": data, "has_more": end < len(entries), **ends}


def on_files(
    objects: Objects, method: str, parts: tuple[str, ...], query: dict[str, str], form: Json
) -> Json | bytes | Error:
    """Answer a request under /v1/files."""
    match method, parts:
        case "POST", ("files",):
            return _upload(objects, form)
        case "GET", ("files",):
            files = [
                f
                for f in objects.files.values()
                if query.get("purpose", f["purpose"]) == f["purpose"]
            ]
            return page(files[::-1], query, 10_000)
        case "GET", ("files", id, "content") if (job := _job_of_result(objects, id)) is not None:
            return _metrics(job)
        case _, ("files", id, *_) if id not in objects.files:
            return missing(f"File object: {id}")
        case "GET", ("files", id):
            return objects.files[id]
        case "GET", ("files", id, "content"):
            return objects.content(id)
        case "DELETE", ("files", id):
            objects.delete("files", id)
            return {"id": id, "object": "file", "deleted": True}
    return ERRORS["404"]


def _upload(objects: Objects, form: Json) -> Json | Error:
    upload, purpose = form.get("file"), form.get("purpose")
    if not hasattr(upload, "file") or purpose not in ("fine-tune", "batch", "user_data"):
        return invalid("A file and a purpose ('fine-tune', 'batch') are needed.", "file")
    content = upload.file.read()
    if not content:
        return invalid("The file is empty.", "file")
    digest = blake2b(content, digest_size=16).hexdigest()
    id = unique(objects.files, "file-", digest, purpose)
    return objects.put_file(id, upload.filename, purpose, content)


def on_jobs(
    objects: Objects,
    method: str,
    parts: tuple[str, ...],
    query: dict[str, str],
    body: Any,
    settings: Settings,
) -> Json | Error:
    """Answer a request under /v1/fine_tuning."""
    if parts[1:2] != ("jobs",):
        return ERRORS["404"]
    match method, parts[2:]:
        case "POST", ():
            return _create(objects, body, settings)
        case "GET", ():
            return page(_listed(objects, query), query, 20)
        case _, (id, *_) if id not in objects.jobs or _vanished(objects.jobs[id]):
            return missing(f"fine-tuning job: {id}")
        case "GET", (id,):
            return shown(objects.jobs[id])
        case "GET", (id, "events"):
            return page(_events(objects.jobs[id])[::-1], query, 20)
        case "POST", (id, "cancel"):
            return _cancel(objects, objects.jobs[id])
    return ERRORS["404"]


def view(job: Json, at: float | None = None) -> Json:
    """A job as it is at that time (now), with what the provider knows under "_"."""
    plan = job["_"]
    at = time.time() if at is None else at
    share = (at - plan["created"]) / plan["seconds"] if plan["seconds"] > 0 else 1.0
    if plan["cancelled"] is not None and at >= plan["cancelled"]:
        return {**job, "status": "cancelled", "finished_at": int(plan["cancelled"])}
    if plan["invalid"] and share >= QUEUED:
        error = {
            "code": "invalid_training_file",
            "param": "training_file",
            "message": plan["invalid"],
        }
        return {**job, "status": "failed", "error": error, "finished_at": int(at)}
    if share < 1 or plan["outcome"] in ("never", "vanishes"):
        steps = ("validating_files", "queued", "running")
        return {**job, "status": steps[(share >= QUEUED) + (share >= RUNNING)]}
    return {**job, **_ended(job), "finished_at": int(plan["created"] + plan["seconds"])}


def _ended(job: Json) -> Json:
    match job["_"]["outcome"]:
        case "failed":
            error = {"code": "job_failed", "param": None, "message": job["_"]["error"]}
            return {"status": "failed", "error": error}
        case "cancelled" | "expired" as status:
            return {"status": status}
    trained = {"fine_tuned_model": job["_"]["model"], "trained_tokens": job["_"]["tokens"]}
    return {"status": "succeeded", "result_files": [_result_id(job)], **trained}


def views(objects: Objects) -> Iterable[Json]:
    """All jobs that have not vanished, oldest first."""
    return (view(job) for job in objects.jobs.values() if not _vanished(job))


def shown(job: Json) -> Json:
    """A job as its owner sees it."""
    return {name: value for name, value in view(job).items() if name != "_"}


def is_trained(objects: Objects, model: str) -> bool:
    """True if a job has made this model."""
    return any(job["fine_tuned_model"] == model for job in views(objects))


def _vanished(job: Json) -> bool:
    plan = job["_"]
    return plan["outcome"] == "vanishes" and time.time() >= plan["created"] + plan["seconds"]


def _listed(objects: Objects, query: dict[str, str]) -> list[Json]:
    """The jobs that the list has by now, newest first, with the metadata that is asked for."""
    wanted = {k[9:-1]: v for k, v in query.items() if k.startswith("metadata[")}
    now = time.time()
    return [
        shown(job)
        for job in reversed(objects.jobs.values())
        if now >= job["_"]["listed"]
        and not _vanished(job)
        and all((job["metadata"] or {}).get(name) == value for name, value in wanted.items())
    ]


def _create(objects: Objects, body: Any, settings: Settings) -> Json | Error:
    error = _refusal(objects, body)
    if error is not None:
        return error
    method = body.get("method") or {"type": "supervised"}
    kind = method["type"]
    given = (method.get(kind) or {}).get("hyperparameters") or body.get("hyperparameters") or {}
    chosen = {name: AUTO.get(name, v) if v == "auto" else v for name, v in (AUTO | given).items()}
    if kind == "supervised":
        chosen.pop("beta")
    content = objects.content(body["training_file"])
    problem, tokens = _check(content, kind, settings.min_examples)
    data = blake2b(content, digest_size=16).hexdigest()
    parts = (body["model"], body.get("suffix"), body.get("seed"), kind, chosen, data)
    id = unique(objects.jobs, "ftjob-", *parts)
    plan = {
        "created": time.time(),
        "seconds": settings.job_seconds,
        "listed": time.time() + settings.list_lag,
        "outcome": settings.job_outcome,
        "error": settings.job_error,
        "invalid": problem,
        "cancelled": None,
        "tokens": tokens * int(chosen["n_epochs"]),
        "model": _model_name(body["model"], settings.organization, body.get("suffix"), id),
    }
    job = {**_fresh(id, body), "hyperparameters": chosen, "_": plan}
    job["organization_id"] = settings.organization
    job["method"] = {"type": kind, kind: {"hyperparameters": chosen}}
    return shown(objects.put("jobs", job))


def _fresh(id: str, body: Json) -> Json:
    """A job as it begins."""
    return {
        "id": id,
        "object": "fine_tuning.job",
        "created_at": int(time.time()),
        "error": None,
        "fine_tuned_model": None,
        "finished_at": None,
        "model": body["model"],
        "result_files": [],
        "seed": body.get("seed") or 0,
        "status": "validating_files",
        "trained_tokens": None,
        "training_file": body["training_file"],
        "validation_file": body.get("validation_file"),
        "estimated_finish": None,
        "integrations": body.get("integrations") or [],
        "metadata": body.get("metadata"),
        "user_provided_suffix": body.get("suffix"),
    }


def _refusal(objects: Objects, body: Any) -> Error | None:
    """The error of a request for a job; None if it is right."""
    if not isinstance(body, dict) or not isinstance(body.get("model"), str):
        return invalid("Missing required parameter: 'model'.", "model")
    model = body["model"]
    if model.startswith("ft:") and not is_trained(objects, model):
        return Error(400, f"Model {model} does not exist.", BAD, "model_not_available", "model")
    if body.get("training_file") not in objects.files:
        return Error(
            400, "invalid training_file: no such file", BAD, "invalid_file", "training_file"
        )
    if objects.files[body["training_file"]]["purpose"] != "fine-tune":
        return invalid("The file's purpose is not 'fine-tune'.", "training_file")
    method = body.get("method") or {"type": "supervised"}
    if method.get("type") not in ("supervised", "dpo"):
        return invalid("Unsupported method.", "method.type")
    if len(body.get("suffix") or "") > 64:
        return invalid("The suffix has more than 64 characters.", "suffix")
    pairs = (body.get("metadata") or {}).items()
    if len(pairs) > 16 or any(len(name) > 64 or len(value) > 512 for name, value in pairs):
        return invalid("Metadata: 16 pairs at most, of 64 and 512 characters.", "metadata")
    return None


def _model_name(base: str, organization: str, suffix: str | None, id: str) -> str:
    first = base.split(":")[1] if base.startswith("ft:") else base
    plain = re.sub(r"[^a-z0-9-]+", "-", (suffix or "").lower())
    return f"ft:{first}:{organization}:{plain}:{id[-8:]}"


def _check(content: bytes, kind: str, fewest: int) -> tuple[str, int]:
    """The fault of a training file ("" for none), and its tokens."""
    try:
        rows = [msgspec.json.decode(line) for line in content.splitlines() if line.strip()]
    except msgspec.DecodeError as error:
        return f"The file is not JSONL: {error}", 0
    check = _check_supervised if kind == "supervised" else _check_dpo
    for number, row in enumerate(rows, 1):
        if not _holds(check, row):
            return f"Line {number} does not have the form that the method {kind} needs.", 0
    if len(rows) < fewest:
        return f"Training file has {len(rows)} example(s), but must have at least {fewest}.", 0
    return "", sum(_tokens(row) for row in rows)


def _tokens(row: Any) -> int:
    """The tokens of a row: those of its messages, each counted once."""
    parts = [row.get("messages", ()), row.get("input", {}).get("messages", ())]
    parts += [row.get(name, ()) for name in ("preferred_output", "non_preferred_output")]
    return sum(count_tokens(message["content"]) + 4 for part in parts for message in part)


def _holds(check: Callable[[Any], bool], row: Any) -> bool:
    try:
        return check(row)
    except (KeyError, TypeError, IndexError, AttributeError):
        return False


def _check_supervised(row: Json) -> bool:
    return set(row) <= {"messages", "tools"} and _are_messages(row["messages"], "assistant")


def _check_dpo(row: Json) -> bool:
    return (
        set(row) == {"input", "preferred_output", "non_preferred_output"}
        and _are_messages(row["input"]["messages"], "user")
        and all(
            len(row[name]) == 1 and _are_messages(row[name], "assistant")
            for name in ("preferred_output", "non_preferred_output")
        )
    )


def _are_messages(messages: list[Json], last: str) -> bool:
    known = all(
        message["role"] in ("system", "user", "assistant")
        and isinstance(message["content"], str)
        and set(message) <= {"role", "content", "name", "weight"}
        for message in messages
    )
    return known and messages[-1]["role"] == last


def _cancel(objects: Objects, job: Json) -> Json | Error:
    status = view(job)["status"]
    if status in ("succeeded", "failed", "cancelled"):
        return invalid(f"Job has already ended: {status}.")
    return shown(objects.put("jobs", {**job, "_": {**job["_"], "cancelled": time.time()}}))


def _events(job: Json) -> list[Json]:
    """The events of a job, oldest first."""
    status = view(job)["status"]
    said = [
        f"Created fine-tuning job: {job['id']}",
        f"Validating training file: {job['training_file']}",
    ]
    if status in ("queued", "running", "succeeded"):
        said.append("Files validated, moving job to queued state")
    if status in ("running", "succeeded"):
        said.append("Fine-tuning job started")
    if status == "succeeded":
        said += [f"Step {i}/4: training loss={0.7 / i:.2f}" for i in range(1, 5)]
        said.append("The job has successfully completed")
    if status in ("failed", "cancelled"):
        error = view(job)["error"]
        said.append(error["message"] if error else "The job was cancelled")
    return [
        {
            "id": f"ftevent-{job['id'][6:]}-{number}",
            "object": "fine_tuning.job.event",
            "created_at": job["created_at"],
            "level": "error" if status == "failed" and number == len(said) else "info",
            "message": message,
            "type": "message",
            "data": {},
        }
        for number, message in enumerate(said, 1)
    ]


def _result_id(job: Json) -> str:
    return f"file-result-{job['id']}"


def _job_of_result(objects: Objects, file_id: str) -> Json | None:
    ended = (job for job in views(objects) if job["result_files"] == [file_id])
    return next(ended, None)


def _metrics(job: Json) -> bytes:
    rows = (f"{step},{0.7 / step:.4f},{1 - 0.5 / step:.4f}" for step in range(1, 5))
    return "\n".join(("step,train_loss,train_accuracy", *rows, "")).encode()
