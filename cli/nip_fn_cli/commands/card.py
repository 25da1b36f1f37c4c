"""`nip-fn card`: one verifier with one set of provers after another."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from nip_fn.config.codec import merge, to_dict
from nip_fn.config.presets import with_preset
from nip_fn.keys import fold_in, key
from nip_fn.metrics.card import (
    ALONE,
    GREEDY,
    OWN,
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
    message_effect_of,
)
from nip_fn.metrics.comparison import compare
from nip_fn.metrics.inference import Difference, Estimate
from nip_fn.params.agent import is_scripted
from nip_fn.protocols.registry import PROTOCOLS
from nip_fn.run.quotes import Quotes, messages_of_others
from nip_fn.worlds import ACCURACY_BOUNDS
from nip_fn_adapters.experiments.casting import (
    Cast,
    Version,
    is_protocol,
    loaded,
    scripted,
    untrained,
    version_of,
)
from nip_fn_adapters.experiments.cells import Cell, Tested, cell_of, open_evaluation
from nip_fn_cli.config import overrides
from nip_fn_cli.evaluating import evaluation_table, folder_of, of_protocol
from nip_fn_cli.labels import label_cells, true_labels
from nip_fn_cli.shown.exits import Exit, command, die
from nip_fn_cli.shown.numbers import dollars, interval, p_value, percent, points
from nip_fn_cli.shown.options import (
    BaseUrlOption,
    BatchOption,
    BudgetOption,
    DatasetOption,
    JsonOption,
    LimitOption,
    ModelOption,
    PricesOption,
    ProverModelOption,
    ProviderOption,
    RepeatsOption,
    RunsOption,
    SeedOption,
    SetOption,
    ShuffleOption,
    SkipOption,
    SplitOption,
    TemperatureOption,
    TestedArgument,
    TestNameOption,
    TrustOption,
    VerifierModelOption,
    money_or_die,
)
from nip_fn_cli.shown.printing import print_rows
from nip_fn_cli.shown.watching import TERMINAL

GAMES = 8  # about each datapoint, unless another number is asked for

# The provers' own model, alone: a prover that judges no better than the verifier cannot teach it.
PROVERS_ALONE = "prover alone"


class Planned(NamedTuple):
    """A cell of the card, and its place on it."""

    protocol: str
    provers: str
    cell: Cell


def card_command(
    config: TestedArgument = None,
    origin: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Test the agents of a run as they are in the end, or after an iteration.",
            metavar="RUN[@N]",
        ),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            help="Also play with the provers of this run; may be repeated.", metavar="RUN[@N]"
        ),
    ] = None,
    relabel: Annotated[
        int | None,
        typer.Option(
            help="With --from: estimate how many of the run's preference labels are true, from "
            "this many fresh continuations of both replies of recorded pairs.",
            min=1,
        ),
    ] = None,
    protocol: Annotated[
        list[str] | None,
        typer.Option(
            help="A game; may be repeated.  The default is that of the run, or all.",
            metavar="NAME",
        ),
    ] = None,
    model: ModelOption = None,
    verifier_model: VerifierModelOption = None,
    prover_model: ProverModelOption = None,
    temperature: TemperatureOption = None,
    provider: ProviderOption = None,
    base_url: BaseUrlOption = None,
    batch: BatchOption = False,
    dataset: DatasetOption = None,
    split: SplitOption = None,
    limit: LimitOption = None,
    shuffle: ShuffleOption = None,
    repeats: RepeatsOption = GAMES,
    skip_bad_rows: SkipOption = False,
    seed: SeedOption = None,
    sets: SetOption = None,
    budget: BudgetOption = None,
    prices: PricesOption = None,
    run: TestNameOption = None,
    runs: RunsOption = Path("runs"),
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print the oversight card: does the verifier listen, and would it fall for another prover?

    Tests each protocol with its own, silent, random, honest and lying provers, and with messages
    about other datapoints.  Each test is recorded as a run.  The same command resumes a card that
    was stopped.
    """
    if relabel is not None and origin is None:
        die(Exit.USAGE, "--relabel needs the run whose labels are looked at; add --from RUN")
    money = money_or_die(budget, prices)
    version = None if origin is None else version_of(origin, runs)
    written = overrides(
        config,
        model=model,
        base_url=base_url,
        batch=batch,
        dataset=dataset,
        skip_bad_rows=skip_bad_rows,
        seed=seed,
        sets=sets,
    )
    if version is not None:
        # Of the run everything but its agents, which are loaded one by one.
        written = merge({**to_dict(version.run.params), "agents": {}}, written)
    base = evaluation_table(
        written,
        split=split,
        limit=limit,
        shuffle=shuffle,
        repeats=repeats,
        temperature=temperature,
    )
    configured = written.get("interaction_protocol", "nip")
    protocols = protocol or ((configured,) if version else tuple(PROTOCOLS))
    models = {"verifier_model": verifier_model, "prover_model": prover_model}
    rivals = [version_of(name, runs) for name in against or ()]
    planned = list(_planned(base, protocols, models, version, rivals, provider, runs))
    relabelled = (
        label_cells(version, relabel, provider, runs)
        if version is not None and relabel is not None
        else ()
    )
    cells = [*(row.cell for row in planned), *(test.cell for test in relabelled)]
    evaluation = open_evaluation(cells, run, "card", provider, money, runs, watch=TERMINAL)
    tested: dict[tuple[str, str], Tested] = {}
    for protocol_name, provers, cell in planned:
        quotes = _swapped(tested[protocol_name, OWN]) if provers == SWAPPED else None
        tested[protocol_name, provers] = evaluation.play(cell, quotes=quotes)
    evaluation.tell_recorded()
    labels = true_labels(relabelled, evaluation)
    everything = [CardRow(*names, test.judged) for names, test in tested.items()]
    rows = [row for row in everything if row.provers != PROVERS_ALONE]
    compared = contrasts(rows)
    bounds = dict(_bounds(tested))
    warnings = alarms(rows, compared, bounds=bounds, labels=labels)
    advantage = _advantage(everything)
    if as_json:
        report = {
            "runs": str(evaluation.place),
            "rows": [_record(row, tested[row.protocol, row.provers], rows) for row in rows],
            "comparisons": list(map(_compared, compared)),
            "prover_advantage": advantage and advantage._asdict(),
            "labels": {agent: _plain(truth) for agent, truth in labels},
            "bounds": bounds,
            "alarms": list(warnings),
        }
        print(json.dumps(report, indent=2))
        return
    _print(rows, compared, tested)
    _print_measures(rows, tested, advantage)
    _print_notes(compared, labels, warnings)
    first = evaluation.place / cells[0].folder
    print(f"\nTo look closer: {command('nip-fn', 'show', first)}")


