"""The GPUs of this machine, found without a heavy library."""

import os
import subprocess

from nip_fn_adapters.serving.wire import GpuMemory


def visible_gpus() -> tuple[str, ...]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        # CUDA takes an empty text and -1 for no GPU at all.
        return tuple(name.strip() for name in listed.split(",") if name.strip() not in ("", "-1"))
    return tuple(str(i) for i in range(len(gpu_memory())))


def gpu_memory() -> tuple[GpuMemory, ...]:
    """All GPUs of this machine, in NVIDIA's order; () if there is none."""
    query = ("nvidia-smi", "--query-gpu=name,memory.used,memory.total")
    try:
        printed = subprocess.run(
            (*query, "--format=csv,noheader,nounits"),
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        ).stdout
        rows = [line.rsplit(",", 2) for line in printed.strip().splitlines()]
        return tuple(GpuMemory(name, _gib(used), _gib(total)) for name, used, total in rows)
    except (OSError, subprocess.SubprocessError, ValueError):
        return ()


def _gib(mib: str) -> float:
    """0 for what NVIDIA's tool does not tell: of machines whose GPU shares all memory."""
    return float(mib) / 1024 if mib.strip().isdigit() else 0.0
