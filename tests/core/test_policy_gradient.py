"""Advantages by hand, and the rows that are made of them."""

from typing import Any

import pytest

import nip_fn as nip
from nip_fn.run.sizes import data_problems
from nip_fn.select.pairs import Candidates
from nip_fn.training.policy_gradient import Advantage, root_mean_square

from .games import DATASET

MOVES = (nip.Move(0, (0,)),), (nip.Move(1, (0,)),)
AGENTS = nip.AgentSpec("verifier", "verifier", "Host"), nip.AgentSpec("prover", "prover", "Expert")
GAME = nip.make_protocol(
    name="short", agents=AGENTS, schedule=nip.in_turn(*MOVES), max_message_rounds=3
)
POINT = nip.make_datapoint("p", "Is it?", "1 + 1 = 3", label=0)
TEXTS = ("Decision: accept", "Decision: reject", "What?", "All is well.")


def policy(point: nip.Datapoint, episode: nip.Episode, agent: int, key: nip.Key) -> nip.Completion:
    return nip.Completion(TEXTS[nip.randint(key, len(TEXTS))], "stop", "toy")


def among(k: int, number: int = 6) -> Candidates:
    trees = [nip.grow(nip.Rules(GAME, k), POINT, policy, key=nip.key(n)) for n in range(number)]
    return nip.candidates(trees, GAME, least=1)


def weigh(advantage: Advantage[Any], points: Candidates, state: Any = None) -> Any:
    return advantage.weigh(points, advantage.init if state is None else state)


def test_an_advantage_is_the_value_less_the_mean_of_the_siblings() -> None:
    points = among(3)
    weights, _ = weigh(nip.training.tree_advantage(), points)
    assert any(any(row) for row in weights)
    for point, row in zip(points.points, weights, strict=True):
        mean = sum(point.value_C) / len(point.value_C)
        assert row == pytest.approx([value - mean for value in point.value_C], abs=1e-9)
        assert sum(row) == pytest.approx(0.0, abs=1e-9)


def test_a_running_baseline_moves_by_its_share_and_needs_no_sibling() -> None:
    advantage, points = nip.training.running_baseline(0.75), among(1)
    of_verifier = [point.value_C[0] for point in points.points if point.agent == 0]
    mean = sum(of_verifier) / len(of_verifier)
    _, first = weigh(advantage, points)
    assert dict(first)[0] == pytest.approx(mean)
    weights, second = weigh(advantage, points, ((0, mean + 1.0), (1, 0.0)))
    assert dict(second)[0] == pytest.approx(mean + 0.75)
    for point, row in zip(points.points, weights, strict=True):
        if point.agent == 0:
            assert row == pytest.approx([point.value_C[0] - mean - 0.75])


@pytest.mark.parametrize("by", ["agent", "position"])
def test_normalised_advantages_have_a_root_mean_square_of_one(by: Any) -> None:
    points = among(3)
    weights, _ = weigh(nip.training.normalised(nip.training.tree_advantage(), by), points)
    groups: dict[tuple[int, int], list[float]] = {}
    for point, row in zip(points.points, weights, strict=True):
        depth = int(points.trees[point.tree].depth_N[point.parent]) if by == "position" else 0
        groups.setdefault((point.agent, depth), []).extend(row)
    assert len(groups) == (3 if by == "position" else 2)
    assert [root_mean_square(row) for row in groups.values()] == pytest.approx([1.0] * len(groups))


def test_all_replies_to_a_prompt_are_a_row_and_equal_ones_make_none() -> None:
    points = among(3)
    groups = tuple(
        nip.training.Group(agent.name, (index,), "m", trainable=True)
        for index, agent in enumerate(AGENTS)
    )

    def chat(point: nip.Datapoint, episode: nip.Episode, agent: int) -> nip.game.Chat:
        return (nip.game.Message("user", f"{agent}, {len(episode.rounds)}"),)

    trainer = nip.policy_gradient(k=3)
    batch = nip.SampleBatch(GAME, chat, groups, (POINT,), points.trees)
    update = trainer.update(batch, trainer.init(groups), nip.key(0))
    rows = [row for group in update.rows.values() for row in group]
    assert update.loss == nip.training.PolicyGradient()
    assert len(rows) == sum(len(set(point.value_C)) > 1 for point in points.points) > 0
    assert all(len(row.replies) == 3 and any(row.weights) for row in rows)


@pytest.mark.parametrize("trainer", ["malt", "reinforce"])
def test_trees_that_no_machine_could_hold_are_refused(trainer: str) -> None:
    table = {
        "trainer": trainer,
        "malt": {"num_responses_per_timestep": 8},
        "nip_protocol": {"max_message_rounds": 30},
        "agents": {"_default": {"model_provider": "local"}},
    }
    problems = data_problems(nip.from_dict(table).unwrap(), DATASET)
    assert any("a tree can have more than" in str(problem) for problem in problems)
