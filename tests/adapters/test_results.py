"""The ends of runs that are kept: equal to what a replay derives, and never another run's."""

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from nip_fn.export.games import FAILURES
from nip_fn_adapters.data.opening import CACHE_VARIABLE, cache_folder
from nip_fn_adapters.experiments import loading, results
from nip_fn_adapters.experiments.results import RunEnd, run_end
from nip_fn_adapters.recording.runs import load_run
from nip_fn_adapters.recording.store import CHECKPOINT

RECORDED = Path(__file__).parents[1] / "recorded" / "0.3"


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))


@pytest.fixture
def derivations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the runs that were derived."""
    names: list[str] = []

    def counted(name: str, runs: Path) -> object:
        names.append(name)
        return loading.load_once(name, runs)

    monkeypatch.setattr(results, "load_once", counted)
    return names


def kept_files() -> list[Path]:
    return sorted((cache_folder().parent / "runs").glob("*"))


def copied(recording: Path, folder: Path) -> Path:
    folder.mkdir()
    return Path(shutil.copyfile(recording, folder / CHECKPOINT))


def end_of(path: Path) -> RunEnd:
    return run_end(path).unwrap()


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.msgpack")), ids=lambda path: path.stem)
def test_an_end_that_is_kept_is_the_one_that_is_derived(path: Path) -> None:
    first = end_of(path)
    run = load_run(path).unwrap()
    state = replace(run.state, trainer_state=first.state.trainer_state)
    assert first == end_of(path)
    assert first.state == state
    tests = run.stages("test")
    assert (first.last_test is None) == (not tests)
    if first.last_test is not None:
        games = tests[-1].games()
        failures = {name: sum(map(holds, games)) for name, holds in FAILURES.items()}
        assert first.last_test == ("test", tests[-1].iteration, len(games), failures)


def test_a_finished_run_is_derived_once_wherever_it_lies(
    recorded_run: Path, tmp_path: Path, derivations: list[str]
) -> None:
    path = recorded_run / CHECKPOINT
    elsewhere = copied(path, tmp_path / "elsewhere")
    assert end_of(path) == end_of(path) == end_of(elsewhere)
    assert len(derivations) == 1
    assert len(kept_files()) == 1


def test_a_damaged_file_is_derived_and_written_again(
    recorded_run: Path, derivations: list[str]
) -> None:
    path = recorded_run / CHECKPOINT
    end = end_of(path)
    (kept,) = kept_files()
    whole = kept.read_bytes()
    flipped = (bytes([whole[0] ^ 1]) + whole[1:], whole[:-1] + bytes([whole[-1] ^ 1]))
    for damaged in (b"", whole[:-1], *flipped):
        kept.write_bytes(damaged)
        assert end_of(path) == end
        assert kept.read_bytes() == whole
    assert len(derivations) == 5


def test_another_recording_is_another_run(
    recorded_run: Path, tmp_path: Path, derivations: list[str]
) -> None:
    end_of(recorded_run / CHECKPOINT)
    longer = copied(recorded_run / CHECKPOINT, tmp_path / "torn")
    longer.write_bytes(longer.read_bytes() + b"\0")
    end_of(longer)
    assert len(derivations) == 2


def test_a_run_that_is_not_finished_is_not_kept(recorded_run: Path, tmp_path: Path) -> None:
    path = copied(recorded_run / CHECKPOINT, tmp_path / "stopped")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    assert end_of(path) == end_of(path)
    assert not kept_files()


def test_a_cache_that_cannot_be_written_costs_only_time(
    recorded_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = end_of(recorded_run / CHECKPOINT)
    (tmp_path / "file").touch()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file"))
    assert end_of(recorded_run / CHECKPOINT) == end


def test_the_ends_that_were_kept_first_are_removed_first(
    recorded_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "MOST_KEPT", 1)
    first = copied(recorded_run / CHECKPOINT, tmp_path / "first")
    end_of(first)
    first.write_bytes(first.read_bytes() + b"\0")
    end_of(first)
    assert len(kept_files()) == 1
