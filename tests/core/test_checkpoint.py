import json
import math
from typing import get_args
from zlib import crc32

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from returns.result import Failure, Success

from nip_fn.config.codec import from_dict, to_dict
from nip_fn.game.datapoint import Datapoint
from nip_fn.game.reply import Completion, FinishReason
from nip_fn.run import checkpoint
from nip_fn.run.checkpoint import MAGIC, Recording
from nip_fn.run.events import (
    FORMAT,
    BatchFetched,
    Checked,
    DatasetInfo,
    Event,
    Extended,
    Forked,
    JobCreated,
    JobFinished,
    Published,
    Replied,
    RunStarted,
    StageEnded,
)
from nip_fn.training.canary import Score

from .games import DATASET, Setup, make_params, setups

TEXT = st.text(max_size=30)
NATURAL = st.integers(0, 2**63)
NUMBER = st.floats(allow_nan=False)
COMPLETIONS = st.builds(
    Completion,
    text=st.none() | TEXT,
    finish_reason=st.sampled_from(get_args(FinishReason)),
    model=TEXT,
    prompt_tokens=NATURAL,
    completion_tokens=NATURAL,
)
DATAPOINTS = st.builds(
    Datapoint, TEXT, TEXT, TEXT, TEXT, label=st.integers(0, 1), stance=st.integers(0, 1)
)
SCORES = st.lists(st.builds(Score, NUMBER, NUMBER), max_size=3).map(tuple)
REPORTS = st.lists(st.tuples(TEXT, NUMBER), max_size=3).map(tuple)
PATHS = st.lists(st.integers(0, 9), max_size=4).map(tuple)
SIBLINGS = st.lists(st.tuples(NATURAL, COMPLETIONS), max_size=2).map(tuple)
EVENTS: dict[type, st.SearchStrategy[Event]] = {
    RunStarted: st.builds(
        RunStarted,
        params=setups().map(lambda setup: setup.params),
        dataset=st.builds(DatasetInfo, TEXT, TEXT, NATURAL, NATURAL, NATURAL),
        version=TEXT,
    ),
    BatchFetched: st.builds(BatchFetched, st.lists(DATAPOINTS, max_size=3).map(tuple)),
    Replied: st.builds(Replied, NATURAL, PATHS, NATURAL, NATURAL, NATURAL, COMPLETIONS, SIBLINGS),
    Checked: st.builds(Checked, NATURAL, TEXT, st.none() | st.integers(0, 1), TEXT),
    StageEnded: st.builds(StageEnded, NATURAL, TEXT, TEXT, NUMBER),
    JobCreated: st.builds(JobCreated, TEXT, TEXT),
    JobFinished: st.builds(JobFinished, TEXT, st.none() | TEXT, REPORTS, SCORES, TEXT),
    Published: st.builds(Published, TEXT, TEXT, st.lists(NUMBER, max_size=3).map(tuple), TEXT),
    Extended: st.builds(Extended, NATURAL),
    Forked: st.builds(Forked, setups().map(lambda setup: setup.params), TEXT, TEXT, TEXT),
}

REPLY = Replied(1, (0, 1), 1, 2, 0, Completion("Décision: <&> 🙂", "stop", "m", 3, 4))
SMALL: tuple[Event, ...] = (
    Published("g", "a"),
    REPLY,
    StageEnded(0, "test", "00ff", 0.25),
    JobFinished("g-0", "g-0-00", (("loss", 0.5),)),
)
FRAMES = [checkpoint.frame(event) for event in SMALL]
WHOLE = checkpoint.write(SMALL)
BORDERS = [len(checkpoint.header()) + sum(map(len, FRAMES[:n])) for n in range(len(FRAMES) + 1)]


# ------------------------------------------------------------------------------ there and back


def test_every_kind_of_event_is_tried() -> None:
    assert set(EVENTS) == set(get_args(Event))


