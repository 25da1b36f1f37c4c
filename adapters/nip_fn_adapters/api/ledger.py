"""The run's own notes about its fine-tuning jobs at a provider.

RUN/api/identity             distinguishes the run's jobs from those of every other run
RUN/jobs/NAME/remote.json    when a job was requested, and its id once that is known

The identity is drawn, not derived: two runs with equal parameters and seed record equal first
events, and must not share their jobs.
"""

import secrets
from pathlib import Path

import msgspec

from nip_fn_adapters.api.jobs import Intent
from nip_fn_adapters.store import replace_file, sync_path


class LedgerNote(msgspec.Struct, frozen=True):
    """The note of a job that was requested from a provider, whether or not it was created."""

    tag: str
    asked: float  # when, in s since 1970
    id: str | None = None  # the provider's; None: no answer has come yet


def identity(run: Path) -> str:
    """The run's 16 hexadecimal digits, drawn at the first call and then kept on disk."""
    file = run / "api" / "identity"
    if not file.exists():
        _write(file, secrets.token_hex(8).encode())
        # The folder of the file is new, too, and must survive a power cut as well.
        sync_path(run)
    return file.read_text("ascii").strip()


def read_note(run: Path, intent: Intent) -> LedgerNote | None:
    """The note of the intent's job; None if there is none, or it is about another intent."""
    try:
        note = msgspec.json.decode(_file(run, intent).read_bytes(), type=LedgerNote)
    except (FileNotFoundError, msgspec.DecodeError):
        # A damaged note is as good as none: the job is still found by its tag.
        return None
    return note if note.tag == intent.tag else None


def write_note(run: Path, intent: Intent, note: LedgerNote) -> None:
    """Replace the note of the intent's job."""
    _write(_file(run, intent), msgspec.json.encode(note))


def drop_note(run: Path, intent: Intent) -> None:
    """Remove the note of a job that was refused, so that nobody looks for it."""
    _file(run, intent).unlink(missing_ok=True)


def _file(run: Path, intent: Intent) -> Path:
    return run / "jobs" / intent.job.name / "remote.json"


def _write(file: Path, data: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, data + b"\n")
