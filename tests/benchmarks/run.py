"""All benchmarks, as one table.  Compare figures within one run: machines are noisy.

python tests/benchmarks/run.py               all, in ten minutes on two idle cores
python tests/benchmarks/run.py core train    some of them
python tests/benchmarks/run.py scale --full  with the large sizes, which take some minutes each

Progress goes to standard error: each benchmark, what it measures, and each figure once it is taken.
"""

import argparse
import sys
import time
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from rich.console import Console
from rich.table import Table

# Seconds on two idle cores, without --full.
BENCHMARKS = {
    "api": 45,  # first: it measures the memory of this process, which the others make grow
    "core": 25,
    "scale": 40,
    "data": 35,
    "sampler": 10,
    "sandbox": 10,
    "train": 60,
    "latency": 60,
    "pace": 65,
    "budget": 50,
    "vllm": 120,  # where there is one
}


def main() -> None:
    """Run benchmarks, tell on standard error how far they are, and print their figures."""
    parser = argparse.ArgumentParser(description="Speed and memory, as a table.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--full", action="store_true", help="with the large sizes")
    options = parser.parse_args()
    if unknown := set(options.names) - set(BENCHMARKS):
        parser.error(f"there is no benchmark {min(unknown)}; choose from {', '.join(BENCHMARKS)}")
    names = options.names or list(BENCHMARKS)
    table = Table("benchmark", "figure", box=None, pad_edge=False)
    for number, name in enumerate(names, 1):
        module = import_module(f"tests.benchmarks.bench_{name}")
        subject = (module.__doc__ or "").partition("\n")[0]
        duration = "some minutes" if options.full else f"about {BENCHMARKS[name]} s"
        _tell(f"[{number}/{len(names)}] {name}, {duration}: {subject}")
        began = time.monotonic()
        for measure, figure in module.run(full=options.full):
            _tell(f"{time.monotonic() - began:7.0f} s  {measure}")
            table.add_row(measure, figure)
    Console(width=120, highlight=False).print(table)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
