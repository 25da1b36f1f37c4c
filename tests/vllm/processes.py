"""What the kernel says about processes."""

from pathlib import Path
from typing import NamedTuple


class Use(NamedTuple):
    """What a process group holds."""

    processes: int
    resident: float  # MiB
    files: int


def members(group: int) -> list[Path]:
    """The living processes of a group, in /proc."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, own = (folder / "stat").read_text().rsplit(")", 1)[1].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(own) == group and state != "Z":
            found.append(folder)
    return found


def use(group: int) -> Use:
    """What the group holds now."""
    folders = members(group)
    pages = sum(int((folder / "statm").read_text().split()[1]) for folder in folders)
    files = sum(len(list((folder / "fd").iterdir())) for folder in folders)
    return Use(len(folders), pages * 4096 / 2**20, files)
