"""Whatever dies at whichever write, the run goes on as if nothing had happened."""

import os
from collections.abc import Callable
from errno import EIO
from pathlib import Path

import pytest

from nip_fn.run.digest import digest
from nip_fn.run.events import JobFinished
from nip_fn.run.ports import Store
from nip_fn_adapters.recording import store
from nip_fn_adapters.recording.store import CHECKPOINT

from ..core.games import one_by_one
from .conftest import AnsweringSession, SmallSession


class Died(Exception):
    """The process would be gone."""


class DyingStore:
    """A store that dies at its k-th write, after `share` of that write's bytes."""

    def __init__(self, inner: Store, k: int, share: float) -> None:
        self._inner, self._left, self._share = inner, k, share

    def append(self, frames: bytes) -> None:
        if self._left == 0:
            self._inner.append(frames[: int(len(frames) * self._share)])
            raise Died
        self._left -= 1
        self._inner.append(frames)

    def sync(self) -> None:
        """Leave it to the operating system: a dead process loses nothing that it has written."""


def _replies(folder: Path) -> int:
    recording = store.read_recording(folder / CHECKPOINT).unwrap()
    return len(one_by_one(recording.events))


class MeasuringStore:
    """A store that notes the size of each write."""

    def __init__(self, inner: Store, sizes: list[int]) -> None:
        self._inner, self._sizes = inner, sizes

    def append(self, frames: bytes) -> None:
        self._sizes.append(len(frames))
        self._inner.append(frames)

    def sync(self) -> None:
        self._inner.sync()


SHARES = (0.0, 0.4, 1.0)  # of the bytes of the last write


def _of_every_third(k: int) -> tuple[float, ...]:
    return () if k % 3 else (SHARES[k // 3 % len(SHARES)],)


def _every_one(k: int) -> tuple[float, ...]:
    return SHARES


@pytest.mark.parametrize(
    "shares", [_of_every_third, pytest.param(_every_one, marks=pytest.mark.exhaustive)]
)
@pytest.mark.parametrize("session", [SmallSession, AnsweringSession], ids=["given", "written"])
def test_a_run_that_died_at_any_write_ends_like_one_that_did_not(
    tmp_path: Path, session: type[SmallSession], shares: Callable[[int], tuple[float, ...]]
) -> None:
    sizes: list[int] = []
    whole = session(tmp_path / "whole")
    expected = digest(whole(lambda inner: MeasuringStore(inner, sizes)))
    data = (tmp_path / "whole" / CHECKPOINT).read_bytes()
    events = store.read_recording(tmp_path / "whole" / CHECKPOINT).unwrap().events
    total, start = _replies(tmp_path / "whole"), len(data) - sum(sizes)
    assert len(sizes) > 100
    assert sum(isinstance(event, JobFinished) for event in events) >= 2
    assert whole.asked.count == total
    for k, size in enumerate(sizes):
        for share in shares(k):
            folder = tmp_path / f"{k}-{share}"
            folder.mkdir()
            left = start + sum(sizes[:k]) + int(size * share)
            (folder / CHECKPOINT).write_bytes(data[:left])
            recorded = _replies(folder)
            resumed = session(folder)
            assert digest(resumed()) == expected, f"died at write {k}, of which {share} was written"
            assert resumed.asked.count == total - recorded


def test_a_run_can_die_again_and_again(tmp_path: Path, session: type[SmallSession]) -> None:
    expected = digest(session(tmp_path / "whole")())
    for _ in range(1000):
        try:
            state = session(tmp_path / "run")(lambda inner: DyingStore(inner, 7, 0.5))
        except Died:
            continue
        assert digest(state) == expected
        return
    pytest.fail("the run never ended")


def test_a_run_in_use_is_not_opened_twice(tmp_path: Path) -> None:
    first = store.create(tmp_path / "run").unwrap()
    assert "another process" in str(store.reopen(tmp_path / "run").failure())
    first.close()
    store.reopen(tmp_path / "run").unwrap().store.close()


def test_a_run_is_not_created_over_another(tmp_path: Path) -> None:
    store.create(tmp_path / "run").unwrap().close()
    before = (tmp_path / "run" / CHECKPOINT).read_bytes()
    assert "holds a run already" in str(store.create(tmp_path / "run").failure())
    assert (tmp_path / "run" / CHECKPOINT).read_bytes() == before


def test_a_recording_that_could_not_be_created_can_be_opened_by_the_same_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").is_file():
            raise OSError(EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="Input/output error"):
            store.create(tmp_path / "run")
    store.reopen(tmp_path / "run").unwrap().store.close()


def test_what_is_read_at_a_resume_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create(tmp_path / "run").unwrap().close()
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    reopened = store.reopen(tmp_path / "run").unwrap().store
    assert synced == [reopened._descriptor]
    reopened.close()


def test_the_names_of_a_new_run_and_of_its_parents_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    store.create(tmp_path / "of" / "runs" / "run").unwrap().close()
    folders = (
        tmp_path,
        tmp_path / "of",
        tmp_path / "of" / "runs",
        tmp_path / "of" / "runs" / "run",
    )
    assert set(map(str, folders)) <= set(synced)
