"""Coverage of 95 % intervals where seeds and problems are crossed, by simulation.

    python tests/benchmarks/bench_coverage.py               # 4,000 experiments in each row
    python tests/benchmarks/bench_coverage.py --num 400

An experiment is a matrix of outcomes, seeds by problems.  The log-odds of a right decision are
m + seed + problem + rest, each normal; its true accuracy is known by integration.  Four intervals
compete: `crossed_share`, `crossed_interval`, `t_interval` over seeds, and the percentiles of a
bootstrap that resamples rows and columns (on fewer experiments: it takes long).

What to expect: `crossed_share` between 93 and 97 % in every row in which seeds differ by some
points; above that where seeds do not differ at all.  `t_interval` leaves out the luck of the
problems that all seeds share, percentiles of five seeds are too narrow, and `crossed_interval`
loses near accuracies of 1.
"""

import argparse
from functools import partial
from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nip_fn.metrics.inference import Estimate, crossed_interval, crossed_share, t_interval

RESAMPLES = 400


class World(NamedTuple):
    """The standard deviations of log-odds, and the size of an experiment."""

    centre: float  # of the log-odds
    seed: float
    problem: float
    rest: float  # of a seed on a problem
    seeds: int = 5
    problems: int = 400
    games: int = 1

    @property
    def truth(self) -> float:
        """The accuracy over all seeds and problems: the mean of the logistic of a normal."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(64)
        scale = sqrt(self.seed**2 + self.problem**2 + self.rest**2)
        values = 1 / (1 + np.exp(-(self.centre + scale * nodes)))
        return float(values @ weights / weights.sum())

    def outcomes(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """One experiment: the share of right decisions of each seed on each problem."""
        size = self.seeds, self.problems
        log_odds = (
            self.centre
            + self.seed * rng.normal(size=(self.seeds, 1))
            + self.problem * rng.normal(size=self.problems)
            + self.rest * rng.normal(size=size)
        )
        right = rng.random((self.games, *size)) < 1 / (1 + np.exp(-log_odds))
        found: NDArray[np.float64] = right.mean(axis=0)
        return found


WORLDS = {
    "80 %, seeds differ by 3 points": World(1.6, 0.2, 1.0, 0.5),
    "80 %, seeds differ by 6 points": World(1.6, 0.4, 1.0, 0.5),
    "80 %, seeds alike": World(1.6, 0.0, 1.0, 0.5),
    "80 %, problems alike": World(1.5, 0.3, 0.0, 0.0),
    "55 %": World(0.2, 0.2, 0.5, 0.3),
    "95 %": World(4.0, 0.4, 1.5, 0.5),
    "99 %": World(6.0, 0.5, 1.5, 0.5),
    "80 %, 8 games": World(1.6, 0.3, 1.0, 0.5, games=8),
    "80 %, 3 seeds": World(1.6, 0.3, 1.0, 0.5, seeds=3),
    "80 %, 1 seed": World(1.6, 0.0, 1.0, 0.0, seeds=1),
    "80 %, 10 seeds, 100 problems": World(1.6, 0.3, 1.0, 0.5, seeds=10, problems=100),
    "80 %, 5 seeds, 40 problems": World(1.6, 0.3, 1.0, 0.5, problems=40),
}


def over_seeds(outcomes_SP: NDArray[np.float64]) -> Estimate:
    """Student's interval of the seeds' means."""
    return t_interval(outcomes_SP.mean(axis=1).tolist())


def bootstrap(outcomes_SP: NDArray[np.float64], rng: np.random.Generator) -> Estimate:
    """Percentiles of the mean over resampled seeds and resampled problems (Owen 2007)."""
    seeds, problems = outcomes_SP.shape
    rows = rng.multinomial(seeds, [1 / seeds] * seeds, size=RESAMPLES)
    columns = rng.multinomial(problems, [1 / problems] * problems, size=RESAMPLES)
    means = ((rows @ outcomes_SP) * columns).sum(axis=1) / outcomes_SP.size
    low, high = np.percentile(means, [2.5, 97.5])
    return Estimate(float(outcomes_SP.mean()), float(low), float(high))


def main() -> None:
    """Print the coverage and the mean width of each interval in each world."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--num", type=int, default=4_000)
    num = parser.parse_args().num
    print(f"{'':32}{'share':>14}{'interval':>14}{'t':>14}{'bootstrap':>14}  coverage, width")
    for name, world in WORLDS.items():
        rng = np.random.default_rng(1)
        methods = (
            (num, crossed_share),
            (num, crossed_interval),
            (num, over_seeds),
            (num // 10, partial(bootstrap, rng=rng)),
        )
        experiments = [world.outcomes(rng) for _ in range(num)]
        cells = []
        for count, method in methods:
            found = [method(outcomes) for outcomes in experiments[:count]]
            inside = np.mean([one.low <= world.truth <= one.high for one in found])
            width = np.mean([one.high - one.low for one in found])
            cells.append(f"{inside:8.1%} {width:5.3f}")
        print(f"{name + f' ({world.truth:.1%})':32}{''.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
