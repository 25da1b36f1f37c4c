"""`nip-fn eval --card`: one verifier with one set of provers after another."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

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
from nip_fn_adapters.experiments.budgets import Money
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
from nip_fn_cli.commands.eval import Choice, folder_of, of_protocol, tested_table
from nip_fn_cli.commands.labels import label_cells, true_labels
from nip_fn_cli.config import Flags, overrides
from nip_fn_cli.shown.exits import Exit, command, die
from nip_fn_cli.shown.printing import print_rows
from nip_fn_cli.shown.watching import TERMINAL

GAMES = 8  # about each datapoint, unless another number is asked for

# The provers' own model, alone: a prover that judges no better than the verifier cannot teach it.
PROVERS_ALONE = "prover alone"


class CardChoice(NamedTuple):
    """The options of the card.

    of: the run whose agents are tested, RUN or RUN@ITERATION; None for those of the configuration.
    against: further runs whose provers the verifier meets.
    relabel: fresh continuations below each reply of a recorded pair; None for no such test.
    """

    of: str | None
    against: tuple[str, ...]
    relabel: int | None


class Planned(NamedTuple):
    """A cell of the card, and its place on it."""

    protocol: str
    provers: str
    cell: Cell


def card_command(flags: Flags, choice: Choice, card: CardChoice, money: Money, runs: Path) -> None:
    """Run the command; given again, it resumes where an earlier one was stopped."""
    if len(choice.models) > 1:
        die(Exit.USAGE, "a card is about one --model; print a card of each")
    if card.relabel is not None and card.of is None:
        die(Exit.USAGE, "--relabel needs the run whose labels are looked at; add --from RUN")
    version = None if card.of is None else version_of(card.of, runs)
    planned = list(_planned(flags, choice, card, version, runs))
    relabelled = (
        label_cells(version, card.relabel, flags.provider, runs)
        if version is not None and card.relabel is not None
        else ()
    )
    cells = [*(one.cell for one in planned), *(one.cell for one in relabelled)]
    evaluation = open_evaluation(
        cells, choice.name, "card", flags.provider, money, runs, watch=TERMINAL
    )
    tested: dict[tuple[str, str], Tested] = {}
    for one in planned:
        place = (one.protocol, one.provers)
        quotes = _swapped(tested[one.protocol, OWN]) if one.provers == SWAPPED else None
        tested[place] = evaluation.play(one.cell, quotes=quotes)
    evaluation.tell_recorded()
    labels = true_labels(relabelled, evaluation)
    everything = [CardRow(*place, found.judged) for place, found in tested.items()]
    rows = [row for row in everything if row.provers != PROVERS_ALONE]
    compared = contrasts(rows)
    bounds = dict(_bounds(tested))
    told = alarms(rows, compared, bounds=bounds, labels=labels)
    advantage = _advantage(everything)
    if choice.json:
        found = {
            "runs": str(evaluation.place),
            "rows": [_record(row, tested[row.protocol, row.provers], rows) for row in rows],
            "comparisons": [_compared(one) for one in compared],
            "prover_advantage": advantage and advantage._asdict(),
            "labels": {agent: _plain(truth) for agent, truth in labels},
            "bounds": bounds,
            "alarms": list(told),
        }
        print(json.dumps(found, indent=2))
        return
    _print(rows, compared, tested)
    _print_measures(rows, tested, advantage)
    _print_notes(compared, labels, told)
    first = evaluation.place / cells[0].folder
    print(f"\nTo look closer: {command('nip-fn', 'show', first)}")


# -------------------------------------------------------------------------------------- the cells


def _planned(
    flags: Flags, choice: Choice, card: CardChoice, version: Version | None, runs: Path
) -> Iterator[Planned]:
    """The cells in the order in which they are played: each protocol's own provers first."""
    written = overrides(flags._replace(model=next(iter(choice.models), None)))
    if version is not None:
        # Of the run everything but its agents, which are loaded one by one.
        written = merge({**to_dict(version.run.params), "agents": {}}, written)
    base = tested_table(written, choice._replace(repeats=choice.repeats or GAMES))
    against = [version_of(given, runs) for given in card.against]
    own = written.get("interaction_protocol", "nip")
    some = choice.protocols or ((own,) if version else tuple(PROTOCOLS))
    for protocol in dict.fromkeys((*some, ALONE)):
        for provers, cast, fields in _conditions(protocol, base, version, against):
            given = merge(
                merge(of_protocol(base, protocol, choice, some), fields), {"agents": cast}
            )
            cell = cell_of(folder_of(protocol, provers), given, flags.provider, runs, TERMINAL)
            if provers != PROVERS_ALONE or _differs(cell, base, version):
                yield Planned(protocol, provers, cell)


