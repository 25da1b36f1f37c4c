"""All benchmarks, as one table.  Compare figures within one run: machines are noisy."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from rich.console import Console
from rich.table import Table

from tests.benchmarks import (
    bench_api,
    bench_budget,
    bench_core,
    bench_data,
    bench_latency,
    bench_pace,
    bench_sampler,
    bench_sandbox,
    bench_scale,
    bench_train,
    bench_vllm,
)


def main() -> None:
    """Run and print."""
    table = Table("benchmark", "figure", box=None, pad_edge=False)
    for module in (
        bench_core,
        bench_scale,
        bench_data,
        bench_sampler,
        bench_sandbox,
        bench_train,
        bench_latency,
        bench_api,
        bench_pace,
        bench_budget,
        bench_vllm,
    ):
        for name, figure in module.run():
            table.add_row(name, figure)
    Console(width=120, highlight=False).print(table)


if __name__ == "__main__":
    main()