# -------------------------------------------------------------------------------------- the cells


def _planned(
    base: dict[str, Any],
    protocols: Sequence[str],
    models: Mapping[str, str | None],
    version: Version | None,
    rivals: Sequence[Version],
    provider: str | None,
    runs: Path,
) -> Iterator[Planned]:
    """The cells in the order in which they are played: each protocol's own provers first."""
    for protocol in dict.fromkeys((*protocols, ALONE)):
        table = of_protocol(base, protocol, **models, tested=protocols)
        for provers, cast, fields in _conditions(protocol, base, version, rivals):
            written = merge(merge(table, fields), {"agents": cast})
            cell = cell_of(folder_of(protocol, provers), written, provider, runs, TERMINAL)
            if provers != PROVERS_ALONE or _differs(cell, base, version):
                yield Planned(protocol, provers, cell)


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
    if protocol == ALONE:
        yield PROVERS_ALONE, _provers_model(base, version), {}
        return
    if version and any(version.adapter(name) for name in version.agents["prover"]):
        yield UNTRAINED, {**judge, **untrained(provers)}, {}
    for strategy in SCRIPTS:
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


def _bounds(tested: dict[tuple[str, str], Tested]) -> Iterator[tuple[str, float]]:
    """(protocol, the greatest accuracy against the worst provers), where a world tells it."""
    cell = tested.get(("nip", OWN))
    bound = None if cell is None else ACCURACY_BOUNDS.get(cell.forest.params.dataset)
    if cell is not None and bound is not None:
        yield "nip", bound(cell.forest.games())


def _advantage(rows: list[CardRow]) -> Difference | None:
    """The accuracy of the provers' model alone less that of the verifier alone."""
    verdicts = {row.provers: row.judged.verdicts for row in rows if row.protocol == ALONE}
    if PROVERS_ALONE not in verdicts:
        return None
    return compare([verdicts[OWN]], [verdicts[PROVERS_ALONE]], "datapoint").difference


# ---------------------------------------------------------------------------------------- records


def _record(row: CardRow, tested: Tested, rows: list[CardRow]) -> dict[str, Any]:
    """The facts of a row."""
    params, metrics = tested.forest.params, dict(tested.metrics)
    heard = message_effect_of(rows, row.protocol) if row.provers == OWN else None
    return {
        "protocol": row.protocol,
        "provers": row.provers,
        "temperature": params.text_rl.test_temperature,
        "datapoints": len(row.judged.ids),
        "games": row.judged.games,
        **_plain(card_measures(row.judged)),
        "message_effect": heard and heard._asdict(),
        "tokens": metrics["tokens"],
        "prompt_tokens": metrics["prompt_tokens"],
        "dollars": tested.dollars,
    }


def _compared(contrast: CardContrast) -> dict[str, Any]:
    return {
        "protocol": contrast.protocol,
        "provers": contrast.provers,
        "over": list(contrast.over),
        **contrast.difference._asdict(),
        "p_corrected": contrast.p,
        "detectable": contrast.comparison.detectable,
    }


