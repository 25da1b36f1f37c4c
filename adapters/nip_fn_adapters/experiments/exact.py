"""The exact exploitability of a verifier: its errors against the best reply there is, computed."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from math import fsum
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec.structs import replace

from nip_fn.config.attacks import frozen_table
from nip_fn.config.codec import by_address
from nip_fn.config.hosting import provider_kind
from nip_fn.config.resolve import resolve
from nip_fn.errors import Problem
from nip_fn.game.datapoint import Datapoint
from nip_fn.metrics.inference import Estimate, balanced_share, crossed_interval
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.registry import protocol_of
from nip_fn.protocols.sides import only_label, sides
from nip_fn.run.exact import (
    Enumerate,
    ExactGame,
    Played,
    best_responses,
    enumerated_scripts,
    exact_problem,
    honest_games,
)
from nip_fn_adapters.durable import replace_file
from nip_fn_adapters.experiments.attack_cases import resolved, with_changes
from nip_fn_adapters.experiments.concurrency import asynchronous
from nip_fn_adapters.experiments.datasets import opened_data
from nip_fn_adapters.experiments.outcomes import outcome, refuse
from nip_fn_adapters.experiments.watching import NOBODY, Tell, Watch
from nip_fn_adapters.recording.exact_attacks import (
    ATTACKS,
    EXACT,
    ExactAttack,
    Exploitability,
    ShownReply,
)
from nip_fn_adapters.recording.runs import Run, load_run

PROBLEMS = 2  # a minute on two cores, for the lady's tea at temperature 1
HONEST = 50  # datapoints on which the honest prover plays: one reply each, and not a thousand
TOLERANCE = 0.02
MOST = 5_000  # replies in a state, about each problem, that a model judges
MOST_SHOWN = 6
WORDS = {0: "wrong", 1: "right"}  # of labels


@outcome
def attack_exact(
    run: Run | Path | str,
    *,
    iterations: Sequence[int] | None = None,
    every_iteration: bool = False,
    problems: int = PROBLEMS,
    tolerance: float = TOLERANCE,
    most: int | None = None,
    questions: int | None = None,
    changes: Mapping[str, Any] = MappingProxyType({}),
    runs: Path | str = "runs",
    tell: Tell | None = None,
    watch: Watch = NOBODY,
) -> ExactAttack:
    """Compute how often the best reply misleads the verifier of a run: `nip-fn attack --exact`.

    Nothing is sampled.  The prover hears what the verifier says, each time with its exact
    probability, knows the verifier's policy but not its private view, and gives the reply of its
    world (`nip_fn.worlds.replies`) that succeeds most often in all states that it cannot tell
    apart.

    Args:
        run: The run: its name in `runs`, its folder, or itself.
        iterations: Those whose verifier is attacked; None for the last one.
        every_iteration: Attack all of them.
        problems: The number of held-out problems.
        tolerance: The difference between `least` and `most` at which to stop, apart from what is
            not enumerated of the verifier's first words.
        questions: The number of questions that are drawn about each problem, by their
            probabilities, to stand for all that the verifier may ask; None for all.
        most: The number of replies in a state that the verifier is to judge about each problem,
            after which to stop whatever the bounds; None for 5,000 if it is a model, and for no
            limit if it is a script.
        changes: Parameters that differ from those of the run, as a table like that of a file.
        runs: The folder of all runs.
        tell: Takes lines for people; None: nothing is printed.
        watch: See `Watch`.

    Returns:
        The exploitability of each iteration.  It is also written to `RUN/attacks`.
    """
    watch = watch.telling(tell)
    attacked = run if isinstance(run, Run) else load_run(run, runs).unwrap()
    last = attacked.state.iteration
    chosen = range(last + 1) if every_iteration else iterations or (last,)
    table = frozen_table(attacked.params, datapoints=problems, games=1)
    params = resolved(with_changes(table, changes))
    protocol = protocol_of(params)
    if problem := exact_problem(params, protocol):
        refuse(problem)
    label = only_label(protocol, sides(protocol)[0])
    assert label is not None
    points = _points(params, attacked.params.dataset_options.max_test_size, watch)
    misleading = _one_of_each_problem(_with_label(points, label))[:problems]
    honest_points = _with_label(points, 1 - label)[:HONEST]
    measured = []
    for iteration in chosen:
        if not 0 <= iteration <= last:
            absent = f"the run has no iteration {iteration}"
            refuse(Problem(absent, "`iterations`", f"choose from 0 to {last}"))
        with watch.under_way(f"best replies to the verifier of iteration {iteration}"):
            game = _game(params, attacked, iteration, tolerance, most, questions)
            best, honest = best_responses(game, misleading), honest_games(game, honest_points)
        measured.append(_measured(iteration, _accuracy(attacked, iteration), best, honest))
    options = (tuple(chosen), problems, questions, tolerance, most, dict(changes))
    hashed = blake2b(msgspec.json.encode(options), digest_size=4).hexdigest()
    file = attacked.path.parent / ATTACKS / EXACT.replace("*", hashed)
    prover = protocol.agents[sides(protocol)[0][0]]
    result = ExactAttack(
        attacked=WORDS[label],
        problems=len(misleading),
        questions=questions,
        changes=by_address(changes),
        view=misleading[0].view(prover.name, prover.role),
        iterations=tuple(measured),
    )
    file.parent.mkdir(exist_ok=True)
    replace_file(file, msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    return replace(result, file=file)


attack_exact_async = asynchronous(attack_exact)


def _points(params: HyperParameters, most: int | None, watch: Watch) -> tuple[Datapoint, ...]:
    """The datapoints of the run's own test."""
    data, split = opened_data(params, watch), params.test_dataset_split
    size = data.info.size(split)
    return data.source(split, range(min(most or size, size)))


