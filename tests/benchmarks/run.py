"""All benchmarks, as one table.  Compare figures within one run: machines are noisy.

python tests/benchmarks/run.py              all, in ten minutes on two idle cores
python tests/benchmarks/run.py core train   some of them
"""

import sys
import time
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from rich.console import Console
from rich.table import Table

NAMES = (
    *("core", "scale", "data", "sampler", "sandbox", "train"),
    *("latency", "api", "pace", "budget", "vllm"),
)


def main(names: tuple[str, ...]) -> None:
    """Run benchmarks, tell on standard error which is under way, and print their figures."""
    table = Table("benchmark", "figure", box=None, pad_edge=False)
    for number, name in enumerate(names, 1):
        module = import_module(f"tests.benchmarks.bench_{name}")
        subject = (module.__doc__ or "").partition("\n")[0]
        print(f"[{number}/{len(names)}] {name}: {subject}", file=sys.stderr, flush=True)
        began = time.monotonic()
        for figure in module.run():
            table.add_row(*figure)
        print(f"    {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    Console(width=120, highlight=False).print(table)


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or NAMES)
