"""The processes of this machine, as the kernel lists them."""

from pathlib import Path


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