def _conditions(
    protocol: str, base: dict[str, Any], version: Version | None, against: list[Version]
) -> Iterator[tuple[str, Cast, dict[str, Any]]]:
    """(provers, the cast, further parameters) of each row of a protocol."""
    if not is_protocol(protocol):  # refused while the parameters are read, with a better message
        yield OWN, {}, {}
        return
    judge = loaded(version, protocol, "verifier") if version else {}
    provers = loaded(version, protocol, "prover") if version else {}
    own = {**judge, **provers}
    once = {"rl": {"num_test_iterations": 1}, "text_rl": {"test_temperature": 0.0}}
    yield OWN, own, {}
    yield GREEDY, own, once
    if protocol == ALONE:
        yield PROVERS_ALONE, _provers_model(base, version), {}
        return
    if version and any(version.adapter(name) for name in version.agents["prover"]):
        yield UNTRAINED, {**judge, **untrained(provers)}, {}
    for strategy in SCRIPTS:
        yield strategy, {**judge, **scripted(protocol, strategy)}, {}
    yield SWAPPED, own, {}
    for other in against:
        yield other.given, {**judge, **loaded(other, protocol, "prover")}, {}


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
    own = {**agents.get("_default", {}), **agents.get("verifier", {})}
    return bool(cell.new.params.agents[0].model_name != own.get("model_name"))


def _swapped(own: Tested) -> Quotes:
    """The messages of other datapoints, for a test of the same games."""
    batch = own.forest.batch
    draw = fold_in(key(own.forest.params.seed), SWAPPED)
    return messages_of_others(batch.protocol, batch.trees, len(batch.datapoints), draw)


def _bounds(tested: dict[tuple[str, str], Tested]) -> Iterator[tuple[str, float]]:
    """(protocol, the greatest accuracy against the worst provers), where a world tells it."""
    own = tested.get(("nip", OWN))
    bound = None if own is None else ACCURACY_BOUNDS.get(own.forest.params.dataset)
    if own is not None and bound is not None:
        yield "nip", bound(own.forest.games())


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


def _compared(one: CardContrast) -> dict[str, Any]:
    return {
        "protocol": one.protocol,
        "provers": one.provers,
        "over": list(one.over),
        **one.difference._asdict(),
        "p_corrected": one.p,
        "detectable": one.comparison.detectable,
    }


def _plain(found: Measures | Labels) -> dict[str, Any]:
    """A record of estimates as tables."""
    return {
        name: value._asdict() if hasattr(value, "_asdict") else value
        for name, value in found._asdict().items()
    }


# ----------------------------------------------------------------------------------------- tables


def _print(
    rows: list[CardRow], compared: tuple[CardContrast, ...], tested: dict[tuple[str, str], Tested]
) -> None:
    """A row for each set of provers."""
    estimates = "accuracy [95 %]", "over own [95 %]", "p"
    titles = ("provers", *estimates, "completeness", "soundness", "AUROC")
    lines: list[tuple[str, ...]] = []
    over = {(one.protocol, one.provers): one for one in compared}
    for protocol in dict.fromkeys(row.protocol for row in rows):
        lines.append((protocol, *[""] * (len(titles) - 1)))
        for row in (one for one in rows if one.protocol == protocol):
            found, one = card_measures(row.judged), over.get((protocol, row.provers))
            own = one if one is not None and row.provers != OWN else None
            cells = (
                f"  {row.provers}",
                _interval(found.accuracy),
                "-" if own is None else _interval(Estimate(*own.difference[:3]), signed=True),
                "-" if own is None else _p(own.p),
                _share(found.completeness),
                _share(found.soundness),
                "-" if found.auroc is None else f"{found.auroc.value:.3f}",
            )
            lines.append(cells)
    print_rows(titles, lines)