@pytest.mark.parametrize("kind", EVENTS)
@settings(max_examples=30)
@given(data=st.data())
def test_reading_what_was_written_is_the_identity(kind: type, data: st.DataObject) -> None:
    event = data.draw(EVENTS[kind])
    written = checkpoint.write([event])
    (back,) = checkpoint.read(written).unwrap().events
    assert back == event
    assert type(back) is kind
    assert checkpoint.write([back]) == written  # 1.0 stays a float


@settings(max_examples=30)
@given(st.lists(st.one_of(*EVENTS.values()), max_size=6))
def test_a_recording_holds_its_events_in_their_order(events: list[Event]) -> None:
    data = checkpoint.write(events)
    assert checkpoint.read(data).unwrap() == Recording(tuple(events), len(data), 0)
    for limit in range(len(events) + 1):
        part = checkpoint.read(data, limit).unwrap()
        assert part.events == tuple(events[:limit])
        assert part.size == len(checkpoint.write(events[:limit]))


@given(setups())
def test_parameters_survive_json_and_their_table(setup: Setup) -> None:
    table = json.loads(json.dumps(to_dict(setup.params)))
    assert from_dict(table).unwrap() == setup.params
    assert to_dict(from_dict(table).unwrap()) == to_dict(setup.params)


@pytest.mark.parametrize("seed", [-(2**63), 2**63 - 1])
def test_a_seed_that_parameters_accept_can_be_written(seed: int) -> None:
    params = make_params({"seed": seed})
    event = RunStarted(params, DATASET, "1")
    assert checkpoint.read(checkpoint.write([event])).unwrap().events == (event,)


@pytest.mark.parametrize("seed", [-(2**63) - 1, 2**63, 2**70])
def test_a_seed_that_cannot_be_written_is_refused_with_the_parameters(seed: int) -> None:
    assert isinstance(from_dict({"seed": seed}), Failure)


@pytest.mark.parametrize("odd", [math.inf, -math.inf, math.nan, -0.0, 5e-324])
def test_odd_numbers_are_kept_bit_by_bit(odd: float) -> None:
    event = JobFinished("j", "a", (("loss", odd),))
    (back,) = checkpoint.read(checkpoint.write([event])).unwrap().events
    assert checkpoint.frame(back) == checkpoint.frame(event)
    assert isinstance(back, JobFinished)
    assert math.copysign(1, back.report[0][1]) == math.copysign(1, odd)


# ------------------------------------------------------------------------------------- damage


def is_honest(data: bytes) -> bool:
    """Whether what is read of damaged data is an error or some of the true events, in order."""
    result = checkpoint.read(data)
    if isinstance(result, Failure):
        return result.failure().kind in ("corrupt", "foreign", "newer")
    recording = result.unwrap()
    return (
        recording.events == SMALL[: len(recording.events)]
        and recording.size + recording.torn == len(data)
        and (not recording.events or recording.size == BORDERS[len(recording.events)])
    )


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_a_flipped_byte_anywhere_is_an_error(mask: int) -> None:
    for at in range(len(WHOLE)):
        data = bytearray(WHOLE)
        data[at] ^= mask
        result = checkpoint.read(bytes(data))
        assert isinstance(result, Failure), at
        assert result.failure().kind == ("foreign" if at < len(MAGIC) else "corrupt"), at


def test_a_flipped_length_is_damage_not_a_torn_tail() -> None:
    """Even where the length then reaches beyond the end, in a middle frame and in the last."""
    for border in BORDERS[:-1]:
        for byte, mask in ((0, 0x7F), (3, 0x40), (1, 0xFF)):
            data = bytearray(WHOLE)
            data[border + byte] ^= mask
            assert checkpoint.read(bytes(data)).failure().kind == "corrupt"


