"""Does the verifier learn?  The embedded default over five seeds, and a control for each.

    python examples/learning.py                 # seeds 1 to 5, about 25 minutes on two cores
    python examples/learning.py --seeds 1       # one seed and its control

Each run is `nip-fn train --trainer malt --seed S`.  The accuracy is that of the verifier on
held-out problems, sampled at temperature 1, before the first and after the last training.  The
control trains the same adapters and records them, but goes on sampling with the base model
(`text_rl.switch_adapters = false`), so its difference is noise.

What to expect: see the table in README.md.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nip_fn.keys import generator, key

COMMAND = Path(sys.executable).parent / "nip-fn"
RESAMPLES = 10_000


class Outcome(NamedTuple):
    """What one run came to."""

    seed: int
    base: float  # held-out accuracy of the base model
    final: float  # held-out accuracy after the last training
    seconds: float

    @property
    def rise(self) -> float:
        """In points: 0.15 is 15 percentage points."""
        return self.final - self.base


def train(seed: int, runs: Path, *, switch: bool, sets: list[str]) -> Outcome:
    """Train one run (or go on with it, where an earlier try was stopped), and read it back."""
    name = f"learning-{seed}" if switch else f"control-{seed}"
    options = [f"--set=text_rl.switch_adapters={str(switch).lower()}"]
    options += [f"--set={assignment}" for assignment in sets]
    if (runs / name / "checkpoint.msgpack").exists():
        options.append("--resume")
    began = time.monotonic()
    command = [str(COMMAND), "train", "--trainer=malt", f"--seed={seed}", f"--run={name}"]
    subprocess.run([*command, f"--runs={runs}", *options], check=True, stdout=sys.stderr)
    seconds = time.monotonic() - began
    replayed = subprocess.run(
        [COMMAND, "replay", runs / name, "--json"], check=True, capture_output=True, text=True
    )
    tested = [record["test.accuracy"] for record in json.loads(replayed.stdout)["iterations"]]
    return Outcome(seed, tested[0], tested[-1], seconds)


def bootstrap_interval(values: list[float]) -> tuple[float, float]:
    """The 95 % percentile bootstrap interval of the mean (Efron 1979), over the values given."""
    rng = generator(key(0))
    draws = rng.choice(np.array(values), size=(RESAMPLES, len(values)))
    low, high = np.percentile(draws.mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def print_table(title: str, outcomes: list[Outcome]) -> None:
    """One row a seed, and the mean with its interval over seeds."""
    print(f"\n{title}\n")
    print("| seed | base model | trained | rise | seconds |")
    print("|---:|---:|---:|---:|---:|")
    for one in outcomes:
        print(
            f"| {one.seed} | {one.base:.1%} | {one.final:.1%} | {100 * one.rise:+.1f} "
            f"| {one.seconds:.0f} |"
        )
    rises = [one.rise for one in outcomes]
    low, high = bootstrap_interval(rises)
    mean = sum(rises) / len(rises)
    print(
        f"\nmean rise {100 * mean:+.1f} points, 95 % bootstrap interval over seeds "
        f"[{100 * low:+.1f}, {100 * high:+.1f}], least {100 * min(rises):+.1f}"
    )


def main() -> None:
    """Train, test, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="A.B=C")
    parser.add_argument("--no-control", action="store_true")
    arguments = parser.parse_args()
    learned = [
        train(seed, arguments.runs, switch=True, sets=arguments.sets) for seed in arguments.seeds
    ]
    print_table("MALT", learned)
    if not arguments.no_control:
        control = [
            train(seed, arguments.runs, switch=False, sets=arguments.sets)
            for seed in arguments.seeds
        ]
        print_table("control: adapters trained, never switched", control)


if __name__ == "__main__":
    main()
