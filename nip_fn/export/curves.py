"""The curves of a run: what its tests, samplings and trainings measured, by iteration."""

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from nip_fn.export.svg import Chart, Point, Series
from nip_fn.game.decision import ACCEPT, REJECT
from nip_fn.metrics.decisions import agreement, histogram, thresholds
from nip_fn.metrics.forest import GameEnd
from nip_fn.metrics.formulas import effective_size, totals, wilson_interval
from nip_fn.metrics.inference import Estimate
from nip_fn.metrics.oversight import Judged, judged
from nip_fn.metrics.stage import verdict
from nip_fn.run.replay import Replayed, StageForest
from nip_fn.run.state import RunState
from nip_fn.trees.rollouts import Rollout

Game = Rollout | GameEnd
Holds = Callable[[Game], bool]


class Spent(NamedTuple):
    """Tokens and dollars of an agent's replies in a stage, or of a group's training.

    name: of the agent, or of the group.
    dollars: None if the price is unknown.
    """

    iteration: int
    stage: str
    name: str
    model: str
    dollars: float | None
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    trained: float = 0.0


def charts(replayed: Replayed, spent: Sequence[Spent]) -> tuple[Chart, ...]:
    """All curves of a run for which it has values, the most telling ones first."""
    state = replayed.state
    tests = [stage for stage in replayed.stages if stage.stage == "test"]
    return tuple(
        chart._replace(series=series)
        for chart in (*_of_tests(state, tests), *_of_stages(state), *_of_costs(spent))
        if (series := tuple(curve for curve in chart.series if curve.points))
    )


# ------------------------------------------------------------------------------------------- tests


def _of_tests(state: RunState, tests: Sequence[StageForest]) -> Iterator[Chart]:
    held = "Games about held-out datapoints; the band is the 95 % interval."
    games = [
        (stage.iteration, [*zip(stage.stats.games, stage.stats.weights, strict=True)])
        for stage in tests
    ]

    def curve(name: str, holds: Holds, among: Holds = lambda game: True) -> Series:
        shares = (
            (iteration, share_of_games(test_games, holds, among)) for iteration, test_games in games
        )
        return Series(
            name, tuple(Point(iteration, *estimate) for iteration, estimate in shares if estimate)
        )

    yield Chart("Held-out accuracy", (accuracy_curve(state),), percent, held)
    by_class = (
        curve("buggy", is_right, lambda game: game.label == REJECT),
        curve("right", is_right, lambda game: game.label == ACCEPT),
    )
    yield Chart(
        "Accuracy by class",
        by_class,
        percent,
        "Share of buggy solutions that are rejected, and of right ones that are accepted.",
    )
    ends = (curve("undecided", is_undecided), curve("reply cut", attrgetter("was_cut")))
    yield Chart(
        "Undecided, and cut",
        ends,
        percent,
        "Share of games without a verdict, and with a reply that met its token limit.",
    )
    yield Chart(
        "Agreement with the first test",
        _agreement(tests),
        percent,
        "Chance that a game of the first test and one of this test about the same problem end "
        "alike; at the first test that of two of its own games, less than 100 % by sampling alone.",
    )
    fails = _series(state, "test", (("", "always_fail_share"),))
    yield Chart(
        "Datapoints that always fail",
        fails,
        percent,
        "Share of held-out datapoints of which no game is right.",
    )
    agents = [agent.name for agent in state.params.agents]
    rewards = _series(state, "test", [(name, f"{name}.reward") for name in agents])
    yield Chart("Reward in a test", rewards, signed, "Mean over games of each agent's reward.")


def _agreement(tests: Sequence[StageForest]) -> tuple[Series, ...]:
    """A curve over all problems, and one for each class; of tests about the same problems."""
    by_iteration = [(stage.iteration, _judged(stage)) for stage in tests]
    same = [
        (iteration, test) for iteration, test in by_iteration if test.ids == by_iteration[0][1].ids
    ]
    alike = (
        [(iteration, agreement(same[0][1], test)) for iteration, test in same]
        if len(same) > 1
        else []
    )
    return tuple(
        Series(
            name,
            tuple(
                Point(iteration, value)
                for iteration, shares in alike
                if (value := getattr(shares, field)) is not None
            ),
        )
        for name, field in (("all", "overall"), ("right", "right"), ("buggy", "buggy"))
    )


def _judged(stage: StageForest) -> Judged:
    return judged(stage.batch.protocol, stage.batch.datapoints, stage.batch.trees)


def decision_charts(test: StageForest) -> Iterator[Chart]:
    """The decisions of a test over the verifier's credence, if it has more degrees than two."""
    judged = _judged(test)
    counted = histogram(judged)
    if len(counted.levels) < 3:
        return
    kinds = tuple(
        Series(name, tuple(Point(level.credence, getattr(level, name)) for level in counted.levels))
        for name in ("right", "buggy")
    )
    undecided = sum(counted.undecided)
    caption = "Games about right and about buggy solutions by the credence with which they ended"
    yield Chart("Credence", kinds, count, f"{caption}; {undecided:,} were not decided.", "credence")
    lines = [threshold for threshold in thresholds(judged) if threshold.credence <= 1]
    names = ("accuracy", "true_positives", "false_positives", "precision")
    curves = (
        Series(
            name.replace("_", " "),
            tuple(
                Point(threshold.credence, value)
                for threshold in lines
                if (value := getattr(threshold, name)) is not None
            ),
        )
        for name in names
    )
    yield Chart(
        "If it accepted from there on",
        tuple(curve for curve in curves if curve.points),
        percent,
        "Accuracy, shares of right and of buggy solutions accepted, and share of right ones among "
        "those accepted, if the line were drawn at that credence.",
        "credence",
    )


