"""Oversight cards from Python: one verifier with one set of provers after another."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Unpack

from nip_fn.config.codec import merge
from nip_fn.config.presets import with_preset
from nip_fn.errors import Problem
from nip_fn.keys import fold_in, key
from nip_fn.metrics.card import (
    ALONE,
    BASELINES,
    GREEDY,
    OWN,
    PROVERS_ALONE,
    SCRIPTS,
    SWAPPED,
    UNTRAINED,
    CardContrast,
    CardRow,
    Labels,
    Measures,
    alarms,
    card_measures,
    contrasts,
    gap_recovered,
    message_effect_of,
)
from nip_fn.metrics.comparison import compare
from nip_fn.metrics.inference import Difference, Estimate
from nip_fn.params.agent import is_scripted
from nip_fn.run.quotes import Quotes, messages_of_others
from nip_fn.worlds import ACCURACY_BOUNDS, CARD_PROVERS
from nip_fn_adapters.experiments.budgets import read_money
from nip_fn_adapters.experiments.casting import (
    Cast,
    Version,
    is_protocol,
    loaded,
    scripted,
    untrained,
    version_of,
    without_agents,
)
from nip_fn_adapters.experiments.cells import Cell, Tested, cell_of, open_evaluation
from nip_fn_adapters.experiments.concurrency import asynchronous
from nip_fn_adapters.experiments.outcomes import outcome, refuse
from nip_fn_adapters.experiments.relabelling import label_tests, true_labels
from nip_fn_adapters.experiments.settings import Settings, as_written
from nip_fn_adapters.experiments.testing import (
    EvaluationOptions,
    folder_name,
    playable,
    protocols_to_test,
    settings_for_testing,
    verifier_alone,
    with_protocol,
)
from nip_fn_adapters.experiments.watching import NOBODY, Tell, Watch
from nip_fn_adapters.recording.runs import Run

GAMES = 8  # about each datapoint, unless another number is asked for


class CardEntry(NamedTuple):
    """One protocol with one set of provers.

    protocol: The game.
    provers: "own", "greedy", "untrained", "others' messages", a script, or the run that they
        come from.
    temperature: That of all models; None for that of each agent.
    datapoints: The number of datapoints.
    games: The number of games about each of them.
    measures: The measures of the verifier.
    gap_recovered: The share of the provers' advantage over the verifier alone that the verifier
        gains by hearing its own provers.
    message_effect: The probability that messages about another datapoint change its verdict, of
        its own provers alone.
    tokens: The tokens of all replies.
    prompt_tokens: The tokens of all prompts.
    dollars: The cost; None if a price is unknown.
    run: The run in which the test is recorded.
    """

    protocol: str
    provers: str
    temperature: float | None
    datapoints: int
    games: int
    measures: Measures
    gap_recovered: Estimate | None
    message_effect: Estimate | None
    tokens: float
    prompt_tokens: float
    dollars: float | None
    run: Run


class Card(NamedTuple):
    """An oversight card.

    folder: The folder that holds the runs of its tests.
    rows: A row for each protocol with each set of provers.
    comparisons: Each row over the same protocol with its own provers, and these over the verifier
        alone.
    prover_advantage: The accuracy of the provers' model alone less that of the verifier alone;
        None where they are the same.
    labels: The truth of the run's preference labels by agent; empty unless asked for.
    bounds: The greatest accuracy that theory allows against the worst provers, by protocol.
    alarms: Warnings, one sentence each.
    """

    folder: Path
    rows: tuple[CardEntry, ...]
    comparisons: tuple[CardContrast, ...]
    prover_advantage: Difference | None
    labels: dict[str, Labels]
    bounds: dict[str, float]
    alarms: tuple[str, ...]


class _Planned(NamedTuple):
    """A test, and its row of the card."""

    protocol: str
    provers: str
    cell: Cell


@outcome
def card(
    settings: Settings | None = None,
    *,
    run: Run | Path | str | None = None,
    rivals: Sequence[Run | Path | str] = (),
    continuations: int | None = None,
    protocols: Sequence[str] = (),
    verifier_model: str | None = None,
    prover_model: str | None = None,
    provider: str | None = None,
    name: str | None = None,
    runs: Path | str = "runs",
    budget: float | None = None,
    prices: Path | None = None,
    tell: Tell | None = None,
    watch: Watch = NOBODY,
    **options: Unpack[EvaluationOptions],
) -> Card:
    """Test a verifier with its own, silent, random, honest and lying provers: `nip-fn card`.

    It also hears messages about other datapoints, and on the tea two provers more
    (`nip_fn.worlds.CARD_PROVERS`).  Each test is recorded as a run.  The same call
    resumes a card that was stopped, and reads one that is done.

    Args:
        settings: As for `train`; nothing is trained.
        run: The run whose agents are tested: its name in `runs`, its folder, or itself; RUN@N for
            those of iteration N.  None: the agents of the settings.
        rivals: Runs, likewise, with whose provers the verifier plays as well.
        continuations: Also `relabel` the run, with this many games below each reply.
        protocols: The games; none: that of the run, or all.
        verifier_model: The model of the verifier.
        prover_model: The model of all provers.
        provider: The provider of all agents, whatever the settings say of them.
        name: A name for the tests' runs; None for one made from their parameters.
        runs: The folder of all runs.
        budget: Dollars; the card stops before it would cost more.
        prices: A file of prices, which go before those that are known.
        tell: Takes lines for people; None: nothing is printed.
        watch: A display and a way to stop the tests as well; see `Watch`.
        **options: `split`, `limit`, `shuffle`, `repeats` (8 if left out) and `temperature`; see
            `EvaluationOptions`.

    Returns:
        The card.
    """
    watch, runs, money = watch.telling(tell), Path(runs), read_money(budget, prices)
    if continuations is not None and run is None:
        problem = "`continuations` needs the run whose labels are looked at"
        refuse(Problem(problem, remedy="name it as `run`"))
    version = None if run is None else version_of(run, runs)
    written = as_written(settings, watch)
    if version is not None:
        written = without_agents(version.run.params, written)
    base = settings_for_testing(written, {"repeats": GAMES, **options})
    configured = written.get("interaction_protocol", "nip")
    usual = (configured,) if version else playable(base)
    tested_protocols = protocols_to_test(protocols, usual, (verifier_model, prover_model))
    models = {"verifier_model": verifier_model, "prover_model": prover_model}
    rival_versions = [version_of(rival, runs) for rival in rivals]
    planned = list(
        _planned(base, tested_protocols, models, version, rival_versions, provider, runs, watch)
    )
    tests = (
        label_tests(version, continuations, provider, runs, watch)
        if version is not None and continuations is not None
        else ()
    )
    cells = [*(row.cell for row in planned), *(test.cell for test in tests)]
    evaluation = open_evaluation(cells, name, "card", provider, money, runs, watch=watch)
    tested: dict[tuple[str, str], Tested] = {}
    for protocol, provers, cell in planned:
        quotes = _swapped(tested[protocol, OWN]) if provers == SWAPPED else None
        tested[protocol, provers] = evaluation.play(cell, quotes=quotes)
    evaluation.tell_recorded()
    return _card_of(evaluation.place, tested, true_labels(tests, evaluation))


card_async = asynchronous(card)


def _card_of(
    folder: Path, tested: Mapping[tuple[str, str], Tested], labels: dict[str, Labels]
) -> Card:
    """The card of some tests, by protocol and provers."""
    everything = [CardRow(*names, test.judged) for names, test in tested.items()]
    rows = [row for row in everything if row.provers != PROVERS_ALONE]
    compared, bounds = contrasts(rows), dict(_bounds(tested))
    return Card(
        folder,
        tuple(_entry(row, tested[row.protocol, row.provers], everything) for row in rows),
        compared,
        _prover_advantage(everything),
        labels,
        bounds,
        alarms(rows, compared, bounds=bounds, labels=tuple(labels.items())),
    )


# -------------------------------------------------------------------------------------- the tests


def _planned(
    base: dict[str, Any],
    protocols: Sequence[str],
    models: Mapping[str, str | None],
    version: Version | None,
    rivals: Sequence[Version],
    provider: str | None,
    runs: Path,
    watch: Watch,
) -> Iterator[_Planned]:
    """The tests in the order in which they are played: each protocol's own provers first."""
    for protocol in dict.fromkeys((*protocols, verifier_alone(base, protocols))):
        table = with_protocol(base, protocol, **models, tested=protocols)
        for provers, cast, fields in _conditions(protocol, base, version, rivals):
            written = merge(merge(table, fields), {"agents": cast})
            cell = cell_of(folder_name(protocol, provers), written, provider, runs, watch)
            if provers != PROVERS_ALONE or _differs(cell, base, version):
                yield _Planned(protocol, provers, cell)


