"""`check_trainer`, the conformance suite of trainers, built in or your own."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from nip_fn.config.codec import from_dict
from nip_fn.config.groups import make_groups
from nip_fn.game.datapoint import Datapoint, make_datapoint
from nip_fn.game.episode import Episode, movers
from nip_fn.game.reply import Completion
from nip_fn.keys import Key, fold_in, key
from nip_fn.params.agent import meets_others
from nip_fn.params.run import HyperParameters
from nip_fn.prompts.chat import build_chat
from nip_fn.protocols.registry import protocol_of
from nip_fn.testing.check import random_text
from nip_fn.testing.laws import Violation
from nip_fn.training.rows import rows_problem
from nip_fn.training.trainer import SampleBatch, Trainer, Update
from nip_fn.trees.grow import Rules, batched, grow_many

HABITS = (0.1, 0.4)  # shares of invalid replies, and of decisions where they count

TrainerLaw = Callable[[SampleBatch, Update[Any]], Iterator[Violation]]


class TrainerError(AssertionError):
    """A trainer breaks a law; the message has one line for each violation."""


def rows_fit_their_loss(batch: SampleBatch, update: Update[Any]) -> Iterator[Violation]:
    """The loss of a group can take each of its rows."""
    for name, rows in update.rows.items():
        if problem := rows_problem("", name, rows, update.loss_of(name)):
            yield Violation("update", problem.problem, problem.remedy)


def rows_are_for_groups_of_the_run(batch: SampleBatch, update: Update[Any]) -> Iterator[Violation]:
    """Every group that gets rows is a group of the run; those of another would be lost."""
    names = [group.name for group in batch.groups]
    for name in update.rows:
        if name not in names:
            yield Violation(f"group {name!r}", "there is no such group", f"it is one of {names}")


def rows_hold_no_reply_of_an_opponent(
    batch: SampleBatch, update: Update[Any]
) -> Iterator[Violation]:
    """No row of a group holds a reply that an earlier model or a script gave in its place."""
    replies = [
        (
            (index, agent) in batch.off_policy,
            (batch.prompt(index, int(tree.parent_N[node]), agent), utterance.raw),
        )
        for index, tree in enumerate(batch.trees)
        for node, utterances in enumerate(tree.utterances_N)
        for utterance in utterances
        for agent in [utterance.agent]
    ]
    # The agent itself may have said the same to the same, in another tree.
    foreign = {row for is_foreign, row in replies if is_foreign}
    foreign -= {row for is_foreign, row in replies if not is_foreign}
    for name, rows in update.rows.items():
        number = sum(any((row.prompt, reply) in foreign for reply in row.replies) for row in rows)
        if number:
            problem = f"{number} rows hold a reply of an earlier model, or of a script"
            yield Violation(f"group {name!r}", problem, "leave out `batch.off_policy`")


TRAINER_LAWS: tuple[TrainerLaw, ...] = (
    rows_fit_their_loss,
    rows_are_for_groups_of_the_run,
    rows_hold_no_reply_of_an_opponent,
)


def check_trainer(
    trainer: Trainer[Any],
    params: HyperParameters | None = None,
    *,
    iterations: int = 4,
    num_trees: int = 24,
    seed: int = 0,
) -> None:
    """Check that a trainer's updates obey every law, on trees of random replies.

    Args:
        trainer: The trainer.
        params: Of the runs in which it is to be used; by default, those of a short game of `nip`
            in which agents meet earlier models, too.
        iterations: Updates in a row; more, if the trainer changes its ways later.
        num_trees: Trees in each of them.
        seed: Of the replies; the same one checks the same trees.

    Raises:
        TrainerError: With one line for each violation: the law, the iteration, what to do.
    """
    if params is None:
        # Trees grow exponentially in their rounds, and a law holds in few as in many.
        short = {"nip_protocol": {"max_message_rounds": 4}}
        params = from_dict({**short, "agents": {"_default": {"opponent_pool": 1}}}).unwrap()
    lines: dict[str, None] = {}
    updates = random_updates(trainer, params, iterations=iterations, num_trees=num_trees, seed=seed)
    for batch, update in updates:
        for law in TRAINER_LAWS:
            violations = list(law(batch, update))
            for where, problem, remedy in violations:
                name = law.__name__.replace("_", " ")
                lines[f"iteration {batch.iteration}: {name}: {where}: {problem}; {remedy}"] = None
            if violations:  # the later laws take rows for granted
                break
    if lines:
        raise TrainerError("\n".join(lines))


def random_updates(
    trainer: Trainer[Any], params: HyperParameters, *, iterations: int, num_trees: int, seed: int
) -> Iterator[tuple[SampleBatch, Update[Any]]]:
    """Updates in a row on trees of random replies, each with its trees; see `check_trainer`."""
    state = trainer.init(make_groups(params))
    for iteration in range(iterations):
        iteration_key = fold_in(key(seed), "check", iteration)
        batch = _batch(trainer, state, params, iteration, num_trees, iteration_key)
        update = trainer.update(batch, state, fold_in(iteration_key, "update"))
        yield batch, update
        state = update.state


def _batch(
    trainer: Trainer[Any],
    state: Any,
    params: HyperParameters,
    iteration: int,
    num_trees: int,
    batch_key: Key,
) -> SampleBatch:
    """Trees of random replies, half of them about right solutions; `batch_key` is consumed."""
    protocol = protocol_of(params)
    rules = Rules(protocol, partial(trainer.branching, state))

    def policy(point: Datapoint, episode: Episode, agent: int, reply_key: Key) -> Completion:
        move = next(move for move in movers(protocol, episode) if move.agent == agent)
        text = random_text(protocol, len(episode.rounds), move, HABITS, reply_key)
        return Completion(text, "stop", model="random")

    points = tuple(
        make_datapoint(f"problem {index // 2}", "Is it right?", f"solution {index}", index % 2)
        for index in range(num_trees)
    )
    keys = [fold_in(batch_key, index) for index in range(num_trees)]
    trees = grow_many(rules, points, batched(policy), keys=keys)
    chat = partial(build_chat, params, protocol)
    off_policy = _off_policy(params, num_trees)
    return SampleBatch(protocol, chat, make_groups(params), points, trees, iteration, off_policy)


def _off_policy(params: HyperParameters, num_trees: int) -> frozenset[tuple[int, int]]:
    """Every third tree, for one agent after the other, if any of them meets opponents."""
    if not any(map(meets_others, params.agents)):
        return frozenset()
    return frozenset((tree, tree // 3 % len(params.agents)) for tree in range(0, num_trees, 3))
