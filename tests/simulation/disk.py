"""A disk that may be full, fail, or lose power, under real files.

The files are real, and so is all that reads and writes them; the disk is told what was synced, and
says what of the rest a power cut leaves: any part of what was appended, the old or the new content
of what was overwritten, and for each name in a folder the old or the new file.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from errno import EIO, ENOSPC
from pathlib import Path
from random import Random
from typing import Any

from .faults import Faults

WORST = 4.0  # times as likely as elsewhere is a death before a sync
_REAL = {name: getattr(os, name) for name in ("write", "fsync", "open", "replace")}


@dataclass(frozen=True)
class Image:
    """The content of a disk: folders (None) and files by their paths, as a restart finds them."""

    content: dict[Path, bytes | None]
    inodes: dict[Path, int] = field(
        default_factory=dict
    )  # empty after a power cut: all that is left is durable
    synced: dict[int, bytes] = field(
        default_factory=dict
    )  # as of the death: what is synced after it does not count
    names: dict[int, dict[str, int]] = field(default_factory=dict)


class Disk:
    """The files below a folder."""

    def __init__(self, root: Path, faults: Faults, die: Callable[[str], None]) -> None:
        """Empty.  `die` is called with the fault by which the process dies that writes."""
        self.root, self._faults, self._die = root, faults, die
        root.mkdir(parents=True)
        self._num_syncs = 0
        self._last_sync: dict[int, int] = {}  # by inode, the last sync of those that have ended
        self._synced: dict[int, bytes] = {}  # content by inode
        self._names: dict[int, dict[str, int]] = {}  # inodes by name, by the inode of the folder
        self._late: list[Callable[[], None]] | None = None

    # ------------------------------------------------------------------------ what programs call

    def write(self, descriptor: int, data: Any) -> int:
        if self._faults.hits("torn write"):
            _REAL["write"](descriptor, data[: self._faults.random.randrange(len(data) + 1)])
            self._die("kill")
            return len(data)
        if self._faults.hits("no space"):
            written = data[: self._faults.random.randrange(len(data))]
            if written and self._faults.random.random() < 0.5:
                _REAL["write"](descriptor, written)
            raise OSError(ENOSPC, "No space left on device")
        self._perhaps_die()
        return int(_REAL["write"](descriptor, data))

    def sync(self, descriptor: int, path: Path) -> None:
        self._perhaps_die(WORST)
        if self._faults.hits("input/output error"):
            raise OSError(EIO, "Input/output error")
        if path.is_dir():
            inode, names = path.stat().st_ino, _inodes(path)
            self._do(lambda: self._names.__setitem__(inode, names))
        else:
            inode, content = os.fstat(descriptor).st_ino, path.read_bytes()
            self._num_syncs += 1
            number = self._num_syncs
            self._do(lambda: self._keep(inode, content, number))
        self._perhaps_die()

    def sync_now(self, path: Path) -> None:
        """Make a file or the names in a folder durable, as a program outside does."""
        if path.is_dir():
            self._names[path.stat().st_ino] = _inodes(path)
        else:
            self._synced[path.stat().st_ino] = path.read_bytes()

    def replace(self, source: Path, target: Path) -> None:
        self._perhaps_die()
        if self._faults.hits("no space", 0.5):
            raise OSError(ENOSPC, "No space left on device", str(target))
        _REAL["replace"](source, target)

    def _perhaps_die(self, times: float = 1.0) -> None:
        if self._faults.hits("death at a write", times):
            self._die(self._faults.random.choice(("kill", "power cut")))

    def _keep(self, inode: int, content: bytes, number: int) -> None:
        # A slow sync may end after one that began later.
        if number > self._last_sync.get(inode, 0):
            self._synced[inode], self._last_sync[inode] = content, number

    def _do(self, change: Callable[[], None]) -> None:
        """Make something durable: now, or at the end of the thread that syncs."""
        change() if self._late is None else self._late.append(change)

    @contextmanager
    def slowly(self) -> Iterator[Callable[[], None]]:
        """Inside, a sync covers what was written before it; it is durable once the value is called.

        That is what a sync in a thread does at the least.
        """
        late: list[Callable[[], None]] = []
        self._late = late

        def finish() -> None:
            for change in late:
                change()

        try:
            yield finish
        finally:
            self._late = None

    # ---------------------------------------------------------------------------- after an end

    def durable(self, path: Path) -> bytes:
        """The bytes of a file that would survive a power cut now; none if its name would not."""
        inode: int | None = self.root.stat().st_ino
        for name in path.relative_to(self.root).parts:
            inode = self._names.get(inode, {}).get(name) if inode is not None else None
        return self._synced.get(inode, b"") if inode is not None else b""

    def image(self) -> Image:
        """The disk as a killed process leaves it."""
        paths = [self.root, *sorted(self.root.rglob("*"))]
        content = {path: None if path.is_dir() else path.read_bytes() for path in paths}
        inodes = {path: path.stat().st_ino for path in paths}
        return Image(content, inodes, dict(self._synced), dict(self._names))

    def image_after_power_cut(self, random: Random) -> Image:
        """The disk as a power cut leaves it."""
        paths = {path.stat().st_ino: path for path in (self.root, *self.root.rglob("*"))}
        image = Image({})
        self._survive(self.root.stat().st_ino, self.root, paths, random, image.content)
        return image

    def _survive(
        self, inode: int, path: Path, paths: dict[int, Path], random: Random, image: Any
    ) -> None:
        """Add to `image` what is left at a path of a file, or of a folder and all below it."""
        current = paths.get(inode)
        if not (inode in self._names or (current is not None and current.is_dir())):
            synced = self._synced.get(inode, b"")
            image[path] = _part(synced, current.read_bytes(), random) if current else synced
            return
        image[path] = None
        before, now = self._names.get(inode, {}), _inodes(current) if current else {}
        kept = {
            name: chosen
            for name in sorted({*before, *now})
            if (chosen := random.choice((before.get(name), now.get(name)))) is not None
        }
        # A rename is done or not: what it has moved is under one of the two names.
        for name, moved in before.items():
            if moved in now.values() and moved not in kept.values():
                kept[name] = moved
        for name, child in kept.items():
            is_twin = child in [kept[other] for other in kept if other < name]
            if not is_twin:
                self._survive(child, path / name, paths, random, image)

    def restore(self, image: Image) -> None:
        """Have that content; what was durable stays so, and after a power cut all of it is."""
        shutil.rmtree(self.root)
        moved: dict[int, int] = {}
        for path, content in image.content.items():
            if content is None:
                path.mkdir(exist_ok=True, parents=True)
            else:
                path.write_bytes(content)
            if path in image.inodes:
                moved[image.inodes[path]] = path.stat().st_ino
        if image.inodes:
            self._synced = {moved.get(inode, inode): data for inode, data in image.synced.items()}
            self._names = {
                moved.get(folder, folder): {name: moved.get(i, i) for name, i in names.items()}
                for folder, names in image.names.items()
            }
        else:
            files = {path: data for path, data in image.content.items() if data is not None}
            self._synced = {path.stat().st_ino: data for path, data in files.items()}
            folders = [path for path, data in image.content.items() if data is None]
            self._names = {folder.stat().st_ino: _inodes(folder) for folder in folders}


def _inodes(folder: Path) -> dict[str, int]:
    with os.scandir(folder) as entries:
        return {entry.name: entry.inode() for entry in entries}


def _part(synced: bytes, now: bytes, random: Random) -> bytes:
    """What is left of a file of which only `synced` was made durable."""
    if now.startswith(synced):
        return now[: random.randint(len(synced), len(now))]
    return random.choice((synced, now))


@contextmanager
def disks(all_disks: tuple[Disk, ...]) -> Iterator[None]:
    """Inside, what writes below the disks' folders does so on them."""
    roots = {str(disk.root): disk for disk in all_disks}

    def disk_of(path: str) -> Disk | None:
        return next(
            (disk for root, disk in roots.items() if f"{path}/".startswith(f"{root}/")), None
        )

    def path_of(descriptor: int) -> str:
        return os.readlink(f"/proc/self/fd/{descriptor}")

    def write(descriptor: int, data: Any) -> int:
        disk = disk_of(path_of(descriptor))
        return disk.write(descriptor, data) if disk else int(_REAL["write"](descriptor, data))

    def fsync(descriptor: int) -> None:
        path = path_of(descriptor)
        disk = disk_of(path)
        if disk:
            disk.sync(descriptor, Path(path))

    def replace(source: Any, target: Any, **options: Any) -> None:
        disk = disk_of(str(target))
        if disk:
            disk.replace(Path(source), Path(target))
        else:
            _REAL["replace"](source, target, **options)

    os.write, os.fsync, os.replace = write, fsync, replace  # type: ignore[assignment]
    try:
        yield
    finally:
        os.write, os.fsync, os.replace = _REAL["write"], _REAL["fsync"], _REAL["replace"]
