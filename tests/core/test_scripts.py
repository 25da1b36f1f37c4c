"""Scripts of a user of the library: a game, an evaluation, trees of an asynchronous model."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

import nip_fn as nip

from .games import make_params

SAYS = (nip.Move(0, (0,)),), (nip.Move(1, (0,)),)
AGENTS = nip.AgentSpec("verifier", "verifier", "Host"), nip.AgentSpec("prover", "prover", "Expert")
TWENTY = nip.make_protocol(
    name="twenty", agents=AGENTS, schedule=nip.in_turn(*SAYS), max_message_rounds=5
)
POINT = nip.make_datapoint("p", "Is the sum right?", "1 + 1 = 3", label=0)
TEXTS = ("Decision: accept", "Decision: reject", "What?", "All is well.", "")


def policy(point: nip.Datapoint, episode: nip.Episode, agent: int, key: nip.Key) -> nip.Completion:
    return nip.Completion(TEXTS[nip.randint(key, 5)], "stop", "toy")


# ------------------------------------------------------------------------------------------- a game


def test_a_game_of_ones_own_holds_all_laws_and_has_the_bounds_of_its_own_rewards() -> None:
    nip.check_protocol(TWENTY, num_games=20)
    assert [nip.game.reward_bounds(TWENTY, agent) for agent in (0, 1)] == [(-1.0, 1.0), (0.0, 1.0)]

    def rewards(outcome: nip.Outcome) -> tuple[float, float]:
        right = outcome.decision is not None and outcome.decision.discrete == outcome.label
        return -0.5 + 3.5 * right, float(right)

    paid = TWENTY._replace(rewards=rewards)
    nip.check_protocol(paid, num_games=20)
    # The verifier has three turns and the prover two: a right decision at the first, or never one.
    assert [nip.game.reward_bounds(paid, agent) for agent in (0, 1)] == [(-2.5, 3.0), (0.0, 1.0)]


# ------------------------------------------------------------------------------------ an evaluation


def test_a_policy_is_given_the_problem_and_can_build_the_chat_of_a_model() -> None:
    params = make_params({"nip_protocol": {"max_message_rounds": 3}})
    protocol = nip.protocol_of(params)

    def model(
        point: nip.Datapoint, episode: nip.Episode, agent: int, key: nip.Key
    ) -> nip.Completion:
        chat = nip.build_chat(params, protocol, point, episode, agent)
        doubts = any("1 + 1 = 3" in message.content for message in chat)
        return nip.Completion(f"Decision: {'reject' if doubts else 'accept'}", "stop", "m")

    points = [POINT, nip.make_datapoint("q", "Is the sum right?", "1 + 1 = 2", label=1)]
    games = nip.play(protocol, points, model, key=nip.key(0), num=3)
    assert [game.decision.discrete for game in games if game.decision] == [0] * 3 + [1] * 3


# -------------------------------------------------------------------------------------------- trees

RULES = nip.Rules(TWENTY, 3, attempts=2)
KEYS = nip.split(nip.key(1), 20)


def test_trees_that_grow_in_an_event_loop_are_those_of_grow() -> None:
    async def sampler(query: nip.Query) -> list[nip.Completion]:
        await asyncio.sleep(nip.keys.uniform(query.keys[0]) * 0.01)
        return [policy(query.datapoint, query.episode, query.agent, key) for key in query.keys]

    async def grown() -> list[nip.Tree]:
        trees = (nip.agrow(RULES, POINT, sampler, key=k, gather=asyncio.gather) for k in KEYS)
        return await asyncio.gather(*trees)

    assert asyncio.run(grown()) == [nip.grow(RULES, POINT, policy, key=key) for key in KEYS]


def test_siblings_are_one_query_and_no_node_waits_for_its_cousins() -> None:
    """The first reply to the root is answered at once, the others only when its line has ended."""
    asked: Counter[int] = Counter()  # by the number of rounds before
    ended = asyncio.Event()

    async def sampler(query: nip.Query) -> list[nip.Completion]:
        rounds = query.episode.rounds
        asked[len(rounds)] += 1
        if rounds and rounds[0][0].raw != "0":
            await ended.wait()
        elif len(rounds) == TWENTY.max_message_rounds - 1:
            ended.set()
        return [nip.Completion(str(index), "stop", "m") for index in range(len(query.keys))]

    tree = asyncio.run(
        asyncio.wait_for(
            nip.agrow(RULES, POINT, sampler, key=nip.key(0), gather=asyncio.gather), timeout=60
        )
    )
    assert asked == {rounds: 3**rounds for rounds in range(5)}
    assert len(nip.trees.leaves_of(tree)) == 3**5


def test_all_trees_are_asked_about_in_one_call_for_each_round_and_attempt() -> None:
    sizes = []

    def sampler(queries: Sequence[nip.Query]) -> list[list[nip.Completion]]:
        sizes.append(len(queries))
        said = nip.Completion("" if len(sizes) == 1 else "Why?", "stop", "m")
        return [[said for _ in query.keys] for query in queries]

    trees = nip.grow_many(RULES, [POINT] * 4, sampler, keys=KEYS[:4])
    assert sizes == [4, 4, 12, 36, 108, 324]
    assert [tree.datapoint_index for tree in trees] == [0, 1, 2, 3]


def test_trees_are_equal_if_all_their_fields_are() -> None:
    one, same, other = (nip.grow(RULES, POINT, policy, key=key) for key in (KEYS[0], *KEYS[:2]))
    assert one == same
    assert one is not same
    assert one != other
    assert one != one._replace(reward_NA=one.reward_NA + 1)
    assert one != tuple(one)


# -------------------------------------------------------------------------------------- a selection


def test_a_rule_may_look_at_texts_and_draw_at_each_decision_point() -> None:
    def shorter(
        point: nip.selectors.DecisionPoint, among: nip.selectors.Candidates, key: nip.Key
    ) -> nip.selectors.Ranks:
        lengths = [len(reply.raw) for reply in among.replies(point)]
        return ((int(np.argmin(lengths)), int(np.argmax(lengths))),)

    def any_two(
        point: nip.selectors.DecisionPoint, among: nip.selectors.Candidates, key: nip.Key
    ) -> nip.selectors.Ranks:
        first, second, *_ = nip.keys.permutation(among.key_of(point, key), len(point.value_C))
        return ((first, second),)

    trees = nip.grow_many(RULES, [POINT] * 20, nip.batched(policy), keys=KEYS)
    among = nip.candidates(trees, TWENTY)
    pairs = nip.selectors.propose(shorter)(among, nip.key(0))
    texts = [[len(among.utterance(p, n).raw) for n in (p.chosen, p.rejected)] for p in pairs]
    assert pairs
    assert all(chosen <= rejected for chosen, rejected in texts)
    drawn = nip.selectors.propose(any_two)(among, nip.key(0))
    ranks = Counter(trees[p.tree].path_N[p.chosen][-1] for p in drawn)
    assert set(ranks) == {0, 1, 2}
    assert nip.selectors.propose(any_two)(nip.candidates(trees[:1], TWENTY), nip.key(0)) == tuple(
        pair for pair in drawn if pair.tree == 0
    )


@pytest.mark.parametrize("agents", [None, (0,), ()])
def test_decision_points_are_those_of_the_agents_and_trees_that_are_not_excluded(
    agents: tuple[int, ...] | None,
) -> None:
    trees = nip.grow_many(RULES, [POINT] * 4, nip.batched(policy), keys=KEYS[:4])
    whole = nip.candidates(trees, TWENTY).points
    among = nip.candidates(trees, TWENTY, agents=agents, excluded={(0, 0), (2, 1)})
    assert among.points == tuple(
        point
        for point in whole
        if (agents is None or point.agent in agents)
        and (point.tree, point.agent) not in {(0, 0), (2, 1)}
    )
