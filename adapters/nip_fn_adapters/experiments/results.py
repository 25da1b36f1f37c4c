"""The ends of finished runs, kept under the hash of their recordings in the user's cache."""

from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import asdict
from returns.result import Result, Success

import nip_fn
from nip_fn.config.resolve import resolve
from nip_fn.errors import Problem, or_raise
from nip_fn.export.games import FAILURES
from nip_fn.metrics.forest import GameEnd
from nip_fn.params.run import HyperParameters
from nip_fn.run.events import DatasetInfo
from nip_fn.run.replay import StageForest
from nip_fn.run.stages import Done, StageName
from nip_fn.run.state import Origin, RunState, StageMetrics
from nip_fn.training.groups import Group
from nip_fn_adapters.data.opening import cache_folder
from nip_fn_adapters.durable import replace_file
from nip_fn_adapters.experiments.loading import load_once
from nip_fn_adapters.recording.runs import Run, beginnings

MOST_KEPT = 200  # runs, of some 100 kB each
HASH_SIZE = 16  # bytes


class GameCounts(NamedTuple):
    """The games of a stage, counted.

    stage, iteration: the stage.
    games: the number of its games.
    failures: one of `FAILURES` -> the number of such games.
    """

    stage: str
    iteration: int
    games: int
    failures: Mapping[str, int]


class RunEnd(NamedTuple):
    """The state after the last event of a recording, and the games of the last test, if any ended.

    Of a run that is `Done` the state has no `trainer_state`.
    """

    state: RunState
    last_test: GameCounts | None


def run_end(path: Path) -> Result[RunEnd, Problem]:
    """The end of the run in a checkpoint file, derived only once if the run is finished."""
    file: Path | None = None
    with suppress(OSError, msgspec.DecodeError):
        file = _cache_file(path)
        return Success(_read(file.read_bytes()))
    return load_once(str(path), path.parent).map(lambda run: _kept(run, file))


def count_games(stage: StageForest) -> GameCounts:
    """The games of a stage, counted."""
    games: tuple[GameEnd, ...] = stage.stats.games
    failures = {name: sum(map(holds, games)) for name, holds in FAILURES.items()}
    return GameCounts(stage.stage, stage.iteration, len(games), failures)


# All of a finished run's state but the values that its parameters name, and `trainer_state`, which
# may be of any type.
class _Finished(msgspec.Struct, frozen=True, array_like=True):
    params: HyperParameters
    dataset: DatasetInfo
    iteration: int
    groups: tuple[Group, ...]
    num_drawn: int
    rows: tuple[StageMetrics, ...]
    past: str
    origin: Origin | None
    seconds: tuple[tuple[int, StageName, float], ...]


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    finished: _Finished
    last_test: GameCounts | None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Kept).decode


# In the user's cache and not in the run's folder, which may have come from somebody else: what
# follows from its recording is then derived here, and nobody's word is taken for it.
def _cache_file(path: Path) -> Path:
    """The file of a run's end, named by a hash of all that the end follows from."""
    hashed = blake2b(path.read_bytes(), digest_size=HASH_SIZE)
    # Another version of the core may derive something else.
    for source in sorted(Path(nip_fn.__file__).parent.rglob("*.py")):
        hashed.update(source.read_bytes())
    return cache_folder().parent / "runs" / hashed.hexdigest()


def _kept(run: Run, file: Path | None) -> RunEnd:
    """The end of a run, which is written to the file if the run is finished and has no faults."""
    tests, state = run.stages("test"), run.state
    last_test = count_games(tests[-1]) if tests else None
    # What it derives by code of the user's own changes with that code.
    has_own_code = any(begun.sources for begun in beginnings(run.recording))
    if not isinstance(state.stage, Done) or state.faults or has_own_code or file is None:
        return RunEnd(state, last_test)
    fields = {name: getattr(state, name) for name in _Finished.__struct_fields__}
    data = _encode(_Kept(_Finished(**fields), last_test))
    # Where nothing can be written, the run is derived again the next time.
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, blake2b(data, digest_size=HASH_SIZE).digest() + data)
        files = sorted(file.parent.iterdir(), key=lambda path: path.stat().st_mtime)
        for path in files[:-MOST_KEPT]:
            path.unlink(missing_ok=True)
    return _read_state(_decode(data))


def _read(data: bytes) -> RunEnd:
    checksum, kept = data[:HASH_SIZE], data[HASH_SIZE:]
    if blake2b(kept, digest_size=HASH_SIZE).digest() != checksum:
        raise msgspec.DecodeError("the file is damaged")
    return _read_state(_decode(kept))


def _read_state(kept: _Kept) -> RunEnd:
    resolved = or_raise(resolve(kept.finished.params))
    return RunEnd(
        RunState(resolved=resolved, stage=Done(), **asdict(kept.finished)), kept.last_test
    )
