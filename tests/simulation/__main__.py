"""Play schedules, and print what came of them.

python -m tests.simulation --seeds 10000               the first 10,000
python -m tests.simulation --seed 57                   one, again; if a law is broken, shrunk
python -m tests.simulation --seed 57 --only "kill, stop" --faulty 2
"""

import argparse
import logging
import sys
import time
from collections import Counter
from collections.abc import Sequence

from .rare import STATES
from .world import FAULTY_SESSIONS, Report, play


def repeat_line(seed: int, only: Sequence[str] | None = None, faulty: int | None = None) -> str:
    """The command that plays a schedule again."""
    options = [f"--seed {seed}"]
    if only is not None:
        options.append(f'--only "{", ".join(only)}"')
    if faulty is not None:
        options.append(f"--faulty {faulty}")
    return f"python -m tests.simulation {' '.join(options)}"


def shrink(report: Report) -> tuple[Report, list[str], int]:
    """The same law broken with fewer kinds of faults and faulty sessions: the fewest that do it."""
    law = report.broken[0][0]
    kinds, faulty = sorted(report.faults), report.sessions

    def breaks(kinds: Sequence[str], faulty: int) -> Report | None:
        again = play(report.seed, only=kinds, faulty=faulty)
        return again if again.broken and again.broken[0][0] == law else None

    for kind in tuple(kinds):
        fewer = [kept for kept in kinds if kept != kind]
        if smaller := breaks(fewer, faulty):
            report, kinds = smaller, fewer
    while faulty and (smaller := breaks(kinds, faulty - 1)):
        report, faulty = smaller, faulty - 1
    return report, kinds, faulty


def main() -> int:
    """Play what the options say; the exit code is 1 if a law was broken."""
    parser = argparse.ArgumentParser(description="Play schedules of the simulated world.")
    parser.add_argument("--seeds", type=int, default=100, help="number of schedules")
    parser.add_argument("--first", type=int, default=0, help="seed of the first")
    parser.add_argument("--seed", type=int, help="one schedule alone")
    parser.add_argument("--only", help="kinds of faults, separated by commas")
    parser.add_argument("--faulty", type=int, default=FAULTY_SESSIONS, help="faulty sessions")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    seeds = range(options.first, options.first + options.seeds)
    only = None
    if options.only is not None:
        only = [kind.strip() for kind in options.only.split(",")]
    broken: list[Report] = []
    sessions = asked = 0
    faults, reached = Counter[str](), Counter[str]()
    began = time.process_time()
    for seed in [options.seed] if options.seed is not None else seeds:
        report = play(seed, only=only, faulty=options.faulty)
        sessions, asked = sessions + report.sessions, asked + report.asked
        faults, reached = faults + report.faults, reached + report.reached
        if report.broken:
            broken.append(report)
            law, detail = report.broken[0]
            print(f"{repeat_line(seed)}: {law}: {detail}", flush=True)
    count = 1 if options.seed is not None else options.seeds
    took = 1000 * (time.process_time() - began) / count
    print(f"{count:,} schedules, {sessions:,} sessions, {asked:,} replies, {took:.0f} ms each")
    print(f"{faults.total():,} faults: {_counts(faults)}")
    print(f"{sum(1 for state in STATES if reached[state])} of {len(STATES)} rare states: ", end="")
    print(_counts(Counter({state: reached[state] for state in STATES})))
    print(f"{len(broken)} schedules broke a law")
    if broken and options.seed is not None and only is None:
        smallest, kinds, faulty = shrink(broken[0])
        print(f"{repeat_line(options.seed, kinds, faulty)}: {smallest.broken[0]}")
    return bool(broken)


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in counts.most_common())


if __name__ == "__main__":
    sys.exit(main())
