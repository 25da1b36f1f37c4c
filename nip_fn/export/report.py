"""A recorded run as the records of a page: what it is, its models, its cost, and all the rest."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import fsum
from typing import Any, NamedTuple

from msgspec import to_builtins

from nip_fn.config.codec import params_hash, to_dict, unusual
from nip_fn.export.curves import (
    Spent,
    accuracy_curve,
    charts,
    decision_charts,
    is_right,
    is_undecided,
)
from nip_fn.export.forests import ForestView, view_forests
from nip_fn.export.games import OutcomesView, TestView, view_outcomes, view_test
from nip_fn.export.improvements import BestReplies, Cells, cells, improvements_of
from nip_fn.export.svg import Chart, Series
from nip_fn.export.views import ONE_PAGE, PageLimits, letters_of
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.registry import protocol_of
from nip_fn.run.digest import digest
from nip_fn.run.events import FORMAT
from nip_fn.run.replay import Replayed, summary
from nip_fn.run.stages import Growing
from nip_fn.run.state import RunState
from nip_fn.training.groups import Group
from nip_fn.training.tuning import fall_of_a_chosen_reply


class RunView(NamedTuple):
    """A run, ready to be shown; its fields are the parts of a page."""

    id: str
    name: str
    lede: str
    tiles: tuple[tuple[str, str, str], ...]  # (name, value, remark)
    facts: tuple[tuple[str, str], ...]
    faults: tuple[str, ...]
    agents: tuple[tuple[str, str, str, str], ...]  # (letter, name, role, model)
    charts: tuple[Chart, ...]
    decisions: tuple[Chart, ...]  # of the last test, over credences
    accuracy: Series
    improvements: tuple[Cells, ...]  # before and after, beside the optimum, where it is known
    outcomes: OutcomesView | None
    forests: tuple[ForestView, ...]
    last_test: TestView | None
    groups: tuple[Group, ...]
    trainings: Mapping[str, tuple[str, ...]]  # the numbers of each adapter's training, by its name
    spent: tuple[Spent, ...]
    settings: tuple[tuple[str, str, str], ...]  # (address, value, default) where they differ
    data: Mapping[str, Any]


def view_run(
    name: str,
    replayed: Replayed,
    spent: Sequence[Spent],
    *,
    version: str,
    best_replies: Sequence[BestReplies] = (),
    id: str = "r0",
    limits: PageLimits = ONE_PAGE,
) -> RunView:
    """The records of a run.

    Args:
        name: Of the run.
        replayed: The run, derived from its recording.
        spent: What it used and cost, by stage.
        version: Of nip-fn, that recorded it.
        best_replies: The exact attacks of its verifiers.
        id: A prefix of the page's anchors, different for each run on a page.
        limits: The most that the page shows.
    """
    state = replayed.state
    params, protocol = state.params, protocol_of(state.params)
    tests = [stage for stage in replayed.stages if stage.stage == "test"]
    return RunView(
        id=id,
        name=name,
        lede=_lede(replayed),
        tiles=_tiles(replayed, spent),
        facts=_facts(replayed, version),
        faults=state.faults,
        agents=tuple(
            (letter, spec.name, spec.role, agent.model_name)
            for letter, spec, agent in zip(
                letters_of(protocol), protocol.agents, params.agents, strict=True
            )
        ),
        charts=charts(replayed, spent),
        decisions=tuple(chart for stage in tests[-1:] for chart in decision_charts(stage)),
        accuracy=accuracy_curve(state, name),
        improvements=tuple(map(cells, improvements_of(state, best_replies))),
        outcomes=view_outcomes(id, tests, limits),
        forests=view_forests(id, replayed, limits),
        last_test=view_test(id, tests[-1], limits) if tests else None,
        groups=state.groups,
        trainings=_trainings(state),
        spent=_by_name(spent),
        settings=_settings(params),
        data=_data(name, replayed, spent),
    )


# ------------------------------------------------------------------------------------ what it is


def _lede(replayed: Replayed) -> str:
    state, stage = replayed.state, replayed.state.stage
    params = state.params
    models = ", ".join(dict.fromkeys(agent.model_name for agent in params.agents))
    if stage.name == "done":
        now = "It is finished."
    elif isinstance(stage, Growing):
        now = (
            f"It is under way: iteration {state.iteration}, {stage.name}, "
            f"{stage.num_waiting:,} replies to come."
        )
    else:
        now = f"It is under way: iteration {state.iteration}, {stage.name}."
    num = params.rl.num_iterations
    what = (
        f"{params.trainer.upper() if params.trainer in ('ei', 'malt') else params.trainer} over "
        f"{num} iteration{'s' * (num > 1)}"
        if num
        else "A test"
    )
    return f"{what} of {params.interaction_protocol} on {state.dataset.name} with {models}. {now}"


def _tiles(replayed: Replayed, spent: Sequence[Spent]) -> tuple[tuple[str, str, str], ...]:
    curve = accuracy_curve(replayed.state).points
    tiles = []
    if curve:
        last = curve[-1]
        remark = f"{100 * (last.low or 0):.1f} to {100 * (last.high or 0):.1f} %"
        if len(curve) > 1:
            remark = f"from {100 * curve[0].y:.1f} %; {remark}"
        tiles.append(("Held-out accuracy", f"{100 * last.y:.1f} %", remark))
    tests = [stage for stage in replayed.stages if stage.stage == "test"]
    if tests:
        games = tests[-1].stats.games
        wrong = sum(not is_right(game) and not is_undecided(game) for game in games)
        undecided = sum(map(is_undecided, games))
        tiles.append(
            (
                "Wrong in the last test",
                f"{wrong:,}",
                f"of {len(games):,} games; {undecided:,} undecided",
            )
        )
    samples = [stage for stage in replayed.stages if stage.stage == "sample"]
    if samples:
        trees = [tree for stage in samples for tree in stage.batch.trees]
        nodes = sum(tree.num_nodes for tree in trees)
        tiles.append(("Trees", f"{len(trees):,}", f"{nodes:,} nodes"))
        pairs = sum(len(stage.selection.pairs) for stage in samples)
        if pairs:
            tiles.append(
                (
                    "Preference pairs",
                    f"{pairs:,}",
                    f"in {len(samples)} iteration{'s' * (len(samples) > 1)}",
                )
            )
    costs = [entry.dollars for entry in spent]
    tokens = sum(entry.prompt + entry.completion for entry in spent)
    cost = "price unknown" if None in costs else f"${fsum(c for c in costs if c):,.2f}"
    seconds = fsum(seconds for _, _, seconds in replayed.state.seconds)
    tiles.append(("Cost", cost, f"{_short(tokens)} tokens read and written"))
    tiles.append(("Time", _duration(seconds), "in stages that ended"))
    return tuple(tiles)


def _short(value: float) -> str:
    for size, name in ((1e9, "billion"), (1e6, "million")):
        if value >= size:
            return f"{value / size:.1f} {name}"
    return f"{value:,.0f}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{seconds:.1f} s"


def _facts(replayed: Replayed, version: str) -> tuple[tuple[str, str], ...]:
    state = replayed.state
    data = state.dataset
    return (
        ("Protocol", state.params.interaction_protocol),
        ("Trainer", state.params.trainer),
        (
            "Data",
            f"{data.name}: {data.train_size:,} train, {data.validation_size:,} validation, "
            f"{data.test_size:,} test; {data.hash}",
        ),
        ("Seed", str(state.params.seed)),
        ("Configuration", params_hash(state.params)),
        ("Recorded by", f"nip-fn {version}, format {FORMAT}"),
        ("Events", f"{replayed.num_events:,}"),
        (
            "Digest",
            f"{digest(state)} ({'DIFFERS from the recorded one' if state.faults else 'verified'})",
        ),
    )


def _settings(params: HyperParameters) -> tuple[tuple[str, str, str], ...]:
    return tuple(
        (address, _shown(value), _shown(default))
        for address, (value, default) in unusual(params).items()
    )


def _shown(value: Any) -> str:
    return (
        "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )


# ------------------------------------------------------------------------------------------ models


def _trainings(state: RunState) -> dict[str, tuple[str, ...]]:
    """The numbers of each adapter's training in words, by its name."""
    measured: dict[tuple[int, str], dict[str, float]] = defaultdict(dict)
    for row in state.rows:
        for name, value in row.metrics:
            group, _, metric = name.partition(".")
            if row.stage in ("train", "publish") and metric:
                measured[row.iteration, group][metric] = value
    return {
        adapter.name: _training(measured[adapter.iteration, group.name])
        for group in state.groups
        for adapter in group.lineage
    }


