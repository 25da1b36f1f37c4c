"""Checkpoints that nobody's run wrote: forged, nested, empty and foreign ones, by name."""

from collections.abc import Iterator
from typing import Any
from zlib import crc32

import msgspec

from nip_fn.run import checkpoint

BIG = (10**6 + 1, 10**9, 10**12, 2**62)
NESTED = (600, 2_000, 200_000)


def frame(payload: bytes) -> bytes:
    """A frame with right checksums around any bytes."""
    head = len(payload).to_bytes(4, "little") + crc32(payload).to_bytes(4, "little")
    return head + crc32(head).to_bytes(4, "little") + payload


def nested(depth: int, *, of: bytes = b"\x91") -> bytes:
    """MessagePack of arrays (or maps with the key 0) in one another."""
    return of * depth + b"\xc0"


def forged(recorded: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of each kind of forgery, made from the recording of an honest run."""
    events: list[Any] = msgspec.msgpack.decode(
        msgspec.msgpack.encode(checkpoint.read(recorded).unwrap().events)
    )
    yield from _empty_and_foreign(recorded)
    yield from _nested(events)
    yield from _absurd_start(events)
    yield from _absurd_events(events)


def _written(events: list[Any]) -> bytes:
    return checkpoint.header() + b"".join(frame(msgspec.msgpack.encode(one)) for one in events)


def _empty_and_foreign(recorded: bytes) -> Iterator[tuple[str, bytes]]:
    header = checkpoint.header()
    yield "empty", b""
    yield "header", header
    for size in range(1, len(header)):
        yield f"header cut to {size}", header[:size]
    for size in (1, 11, 12, 40):
        yield f"header and {size} zeros", header + bytes(size)
    for name, data in {
        "zip": b"PK\x03\x04",
        "json": b'{"seed": 1}',
        "numpy": b"\x93NUMPY\x01\x00",
        "png": b"\x89PNG\r\n\x1a\n",
        "elf": b"\x7fELF",
        "gzip": b"\x1f\x8b",
        "pickle": b"\x80\x04cposix\nsystem\n.",
        "sqlite": b"SQLite format 3\x00",
        "zeros": bytes(4096),
        "text": b"\x1b]52;c;cm0=\x07 hello\n",
        "translated": header.replace(b"\n", b"\r\n"),
        "transcoded": header.decode("latin-1").encode() + b"x",
    }.items():
        yield f"foreign {name}", data
    for version in (3, 99, 2**32 - 1):
        fields = header[:8] + version.to_bytes(4, "little")
        yield f"schema {version}", fields + crc32(fields).to_bytes(4, "little")
    for size in (2**20, 2**31, 2**32 - 1):
        head = size.to_bytes(4, "little") + bytes(4)
        yield f"frame of {size} bytes", header + head + crc32(head).to_bytes(4, "little")
    yield "twice", recorded + recorded
    yield "two headers", header + recorded


def _nested(events: list[Any]) -> Iterator[tuple[str, bytes]]:
    header = checkpoint.header()
    start = msgspec.msgpack.encode(events[0])
    for depth in NESTED:
        for kind, of in (("array", b"\x91"), ("map", b"\x81\x00")):
            bomb = nested(depth, of=of)
            yield f"{kind} {depth} deep", header + frame(bomb)
            for tag in ("run_started", "batch_fetched", "replied", "stage_ended", "published"):
                payload = b"\x92" + msgspec.msgpack.encode(tag) + bomb
                yield f"{tag} of {kind} {depth} deep", header + frame(payload)
            longer = bytes([start[0] + 1]) + start[1:] + bomb
            yield f"field after the last, {kind} {depth} deep", header + frame(longer)
    for tag in (b"\xdd", b"\xdf", b"\xdb", b"\xc6"):  # array, map, text, bytes
        claim = tag + (2**32 - 1).to_bytes(4, "big")
        yield f"claims 4 GB by {tag.hex()}", header + frame(claim)
        payload = b"\x92" + msgspec.msgpack.encode("batch_fetched") + claim
        yield f"batch claims 4 GB by {tag.hex()}", header + frame(payload)


def _absurd_start(events: list[Any]) -> Iterator[tuple[str, bytes]]:
    """Recordings that begin with parameters or sizes that no run has."""

    def started(address: str, value: object) -> bytes:
        event = msgspec.msgpack.decode(msgspec.msgpack.encode(events[0]))
        at, *path = address.split(".")
        place = event[1] if at == "params" else event
        if at == "dataset":
            event[2] = [*event[2]]
            event[2][int(path[0])] = value
        else:
            for part in path[:-1]:
                place = place[int(part) if part.isdigit() else part]
            place[path[-1]] = value
        return _written([event, *events[1:]])

    sizes = (
        "rl.rollouts_per_iteration",
        "rl.frames_per_batch",
        "rl.num_test_iterations",
        "rl.num_iterations",
        "nip_protocol.max_message_rounds",
        "malt.num_responses_per_timestep",
        "malt.num_initial_ei_iterations",
        "ei.rollouts_per_iteration",
        "agents.0.num_responses",
        "agents.0.num_invalid_generation_retries",
        "agents.0.lora_rank",
        "agents.1.num_epochs",
    )
    for address in sizes:
        for value in (*BIG, 0, -1, 2**63, 1.5, None, "many", [1], {}):
            yield f"{address} = {value!r}", started(f"params.{address}", value)
    for rounds in (101, 500, 5_000):
        name = f"{rounds} rounds"
        yield name, started("params.nip_protocol.max_message_rounds", rounds)
    for field, value in (
        ("interaction_protocol", "no_such_game"),
        ("interaction_protocol", ""),
        ("interaction_protocol", "\x1b]52;c;cm0=\x07"),
        ("interaction_protocol", "no_such_file.py:game"),
        ("interaction_protocol", "no.such.module:game"),
        ("interaction_protocol", "debate"),
        ("trainer", "no_such_trainer"),
        ("trainer", "os:system"),
        ("malt.pair_selection_method", "no_such_rule"),
        ("malt.pair_selection_method", "os:getcwd"),
        ("dataset", "x" * 10**6),
        ("seed", 2**63),
        ("seed", 2**64 - 1),
        ("agents", []),
        ("agents", {}),
        ("test_dataset_split", "train"),
        ("agents.0.name", "nobody"),
        ("agents.0.name", "verifier"),
        ("agents.0.shared_model_group", "\x1b[2J"),
        ("agents.0.system_prompt_template", "{{ nothing }}"),
        ("agents.0.system_prompt_template", "{% for a in range(3) %}"),
        ("agents.0.system_prompt_template", "{{ ''.__class__.__mro__ }}"),
        ("agents.0.system_prompt_template", "{{ 'x' * 10 ** 12 }}"),
        ("ei.weighting_sample_size_factor", 1e6),
        ("protocol_common.verifier_reward", float("nan")),
        ("protocol_common.verifier_reward", float("inf")),
        ("protocol_common.verifier_reward", 1e308),
        ("unknown", 1),
    ):
        yield f"{field} = {str(value)[:40]!r}", started(f"params.{field}", value)
    for place, value in ((0, 5), (1, None), (2, 0), (2, -1), (3, 0), (4, 0)):
        yield f"dataset {place} = {value!r}", started(f"dataset.{place}", value)
    for place in (2, 3, 4):
        for value in BIG:
            yield f"dataset {place} = {value}", started(f"dataset.{place}", value)
    for count in (5, 100):
        agents = [events[0][1]["agents"][0]] * count
        yield f"{count} agents", started("params.agents", agents)


def _absurd_events(events: list[Any]) -> Iterator[tuple[str, bytes]]:
    """Recordings whose later events fit nothing, or not together."""
    kinds = {event[0]: at for at, event in reversed([*enumerate(events)])}
    for tag, at in kinds.items():
        yield f"without the first {tag}", _written([*events[:at], *events[at + 1 :]])
        yield f"{tag} alone", _written([events[at]])
        yield f"{tag} twice", _written([*events[:at], events[at], *events[at:]])
        yield f"{tag} at the beginning", _written([events[at], *events])
        yield f"{tag} at the end", _written([*events, events[at]])
        for field in range(1, len(events[at])):
            for value in (None, -1, 2**62, "x" * 1000, [], [[]], {}, 0.5):
                event = [*events[at][:field], value, *events[at][field + 1 :]]
                name = f"{tag} with field {field} = {str(value)[:20]}"
                yield name, _written([*events[:at], event, *events[at + 1 :]])
    yield "backwards", _written(events[::-1])
    reply = kinds["replied"]
    for path in ([0] * 100_000, [2**62], [-1], [0, 0, 0, 0, 0, 0, 0, 0]):
        event = [*events[reply][:2], path, *events[reply][3:]]
        yield f"path of {len(path)} {path[0]}", _written([*events[:reply], event, *events])
    for tokens in (-(2**62), 2**62, 10**18):
        completion = [*events[reply][6][:3], tokens, tokens, *events[reply][6][5:]]
        event = [*events[reply][:6], completion]
        yield f"{tokens} tokens", _written([*events[:reply], event, *events[reply + 1 :]])
    yield "no such event", _written([*events, ["no_such_event", 1]])
    extended = ["extended", 2**62]
    yield "extended for ever", _written([*events, extended])
    yield "no events but an end", _written([["stage_ended", 0, "test", "0" * 32, 0.0]])
