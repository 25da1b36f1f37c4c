"""Do the agents learn to prove, and is it the interaction?  Ways of training on the lady's tea.

    python examples/learning.py                     # all arms, seeds 1 to 5, two models: hours
    python examples/learning.py --seeds 1 --models builtin:tea --arms malt prover-silent

Every run is `nip-fn train` with the options of its arm, all on the same problems; what was done is
not done again.  Three arms learn: MALT, Expert Iteration, and the first after the second.  The
others must not: in them the prover is frozen, says anything or nothing (a verifier alone, in the
same format), or the preferred reply is the longer one, or either by a coin.

Accuracy is that of the verifier on held-out cups, at the temperature of training and greedily.
Intervals are over seeds and problems, crossed; differences are paired, and their p-values corrected
for the number of arms.  What to expect: see the table in README.md.
"""

import argparse
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nip_fn import crossed_share, holm, paired_difference
from nip_fn.run.replay import StageForest
from nip_fn_adapters import load_run
from nip_fn_adapters.runs import Run

Outcomes = NDArray[np.float64]
COMMAND = Path(sys.executable).parent / "nip-fn"
CONTROLS = Path(__file__).parent / "controls.py"


def scripted(strategy: str) -> tuple[str, ...]:
    """The options of a prover that plays by a script."""
    return (
        "--set=agents.prover.model_provider=scripted",
        f"--set=agents.prover.model_name={strategy}",
    )


ARMS: dict[str, tuple[str, ...]] = {
    "malt": (),
    "ei": ("--trainer=ei",),
    "ei-then-malt": ("--set=malt.num_initial_ei_iterations=2",),
    "prover-frozen": ("--set=agents.prover.freeze_agent=true",),
    "prover-random": scripted("random"),
    "prover-silent": scripted("silent"),
    "prefer-longer": (f"--set=malt.pair_selection_method={CONTROLS}:LONGER",),
    "prefer-by-coin": (f"--set=malt.pair_selection_method={CONTROLS}:SHUFFLED",),
}


class Case(NamedTuple):
    """A training."""

    arm: str
    model: str
    seed: int

    @property
    def name(self) -> str:
        """The name of its run."""
        return f"{self.arm}-{self.model.rpartition(':')[2]}-seed-{self.seed}"

    @property
    def options(self) -> tuple[str, ...]:
        """The options of `nip-fn train` that describe it."""
        return (
            f"--seed={self.seed}",
            f"--set=agents._default.model_name={self.model}",
            *ARMS[self.arm],
        )


class Outcome(NamedTuple):
    """The tests of a training before and after it: `[P]` 1 where the verifier was right.

    accepted: (of true claims, of false ones), at the temperature of training.
    cups: mean number of cups that the verifier names.
    """

    before_P: Outcomes
    after_P: Outcomes
    greedy_before_P: Outcomes
    greedy_after_P: Outcomes
    accepted: tuple[float, float]
    cups: float
    replies: int  # sampled to train on
    seconds: float


def outcome(case: Case, runs: Path) -> Outcome:
    """Train a case, test it greedily before and after, and read all three back."""
    run = train(runs, case.name, case.options)
    greedy = [
        train(runs, f"{case.name}-greedy-{version}", greedily(case, version)).stages("test")[0]
        for version in ("base", "latest")
    ]
    first, *_, last = run.stages("test")
    tests = [dict(row.metrics) for row in run.state.rows if row.stage == "test"]
    sampled = [dict(row.metrics) for row in run.state.rows if row.stage == "sample"]
    return Outcome(
        right(first),
        right(last),
        right(greedy[0]),
        right(greedy[1]),
        accepted=(tests[-1]["accuracy_1"], 1 - tests[-1]["accuracy_0"]),
        cups=tests[-1].get("tea.cups", 0.0),
        replies=int(sum(metrics["replies"] for metrics in sampled)),
        seconds=sum(seconds for _, _, seconds in run.state.seconds),
    )


def train(runs: Path, name: str, options: Sequence[str]) -> Run:
    """The run of `nip-fn train` with these options: started, resumed, or read where it is done."""
    folder = runs / name
    known = ["--resume"] if (folder / "checkpoint.msgpack").exists() else []
    command = [str(COMMAND), "train", f"--run={name}", f"--runs={runs}", *known, *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return load_run(folder).unwrap()


def greedily(case: Case, version: str) -> tuple[str, ...]:
    """The options of a test at temperature 0 of the model after a case, or of its base."""
    played = [option for option in case.options if "agents.prover.model" in option]
    loaded = (
        f"--set=agents.{agent}.{field}"
        for agent in ("verifier", *(() if played else ("prover",)))
        for field in (
            "load_checkpoint_and_parameters=true",
            f"checkpoint_run_id={case.name}",
            f"checkpoint_version={version}",
        )
    )
    return (
        *("--set=rl.num_iterations=0", "--set=text_rl.test_temperature=0", f"--seed={case.seed}"),
        *played,
        *loaded,
    )


def right(stage: StageForest) -> Outcomes:
    """`[P]` 1 where the one game about a problem was decided as its label says."""
    games = stage.games()
    return np.array(
        [
            game.decision is not None and game.decision.discrete == game.datapoint.label
            for game in games
        ],
        dtype=float,
    )


def print_table(outcomes: Mapping[str, Sequence[Outcome]]) -> None:
    """A row for each arm, its trainings as the rows of the matrices of outcomes."""
    print(
        "| arm | trainings | T = 1: before | after | T = 0: before | after | true claims accepted "
        "| false ones | cups | replies | seconds |"
    )
    print(f"|---|{'---:|' * 10}")
    for arm, runs in outcomes.items():
        shares = [
            share([getattr(one, name) for one in runs])
            for name in ("before_P", "after_P", "greedy_before_P", "greedy_after_P")
        ]
        means = [
            f"{np.mean([one.accepted[0] for one in runs]):.1%}",
            f"{np.mean([one.accepted[1] for one in runs]):.1%}",
            f"{np.mean([one.cups for one in runs]):.1f}",
            f"{np.mean([one.replies for one in runs]):,.0f}",
            f"{np.mean([one.seconds for one in runs]):.0f}",
        ]
        print(f"| {arm} | {len(runs)} | {' | '.join([*shares, *means])} |")
    rises = {
        arm: paired_difference([r.after_P for r in runs], [r.before_P for r in runs])
        for arm, runs in outcomes.items()
    }
    print("\n| arm | rise at T = 1 in points [95 %] | p (Holm) |\n|---|---:|---:|")
    corrected = holm([rise.p for rise in rises.values()])
    for (arm, rise), p in zip(rises.items(), corrected, strict=True):
        value, low, high = (100 * x for x in rise[:3])
        print(f"| {arm} | {value:+.1f} [{low:+.1f}, {high:+.1f}] | {p:.2g} |")


def share(outcomes_SP: Sequence[Outcomes]) -> str:
    """A mean with its interval over trainings and problems, crossed."""
    value, low, high = crossed_share(outcomes_SP)
    return f"{value:.1%} [{low:.1%}, {high:.1%}]"


def main() -> None:
    """Train, test, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--models", nargs="+", default=["builtin:tea", "builtin:tea-2"])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    given = parser.parse_args()
    print_table(
        {
            arm: [
                outcome(Case(arm, *where), given.runs)
                for where in product(given.models, given.seeds)
            ]
            for arm in given.arms
        }
    )


if __name__ == "__main__":
    main()
