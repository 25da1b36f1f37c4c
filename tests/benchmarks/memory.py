"""The memory of this process."""

import resource
import sys
from pathlib import Path


def peak_megabytes() -> float:
    """The most memory that this process has held, in MB."""
    if sys.platform == "linux":
        # Not that of `getrusage`, which begins with the peak of whoever started this process.
        status = Path("/proc/self/status").read_text().splitlines()
        line = next(line for line in status if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