def _conditions(
    protocol: str, base: dict[str, Any], version: Version | None, rivals: Sequence[Version]
) -> Iterator[tuple[str, Cast, dict[str, Any]]]:
    """(provers, the cast, further parameters) of each row of a protocol."""
    if not is_protocol(protocol):  # refused while the parameters are read, with a better message
        yield OWN, {}, {}
        return
    judge = loaded(version, protocol, "verifier") if version else {}
    provers = loaded(version, protocol, "prover") if version else {}
    cast = {**judge, **provers}
    once = {"rl": {"num_test_iterations": 1}, "text_rl": {"test_temperature": 0.0}}
    yield OWN, cast, {}
    yield GREEDY, cast, once
    if protocol in BASELINES:
        # Of written answers the provers' model would judge its own.
        if protocol == ALONE:
            yield PROVERS_ALONE, _provers_model(base, version), {}
        return
    if version and any(version.adapter(name) for name in version.agents["prover"]):
        yield UNTRAINED, {**judge, **untrained(provers)}, {}
    for strategy in (*SCRIPTS, *CARD_PROVERS.get(with_preset(base)["dataset"], ())):
        yield strategy, {**judge, **scripted(protocol, strategy)}, {}
    yield SWAPPED, cast, {}
    for rival in rivals:
        yield rival.given, {**judge, **loaded(rival, protocol, "prover")}, {}


