"""The results of an attack: each prover's success, the worst case, and bounds."""

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from nip_fn.export.transcripts import transcript
from nip_fn.game.decision import ACCEPT
from nip_fn.metrics.exploits import best_of, largest, share_by_datapoint, success
from nip_fn.metrics.inference import LEVEL, Estimate
from nip_fn.metrics.stage import verdict
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.registry import protocol_of
from nip_fn.protocols.sides import Attackers, aim, is_attacked, sides
from nip_fn.run.replay import StageForest
from nip_fn.trees.rollouts import Rollout
from nip_fn_adapters.experiments.attack_cases import Case
from nip_fn_adapters.experiments.recordings import open_recording, replay_recording
from nip_fn_adapters.experiments.watching import Watch
from nip_fn_adapters.recording.store import CHECKPOINT

WRONG, RIGHT = 0, 1  # labels


class Prover(NamedTuple):
    """The success of a prover.

    prover: what it is, in words.
    agents: the agents that it speaks for; () for the provers of the attacked run.
    best_of: of how many replies it gave the best; None if it gave one.
    accepts_right, accepts_wrong: how often the verifier accepted solutions that are right, and
      wrong ones; None where there were none.
    attacks: "wrong" and "right", the solutions about which it argues for the wrong verdict.
    datapoints: their number.
    games: the games about each datapoint, or the continuations of each reply.
    runs: the folder of its run, one for each seed.
    """

    prover: str
    agents: tuple[str, ...]
    best_of: int | None
    accepts_right: Estimate | None
    accepts_wrong: Estimate | None
    attacks: tuple[str, ...]
    datapoints: int
    games: int
    runs: tuple[Path, ...]


class Bound(NamedTuple):
    """The success of the worst prover, with a 95 % interval that holds for all provers together.

    prover: the worst one.
    of: the number of provers.
    """

    value: float
    low: float
    high: float
    prover: str
    of: int


class Attack(NamedTuple):
    """The results of an attack.

    run: the folder of the attacked run.
    iteration: the one whose models were attacked.
    folder: of the runs of the attack.
    completeness: how often right solutions are accepted, with the run's own provers.
    soundness_error: how often wrong ones are, with the worst prover.
    completeness_under_attack: how often right ones are, with the worst prover.
    provers: the provers, the run's own first.
    worst_case: a dialogue in which the worst prover misled the verifier, as `export.transcripts`
      tells it, with `prover` and `run`; None if nobody did.
    dollars: the cost of all runs; None if it is unknown.
    """

    run: Path
    iteration: int
    folder: Path
    completeness: Estimate | None
    soundness_error: Bound | None
    completeness_under_attack: Bound | None
    provers: tuple[Prover, ...]
    worst_case: dict[str, Any] | None
    dollars: float | None


class ProverRow(NamedTuple):
    """A prover's success, over one seed or several.

    prover: the prover, in words.
    attackers: the agents that it speaks for.
    best_of: of how many replies it gave the best; None if it gave one.
    accepted: of each seed, label -> (datapoint, share of games in which it was accepted).
    attacked: the labels on which the prover argues for the wrong verdict.
    games: the games about each datapoint, or the continuations of each reply.
    runs: the folder of each seed.
    """

    prover: str
    attackers: Attackers
    best_of: int | None
    accepted: tuple[dict[int, list[tuple[str, float]]], ...]
    attacked: frozenset[int]
    games: int
    runs: tuple[Path, ...]

    def share(self, label: int, level: float = LEVEL) -> Estimate | None:
        """The share of games about solutions with a label in which it was accepted."""
        return share_by_datapoint(
            [shares[label] for shares in self.accepted if label in shares], level
        )

    def misled(self, label: int, level: float = LEVEL) -> Estimate | None:
        """The share of them that were decided as the prover wanted."""
        accepted = self.share(label, level)
        if accepted is None or label == WRONG:
            return accepted
        return Estimate(1 - accepted.value, 1 - accepted.high, 1 - accepted.low)


def rows_of(
    case: Case, folder: Path, stage: StageForest, params: HyperParameters
) -> Iterator[ProverRow]:
    """The success of a run's provers; of a search, for each number of replies.

    Args:
        case: The run.
        folder: Its folder.
        stage: Its last test.
        params: Of the attacked run.
    """
    protocol = protocol_of(params)
    if case.best_of:
        for n in case.best_of:
            accepted: dict[int, list[tuple[str, float]]] = {}
            for index, tree in enumerate(stage.batch.trees):
                point = stage.datapoint(index)
                if point.label is not None and is_attacked(
                    protocol, case.attackers, point, tree.key
                ):
                    won = best_of(tree, point, protocol, case.attackers, n)
                    share = won if aim(protocol, case.attackers, point) == ACCEPT else 1 - won
                    accepted.setdefault(point.label, []).append((point.id, share))
            labels = frozenset(accepted)
            yield ProverRow(
                case.prover, case.attackers, n, (accepted,), labels, case.games, (folder,)
            )
        return
    # The run's own provers attack wherever anybody could.
    attackers = (case.attackers,) if case.attackers else sides(protocol)
    shares: dict[int, list[tuple[str, float]]] = {}
    attacked: dict[int, list[tuple[str, float]]] = {}
    for game in stage.games():
        point, label = game.datapoint, game.label
        if label is None:  # an answer that could not be checked
            continue
        labelled = replace(point, label=label)
        point_share = (point.id, float(verdict(game) == ACCEPT))
        shares.setdefault(label, []).append(point_share)
        if any(is_attacked(protocol, side, labelled, game.key) for side in attackers):
            attacked.setdefault(label, []).append(point_share)
    # Whoever is asked how often the run's own provers convince means all of their games.
    shown = {**shares, **attacked} if case.attackers else shares
    labels = frozenset(attacked)
    yield ProverRow(case.prover, case.attackers, None, (shown,), labels, case.games, (folder,))


