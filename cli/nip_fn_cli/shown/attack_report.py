"""The results of an attack: each prover's success, the worst case, and bounds."""

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

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
from nip_fn_adapters.experiments.recordings import read_recording, replay_recording
from nip_fn_adapters.recording.store import CHECKPOINT
from nip_fn_cli.shown.watching import TERMINAL

WRONG, RIGHT = 0, 1  # labels


class Row(NamedTuple):
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


def rows_of(case: Case, folder: Path, stage: StageForest, params: HyperParameters) -> Iterator[Row]:
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
                if is_attacked(protocol, case.attackers, point, tree.key):
                    won = best_of(tree, point, protocol, case.attackers, n)
                    share = won if aim(protocol, case.attackers, point) == ACCEPT else 1 - won
                    accepted.setdefault(point.label, []).append((point.id, share))
            labels = frozenset(accepted)
            yield Row(case.prover, case.attackers, n, (accepted,), labels, case.games, (folder,))
        return
    # The run's own provers attack wherever anybody could.
    attackers = (case.attackers,) if case.attackers else sides(protocol)
    shares: dict[int, list[tuple[str, float]]] = {}
    attacked: dict[int, list[tuple[str, float]]] = {}
    for game in stage.games():
        point = game.datapoint
        point_share = (point.id, float(verdict(game) == ACCEPT))
        shares.setdefault(point.label, []).append(point_share)
        if any(is_attacked(protocol, side, point, game.key) for side in attackers):
            attacked.setdefault(point.label, []).append(point_share)
    # Whoever is asked how often the run's own provers convince means all of their games.
    shown = {**shares, **attacked} if case.attackers else shares
    labels = frozenset(attacked)
    yield Row(case.prover, case.attackers, None, (shown,), labels, case.games, (folder,))


def over_seeds(rows_S: Sequence[Sequence[Row]]) -> list[Row]:
    """The rows of an attack, given those of each of its seeds in the same order."""
    return [
        row._replace(
            accepted=tuple(chain.from_iterable(seed_row.accepted for seed_row in (row, *further))),
            attacked=row.attacked.union(*(seed_row.attacked for seed_row in further)),
            runs=tuple(chain.from_iterable(seed_row.runs for seed_row in (row, *further))),
        )
        for row, *further in zip(*rows_S, strict=True)
    ]


def report_of(rows: list[Row], params: HyperParameters) -> dict[str, Any]:
    """The facts of an attack, from the rows of all its runs, the run's own provers first."""
    blamed = _worst(rows, WRONG) or _worst(rows, RIGHT)
    return {
        "completeness": _dict(rows[0].share(RIGHT)),
        "soundness_error": _bound(rows, WRONG),
        "completeness_under_attack": _bound(rows, RIGHT),
        "provers": [_shown(row, params) for row in rows],
        "worst_case": blamed and _example(blamed, params),
    }


def _dict(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else estimate._asdict()


def _against(rows: list[Row], label: int) -> list[Row]:
    """The rows of provers that argue for the wrong verdict on that label."""
    return [row for row in rows if label in row.attacked]


def _worst(rows: list[Row], label: int) -> Row | None:
    """The prover that misleads the verifier the most."""

    def misled(row: Row) -> float:
        estimate = row.misled(label)
        return estimate.value if estimate else 0.0

    return max(_against(rows, label), key=misled, default=None)


def _bound(rows: list[Row], label: int) -> dict[str, Any] | None:
    """The success of the worst prover, with an interval that holds for all provers together."""
    against, worst = _against(rows, label), _worst(rows, label)
    if worst is None:
        return None
    level = 1 - (1 - LEVEL) / len(against)
    estimates = [row.misled(label, level) for row in against]
    value, low, high = largest([estimate for estimate in estimates if estimate])
    if label == RIGHT:
        value, low, high = 1 - value, 1 - high, 1 - low
    bound = Estimate(value, low, high)._asdict()
    return {**bound, "prover": _named(worst), "of": len(against)}


def _named(row: Row) -> str:
    return row.prover if row.best_of is None else f"{row.prover} of {row.best_of}"


def _shown(row: Row, params: HyperParameters) -> dict[str, Any]:
    estimates = {
        name: row.share(label)
        for name, label in (("accepts_right", RIGHT), ("accepts_wrong", WRONG))
    }
    played = {name for seed in row.accepted for shares in seed.values() for name, _ in shares}
    return {
        "prover": _named(row),
        "agents": [params.agents[index].name for index in row.attackers],
        "best_of": row.best_of,
        **{name: _dict(estimate) for name, estimate in estimates.items()},
        "attacks": [("wrong", "right")[label] for label in sorted(row.attacked)],
        "datapoints": len(played),
        "games": row.games,
        "runs": list(map(str, row.runs)),
    }


def _example(row: Row, params: HyperParameters) -> dict[str, Any] | None:
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
        stage = replay_recording(path, read_recording(path), TERMINAL).stages[-1]
        games = [game for game in stage.games() if is_misled(game)]
        if games:
            game = max(games, key=lambda game: misled[game.datapoint.id])
            views = {"views": dict(game.datapoint.views)} if game.datapoint.views else {}
            about = {"prover": _named(row), "run": str(run)}
            return {**about, **transcript(params, game), **views}
    return None