def _with_label(points: Sequence[Datapoint], label: int) -> list[Datapoint]:
    """The datapoints with a label."""
    return [point for point in points if point.label == label]


def _one_of_each_problem(points: Sequence[Datapoint]) -> list[Datapoint]:
    by_problem: dict[str, Datapoint] = {}
    for point in points:
        by_problem.setdefault(point.problem_id, point)
    return list(by_problem.values())


def _game(
    params: HyperParameters,
    attacked: Run,
    iteration: int,
    tolerance: float,
    most: int | None,
    questions: int | None,
) -> ExactGame:
    """The game of that iteration's verifier."""
    protocol = protocol_of(params)
    verifier = next(i for i in range(len(protocol.agents)) if protocol.is_verifier(i))
    agent, kind = params.agents[verifier], provider_kind(params.agents[verifier])
    adapter = attacked.adapter(agent.name, iteration)
    name = adapter.name if adapter else None
    enumerator: Enumerate
    if kind == "local":
        from nip_fn_adapters.providers.local.enumeration import local_enumerator

        folder = attacked.path.parent / "adapters"
        enumerator = local_enumerator(agent.model_name, folder, name).unwrap()
        most = most or MOST
    elif kind == "scripted":
        enumerator = enumerated_scripts(resolve(params).unwrap())
    else:
        refuse(
            Problem(
                f"{agent.model_provider} gives no probabilities of whole replies",
                f"agents.{agent.name}.model_provider",
                "attack it by games (without --exact), or a model of provider local",
            )
        )
    prover = sides(protocol)[0][0]
    return ExactGame(
        params, protocol, verifier, prover, name, enumerator, tolerance, most, questions
    )


def _accuracy(attacked: Run, iteration: int) -> float | None:
    rows = (row for row in attacked.state.rows if row.stage == "test")
    return next((dict(row.metrics)["accuracy"] for row in rows if row.iteration == iteration), None)


def _measured(
    iteration: int,
    accuracy: float | None,
    best: Sequence[Played],
    honest: Sequence[Played],
) -> Exploitability:
    success, right = _share(best), _share(honest)
    failure = Estimate(1 - success.value, 1 - success.high, 1 - success.low)
    sorts: dict[str, float] = defaultdict(float)
    for answered in (answered for played in best for answered in played.answered):
        sorts[answered.reply.sort] += answered.probability
    total = fsum(sorts.values())
    return Exploitability(
        iteration=iteration,
        accuracy=accuracy,
        value=balanced_share(failure, right),
        honest=right,
        success=success,
        least=fsum(played.low for played in best) / len(best),
        most=fsum(played.high for played in best) / len(best),
        sorts={sort: part / total for sort, part in sorted(sorts.items())},
        shown=tuple(_shown(best[0])),
    )


def _share(games: Sequence[Played]) -> Estimate:
    """The mean over problems, with an interval over them."""
    value, low, high = crossed_interval([[played.value for played in games]])
    return Estimate(value, max(0.0, low), min(1.0, high))


def _shown(played: Played) -> Iterator[ShownReply]:
    for answered in played.answered[:MOST_SHOWN]:
        yield ShownReply(
            heard=answered.heard,
            probability=answered.probability,
            reply=answered.reply.text,
            sort=answered.reply.sort,
            success=answered.low / answered.probability,
        )