def _plain(estimates: Measures | Labels) -> dict[str, Any]:
    """A record of estimates as tables."""
    return {
        name: value._asdict() if hasattr(value, "_asdict") else value
        for name, value in estimates._asdict().items()
    }


# ----------------------------------------------------------------------------------------- tables


def _print(
    rows: list[CardRow], compared: tuple[CardContrast, ...], tested: dict[tuple[str, str], Tested]
) -> None:
    """A row for each set of provers."""
    estimates = "accuracy [95 %]", "over own [95 %]", "p"
    titles = ("provers", *estimates, "completeness", "soundness", "AUROC")
    lines: list[tuple[str, ...]] = []
    over = {(contrast.protocol, contrast.provers): contrast for contrast in compared}
    for protocol in dict.fromkeys(row.protocol for row in rows):
        lines.append((protocol, *[""] * (len(titles) - 1)))
        for row in rows:
            if row.protocol != protocol:
                continue
            measured = card_measures(row.judged)
            over_own = None if row.provers == OWN else over.get((protocol, row.provers))
            cells = (
                f"  {row.provers}",
                interval(measured.accuracy),
                points(over_own and over_own.difference),
                p_value(over_own and over_own.p),
                _percent(measured.completeness),
                _percent(measured.soundness),
                _number(measured.auroc),
            )
            lines.append(cells)
    print_rows(titles, lines)


def _print_measures(
    rows: list[CardRow], tested: dict[tuple[str, str], Tested], advantage: Difference | None
) -> None:
    """A column for each protocol with its own provers."""
    own_rows = [row for row in rows if row.provers == OWN]
    measured = [card_measures(row.judged) for row in own_rows]
    heard = [message_effect_of(rows, row.protocol) for row in own_rows]
    paid = [tested[row.protocol, OWN] for row in own_rows]
    lines: dict[str, list[str]] = {
        "datapoints x games": [f"{len(row.judged.ids)} x {row.judged.games}" for row in own_rows],
        "majority of games": [_percent(estimates.majority) for estimates in measured],
        "always fails": [_percent(estimates.always_fails) for estimates in measured],
        "undecided": [_percent(estimates.undecided) for estimates in measured],
        "Brier score": [_number(estimates.brier) for estimates in measured],
        "calibration error": [
            "-" if c is None else f"{c.error:.3f}" for c in _calibrations(measured)
        ],
        "  if calibrated": [
            "-" if c is None else f"{c.floor:.3f}" for c in _calibrations(measured)
        ],
        "agent score difference": [_number(estimates.score_difference) for estimates in measured],
        "checking rate": [_percent(estimates.checking_rate) for estimates in measured],
        "message effect": list(map(_number, heard)),
        "tokens": [f"{_tokens(test):,.0f}" for test in paid],
        "dollars": [dollars(test.dollars) for test in paid],
    }
    print()
    titles = ("with its own provers", *(row.protocol for row in own_rows))
    print_rows(titles, [(title, *cells) for title, cells in lines.items()])
    if advantage is not None:
        gained = points(advantage)
        print(
            f"\nThe provers' model alone is right more often than the verifier alone by {gained}."
        )


def _calibrations(measured: list[Measures]) -> list[Any]:
    return [measures_of_row.calibration for measures_of_row in measured]


def _tokens(tested: Tested) -> float:
    metrics = dict(tested.metrics)
    return metrics["tokens"] + metrics["prompt_tokens"]


def _print_notes(
    compared: tuple[CardContrast, ...],
    labels: tuple[tuple[str, Labels], ...],
    warnings: tuple[str, ...],
) -> None:
    """The gain over the verifier alone, the truth of labels, the power, and the alarms."""
    print()
    for contrast in compared:
        if contrast.provers == OWN:
            gained = points(contrast.difference)
            print(f"{contrast.protocol} over {ALONE}: {gained} points, p {p_value(contrast.p)}.")
    for agent, truth in labels:
        print(
            f"Preference labels of {agent}: {_percent(truth.right)} of {truth.pairs} right; margin "
            f"{truth.margin.value:.3f}, recorded {truth.recorded:.3f}."
        )
    # Of games at temperature 0 there is one about each datapoint, which shows less.
    finest = max(
        (contrast.comparison.detectable for contrast in compared if contrast.provers != GREEDY),
        default=0.0,
    )
    print(
        f"p-values are corrected for {len(compared)} comparisons (Holm). "
        f"Differences from {100 * finest:.1f} points on are found with a power of 80 %."
    )
    for line in warnings:
        print(f"! {line}.")


def _percent(estimate: Estimate | None) -> str:
    return percent(estimate and estimate.value)


def _number(estimate: Estimate | None) -> str:
    return "-" if estimate is None else f"{estimate.value:.3f}"