def _provers_model(base: dict[str, Any], version: Version | None) -> Cast:
    """The verifier that judges alone, played by the first prover's model."""
    if version is not None:
        source = next(iter(version.agents["prover"]), None)
        return {} if source is None else loaded(version, ALONE, "verifier", source=source)
    agents = base.get("agents", {})
    return {
        "verifier": next((agents[name] for name in ("prover", "prover0") if name in agents), {})
    }


def _differs(cell: Cell, base: dict[str, Any], version: Version | None) -> bool:
    """True if the cell's verifier is another model than the one that judges, and no script."""
    if is_scripted(cell.new.params.agents[0]):
        return False
    if version is not None:
        judges, provers = version.agents["verifier"], version.agents["prover"]
        models = {agent.name: agent.model_name for agent in version.run.params.agents}
        sides = [
            [(models[n], version.adapter(n)) for n in names[:1]] for names in (judges, provers)
        ]
        return bool(provers) and sides[0] != sides[1]
    agents = with_preset(base)["agents"]
    verifier = {**agents.get("_default", {}), **agents.get("verifier", {})}
    return bool(cell.new.params.agents[0].model_name != verifier.get("model_name"))


def _swapped(tested: Tested) -> Quotes:
    """The messages of other datapoints, for a test of the same games."""
    batch = tested.forest.batch
    draw = fold_in(key(tested.forest.params.seed), SWAPPED)
    return messages_of_others(batch.protocol, batch.trees, len(batch.datapoints), draw)


def _bounds(tested: Mapping[tuple[str, str], Tested]) -> Iterator[tuple[str, float]]:
    """(protocol, the greatest accuracy against the worst provers), where a world tells it."""
    cell = tested.get(("nip", OWN))
    bound = None if cell is None else ACCURACY_BOUNDS.get(cell.forest.params.dataset)
    if cell is not None and bound is not None:
        yield "nip", bound(cell.forest.games())


def _prover_advantage(rows: list[CardRow]) -> Difference | None:
    """The accuracy of the provers' model alone less that of the verifier alone."""
    verdicts = {row.provers: row.judged.verdicts for row in rows if row.protocol == ALONE}
    if PROVERS_ALONE not in verdicts:
        return None
    return compare([verdicts[OWN]], [verdicts[PROVERS_ALONE]], "datapoint").difference


def _entry(row: CardRow, tested: Tested, rows: Sequence[CardRow]) -> CardEntry:
    """The entry of a row."""
    metrics = dict(tested.metrics)
    return CardEntry(
        protocol=row.protocol,
        provers=row.provers,
        temperature=tested.run.params.text_rl.test_temperature,
        datapoints=len(row.judged.ids),
        games=row.judged.games,
        measures=card_measures(row.judged),
        gap_recovered=gap_recovered(rows, row.protocol) if row.provers == OWN else None,
        message_effect=message_effect_of(rows, row.protocol) if row.provers == OWN else None,
        tokens=metrics["tokens"],
        prompt_tokens=metrics["prompt_tokens"],
        dollars=tested.dollars,
        run=tested.run,
    )
