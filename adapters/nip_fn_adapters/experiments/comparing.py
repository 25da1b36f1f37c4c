"""Comparisons from Python: two sides, each of one run or more, problem by problem."""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from nip_fn.config.codec import changes
from nip_fn.errors import Problem
from nip_fn.metrics import comparison as metrics
from nip_fn.metrics.comparison import Comparison, Pairing
from nip_fn.metrics.evaluation import Verdicts, verdicts
from nip_fn.run.replay import StageForest
from nip_fn_adapters.experiments.casting import Version, version_of
from nip_fn_adapters.experiments.outcomes import outcome, refuse
from nip_fn_adapters.recording.runs import Run, known_runs
from nip_fn_adapters.recording.store import CHECKPOINT

Runs = str | Run | Sequence[str | Run]


class Side(NamedTuple):
    """One of the two that are compared.

    name: as the caller names it.
    runs: the names of its runs.
    tests: a test of each run.
    """

    name: str
    runs: tuple[str, ...]
    tests: tuple[StageForest, ...]


class RunComparison(NamedTuple):
    """Two sides, and what their tests differ by.

    first, second: the sides.
    pair: "seed" if the n-th runs of both sides belong together.
    comparison: the accuracies, their difference, and the problems that changed sides.
    parameters: (address, first value, second value) where the first runs of both sides differ; of
      several runs a side, without their seeds.
    """

    first: Side
    second: Side
    pair: Pairing
    comparison: Comparison
    parameters: tuple[tuple[str, Any, Any], ...]


@outcome
def compare(
    first: Runs, second: Runs, *, pair: Pairing | None = None, runs: Path | str = "runs"
) -> RunComparison:
    """Compare the last tests of two runs, or of two sets of runs: `nip-fn compare`.

    Args:
        first: The runs of one side: a run, "NAME", "NAME@ITERATION", "A,B,C", "malt-*", or a
            sequence of these.
        second: The runs of the other side.
        pair: By "seed", the n-th runs of both sides belong together; by "datapoint", only the
            problems are the same.  None: by seed where both sides have the same seeds.
        runs: The folder of all runs.

    Returns:
        The comparison, on the problems that all tests have.  A failure if a run does not exist or
        has no such test, if they share no problem, or if they cannot be paired.
    """
    sides = _side(first, Path(runs)), _side(second, Path(runs))
    seeds = [[test.params.seed for test in side.tests] for side in sides]
    # Trainings from the same seeds, in the same order, are pairs unless it is said otherwise.
    pairing: Pairing = pair or ("seed" if seeds[0] == seeds[1] else "datapoint")
    try:
        comparison = metrics.compare(_verdicts(sides[0]), _verdicts(sides[1]), pairing)
    except ValueError as error:
        remedy = "compare runs that were tested on the same data, as many on each side"
        refuse(Problem(str(error), f"{sides[0].name} and {sides[1].name}", remedy))
    return RunComparison(*sides, pairing, comparison, tuple(_parameters(*sides)))


def _verdicts(side: Side) -> list[Verdicts]:
    return [verdicts(test.batch.datapoints, test.batch.trees) for test in side.tests]


def _side(runs_of_side: Runs, runs: Path) -> Side:
    listed = (runs_of_side,) if isinstance(runs_of_side, str | Run) else runs_of_side
    versions = [version for run in listed for version in _versions(run, runs)]
    names = tuple(version.given for version in versions)
    name = runs_of_side if isinstance(runs_of_side, str) else ",".join(names)
    return Side(name, names, tuple(map(_test, versions)))


def _versions(run: str | Run, runs: Path) -> list[Version]:
    """The run itself, or those that a comma-separated list of names and patterns stands for."""
    if isinstance(run, Run):
        name = run.path.parent.name
        return [Version(name, name, run, None)]
    names = [name for part in run.split(",") for name in _matching(part, runs)]
    return [version_of(name, runs) for name in names]


def _matching(pattern: str, runs: Path) -> list[str]:
    """The runs whose names match a pattern, or the name itself if it is none."""
    name, separator, iteration = pattern.partition("@")
    if not any(wildcard in name for wildcard in "*?["):
        return [pattern]
    names = sorted(path.parent.name for path in runs.glob(f"*/{CHECKPOINT}"))
    matching = [f"{run}{separator}{iteration}" for run in names if fnmatchcase(run, name)]
    if not matching:
        refuse(Problem("no run has such a name", pattern, known_runs(runs), kind="run"))
    return matching


def _test(version: Version) -> StageForest:
    """The last test of a run, or that of the iteration that was asked for."""
    tests = version.run.stages("test", version.iteration)
    if not tests:
        tested = ", ".join(str(test.iteration) for test in version.run.stages("test"))
        problem = "the run has no finished test" + (" of that iteration" if tested else "")
        remedy = f"its tests are of iterations {tested}" if tested else "let it end its first test"
        refuse(Problem(problem, version.given, remedy, kind="run"))
    return tests[-1]


def _parameters(first: Side, second: Side) -> Iterator[tuple[str, Any, Any]]:
    several = len(first.tests) > 1 or len(second.tests) > 1
    for address, values in changes(first.tests[0].params, second.tests[0].params).items():
        if not (several and address == "seed"):
            yield address, *values
