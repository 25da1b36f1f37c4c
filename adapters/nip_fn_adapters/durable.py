"""Files that survive a crash: replaced whole, and synchronised with their folders."""

import os
import secrets
from pathlib import Path


def replace_file(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that a crash leaves either the old or the new content, whole."""
    # In the same folder, because a rename is atomic within one file system only; and under a name
    # that nobody else draws.  A process id is not: in a container each start has the same one, and
    # would meet the file that a killed one left.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_path(path.parent)


def make_folder(path: Path, levels: int = 1) -> None:
    """Create a folder, and those above it, so that a power cut leaves their names.

    `levels`: of the folders above it, those in which names may be new although they are there:
    whoever created them may have died before they were synced.
    """
    missing = sum(not folder.exists() for folder in (path, *path.parents))
    path.mkdir(parents=True, exist_ok=True)
    for folder in path.parents[: max(levels, missing)]:
        sync_path(folder)


def sync_path(path: Path) -> None:
    """Return once a file, or the names in a folder, would survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
