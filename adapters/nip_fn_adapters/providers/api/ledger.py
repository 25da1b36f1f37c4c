"""The run's own notes about its fine-tuning jobs at a provider.

RUN/api/identity             distinguishes the run's jobs from those of every other run
RUN/jobs/NAME/remote.json    when a job was requested, its file, and its id once that is known

The identity is drawn, not derived: two runs with equal parameters and seed record equal first
events, and must not share their jobs.
"""

import secrets
from pathlib import Path

import msgspec

from nip_fn_adapters.durable import make_folder, replace_file
from nip_fn_adapters.providers.api.jobs import Intent


class LedgerNote(msgspec.Struct, frozen=True):
    """The note of a job that was requested from a provider, whether or not it was created."""

    tag: str
    asked: float  # when, in s since 1970
    id: str | None = None  # the provider's; None: no answer has come yet
    group: str = ""  # the model group that it trains
    file: str | None = None  # the id of its rows at the provider; None: they are deleted
    ended: bool = False  # without a model


def identity(run: Path) -> str:
    """The run's 16 hexadecimal digits, drawn at the first call and then kept on disk."""
    file = run / "api" / "identity"
    if not file.exists():
        _write(file, secrets.token_hex(8).encode())
    return file.read_text("ascii").strip()


def read_notes(run: Path) -> dict[str, LedgerNote]:
    """The notes of all jobs, by name."""
    notes = {file.parent.name: _read(file) for file in run.glob("jobs/*/remote.json")}
    return {name: note for name, note in notes.items() if note is not None}


def read_note(run: Path, intent: Intent) -> LedgerNote | None:
    """The note of the intent's job; None if there is none, or it is about another intent."""
    note = _read(_file(run, intent.job.name))
    return note if note and note.tag == intent.tag else None


def write_note(run: Path, job: str, note: LedgerNote) -> None:
    """Replace the note of the job with that name."""
    _write(_file(run, job), msgspec.json.encode(note))


def drop_note(run: Path, intent: Intent) -> None:
    """Remove the note of a job that was refused, so that nobody looks for it."""
    _file(run, intent.job.name).unlink(missing_ok=True)


def _read(file: Path) -> LedgerNote | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=LedgerNote)
    except (FileNotFoundError, msgspec.DecodeError):
        # A damaged note is as good as none: the job is still found by its tag.
        return None


def _file(run: Path, job: str) -> Path:
    return run / "jobs" / job / "remote.json"


def _write(file: Path, data: bytes) -> None:
    make_folder(file.parent, levels=2)  # up to the run's folder
    replace_file(file, data + b"\n")