def _training(measured: Mapping[str, float]) -> tuple[str, ...]:
    """The numbers of a training, as far as its trainer measured them."""
    sentences = (
        ("{rows:,.0f} rows", ("rows",)),
        ("loss {loss_first:.4g} to {loss_last:.4g}", ("loss_first", "loss_last")),
        (
            "mean ln(policy / reference) of the chosen replies {chosen_log_ratio:+.3g} nats",
            ("chosen_log_ratio",),
        ),
        ("canary gap {canary_gap:.2g}", ("canary_gap",)),
    )
    warning = fall_of_a_chosen_reply(measured)
    return (
        *(
            sentence.format(**measured)
            for sentence, names in sentences
            if all(map(measured.__contains__, names))
        ),
        *((f"warning: {warning}",) if warning else ()),
    )


def _by_name(spent: Sequence[Spent]) -> tuple[Spent, ...]:
    """Tokens and dollars of each agent and each training over the whole run."""
    by_name: dict[tuple[bool, str], list[Spent]] = defaultdict(list)
    for entry in spent:
        by_name[entry.stage == "train", entry.name].append(entry)
    return tuple(
        Spent(
            iteration=-1,
            stage="training" if training else "replies",
            name=name,
            model=entries[0].model,
            prompt=sum(entry.prompt for entry in entries),
            cached=sum(entry.cached for entry in entries),
            completion=sum(entry.completion for entry in entries),
            trained=fsum(entry.trained for entry in entries),
            dollars=None
            if any(entry.dollars is None for entry in entries)
            else fsum(entry.dollars or 0.0 for entry in entries),
        )
        for (training, name), entries in sorted(by_name.items())
    )


# -------------------------------------------------------------------------------------------- data


def _data(name: str, replayed: Replayed, spent: Sequence[Spent]) -> dict[str, Any]:
    """The numbers of the page, for programs."""
    state = replayed.state
    return {
        "run": name,
        "digest": digest(state),
        "faults": list(state.faults),
        "dataset": to_builtins(state.dataset),
        "stage": state.stage.name,
        "iteration": state.iteration,
        "parameters": to_dict(state.params),
        "iterations": [
            {
                key: round(value, 6) if isinstance(value, float) else value
                for key, value in record.items()
            }
            for record in summary(state)
        ],
        "lineage": {
            group.name: [to_builtins(adapter) for adapter in group.lineage]
            for group in state.groups
        },
        "usage": [entry._asdict() for entry in spent],
    }
