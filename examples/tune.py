"""A search for hyperparameters: Optuna chooses the values, ASHA stops the runs that fall behind.

    pip install 'nip-fn[local]' 'ray[tune]' optuna
    python examples/tune.py --num 16 --jobs 2           # hours; with --provider dummy, a minute
    nip-fn ls --runs runs/tune

Each trial is an ordinary run in `runs/tune`, named by its values.  After a kill the same command
goes on: Tune restores its decisions, and each run that was under way resumes from its recording.

The winner was chosen by its tests: train it again with other seeds before you believe them.
"""

import argparse
import sys
import time
from collections.abc import Mapping
from functools import partial, reduce
from pathlib import Path
from threading import Thread
from typing import Any

from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.optuna import OptunaSearch
from returns.result import Failure, Result

from nip_fn.config.codec import merge, nest
from nip_fn.errors import Problem
from nip_fn_adapters import Run, resume, train
from nip_fn_adapters.recording.tracker import read_metrics

BASE: dict[str, Any] = {"dataset": "builtin:tea"}
SPACE = {
    "rl.lr": tune.loguniform(3e-5, 3e-3),
    "agents._default.dpo_beta": tune.loguniform(0.03, 0.3),
}
STAGE, METRIC = "test", "accuracy"  # of metrics.jsonl


def run_trial(values: Mapping[str, Any], base: Mapping[str, Any], runs: Path) -> None:
    """Train with these values, and report each test as soon as it is recorded."""
    written = (nest(address, value) for address, value in values.items())
    settings = reduce(merge, written, dict(base))
    names = (f"{address.rpartition('.')[2]}-{value:.6g}" for address, value in values.items())
    folder = runs / "-".join(names)
    ends: list[Result[Run, Problem]] = []

    def work() -> None:
        begun = (folder / "checkpoint.msgpack").exists()
        door = partial(resume, folder) if begun else partial(train, name=folder.name, runs=runs)
        ends.append(door(settings))

    training = Thread(target=work, daemon=True)  # a trial that is stopped ends with its process
    training.start()
    reported = 0
    while True:
        is_done = not training.is_alive()
        tests = [row for row in read_metrics(folder) if row["stage"] == STAGE and METRIC in row]
        for row in tests[reported:]:
            tune.report({"iteration": row["iteration"], METRIC: row[METRIC]})
        reported = len(tests)
        if is_done:
            if isinstance(ends[0], Failure):
                raise RuntimeError(str(ends[0].failure()))
            return
        time.sleep(0.2)


def search(
    base: Mapping[str, Any], space: Mapping[str, Any], runs: Path, *, num: int, jobs: int
) -> tune.ResultGrid:
    """The trials of a search, which goes on if it was begun before.

    Args:
        base: The configuration of all trials.
        space: Address -> the domain that its values are drawn from.
        runs: The folder of the runs; Tune's own files are in its subfolder `search`.
        num: The number of trials.
        jobs: The most trials at a time.
    """
    runs = runs.absolute()
    trial = tune.with_parameters(run_trial, base=base, runs=runs)
    folder = runs / "search"
    if tune.Tuner.can_restore(str(folder)):
        return tune.Tuner.restore(str(folder), trial, restart_errored=True).fit()
    config = tune.TuneConfig(
        metric=METRIC,
        mode="max",
        num_samples=num,
        max_concurrent_trials=jobs,
        search_alg=OptunaSearch(seed=0),
        # After 1, 2, 4, ... iterations the better half goes on; no run has as many as `max_t`.
        scheduler=ASHAScheduler(
            time_attr="iteration", grace_period=1, reduction_factor=2, max_t=1024
        ),
    )
    # A trial that is restored at once may meet the process that it had before: it tries again.
    stored = tune.RunConfig(
        name=folder.name,
        storage_path=str(runs),
        failure_config=tune.FailureConfig(max_failures=3),
        verbose=1,
    )
    tuner = tune.Tuner(trial, param_space=dict(space), tune_config=config, run_config=stored)
    return tuner.fit()


def main() -> None:
    """Search, and print the trials, the best first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num", type=int, default=16, help="the number of trials")
    parser.add_argument("--jobs", type=int, default=1, help="the most trials at a time")
    parser.add_argument("--runs", type=Path, default=Path("runs/tune"))
    parser.add_argument("--provider", help="of all agents, in place of the embedded model")
    options = parser.parse_args()
    agents = {"agents": {"_default": {"model_provider": options.provider}}}
    base = merge(BASE, agents) if options.provider else BASE
    trials = search(base, SPACE, options.runs, num=options.num, jobs=options.jobs)
    ended = [trial for trial in trials if trial.metrics and METRIC in trial.metrics]
    for trial in sorted(ended, key=lambda trial: -trial.metrics[METRIC]):
        values = "  ".join(f"{address} {trial.config[address]:.3g}" for address in SPACE)
        after = f"after iteration {trial.metrics['iteration']}"
        print(f"{STAGE}.{METRIC} {trial.metrics[METRIC]:.3f} {after}  {values}")
    if trials.errors:
        sys.exit(f"{trials.errors[0]}; again for the trials that have failed: the same command")


if __name__ == "__main__":
    main()
