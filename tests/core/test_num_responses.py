"""Numbers of replies for each agent, turn and iteration."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

import nip_fn as nip
from nip_fn.config.codec import from_dict
from nip_fn.run.events import CreateJob
from nip_fn.trees.tree import flatten

from .games import MANY_PAIRS, RETRIES, Setup, ends, make_params, play

PROVER, VERIFIER = 0, 1
DOCS = Path(__file__).parents[2] / "docs" / "training.md"
GAME = nip.key(0)
SMALL: dict[str, Any] = {
    "nip_protocol": {"max_message_rounds": 5},
    "rl": {"num_iterations": 1, "rollouts_per_iteration": 2},
}


def replies_a_node(**agents: dict[str, Any]) -> list[set[int]]:
    """For each iteration the numbers of children of open nodes, by depth."""
    setup = Setup(make_params(MANY_PAIRS, SMALL, {"agents": agents}), 0.0, 0.0)
    (sampled,) = ends(play(setup), "sample")
    found: list[set[int]] = [set() for _ in range(5)]
    for tree in map(flatten, sampled.forest):
        for node, children in enumerate(nip.trees.children_of(tree)):
            if children:
                found[int(tree.depth_N[node])].add(len(children))
    return found


def test_a_list_gives_a_number_for_each_turn_and_its_last_repeats() -> None:
    own = replies_a_node(verifier={"num_responses": [1, 4]}, prover={"num_responses": 2})
    assert own == [{1}, {2}, {4}, {2}, {4}]
    assert replies_a_node(verifier={"num_responses": [2]}) == [{2}, {3}, {2}, {3}, {2}]


def test_a_frozen_agent_gives_one_reply_unless_it_says_otherwise() -> None:
    frozen = {"freeze_agent": True}
    assert replies_a_node(verifier=frozen) == [{1}, {3}, {1}, {3}, {1}]
    assert replies_a_node(verifier={**frozen, "num_responses": 2}) == [{2}, {3}, {2}, {3}, {2}]
    idle = {**frozen, "num_responses": 2, "num_idle_responses": [1, 4]}
    assert replies_a_node(verifier=idle) == [{1}, {3}, {4}, {3}, {4}]


def test_agents_in_turn_branch_where_they_are_due() -> None:
    """Alternation: the agent that waits its turn samples fewer replies, or more for the other."""

    def schedule(first: bool) -> dict[str, Any]:
        kind = "AlternatingPeriodicUpdateSchedule"
        return {"_type": kind, "period": 3, "first_agent_num_rounds": 2, "first_agent": first}

    agents = {
        "prover": {"update_schedule": schedule(True), "num_idle_responses": 1},
        "verifier": {"update_schedule": schedule(False), "num_idle_responses": [1, 4]},
    }
    table = {"agents": agents, "rl": {"num_iterations": 3}}
    sampled = ends(play(Setup(make_params(MANY_PAIRS, SMALL, table), 0.0, 0.0)), "sample")
    assert [_on_the_left(state.forest[0].root) for state in sampled] == [
        [1, 3, 4, 3, 4],
        [1, 3, 4, 3, 4],
        [3, 1, 3, 1, 3],
    ]


def _on_the_left(node: nip.trees.Node) -> list[int]:
    """The number of replies at each node on the way down to the first leaf."""
    return [len(node.slots), *_on_the_left(node.children[0])] if node.children else []


SIZE = {"num_iterations": 5, "rollouts_per_iteration": 30}


@pytest.mark.parametrize("trainer", ["malt", "ei"])
def test_an_agent_is_trained_three_times_for_each_training_of_the_other(trainer: str) -> None:
    """As docs/training.md writes it down, with any trainer."""
    blocks = DOCS.read_text("utf-8").split("```toml")[1:]
    written = tomllib.loads(next(b for b in blocks if "update_schedule" in b).split("```")[0])
    table = {"trainer": trainer, "ei": {"reward_threshold": -1.0}, "rl": SIZE}
    run = play(Setup(make_params(MANY_PAIRS, RETRIES, written, table), 0.25))
    jobs = [e.job for moment in run for e in moment.emitted if isinstance(e, CreateJob)]
    assert [(job.iteration, job.group) for job in jobs] == [
        *((0, "prover"), (1, "prover"), (2, "prover"), (3, "verifier"), (4, "prover")),
    ]


@pytest.mark.parametrize("how", ["joint", "product"])
def test_agents_that_move_at_once_give_as_many_as_the_one_that_gives_the_most(how: str) -> None:
    params = make_params(
        {
            "interaction_protocol": "debate",
            "protocol_common": {"verifier_first": False},
            "debate_protocol": {"max_message_rounds": 2},
            "malt": {"simultaneous_branching": how},
            "agents": {"prover0": {"num_responses": 3}, "prover1": {"num_responses": 1}},
        }
    )
    sampled = ends(play(Setup(params, 0.0, 0.0)), "sample")[0]
    root = sampled.forest[0].root
    assert [slot.agent for slot in root.slots] == [0, 0, 0, 1, 1, 1]
    assert len(root.children) == (3 if how == "joint" else 9)


def test_a_function_of_the_turn_is_asked_with_who_speaks_for_which_time_and_if_it_learns() -> None:
    seen: set[tuple[int, int, bool]] = set()

    def k(turn: nip.Turn) -> int:
        seen.add((turn.agent, turn.number, turn.trained))
        return 2

    trainer = nip.malt(nip.best_worst(), k=k)
    trained = (VERIFIER,)
    for agent, number in ((PROVER, 0), (VERIFIER, 1)):
        assert trainer.branching(trained, (nip.Turn(agent, number, GAME),)) == 2
    assert seen == {(PROVER, 0, False), (VERIFIER, 1, True)}
    assert nip.malt(nip.best_worst(), k=3).branching(trained, (nip.Turn(PROVER, 0, GAME),)) == 1


@pytest.mark.parametrize("value", [0, [], [2, 0], "3"])
def test_what_is_no_number_of_replies_is_refused(value: object) -> None:
    problem = from_dict({"agents": {"prover": {"num_responses": value}}}).failure()
    assert "agents.prover.num_responses" in problem.address
