"""The exact attacks of a run, as they are kept beside its recording."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from nip_fn.export.improvements import BestReplies
from nip_fn.metrics.inference import Estimate

ATTACKS = "attacks"
EXACT = "exact-*.json"


class ShownReply(msgspec.Struct, frozen=True):
    """The best reply to one question, about the first problem.

    heard: the verifier's words.
    probability: of hearing them.
    reply: the best reply.
    sort: its sort.
    success: how often it succeeds.
    """

    heard: str
    probability: float
    reply: str
    sort: str
    success: float


class Exploitability(msgspec.Struct, frozen=True):
    """The verifier of one iteration against the best reply.

    iteration: the iteration.
    accuracy: recorded in its test, with the run's own provers; None where it was not tested.
    value: the accuracy against the best reply: the value of the game for the verifier.
    honest: the accuracy with the honest prover, on the other label.
    success: how often the best reply brings about the wrong verdict.
    least, most: bounds on this mean, whatever happens in games that were not followed.
    sorts: the share of each sort of reply among the best ones.
    shown: the best replies about the first problem.
    """

    iteration: int
    accuracy: float | None
    value: Estimate
    honest: Estimate
    success: Estimate
    least: float
    most: float
    sorts: Mapping[str, float]
    shown: tuple[ShownReply, ...]


class ExactAttack(msgspec.Struct, frozen=True, omit_defaults=True):
    """The best response to the verifier of a run, iteration by iteration.

    attacked: the label on which the prover's verdict is wrong, "wrong" or "right": `success` is the
      soundness error, or one less the completeness.
    problems: the number of problems.
    questions: the number of questions that were drawn about each of them; None for all.
    changes: the parameters that differ from those of the run, by address.
    view: what the prover is shown of the first problem.
    iterations: the iterations, in order.
    file: the same as JSON.
    """

    attacked: str
    problems: int
    questions: int | None
    changes: Mapping[str, Any]
    view: str
    iterations: tuple[Exploitability, ...]
    file: Path | None = None


def best_replies_of(folder: Path) -> tuple[BestReplies, ...]:
    """The soundness errors that were computed against the verifiers of a run, by its folder.

    Files that are none of ours are passed over: what a recording says does not depend on them.
    """
    attacks = []
    for file in sorted((folder / ATTACKS).glob(EXACT)):
        with suppress(OSError, msgspec.DecodeError):
            attacks.append(msgspec.json.decode(file.read_bytes(), type=ExactAttack))
    return tuple(
        BestReplies(
            ", ".join(f"{name.split('.')[-1]} {value}" for name, value in attack.changes.items()),
            attack.problems,
            {each.iteration: each.success.value for each in attack.iterations},
        )
        for attack in attacks
        if attack.attacked == "wrong"
    )
