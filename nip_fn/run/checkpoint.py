"""Events as bytes: an append-only stream of checked frames.

    file   = header frame*
    header = magic (8 bytes)  format (u32)  CRC-32 of the 12 bytes before (u32)
    frame  = length (u32)  CRC-32 of the payload (u32)  CRC-32 of the 8 bytes before (u32)  payload

All integers are little-endian; a payload is one event as msgpack.  The head of a frame has a
checksum of its own, so a flipped bit in a length is never taken for a torn tail: whatever is torn
is a whole head whose payload is cut short, or the beginning of a head, at the end of the file.
"""

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple
from zlib import crc32

import msgspec
from returns.result import Failure, Result, Success

from nip_fn.errors import Problem
from nip_fn.run.events import FORMAT, Event

# As PNG's: no text in UTF-8 begins with its first byte, and a transfer that translates line ends
# changes its last one.
MAGIC = b"\x89nip-fn\n"
RESTORE = "restore the file from a backup, or look at the events before it with --until"

_HEADER = Struct("<8sII")
_HEAD = Struct("<III")
_encode = msgspec.msgpack.Encoder().encode
_OUTLINED = (b"run_started", b"stage_ended", b"extended", b"forked")
_decode = msgspec.msgpack.Decoder(Event).decode


class Recording(NamedTuple):
    """The events of a checkpoint, and how much of the file is whole."""

    events: tuple[Event, ...]
    size: int  # bytes of header and whole frames
    torn: int  # bytes after them: a frame that was being written when the writer died


def header() -> bytes:
    """The first bytes of a checkpoint."""
    fields = _HEADER.pack(MAGIC, FORMAT, 0)[:12]
    return fields + crc32(fields).to_bytes(4, "little")


def frame(event: Event) -> bytes:
    """The bytes that append one event."""
    payload = _encode(event)
    # Without a checksum of its own a damaged length would look like a torn tail, and all whole
    # frames behind it would be cut off as if they had never been written.
    head = _HEAD.pack(len(payload), crc32(payload), 0)[:8]
    return head + crc32(head).to_bytes(4, "little") + payload


def write(events: Iterable[Event]) -> bytes:
    """A whole checkpoint; `read(write(events))` gives the events back."""
    return header() + b"".join(map(frame, events))


def read(data: bytes, limit: int | None = None) -> Result[Recording, Problem]:
    """The events in `data`, the first `limit` of them if given, and how much of it is whole."""
    problem = _check_header(data)
    if problem:
        return Failure(problem)
    if len(data) < _HEADER.size:
        return Success(Recording((), 0, len(data)))
    events: list[Event] = []
    offset = _HEADER.size
    while offset < len(data) and (limit is None or len(events) < limit):
        event = _read_frame(data, offset, len(events))
        if isinstance(event, Problem):
            return Failure(event)
        if event is None:
            return Success(Recording(tuple(events), offset, len(data) - offset))
        events.append(event[0])
        offset = event[1]
    return Success(Recording(tuple(events), offset, 0))


def outline(data: bytes) -> tuple[Event, ...]:
    """The events that tell how far a run is: start, extensions, forks, the ends of its stages.

    All others are passed over undecoded, and so is whatever is damaged: () of another file.
    """
    events: list[Event] = []
    offset = _HEADER.size
    while data.startswith(MAGIC) and offset + _HEAD.size <= len(data):
        start = offset + _HEAD.size
        length, *_ = _HEAD.unpack_from(data, offset)
        # An event begins with the head of an array and its tag, a short text.
        if data[start + 2 : start + 16].startswith(_OUTLINED):
            event = _read_frame(data, offset, len(events))
            if not isinstance(event, tuple):
                break
            events.append(event[0])
        offset = start + length
    return tuple(events)


def _check_header(data: bytes) -> Problem | None:
    if not (data.startswith(MAGIC) or MAGIC.startswith(data)):
        return Problem(
            "not a nip-fn checkpoint",
            remedy="name a run's folder, or its checkpoint.msgpack",
            kind="foreign",
        )
    if len(data) < _HEADER.size:
        return None  # died while writing the header: an empty recording with a torn tail
    _, format, checksum = _HEADER.unpack_from(data)
    # Before the format is looked at: a flipped bit in it would send the user to upgrade.
    if checksum != crc32(data[:12]):
        problem = "the header does not match its checksum"
        return Problem(problem, remedy=RESTORE, kind="corrupt")
    if format != FORMAT:
        return Problem(
            f"written in format {format}; this version of nip-fn reads format {FORMAT}",
            remedy="upgrade with: pip install --upgrade nip-fn",
            kind="newer",
        )
    return None


def _read_frame(data: bytes, offset: int, index: int) -> tuple[Event, int] | Problem | None:
    """The event at `offset` and where the next one starts, or None where the tail is torn."""
    start = offset + _HEAD.size
    if start > len(data):
        return None
    length, checksum, head_checksum = _HEAD.unpack_from(data, offset)
    damaged = Problem(
        f"event {index}, at byte {offset}, does not match its checksum",
        remedy=RESTORE,
        kind="corrupt",
    )
    if head_checksum != crc32(data[offset : offset + 8]):
        # Zeros to the end are what a power cut can leave of frames that were not synced.
        return damaged if any(data[offset:]) else None
    if start + length > len(data):
        return None
    payload = data[start : start + length]
    if checksum != crc32(payload):
        return damaged
    try:
        # The checksum was right, so what cannot be decoded was written like that: by a later
        # version whose events this one does not know, or by another program.
        return _decode(payload), start + length
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Problem(
            f"event {index}, at byte {offset}, is unreadable: {error}",
            remedy=RESTORE,
            kind="corrupt",
        )