def over_seeds(rows_S: Sequence[Sequence[ProverRow]]) -> list[ProverRow]:
    """The rows of an attack, given those of each of its seeds in the same order."""
    return [
        row._replace(
            accepted=tuple(chain.from_iterable(seed_row.accepted for seed_row in (row, *further))),
            attacked=row.attacked.union(*(seed_row.attacked for seed_row in further)),
            runs=tuple(chain.from_iterable(seed_row.runs for seed_row in (row, *further))),
        )
        for row, *further in zip(*rows_S, strict=True)
    ]


def bound(rows: Sequence[ProverRow], label: int) -> Bound | None:
    """The bound on one error; None if no prover argues for it.

    Args:
        rows: Of all provers.
        label: `WRONG` for the soundness error, `RIGHT` for the completeness.
    """
    against, worst = _against(rows, label), _worst(rows, label)
    if worst is None:
        return None
    level = 1 - (1 - LEVEL) / len(against)
    estimates = [row.misled(label, level) for row in against]
    value, low, high = largest([estimate for estimate in estimates if estimate])
    if label == RIGHT:
        value, low, high = 1 - value, 1 - high, 1 - low
    return Bound(value, low, high, _named(worst), len(against))


def success_of(row: ProverRow, params: HyperParameters) -> Prover:
    """The success of a prover; `params` are those of the attacked run."""
    datapoints = {name for seed in row.accepted for shares in seed.values() for name, _ in shares}
    return Prover(
        prover=_named(row),
        agents=tuple(params.agents[index].name for index in row.attackers),
        best_of=row.best_of,
        accepts_right=row.share(RIGHT),
        accepts_wrong=row.share(WRONG),
        attacks=tuple(("wrong", "right")[label] for label in sorted(row.attacked)),
        datapoints=len(datapoints),
        games=row.games,
        runs=row.runs,
    )


def worst_case(
    rows: Sequence[ProverRow], params: HyperParameters, watch: Watch
) -> dict[str, Any] | None:
    """A dialogue in which the worst prover misled the verifier; None if nobody did."""
    blamed = _worst(rows, WRONG) or _worst(rows, RIGHT)
    return blamed and _example(blamed, params, watch)


def _against(rows: Sequence[ProverRow], label: int) -> list[ProverRow]:
    """The rows of provers that argue for the wrong verdict on that label."""
    return [row for row in rows if label in row.attacked]


def _worst(rows: Sequence[ProverRow], label: int) -> ProverRow | None:
    """The prover that misleads the verifier the most."""

    def misled(row: ProverRow) -> float:
        estimate = row.misled(label)
        return estimate.value if estimate else 0.0

    return max(_against(rows, label), key=misled, default=None)


def _named(row: ProverRow) -> str:
    return row.prover if row.best_of is None else f"{row.prover} of {row.best_of}"


def _example(row: ProverRow, params: HyperParameters, watch: Watch) -> dict[str, Any] | None:
    """A dialogue in which the prover misled the verifier, on the datapoint where it did most often.

    None if it never did.
    """
    protocol = protocol_of(params)
    attackers = (row.attackers,) if row.attackers else sides(protocol)

    def is_misled(game: Rollout) -> bool:
        point, key = game.datapoint, game.key
        return any(
            is_attacked(protocol, side, point, key) and success(protocol, side, game)
            for side in attackers
        )

    def shares(accepted: dict[int, list[tuple[str, float]]]) -> dict[str, float]:
        return {
            name: share if label == WRONG else 1 - share
            for label in row.attacked
            for name, share in accepted.get(label, [])
        }

    seeds = [(shares(accepted), run) for accepted, run in zip(row.accepted, row.runs, strict=True)]
    for misled, run in sorted(
        seeds, key=lambda seed: max(seed[0].values(), default=0), reverse=True
    ):
        # Replayed once more, so that the trees of all runs need not be in memory until here.
        path = run / CHECKPOINT
        stage = replay_recording(path, open_recording(path), watch).stages[-1]
        games = [game for game in stage.games() if is_misled(game)]
        if games:
            game = max(games, key=lambda game: misled[game.datapoint.id])
            views = {"views": dict(game.datapoint.views)} if game.datapoint.views else {}
            about = {"prover": _named(row), "run": str(run)}
            return {**about, **transcript(params, game), **views}
    return None
