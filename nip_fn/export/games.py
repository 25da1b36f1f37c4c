"""The games of tests as records that a page can show: what went wrong, and what changed."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from nip_fn.export.curves import (
    is_cut,
    is_right,
    is_undecided,
    percent,
    signed,
)
from nip_fn.export.svg import draw_outcomes, value_bins
from nip_fn.export.transcripts import chat_before
from nip_fn.export.views import (
    Changes,
    Episodes,
    GameView,
    Limits,
    Listing,
    Said,
    TestView,
    Turn,
    Value,
    about,
    letters_of,
    outcome_of,
    said_of,
)
from nip_fn.game.bounds import reward_bounds
from nip_fn.run.replay import StageForest
from nip_fn.trees.rollouts import Rollout, leaf_games

KINDS: dict[str, Callable[[Rollout], bool]] = {
    "wrong": lambda game: not is_right(game) and not is_undecided(game),
    "undecided": is_undecided,
    "cut": is_cut,
}


def view_test(id: str, stage: StageForest, limits: Limits) -> TestView:
    """The games of a test that went wrong."""
    games = [
        (tree, game)
        for tree, grown in enumerate(stage.batch.trees)
        for game in leaf_games(grown, stage.datapoint(tree))
    ]
    listings = []
    for category, holds in KINDS.items():
        matching = [(tree, game) for tree, game in games if holds(game)]
        shown = tuple(
            _game(f"{id}-{category}-{number}", stage, tree, game)
            for number, (tree, game) in enumerate(matching[: limits.games])
        )
        listings.append(Listing(category, len(matching), shown))
    return TestView(stage.iteration, len(games), tuple(listings))


def _game(id: str, stage: StageForest, tree: int, game: Rollout) -> GameView:
    params, protocol = stage.params, stage.batch.protocol
    turns = []
    for agent in range(len(protocol.agents)):
        last = next(
            (
                (round_id, utterance)
                for round_id, turn in reversed(list(enumerate(game.rounds)))
                for utterance in turn
                if utterance.agent == agent
            ),
            None,
        )
        if last is not None:
            round_id, utterance = last
            chat = chat_before(params, game, round_id, agent)
            turns.append(
                Turn(
                    agent,
                    protocol.agents[agent].name,
                    utterance.model,
                    tuple((message.role, message.name or "", message.content) for message in chat),
                    said_of(params, protocol, utterance),
                )
            )
    rewards = []
    for agent, (letter, value) in enumerate(zip(letters_of(protocol), game.returns, strict=True)):
        (own_bin,) = value_bins(np.array([value]), reward_bounds(protocol, agent))
        rewards.append(Value(letter, signed(value), own_bin))
    return GameView(id, about(stage, tree), outcome_of(game), tuple(rewards), tuple(turns))


# ------------------------------------------------------------------------------------ before, after


def view_changes(id: str, tests: Sequence[StageForest], limits: Limits) -> Changes | None:
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
    return Changes(
        rows=rows,
        problems=len(ids),
        gained=len(gained),
        lost=len(lost),
        shown=tuple(
            _episodes(f"{id}-problem-{number}", name, tests, by_test)
            for number, name in enumerate(shown)
        ),
    )


_ORDER = {"right": 0, "mixed": 1, "undecided": 2, "broken": 3, "wrong": 4}
_OUTCOME_CLASSES = {"right": "o1", "mixed": "o2", "undecided": "o3", "broken": "o3", "wrong": "o4"}


def _outcomes(stage: StageForest) -> dict[str, str]:
    """The outcome of all games about each datapoint, or mixed."""
    kinds_by_id: dict[str, set[str]] = {}
    for game in stage.games():
        kinds_by_id.setdefault(game.datapoint.id, set()).add(outcome_of(game)[0])
    return {
        name: kinds.pop() if len(kinds) == 1 else "mixed" for name, kinds in kinds_by_id.items()
    }


def _episodes(
    id: str, name: str, tests: Sequence[StageForest], by_test: Sequence[Mapping[str, str]]
) -> Episodes:
    def told(stage: StageForest) -> tuple[int, tuple[Said, ...], tuple[str, str]]:
        tree = stage.trees_about(name)[0]
        game = leaf_games(stage.batch.trees[tree], stage.datapoint(tree))[0]
        replies = tuple(
            said_of(stage.params, stage.batch.protocol, utterance)
            for turn in game.rounds
            for utterance in turn
        )
        return stage.iteration, replies, outcome_of(game)

    return Episodes(
        id=id,
        about=about(tests[0], tests[0].trees_about(name)[0]),
        outcomes=tuple(
            (stage.iteration, outcomes[name])
            for stage, outcomes in zip(tests, by_test, strict=True)
        ),
        first=told(tests[0]),
        last=told(tests[-1]),
    )
