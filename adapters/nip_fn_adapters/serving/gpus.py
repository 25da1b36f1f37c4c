"""The GPUs of this machine, found without a heavy library."""

import os
import subprocess
from collections.abc import Sequence


def visible_gpus() -> tuple[str, ...]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        # CUDA takes an empty text and -1 for no GPU at all.
        return tuple(name.strip() for name in listed.split(",") if name.strip() not in ("", "-1"))
    try:
        printed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, check=True, timeout=30
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    # The indented lines are MIG devices, parts of the GPU above them.
    number = sum(line.startswith("GPU ") for line in printed.splitlines())
    return tuple(map(str, range(number)))


def shares(gpus: Sequence[str], replicas: int) -> tuple[tuple[str, ...], ...]:
    """The GPUs of each replica: an equal number for each, or one that several replicas share.

    >>> shares(("0", "1", "2"), 1), shares(("0", "1", "2"), 2), shares(("0",), 2), shares((), 2)
    ((('0', '1', '2'),), (('0',), ('1',)), (('0',), ('0',)), ((), ()))
    """
    each = max(1, len(gpus) // replicas)
    starts = (i * each % max(1, len(gpus)) for i in range(replicas))
    return tuple(tuple(gpus[start : start + each]) for start in starts)
