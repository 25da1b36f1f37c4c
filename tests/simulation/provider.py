"""A provider in the simulated world: chats, files, fine-tuning jobs, batches and models.

A chat's replies are in the request itself (see `world`), so that the same place in a tree is always
answered alike, whichever siblings are asked for together.
"""

import asyncio
import email
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from .faults import Faults
from .laws import Auditor
from .loop import Process
from .network import Answer, Asked

PROMPT, COMPLETION = 1e-4, 2e-4  # dollars per token
Json = dict[str, Any]
SLOW_STATUSES = (500, 502, 503, 504, 529)


class Provider:
    """OpenAI's interface at one address."""

    def __init__(
        self, key: str, faults: Faults, auditor: Auditor, is_noted: Any, loop: Any
    ) -> None:
        self.key, self.process = key, Process("provider")
        self.files: dict[str, tuple[str, str, bytes]] = {}  # name, purpose, content
        self.jobs: dict[str, Json] = {}
        self.batches: dict[str, Json] = {}
        self._faults, self._auditor, self._is_noted = faults, auditor, is_noted
        random = self._random = faults.random
        self._loop = loop
        self._in_flight, self._out_until = 0, 0.0
        self._seconds = 10 ** random.uniform(-1, 1.5)  # of a chat
        self._job_seconds = 10 ** random.uniform(0, 2.7)
        self._capacity: int | None = None
        self._ignores_n = random.random() < 0.15
        self._refuses_n = random.random() < 0.1
        self._refuses = random.choice(((), (), (), ("seed",)))
        self._knows_keys = random.random() < 0.5 or "doubled request" in faults.kinds
        self._lag = 10 ** random.uniform(-1, 1)  # seconds until a new object is listed
        self._served: dict[str, float] = {}  # models, and when they are
        self._created = 0

    # ------------------------------------------------------------------------------------- weather

    @property
    def is_out(self) -> bool:
        """True if it answers nobody."""
        return self._faults.are_on and self._now < self._out_until

    def disturb(self) -> None:
        """Change the weather, once in a while."""
        if self._faults.hits("outage"):
            self._out_until = self._now + 10 ** self._random.uniform(0, 4)
        self._capacity = self._random.choice((1, 2, 5)) if self._faults.hits("overload") else None

    @property
    def _now(self) -> float:
        return float(self._loop.time())

    def is_away(self) -> bool:
        return False

    # ------------------------------------------------------------------------------------ requests

    async def answer(self, asked: Asked) -> Answer:
        faults, random = self._faults, self._random
        if asked.headers.get("Authorization") != f"Bearer {self.key}":
            return _error(401, f"Incorrect API key provided: {asked.headers.get('Authorization')}")
        if self.is_out:
            return _error(random.choice(SLOW_STATUSES), "The server is overloaded.")
        if faults.hits("gateway"):
            await asyncio.sleep(random.choice((0.0, 2 * self._seconds)))
            return _error(random.choice((502, 503, 504, 524)), "Bad gateway")
        if faults.hits("rate limit"):
            after = random.choice(({}, {"retry-after": "3"}, {"retry-after-ms": "700"}))
            return _error(429, "Rate limit reached", headers=after)
        if faults.hits("lasting refusal"):
            status, code = random.choice(((401, "invalid_api_key"), (429, "insufficient_quota")))
            return _error(status, f"You cannot go on with {self.key}.", code=code)
        parts = asked.url.path.strip("/").split("/")[1:]
        match asked.method, *parts:
            case "POST", "chat", "completions":
                return await self._chat(asked)
            case "GET", "models":
                models = [model for model in self._models() if self._now >= self._served[model]]
                if len(models) < len(self._models()):
                    self._auditor.reach("an adapter that is not listed yet")
                return _page([{"id": model, "object": "model"} for model in models])
            case _, "files", *rest:
                return self._on_files(asked, rest)
            case _, "fine_tuning", "jobs", *rest:
                return self._on_jobs(asked, rest)
            case _, "batches", *rest:
                return self._on_batches(asked, rest)
        return _error(404, "Not found")

    # --------------------------------------------------------------------------------------- chats

    async def _chat(self, asked: Asked) -> Answer:
        if self._capacity is not None and self._in_flight >= self._capacity:
            return _error(429, "Too many requests")
        body = msgspec.json.decode(asked.body)
        if "replies" not in body:  # a publisher's look
            is_there = self._now >= self._served.get(body["model"], float("inf"))
            return _json({"choices": []}) if is_there else _error(404, "No such model")
        if body["model"].startswith("ft-") and self._now < self._served[body["model"]]:
            return _error(404, "No such model", code="model_not_found")
        if refused := self._refusal(body):
            return refused
        self._auditor.no_recorded_reply_is_asked_again(body["keys"])
        self._in_flight += 1
        try:
            await asyncio.sleep(self._random.expovariate(1.0) * self._seconds)
            return self._completed(body, is_row=False)
        finally:
            self._in_flight -= 1

    def _refusal(self, body: Json) -> Answer | None:
        if body.get("n") and self._refuses_n:
            self._auditor.reach("a server that refuses n")
            return _error(400, "Only n = 1 is supported.", param="n", code="unsupported_value")
        for field in self._refuses:
            if field in body:
                self._auditor.reach("a server that refuses the seed")
                message = f"Unsupported parameter: '{field}' is not supported with this model."
                return _error(400, message, param=field, code="unsupported_parameter")
        return None

    def _completed(self, body: Json, *, is_row: bool) -> Answer:
        """The answer, which is billed."""
        replies: list[str] = body["replies"]
        replies = replies[: 1 if self._ignores_n else body.get("n", 1)]
        if self._ignores_n and body.get("n"):
            self._auditor.reach("a server that ignores n")
        deviation = "" if is_row else self._deviation()
        if deviation == "fewer":
            replies = replies[: self._random.randint(1, len(replies))]
            if len(replies) < body.get("n", 1):
                self._auditor.reach("siblings that came in parts")
        choices = [
            {"index": i, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            for i, text in enumerate(replies)
        ]
        tokens = sum(map(len, replies))
        prompt = sum(len(message["content"]) for message in body["messages"])
        self._auditor.never_above_the_budget(
            (PROMPT * prompt + COMPLETION * tokens) * (0.5 if is_row else 1.0)
        )
        if deviation == "more" and len(replies) == body.get("n", 1):
            choices.append({**choices[-1], "index": len(choices)})
        if deviation == "reversed":
            choices.reverse()
        if deviation == "none":
            choices = []
        if deviation == "error":
            return _json({"error": {"code": 502, "message": "The upstream provider had an error."}})
        usage = {"prompt_tokens": prompt, "completion_tokens": tokens}
        served = {"model": body["model"], "choices": choices, "usage": usage}
        return _json({"id": "chat", "object": "chat.completion", **served})

    def _deviation(self) -> str:
        if not self._faults.hits("deviant answer"):
            return ""
        return self._random.choice(("fewer", "more", "reversed", "reversed", "none", "error"))

    # --------------------------------------------------------------------------------------- files

    def _on_files(self, asked: Asked, rest: list[str]) -> Answer:
        match asked.method, rest:
            case "POST", []:
                form = email.message_from_bytes(
                    b"Content-Type: "
                    + asked.headers["Content-Type"].encode()
                    + b"\n\n"
                    + asked.body
                )
                parts: Mapping[str, Any] = {
                    str(part.get_param("name", header="content-disposition")): part
                    for part in form.get_payload()  # type: ignore[union-attr]
                }
                content = parts["file"].get_payload(decode=True)
                purpose = parts["purpose"].get_payload(decode=True).decode()
                name = self._new("file")
                self.files[name] = (parts["file"].get_filename(), purpose, content)
                return _json(self._file(name))
            case "GET", []:
                wanted = asked.url.query.get("purpose")
                names = [name for name, file in self.files.items() if file[1] == wanted]
                return _page([self._file(name) for name in reversed(names)])
            case _, [name, *_] if name not in self.files:
                return _error(404, f"No such File object: {name}")
            case "GET", [name, "content"]:
                return Answer(200, self.files[name][2])
            case "DELETE", [name]:
                del self.files[name]
                return _json({"id": name, "object": "file", "deleted": True})
        return _error(404, "Not found")

    def _file(self, name: str) -> Json:
        filename, purpose, content = self.files[name]
        return {
            **{"id": name, "object": "file", "bytes": len(content), "created_at": 0},
            **{"filename": filename, "purpose": purpose, "status": "processed"},
        }

    def _new(self, prefix: str) -> str:
        self._created += 1
        return f"{prefix}-{self._created}"

    # ---------------------------------------------------------------------------------------- jobs

    def _models(self) -> list[str]:
        jobs = map(self._shown_job, self.jobs.values())
        return [job["fine_tuned_model"] for job in jobs if job["fine_tuned_model"]]

    def _on_jobs(self, asked: Asked, rest: list[str]) -> Answer:
        match asked.method, rest:
            case "POST", []:
                return self._create_job(asked)
            case "GET", []:
                listed = [job for job in self.jobs.values() if self._is_listed(job)]
                wanted = asked.url.query.get("metadata[nip_fn]")
                if any(job["body"]["suffix"] == wanted for job in listed):
                    self._auditor.reach_by_tag("a job found by its tag")
                return _page([self._shown_job(job) for job in reversed(listed)])
            case "GET", [name] if name in self.jobs and not self._is_gone(self.jobs[name]):
                return _json(self._shown_job(self.jobs[name]))
        return _error(404, "No such job")

    def _create_job(self, asked: Asked) -> Answer:
        once = asked.headers.get("Idempotency-Key")
        for job in self.jobs.values():
            if self._knows_keys and job["once"] == once and not self._is_gone(job):
                return _json(self._shown_job(job))
        body = msgspec.json.decode(asked.body)
        if body["training_file"] not in self.files:
            return _error(400, "There is no such file.", param="training_file")
        tag = body["suffix"]
        self._auditor.a_note_is_durable_before_it_is_paid(tag, self._is_noted(tag))
        words = tag.rpartition("-")[0]
        twins = [job for job in self.jobs.values() if job["name"] == words]
        for fate, word in (("failed", "failed"), ("cancelled", "failed"), ("vanished", "vanished")):
            if any(self.state_of(job) == fate for job in twins):
                self._auditor.reach(f"a job in place of one that {word}")
        live = [job["id"] for job in twins if self.state_of(job) in ("running", "succeeded")]
        self._auditor.a_job_is_created_once(tag, live)
        name = self._new("ftjob")
        content = self.files[body["training_file"]][2]
        model = blake2b(msgspec.json.encode((body["model"], body["seed"])) + content, digest_size=6)
        fate = next(
            (
                fate
                for fate in ("failed", "cancelled", "vanished")
                if self._faults.hits(f"{fate} job")
            ),
            "succeeded",
        )
        self.jobs[name] = {
            **{
                "id": name,
                "name": tag.rpartition("-")[0],
                "body": body,
                "once": once,
                "created": self._now,
                "fate": fate,
            },
            "ends": self._now + self._random.expovariate(1.0) * self._job_seconds,
            "listed": self._now + (self._lag if self._faults.hits("late list") else 0.0),
            "model": f"ft-{model.hexdigest()}",
        }
        self._served[self.jobs[name]["model"]] = self.jobs[name]["ends"] + self._lag
        return _json(self._shown_job(self.jobs[name]))

    def state_of(self, job: Json) -> str:
        return job["fate"] if self._now >= job["ends"] else "running"

    def _is_gone(self, job: Json) -> bool:
        return self.state_of(job) == "vanished"

    def _is_listed(self, job: Json) -> bool:
        return self._now >= job["listed"] and not self._is_gone(job)

    def _shown_job(self, job: Json) -> Json:
        state = self.state_of(job)
        body = job["body"]
        return {
            **{"id": job["id"], "object": "fine_tuning.job", "status": state},
            **{"created_at": int(job["created"]), "finished_at": None, "model": body["model"]},
            "fine_tuned_model": job["model"] if state == "succeeded" else None,
            "error": {"code": "x", "message": "bad luck"} if state == "failed" else None,
            "trained_tokens": 1000 if state == "succeeded" else None,
            "training_file": body["training_file"],
            "metadata": body["metadata"],
            **{"hyperparameters": {}, "organization_id": "o", "result_files": [], "seed": 1},
        }

    # ------------------------------------------------------------------------------------- batches

    def _on_batches(self, asked: Asked, rest: list[str]) -> Answer:
        match asked.method, rest:
            case "POST", []:
                return self._create_batch(asked)
            case "GET", []:
                listed = [batch for batch in self.batches.values() if self._is_listed(batch)]
                if any(self._is_noted(batch["tag"]) for batch in listed):
                    self._auditor.reach_by_tag("a batch found by its tag")
                return _page([self._shown_batch(batch) for batch in reversed(listed)])
            case "GET", [name] if name in self.batches and not self._is_gone(self.batches[name]):
                return _json(self._shown_batch(self.batches[name]))
        return _error(404, "No such batch")

    def _create_batch(self, asked: Asked) -> Answer:
        body = msgspec.json.decode(asked.body)
        if body["input_file_id"] not in self.files:
            return _error(400, "There is no such file.", param="input_file_id")
        tag = next(iter(body["metadata"].values()))
        self._auditor.a_note_is_durable_before_it_is_paid(tag, self._is_noted(tag))
        twins = [batch for batch in self.batches.values() if batch["tag"] == tag]
        if twins:
            self._auditor.reach("a batch in place of one that vanished")
        live = [twin["id"] for twin in twins if not self._is_gone(twin)]
        self._auditor.a_job_is_created_once(tag, live)
        answered = [row for batch in self.batches.values() for row in batch["answered"]]
        name = self._new("batch")
        fate = next(
            (
                fate
                for fate in ("failed", "expired", "vanished")
                if self._faults.hits(f"{fate} batch")
            ),
            "completed",
        )
        rows = [
            msgspec.json.decode(line) for line in self.files[body["input_file_id"]][2].splitlines()
        ]
        self._auditor.a_row_is_in_one_batch([row["custom_id"] for row in rows], answered)
        if any(self._auditor.is_asked_again(row["body"]["keys"]) for row in rows):
            self._auditor.reach("a row in a second batch")
        # A batch that the provider refuses as a whole costs nothing.
        for row in rows if fate != "failed" else ():
            self._auditor.no_recorded_reply_is_asked_again(row["body"]["keys"])
        self.batches[name] = {
            **{"id": name, "body": body, "tag": tag, "fate": fate, "rows": rows, "files": None},
            "answered": [row["custom_id"] for row in rows if fate == "completed"],
            "ends": self._now + self._random.expovariate(1.0) * self._job_seconds,
            "listed": self._now + (self._lag if self._faults.hits("late list") else 0.0),
        }
        return _json(self._shown_batch(self.batches[name]))

    def _shown_batch(self, batch: Json) -> Json:
        state = self.state_of(batch).replace("running", "in_progress")
        if state in ("completed", "expired") and batch["files"] is None:
            batch["files"] = self._carry_out(batch)
        output, errors = batch["files"] or (None, None)
        return {
            **{"id": batch["id"], "object": "batch", "endpoint": "/v1/chat/completions"},
            **{"status": state, "completion_window": "24h", "created_at": 0},
            **{"output_file_id": output, "error_file_id": errors, "errors": None},
            **{
                "input_file_id": batch["body"]["input_file_id"],
                "metadata": batch["body"]["metadata"],
            },
        }

    def _carry_out(self, batch: Json) -> tuple[str | None, str | None]:
        rows = batch["rows"]
        done = rows if batch["fate"] == "completed" else rows[: len(rows) // 2]
        outputs: tuple[list[bytes], list[bytes]] = ([], [])
        for row in done:
            is_bad = self._faults.hits("failed row")
            if is_bad and row["custom_id"] in batch["answered"]:
                batch["answered"].remove(row["custom_id"])
            answer = _error(500, "x") if is_bad else self._completed(row["body"], is_row=True)
            response = {"status_code": answer.status, "body": msgspec.Raw(answer.body)}
            line = {"custom_id": row["custom_id"], "response": response}
            outputs[is_bad].append(msgspec.json.encode(line))
        self._random.shuffle(outputs[0])
        names: list[str | None] = []
        for lines in outputs:
            names.append(self._new("file") if lines else None)
            if lines:
                self.files[str(names[-1])] = ("output", "batch_output", b"\n".join(lines))
        return names[0], names[1]


def _json(body: Json) -> Answer:
    return Answer(200, msgspec.json.encode(body), {"content-type": "application/json"})


def _page(entries: list[Json]) -> Answer:
    return _json({"object": "list", "data": entries, "has_more": False})


def _error(
    status: int,
    message: str,
    *,
    param: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str] = {},
) -> Answer:
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    body = msgspec.json.encode({"error": error})
    return Answer(status, body, {"content-type": "application/json", **headers})
