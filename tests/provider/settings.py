"""The settings of a fake provider; every field may be changed while it runs."""

from typing import Literal

import msgspec

from .shapes import Shape

Kind = Literal["chat", "models", "file", "job", "batch", "batch-row", "other"]
Outcome = Literal["succeeded", "failed", "expired", "cancelled", "vanishes", "never"]
BatchOutcome = Literal["completed", "failed", "expired", "cancelled", "never"]


class Match(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which requests a fault befalls: those that fulfil everything that is given.

    The counts begin at 1, and count the requests that fulfil the first five, from when the fault
    was set; with `per_request`, each distinct body is counted for itself.
    """

    kind: Kind | None = None
    method: str | None = None
    path: str | None = None  # a part of it
    model: str | None = None
    contains: str | None = None  # a part of the body
    nth: int | tuple[int, ...] | None = None
    every: int | None = None  # every k-th
    until: int | None = None  # the first so many
    after: int | None = None  # all but the first so many
    share: float | None = None  # drawn by a hash of the body and of how often it was asked
    per_request: bool = False


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Something that goes wrong: see `faults.py` for the names."""

    fault: str
    match: Match = Match()
    retry_after: int | float | str | None = None  # the header: seconds, or as it is written
    times: int | None = None  # at most so often (per distinct body, with `per_request`)
    seconds: float = 1.0  # of "slow"
    message: str | None = None  # of the error, for statuses


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings, with what holds where nothing is said."""

    latency: float | tuple[float, float] = 0.0  # s of a chat; a range is drawn by request
    concurrency: int | None = None  # chats served at a time; others wait in line
    in_flight_limit: int | None = None  # chats at a time; more are answered with 429
    requests_per_second: float | None = None  # of chats; more are answered with 429
    burst: float | None = None  # chats at once under that rate; None: as many as in a second
    retry_after: int | float | str | None = None  # what those 429 say; None: they do not
    rate_limit_headers: bool = False
    faults: tuple[Fault, ...] = ()
    key: str | None = None  # the key that is accepted; None: any
    supports_n: bool | Literal["ignored", "refused"] = True  # false: n is ignored
    refuses: tuple[str, ...] = ()  # fields of a chat's body that are answered with 400
    refusal: str = "Unsupported parameter: '{}' is not supported with this model."  # of a field
    shape: Shape = "openai"  # of errors, which name no field in any other way than this provider's
    logprobs: Literal["given", "ignored", "forbidden"] = "given"  # to requests with that field
    token_ids: bool = False  # as vLLM: given with `return_token_ids`, the end token among them
    reasoning_tokens: int = 0  # hidden, of each reply, within its limit
    models: tuple[str, ...] | None = None  # None: any, but for "ft:..." that was never trained
    serves_as: dict[str, str] = {}  # model that was asked for: name that the reply gives
    max_body: int | None = None  # bytes; a larger body is answered with 413
    reply: Literal["game", "echo"] = "game"
    reply_words: int | tuple[int, int] = (6, 18)
    decision_rate: float = 0.4  # how often a verifier decides that may also ask
    salt: str = ""  # another salt, other replies
    caching: bool = True  # whether prompts' beginnings that were seen before count as cached
    log_bodies: bool = True
    job_seconds: float = 0.0
    job_outcome: Outcome = "succeeded"  # of jobs that are created from now on
    job_error: str = "The job failed due to an unsafe training file."
    list_lag: float = 0.0  # s until a new job appears in the list
    min_examples: int = 10  # rows of a training file; fewer make the job fail
    organization: str = "org"
    batch_seconds: float = 0.0
    batch_outcome: BatchOutcome = "completed"
    batch_share: float = 0.5  # of the rows, those that were answered when a batch ended early


def updated(settings: Settings, changes: dict[str, object]) -> Settings:
    """The settings with changes; raises `msgspec.ValidationError` for any that make no sense."""
    return msgspec.convert({**msgspec.to_builtins(settings), **changes}, Settings)
