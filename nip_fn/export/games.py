"""The games of tests as records that a page can show: what went wrong, and what changed."""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from nip_fn.export.curves import Holds, is_right, is_undecided, percent, signed
from nip_fn.export.svg import draw_outcomes, value_bins
from nip_fn.export.transcripts import chat_before
from nip_fn.export.views import PageLimits, ReplyView, Value, game_end, letters_of, view_reply
from nip_fn.game.bounds import reward_bounds
from nip_fn.game.chat import Chat
from nip_fn.game.datapoint import Datapoint
from nip_fn.run.replay import StageForest
from nip_fn.trees.rollouts import Rollout, leaf_games

FAILURES: dict[str, Holds] = {
    "wrong": lambda game: not is_right(game) and not is_undecided(game),
    "undecided": is_undecided,
    "cut": attrgetter("was_cut"),
}


class GameView(NamedTuple):
    """A game with the chats as its models saw them.

    turns: (model, chat, reply) of each agent's last reply.
    """

    id: str
    datapoint: Datapoint
    end: tuple[str, str]
    rewards: tuple[Value, ...]
    turns: tuple[tuple[str, Chat, ReplyView], ...]


class TestView(NamedTuple):
    """A test, and its games that went wrong.

    games: the number of all games.
    failures: (one of `FAILURES`, the number of such games, the first of them).
    """

    iteration: int
    games: int
    failures: tuple[tuple[str, int, tuple[GameView, ...]], ...]


def view_test(id: str, stage: StageForest, limits: PageLimits) -> TestView:
    """The games of a test that went wrong."""
    games = stage.games()
    failures = []
    for failure, holds in FAILURES.items():
        failed = [game for game in games if holds(game)]
        shown = tuple(
            _game(f"{id}-{failure}-{number}", stage, game)
            for number, game in enumerate(failed[: limits.games])
        )
        failures.append((failure, len(failed), shown))
    return TestView(stage.iteration, len(games), tuple(failures))


def _game(id: str, stage: StageForest, game: Rollout) -> GameView:
    params, protocol = stage.params, stage.batch.protocol
    last = {
        utterance.agent: (round_id, utterance)
        for round_id, turn in enumerate(game.rounds)
        for utterance in turn
    }
    rewards = []
    for agent, (letter, value) in enumerate(zip(letters_of(protocol), game.returns, strict=True)):
        (value_bin,) = value_bins(np.array([value]), reward_bounds(protocol, agent))
        rewards.append(Value(letter, signed(value), value_bin))
    return GameView(
        id=id,
        datapoint=game.datapoint,
        end=game_end(game),
        rewards=tuple(rewards),
        turns=tuple(
            (
                utterance.model,
                chat_before(params, game, round_id, agent),
                view_reply(params, protocol, utterance),
            )
            for agent, (round_id, utterance) in sorted(last.items())
        ),
    )


# ------------------------------------------------------------------------------------ before, after


class ProblemView(NamedTuple):
    """A problem, and the first game about it in the first and in the last test.

    outcomes: (iteration, outcome) of every test.
    first, last: (iteration, replies, end).
    """

    id: str
    datapoint: Datapoint
    outcomes: tuple[tuple[int, str], ...]
    first: tuple[int, tuple[ReplyView, ...], tuple[str, str]]
    last: tuple[int, tuple[ReplyView, ...], tuple[str, str]]


class OutcomesView(NamedTuple):
    """The outcomes of all problems in all tests, and what changed from the first to the last."""

    rows: tuple[tuple[str, Markup, str], ...]  # (test, its outcomes as a bar, the share of right)
    problems: int
    gained: int
    lost: int
    shown: tuple[ProblemView, ...]


def view_outcomes(id: str, tests: Sequence[StageForest], limits: PageLimits) -> OutcomesView | None:
    """The outcomes of all problems that every test has; None without two tests."""
    if len(tests) < 2:
        return None
    by_test = [_outcomes(stage) for stage in tests]
    ids = [name for name in by_test[0] if all(name in outcomes for outcomes in by_test)]
    if not ids:
        return None
    # From the last test backwards, so that problems that ended alike lie together.
    ids.sort(key=lambda name: tuple(_ORDER[outcomes[name]] for outcomes in reversed(by_test)))
    rows = tuple(
        (
            f"test {stage.iteration}",
            draw_outcomes([_OUTCOME_CLASSES[outcomes[name]] for name in ids]),
            percent(sum(outcomes[name] == "right" for name in ids) / len(ids)),
        )
        for stage, outcomes in zip(tests, by_test, strict=True)
    )
    first, last = by_test[0], by_test[-1]
    gained = [name for name in ids if first[name] != "right" and last[name] == "right"]
    lost = [name for name in ids if first[name] == "right" and last[name] != "right"]
    half = limits.problems // 2
    shown = (*gained[: limits.problems - min(half, len(lost))], *lost[:half])
    return OutcomesView(
        rows=rows,
        problems=len(ids),
        gained=len(gained),
        lost=len(lost),
        shown=tuple(
            _problem(f"{id}-problem-{number}", name, tests, by_test)
            for number, name in enumerate(shown)
        ),
    )


_ORDER = {"right": 0, "mixed": 1, "undecided": 2, "broken": 3, "wrong": 4}
_OUTCOME_CLASSES = {"right": "o1", "mixed": "o2", "undecided": "o3", "broken": "o3", "wrong": "o4"}


def _outcomes(stage: StageForest) -> dict[str, str]:
    """The outcome of all games about each datapoint, or mixed."""
    kinds_by_id: dict[str, set[str]] = {}
    for game in stage.stats.games:
        kinds_by_id.setdefault(game.datapoint.id, set()).add(game_end(game)[0])
    return {
        name: kinds.pop() if len(kinds) == 1 else "mixed" for name, kinds in kinds_by_id.items()
    }


def _problem(
    id: str, name: str, tests: Sequence[StageForest], by_test: Sequence[Mapping[str, str]]
) -> ProblemView:
    games = [_game_about(name, stage) for stage in (tests[0], tests[-1])]
    first, last = (
        (
            stage.iteration,
            tuple(
                view_reply(stage.params, stage.batch.protocol, utterance)
                for turn in game.rounds
                for utterance in turn
            ),
            game_end(game),
        )
        for stage, game in zip((tests[0], tests[-1]), games, strict=True)
    )
    outcomes = tuple(
        (stage.iteration, outcomes[name]) for stage, outcomes in zip(tests, by_test, strict=True)
    )
    return ProblemView(id, games[0].datapoint, outcomes, first, last)


def _game_about(name: str, stage: StageForest) -> Rollout:
    index = stage.trees_about(name)[0]
    return leaf_games(stage.batch.trees[index], stage.datapoint(index))[0]
