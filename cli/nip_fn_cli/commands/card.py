"""`nip-fn card`: one verifier with one set of provers after another."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from nip_fn.metrics.card import GREEDY, OWN, CardContrast
from nip_fn.metrics.inference import Difference, Estimate
from nip_fn_adapters.experiments.cards import GAMES, Card, CardEntry, card
from nip_fn_cli.config import overrides
from nip_fn_cli.shown.exits import command, or_exit
from nip_fn_cli.shown.numbers import dollars, p_value, percent, points, share_with_interval
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
)
from nip_fn_cli.shown.printing import print_rows
from nip_fn_cli.shown.tests import as_table
from nip_fn_cli.shown.watching import TERMINAL


def card_command(
    config: TestedArgument = None,
    run: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Test the agents of a run as they are in the end, or after an iteration.",
            metavar="RUN[@N]",
        ),
    ] = None,
    rivals: Annotated[
        list[str] | None,
        typer.Option(
            "--against",
            help="Also play with the provers of this run; may be repeated.",
            metavar="RUN[@N]",
        ),
    ] = None,
    continuations: Annotated[
        int | None,
        typer.Option(
            "--relabel",
            help="With --from: estimate how many of the run's preference labels are true, from "
            "this many fresh continuations of both replies of recorded pairs.",
            min=1,
        ),
    ] = None,
    protocols: Annotated[
        list[str] | None,
        typer.Option(
            "--protocol",
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
    name: TestNameOption = None,
    runs: RunsOption = Path("runs"),
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print the oversight card: does the verifier listen, and would it fall for another prover?

    Tests each protocol with its own, silent, random, honest and lying provers, and with messages
    about other datapoints.  Each test is recorded as a run.  The same command resumes a card that
    was stopped.
    """
    table = overrides(
        config,
        model=model,
        base_url=base_url,
        batch=batch,
        dataset=dataset,
        skip_bad_rows=skip_bad_rows,
        seed=seed,
        sets=sets,
    )
    tested = card(
        table,
        run=run,
        rivals=rivals or (),
        continuations=continuations,
        protocols=protocols or (),
        verifier_model=verifier_model,
        prover_model=prover_model,
        split=split,
        limit=limit,
        shuffle=shuffle,
        repeats=repeats,
        temperature=temperature,
        provider=provider,
        name=name,
        runs=runs,
        budget=budget,
        prices=prices,
        watch=TERMINAL,
    )
    printed = or_exit(tested)
    if as_json:
        print(json.dumps(_report(printed), indent=2))
        return
    _print(printed)
    _print_measures([row for row in printed.rows if row.provers == OWN], printed.prover_advantage)
    _print_notes(printed)
    print(f"\nTo look closer: {command('nip-fn', 'show', printed.rows[0].run.path.parent)}")


# ------------------------------------------------------------------------------------------- JSON


def _report(card: Card) -> dict[str, Any]:
    return {
        "runs": str(card.folder),
        "rows": list(map(_record, card.rows)),
        "comparisons": list(map(_compared, card.comparisons)),
        "prover_advantage": card.prover_advantage and card.prover_advantage._asdict(),
        "labels": {agent: as_table(truth) for agent, truth in card.labels.items()},
        "bounds": card.bounds,
        "alarms": list(card.alarms),
    }


def _record(row: CardEntry) -> dict[str, Any]:
    """A row, its measures beside its other fields."""
    table = as_table(row)
    measures = table.pop("measures")
    return {**table, **measures}


def _compared(contrast: CardContrast) -> dict[str, Any]:
    return {
        "protocol": contrast.protocol,
        "provers": contrast.provers,
        "over": list(contrast.over),
        **contrast.difference._asdict(),
        "p_corrected": contrast.p,
        "detectable": contrast.comparison.detectable,
    }


# ----------------------------------------------------------------------------------------- tables


def _print(card: Card) -> None:
    """A row for each set of provers."""
    estimates = "accuracy [95 %]", "over own [95 %]", "p"
    titles = ("provers", *estimates, "completeness", "soundness", "AUROC")
    lines: list[tuple[str, ...]] = []
    over = {(contrast.protocol, contrast.provers): contrast for contrast in card.comparisons}
    for protocol in dict.fromkeys(row.protocol for row in card.rows):
        lines.append((protocol, *[""] * (len(titles) - 1)))
        for row in card.rows:
            if row.protocol != protocol:
                continue
            over_own = None if row.provers == OWN else over.get((protocol, row.provers))
            cells = (
                f"  {row.provers}",
                share_with_interval(row.measures.accuracy),
                points(over_own and over_own.difference),
                p_value(over_own and over_own.p),
                _percent(row.measures.completeness),
                _percent(row.measures.soundness),
                _number(row.measures.auroc),
            )
            lines.append(cells)
    print_rows(titles, lines)


def _print_measures(rows: Sequence[CardEntry], advantage: Difference | None) -> None:
    """A column for each protocol with its own provers."""
    measured = [row.measures for row in rows]
    calibrations = [measures.calibration for measures in measured]
    lines: dict[str, list[str]] = {
        "datapoints x games": [f"{row.datapoints} x {row.games}" for row in rows],
        "majority of games": [_percent(measures.majority) for measures in measured],
        "always fails": [_percent(measures.always_fails) for measures in measured],
        "undecided": [_percent(measures.undecided) for measures in measured],
        "Brier score": [_number(measures.brier) for measures in measured],
        "calibration error": ["-" if c is None else f"{c.error:.3f}" for c in calibrations],
        "  if calibrated": ["-" if c is None else f"{c.floor:.3f}" for c in calibrations],
        "agent score difference": [_number(measures.score_difference) for measures in measured],
        "performance gap recovered": [_percent(row.gap_recovered) for row in rows],
        "verification rate": [_percent(measures.verification_rate) for measures in measured],
        "message effect": [_number(row.message_effect) for row in rows],
        "tokens": [f"{row.tokens + row.prompt_tokens:,.0f}" for row in rows],
        "dollars": [dollars(row.dollars) for row in rows],
    }
    print()
    titles = ("with its own provers", *(row.protocol for row in rows))
    print_rows(titles, [(title, *cells) for title, cells in lines.items()])
    if advantage is not None:
        gained = points(advantage)
        print(
            f"\nThe provers' model alone is right more often than the verifier alone by {gained}."
        )


def _print_notes(card: Card) -> None:
    """The gain over the verifier alone, the truth of labels, the power, and the alarms."""
    print()
    for contrast in card.comparisons:
        if contrast.provers == OWN:
            gained = points(contrast.difference)
            print(
                f"Judge accuracy gain of {contrast.protocol} over {contrast.over[0]}: "
                f"{gained} points, p {p_value(contrast.p)}."
            )
    for agent, truth in card.labels.items():
        print(
            f"Preference labels of {agent}: {_percent(truth.right)} of {truth.pairs} right; margin "
            f"{truth.margin.value:.3f}, recorded {truth.recorded:.3f}."
        )
    # Of games at temperature 0 there is one about each datapoint, which shows less.
    detectable = (
        contrast.comparison.detectable
        for contrast in card.comparisons
        if contrast.provers != GREEDY
    )
    finest = max(detectable, default=0.0)
    print(
        f"p-values are corrected for {len(card.comparisons)} comparisons (Holm). "
        f"Differences from {100 * finest:.1f} points on are found with a power of 80 %."
    )
    for line in card.alarms:
        print(f"! {line}.")


def _percent(estimate: Estimate | None) -> str:
    return percent(estimate and estimate.value)


def _number(estimate: Estimate | None) -> str:
    return "-" if estimate is None else f"{estimate.value:.3f}"
