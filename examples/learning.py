"""Do the agents learn?  The embedded default over five seeds, several trainers, and a control.

    python examples/learning.py                          # all arms, seeds 1 to 5
    python examples/learning.py --seeds 1 --arms malt    # one run

Each run is `nip-fn train --seed S` with the options of its arm.  All arms sample about as many
replies to train on.  The accuracy is that of the verifier on held-out problems, sampled at
temperature 1, before the first and after the last training.  The control trains the adapters of
MALT and records them, but goes on sampling with the base model (`text_rl.switch_adapters = false`),
so its difference is noise.

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

COMMAND = Path(sys.executable).parent / "nip-fn"
RESAMPLES = 10_000
ARMS = {
    "malt": ("--trainer=malt",),
    "ei": ("--trainer=ei",),
    "ei-then-malt": ("--trainer=malt", "--set=malt.num_initial_ei_iterations=1"),
    "control": ("--trainer=malt", "--set=text_rl.switch_adapters=false"),
}


class Outcome(NamedTuple):
    """What one run came to."""

    seed: int
    base: float  # held-out accuracy of the base model
    final: float  # held-out accuracy after the last training
    replies: int  # sampled to train on
    seconds: float

    @property
    def rise(self) -> float:
        """In points: 0.15 is 15 percentage points."""
        return self.final - self.base


def train(arm: str, seed: int, runs: Path, sets: list[str]) -> Outcome:
    """Train one run (or go on with it, where an earlier try was stopped), and read it back."""
    name = f"{arm}-{seed}"
    options = [*ARMS[arm], *(f"--set={assignment}" for assignment in sets)]
    if (runs / name / "checkpoint.msgpack").exists():
        options.append("--resume")
    began = time.monotonic()
    command = [str(COMMAND), "train", f"--seed={seed}", f"--run={name}", f"--runs={runs}"]
    subprocess.run([*command, *options], check=True, stdout=sys.stderr)
    seconds = time.monotonic() - began
    replayed = subprocess.run(
        [COMMAND, "replay", runs / name, "--json"], check=True, capture_output=True, text=True
    )
    records = json.loads(replayed.stdout)["iterations"]
    tested = [record["test.accuracy"] for record in records]
    replies = sum(int(record.get("sample.replies", 0)) for record in records)
    return Outcome(seed, tested[0], tested[-1], replies, seconds)


def bootstrap_interval(values: list[float]) -> tuple[float, float]:
    """The 95 % percentile bootstrap interval of the mean (Efron 1979), over the values given."""
    rng = np.random.default_rng(0)
    draws = rng.choice(np.array(values), size=(RESAMPLES, len(values)))
    low, high = np.percentile(draws.mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def print_table(outcomes: dict[str, list[Outcome]]) -> None:
    """One row a seed, one column an arm; and the mean rises with their intervals over seeds."""
    arms = list(outcomes)
    print(f"\n| seed | base model | {' | '.join(arms)} |\n|---:|---:|{'---:|' * len(arms)}")
    for row in zip(*outcomes.values(), strict=True):
        cells = " | ".join(f"{one.final:.1%} ({100 * one.rise:+.1f})" for one in row)
        print(f"| {row[0].seed} | {row[0].base:.1%} | {cells} |")
    rises = {arm: [one.rise for one in runs] for arm, runs in outcomes.items()}
    intervals = {arm: bootstrap_interval(values) for arm, values in rises.items()}
    means = " | ".join(
        f"{100 * sum(rises[arm]) / len(rises[arm]):+.1f} "
        f"[{100 * intervals[arm][0]:+.1f}, {100 * intervals[arm][1]:+.1f}]"
        for arm in arms
    )
    print(f"| mean rise | | {means} |")
    replies = (sum(one.replies for one in runs) // len(runs) for runs in outcomes.values())
    print(f"| replies | | {' | '.join(f'{count:,}' for count in replies)} |")
    seconds = (sum(one.seconds for one in runs) / len(runs) for runs in outcomes.values())
    print(f"| seconds | | {' | '.join(f'{mean:.0f}' for mean in seconds)} |")


def main() -> None:
    """Train, test, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="A.B=C")
    arguments = parser.parse_args()
    print_table(
        {
            arm: [train(arm, seed, arguments.runs, arguments.sets) for seed in arguments.seeds]
            for arm in arguments.arms
        }
    )


if __name__ == "__main__":
    main()