def _print_measures(
    rows: list[CardRow], tested: dict[tuple[str, str], Tested], advantage: Difference | None
) -> None:
    """A column for each protocol with its own provers."""
    own = [row for row in rows if row.provers == OWN]
    found = [card_measures(row.judged) for row in own]
    heard = [message_effect_of(rows, row.protocol) for row in own]
    paid = [tested[row.protocol, OWN] for row in own]
    lines: dict[str, list[str]] = {
        "datapoints x games": [f"{len(row.judged.ids)} x {row.judged.games}" for row in own],
        "majority of games": [_share(one.majority) for one in found],
        "always fails": [_share(one.always_fails) for one in found],
        "undecided": [_share(one.undecided) for one in found],
        "Brier score": [_number(one.brier) for one in found],
        "calibration error": ["-" if c is None else f"{c.error:.3f}" for c in _calibrations(found)],
        "  if calibrated": ["-" if c is None else f"{c.floor:.3f}" for c in _calibrations(found)],
        "agent score difference": [_number(one.score_difference) for one in found],
        "checking rate": [_share(one.checking_rate) for one in found],
        "message effect": [_number(one) for one in heard],
        "tokens": [f"{_tokens(one):,.0f}" for one in paid],
        "dollars": ["unknown" if one.dollars is None else f"{one.dollars:.4g}" for one in paid],
    }
    print()
    titles = ("with its own provers", *(row.protocol for row in own))
    print_rows(titles, [(title, *cells) for title, cells in lines.items()])
    if advantage is not None:
        gained = _interval(Estimate(*advantage[:3]), signed=True)
        print(
            f"\nThe provers' model alone is right more often than the verifier alone by {gained}."
        )


def _calibrations(found: list[Measures]) -> list[Any]:
    return [one.calibration for one in found]


def _tokens(tested: Tested) -> float:
    metrics = dict(tested.metrics)
    return metrics["tokens"] + metrics["prompt_tokens"]


def _print_notes(
    compared: tuple[CardContrast, ...],
    labels: tuple[tuple[str, Labels], ...],
    told: tuple[str, ...],
) -> None:
    """The gain over the verifier alone, the truth of labels, the power, and the alarms."""
    print()
    for one in compared:
        if one.provers == OWN:
            gained = _interval(Estimate(*one.difference[:3]), signed=True)
            print(f"{one.protocol} over {ALONE}: {gained} points, p {_p(one.p)}.")
    for agent, truth in labels:
        print(
            f"Preference labels of {agent}: {_share(truth.right)} of {truth.pairs} right; margin "
            f"{truth.margin.value:.3f}, recorded {truth.recorded:.3f}."
        )
    # Of games at temperature 0 there is one about each datapoint, which shows less.
    finest = max(
        (one.comparison.detectable for one in compared if one.provers != GREEDY), default=0.0
    )
    print(
        f"Accuracies in %; p-values are corrected for {len(compared)} comparisons (Holm). "
        f"Differences from {100 * finest:.1f} points on are found with a power of 80 %."
    )
    for line in told:
        print(f"! {line}.")


def _interval(found: Estimate, signed: bool = False) -> str:
    value, low, high = (100 * one for one in found)
    return (
        f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"
        if signed
        else f"{value:.1f} [{low:.1f}, {high:.1f}]"
    )


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _share(found: Estimate | None) -> str:
    return "-" if found is None else f"{found.value:.1%}"


def _number(found: Estimate | None) -> str:
    return "-" if found is None else f"{found.value:.3f}"