def test_a_file_cut_anywhere_holds_the_events_before_the_cut() -> None:
    for size in range(len(WHOLE) + 1):
        recording = checkpoint.read(WHOLE[:size]).unwrap()
        whole = [border for border in BORDERS if border <= size]
        kept = max(len(whole) - 1, 0)
        assert recording.events == SMALL[:kept], size
        assert recording.size == (whole[-1] if whole else 0), size
        assert recording.torn == size - recording.size, size


def test_a_cut_file_can_be_continued_where_it_was_cut_back() -> None:
    for size in range(BORDERS[0], len(WHOLE)):
        recording = checkpoint.read(WHOLE[:size]).unwrap()
        longer = WHOLE[: recording.size] + checkpoint.frame(REPLY)
        assert checkpoint.read(longer).unwrap() == Recording(
            (*recording.events, REPLY), len(longer), 0
        )


@given(st.integers(0, len(WHOLE)), st.binary(min_size=1, max_size=20), st.integers(0, 20))
def test_bytes_written_over_are_never_taken_for_events(at: int, junk: bytes, drop: int) -> None:
    assert is_honest(WHOLE[:at] + junk + WHOLE[at + drop :])


@given(st.binary(max_size=64))
def test_foreign_bytes_are_not_a_checkpoint(data: bytes) -> None:
    result = checkpoint.read(data)
    if checkpoint.header().startswith(data):
        assert result == Success(Recording((), 0 if len(data) < 16 else 16, len(data) % 16))
    elif not data.startswith(MAGIC):
        assert result.failure().kind == "foreign"
    else:
        assert isinstance(result, Failure) or result.unwrap().events == ()


@pytest.mark.parametrize("data", [b"PK\x03\x04", b"{}", b"\x93NUMPY", b"\x89PNG\r\n\x1a\n", b"\0"])
def test_other_files_are_foreign(data: bytes) -> None:
    assert checkpoint.read(data).failure().kind == "foreign"


def _header_of(format: int) -> bytes:
    fields = MAGIC + format.to_bytes(4, "little")
    return fields + crc32(fields).to_bytes(4, "little")


@pytest.mark.parametrize("format", [0, FORMAT + 1, 2**32 - 1])
def test_a_recording_in_another_format_is_refused_with_what_to_do(format: int) -> None:
    assert _header_of(FORMAT) == checkpoint.header()
    problem = checkpoint.read(_header_of(format) + b"whatever").failure()
    assert problem.kind == "newer"
    assert problem.problem == (
        f"written in format {format}; this version of nip-fn reads format {FORMAT}"
    )
    assert "pip install --upgrade nip-fn" in problem.remedy


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode(["no_such_event", 1]),
        msgspec.msgpack.encode(["published", 1, 2]),
        msgspec.msgpack.encode(["published", "g"]),
        msgspec.msgpack.encode(["published", "g", "a"]) + b"\0",
        b"\x93\xa9published\xa1\xff\xa1a",  # not UTF-8
    ],
)
def test_a_whole_frame_that_is_no_event_is_damage(payload: bytes) -> None:
    head = len(payload).to_bytes(4, "little") + crc32(payload).to_bytes(4, "little")
    data = WHOLE + head + crc32(head).to_bytes(4, "little") + payload
    problem = checkpoint.read(data).failure()
    assert problem.kind == "corrupt"
    assert f"event {len(SMALL)}" in problem.problem


def test_a_field_added_later_is_ignored_by_older_readers_and_a_missing_one_has_its_default() -> (
    None
):
    for fields, expected in (
        (["job_finished", "j", "a", [], [], "", "new"], JobFinished("j", "a", ())),
        (["job_finished", "j", "a"], JobFinished("j", "a", ())),
    ):
        payload = msgspec.msgpack.encode(fields)
        head = len(payload).to_bytes(4, "little") + crc32(payload).to_bytes(4, "little")
        data = checkpoint.header() + head + crc32(head).to_bytes(4, "little") + payload
        assert checkpoint.read(data).unwrap().events == (expected,)