def accuracy_curve(state: RunState, name: str = "accuracy") -> Series:
    """The accuracy of each test, with the interval that the run logged."""
    rows = ((row.iteration, dict(row.metrics)) for row in state.rows if row.stage == "test")
    return Series(
        name,
        tuple(
            Point(iteration, metrics["accuracy"], metrics["accuracy_low"], metrics["accuracy_high"])
            for iteration, metrics in rows
            if "accuracy" in metrics
        ),
    )


def is_right(game: Game) -> bool:
    """True if the game was decided as its datapoint's label says."""
    return verdict(game) == game.label


def is_undecided(game: Game) -> bool:
    """True if the game ended without a decision."""
    return game.status != "decided"


def share_of_games(
    games: Sequence[tuple[Game, float]], holds: Holds, among: Holds = lambda game: True
) -> Estimate | None:
    """The share of games of which something holds, with Wilson's interval.

    Games about one datapoint count as a cluster (`effective_size`), as in a run's own accuracy.

    Args:
        games: Games and their weights.
        holds: True of the games to be counted.
        among: True of the games of which they are a share.

    Returns:
        The share; None if there are no games.
    """
    counted_games = [
        (game.datapoint.id, holds(game), weight) for game, weight in games if among(game)
    ]
    if not counted_games:
        return None
    ids, hits, weights = zip(*counted_games, strict=True)
    about = totals(ids, weights)
    counted = totals(zip(ids, hits, strict=True), weights)
    size = effective_size(
        ((w, counted[id, True] / w) for id, w in about.items()), len(counted_games)
    )
    value = totals(hits, weights)[True] / sum(about.values())
    return Estimate(value, *wilson_interval(value * size, size))


# ------------------------------------------------------------------------------ samples, trainings


def _of_stages(state: RunState) -> Iterator[Chart]:
    agents = [agent.name for agent in state.params.agents]
    groups = [group.name for group in state.groups]
    pairs = _series(
        state,
        "sample",
        [(name, f"{name}.{metric}") for name in agents for metric in ("pairs", "chosen")],
    )
    yield Chart(
        "Selected for training",
        pairs,
        count,
        "Preference pairs, or dialogues to imitate, by agent and iteration.",
    )
    margins = _series(state, "sample", [(name, f"{name}.margin") for name in agents])
    yield Chart(
        "Margin of pairs",
        margins,
        number,
        "Mean difference of expected reward between the chosen and the rejected reply.",
    )
    losses = _series(state, "train", [(name, f"{name}.loss_last") for name in groups])
    yield Chart("Training loss", losses, number, "At the end of each training, by model group.")
    canaries = _series(state, "publish", [(name, f"{name}.canary_gap") for name in groups])
    yield Chart(
        "Canary",
        canaries,
        number,
        "Mean distance of a token's log-probability, in nats, between what was trained "
        "and what answers after the switch of adapters.",
    )
    lengths = _series(state, "test", (("", "episode_length"),))
    yield Chart("Rounds of a game", lengths, number, "Mean over the games of a test.")
    tokens = (
        *_series(state, "test", (("test", "tokens"),)),
        *_series(state, "sample", (("sample", "tokens"),)),
    )
    yield Chart("Tokens written", tokens, count, "In the replies of each stage.")


def _series(state: RunState, stage: str, names: Sequence[tuple[str, str]]) -> tuple[Series, ...]:
    """A curve for each (name of the curve, name of the metric) of a stage."""
    rows = [(row.iteration, dict(row.metrics)) for row in state.rows if row.stage == stage]
    return tuple(
        Series(
            name,
            tuple(
                Point(iteration, metrics[metric])
                for iteration, metrics in rows
                if metric in metrics
            ),
        )
        for name, metric in names
    )


# ------------------------------------------------------------------------------------------- costs


def _of_costs(spent: Sequence[Spent]) -> Iterator[Chart]:
    by_iteration: dict[int, float] = {}
    for entry in spent:
        if entry.dollars is None:
            return
        by_iteration[entry.iteration] = by_iteration.get(entry.iteration, 0.0) + entry.dollars
    if any(by_iteration.values()):
        total, points = 0.0, []
        for iteration, cost in sorted(by_iteration.items()):
            total += cost
            points.append(Point(iteration, total))
        yield Chart("Dollars", (Series("in all", tuple(points)),), in_dollars, "Spent so far.")


# ---------------------------------------------------------------------------------------- written


def percent(value: float) -> str:
    """A share as a percentage."""
    return f"{100 * value:.1f} %".replace(".0 %", " %")


def signed(value: float) -> str:
    """A reward, with its sign."""
    # A true minus sign, which is as wide as a plus.
    return f"{value:+.2f}".replace("-", "−") if round(value, 2) else "0.00"


def number(value: float) -> str:
    """A measure without a unit."""
    return f"{value:.3g}".replace("-", "−")


def count(value: float) -> str:
    """A whole number, with its thousands."""
    return f"{value:,.0f}"


def in_dollars(value: float) -> str:
    """An amount."""
    return f"${value:,.2f}" if value >= 100 or value == 0 else f"${value:.4g}"
