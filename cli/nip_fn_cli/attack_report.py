"""The results of an attack: each prover's success, the worst case, and bounds."""

from collections.abc import Iterator
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
from nip_fn_adapters.store import CHECKPOINT
from nip_fn_cli.attack_cases import Case
from nip_fn_cli.recordings import read_recording, replay_recording

WRONG, RIGHT = 0, 1  # labels


class Row(NamedTuple):
    """A prover's success.

    prover: the prover, in words.
    attackers: the agents that it speaks for.
    best_of: of how many replies it gave the best; None if it gave one.
    accepted: label -> (datapoint, share of games in which it was accepted).
    attacked: the labels on which the prover argues for the wrong verdict.
    games: the games about each datapoint, or the continuations of each reply.
    run: the folder.
    """

    prover: str
    attackers: Attackers
    best_of: int | None
    accepted: dict[int, list[tuple[str, float]]]
    attacked: frozenset[int]
    games: int
    run: Path


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
            yield Row(case.prover, case.attackers, n, accepted, labels, case.games, folder)
        return
    # The run's own provers attack wherever anybody could.
    attackers = (case.attackers,) if case.attackers else sides(protocol)
    every: dict[int, list[tuple[str, float]]] = {}
    attacked: dict[int, list[tuple[str, float]]] = {}
    for game in stage.games():
        point = game.datapoint
        said = (point.id, float(verdict(game) == ACCEPT))
        every.setdefault(point.label, []).append(said)
        if any(is_attacked(protocol, own, point, game.key) for own in attackers):
            attacked.setdefault(point.label, []).append(said)
    # Whoever is asked how often the run's own provers convince means all of their games.
    shown = {**every, **attacked} if case.attackers else every
    yield Row(case.prover, case.attackers, None, shown, frozenset(attacked), case.games, folder)


def report_of(rows: list[Row], params: HyperParameters) -> dict[str, Any]:
    """The facts of an attack, from the rows of all its runs, the run's own provers first."""
    blamed = _worst(rows, WRONG) or _worst(rows, RIGHT)
    return {
        "completeness": _dict(share_by_datapoint(rows[0].accepted.get(RIGHT, []), LEVEL)),
        "soundness_error": _bound(rows, WRONG),
        "completeness_under_attack": _bound(rows, RIGHT),
        "provers": [_shown(row, params) for row in rows],
        "worst_case": blamed and _example(blamed, params),
    }


def _dict(found: Estimate | None) -> dict[str, Any] | None:
    return None if found is None else found._asdict()


def _against(rows: list[Row], label: int) -> list[Row]:
    """The rows of provers that argue for the wrong verdict on that label."""
    return [row for row in rows if label in row.attacked]


def _misled(row: Row, label: int) -> list[tuple[str, float]]:
    """(datapoint, share of games that were decided as the prover wanted)."""
    return [(name, share if label == WRONG else 1 - share) for name, share in row.accepted[label]]


def _worst(rows: list[Row], label: int) -> Row | None:
    """The prover that misleads the verifier the most."""

    def misled(row: Row) -> float:
        found = share_by_datapoint(_misled(row, label), LEVEL)
        return found.value if found else 0.0

    return max(_against(rows, label), key=misled, default=None)


def _bound(rows: list[Row], label: int) -> dict[str, Any] | None:
    """The success of the worst prover, with an interval that holds for all provers together."""
    against, worst = _against(rows, label), _worst(rows, label)
    if worst is None:
        return None
    level = 1 - (1 - LEVEL) / len(against)
    found = [share_by_datapoint(_misled(row, label), level) for row in against]
    value, low, high = largest([one for one in found if one])
    if label == RIGHT:
        value, low, high = 1 - value, 1 - high, 1 - low
    bound = Estimate(value, low, high)._asdict()
    return {**bound, "prover": _named(worst), "of": len(against)}


def _named(row: Row) -> str:
    return row.prover if row.best_of is None else f"{row.prover} of {row.best_of}"


def _shown(row: Row, params: HyperParameters) -> dict[str, Any]:
    estimates = {
        name: share_by_datapoint(row.accepted.get(label, []), LEVEL)
        for name, label in (("accepts_right", RIGHT), ("accepts_wrong", WRONG))
    }
    played = {name for found in row.accepted.values() for name, _ in found}
    return {
        "prover": _named(row),
        "agents": [params.agents[at].name for at in row.attackers],
        "best_of": row.best_of,
        **{name: _dict(found) for name, found in estimates.items()},
        "attacks": [("wrong", "right")[label] for label in sorted(row.attacked)],
        "datapoints": len(played),
        "games": row.games,
        "run": str(row.run),
    }


def _example(row: Row, params: HyperParameters) -> dict[str, Any] | None:
    """A dialogue in which the prover misled the verifier, on the datapoint where it did most often.

    None if it never did.
    """
    protocol, path = protocol_of(params), row.run / CHECKPOINT
    attackers = (row.attackers,) if row.attackers else sides(protocol)
    shares = {name: share for label in row.attacked for name, share in _misled(row, label)}

    def is_misled(game: Rollout) -> bool:
        point, key = game.datapoint, game.key
        return any(
            is_attacked(protocol, own, point, key) and success(protocol, own, game)
            for own in attackers
        )

    # Replayed once more, so that the trees of all runs need not be in memory until here.
    stage = replay_recording(path, read_recording(path)).stages[-1]
    found = [game for game in stage.games() if is_misled(game)]
    if not found:
        return None
    game = max(found, key=lambda game: shares[game.datapoint.id])
    views = {"views": dict(game.datapoint.views)} if game.datapoint.views else {}
    about = {"prover": _named(row), "run": str(row.run)}
    return {**about, **transcript(params, game), **views}
