"""Metrics of trees weigh games by their probability, and so measure what plain dialogues do."""

from fractions import Fraction
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nip_fn as nip
from nip_fn.metrics.formulas import deviation, effective_size, mean, totals
from nip_fn.metrics.stage import stage_metrics, verdict
from nip_fn.trees.node import SimultaneousBranching
from nip_fn.trees.rollouts import leaf_probabilities
from nip_fn.worlds.tea import make_dataset, world_of

from .test_metrics import forest_of, inner, leaf, metrics_of, points, tree
from .trees import flat, trees, walk

# ------------------------------------------------------------------------------------- by hand


def test_a_game_has_the_probability_of_its_replies() -> None:
    """The right half ends at once; on the left the game goes on, with two replies, then three."""
    three = inner(leaf("decided", "accept"), leaf("decided", "accept"), leaf("truncated"))
    grown = flat(tree(inner(three, leaf("decided", "reject")), leaf("decided", "reject")))
    assert leaf_probabilities(grown) == (1 / 12, 1 / 12, 1 / 12, 1 / 4, 1 / 2)


@given(st.lists(trees(st.floats(-1, 1)), min_size=1, max_size=3))
def test_probabilities_of_a_tree_add_up_to_one_and_give_its_expected_return(
    roots: list[nip.trees.Node],
) -> None:
    """The mean return of the games is the value of the root, whatever the tree's shape."""
    for grown in forest_of(roots, 1):
        weights = leaf_probabilities(grown)
        assert sum(weights) == pytest.approx(1.0)
        root = nip.mean_children(grown)[0]
        games = nip.trees.leaf_games(grown, points(1)[0])
        for agent in range(2):
            returns = [sum(reward[agent] for reward in game.rewards) for game in games]
            # The reward of the root itself is on no way to a leaf.
            assert mean(returns, weights) + grown.reward_NA[0, agent] == pytest.approx(root[agent])


def test_plain_dialogues_are_counted() -> None:
    lines = [
        tree(leaf("decided", "accept", reward=(0.1, 0.3))),
        tree(inner(leaf("decided", "reject", reward=(0.2, 0.1)), reward=(0.1, 0.0))),
        tree(inner(inner(leaf("truncated", reward=(0.0, -1.0))))),
    ]
    metrics = metrics_of(points(1, 0, 1), lines)
    assert metrics["accuracy"] == 2 / 3
    assert metrics["accuracy_stderr"] == pytest.approx(sqrt(2 / 9 / 3))


# --------------------------------------------------------------------------- the same as dialogues

PARAMS = nip.from_dict({"nip_protocol": {"max_message_rounds": 7}}).unwrap()
DEBATE = nip.from_dict(
    {"interaction_protocol": "debate", "debate_protocol": {"max_message_rounds": 5}}
).unwrap()
POINTS = [nip.make_datapoint("p", f"q{number}", "s", number % 2) for number in range(200)]


def policy(point: nip.Datapoint, episode: nip.Episode, agent: int, key: nip.Key) -> nip.Completion:
    """Decides every other time; rightly in 9 of 10 first turns, in 2 of 10 later ones."""
    return reply(key, episode.label, is_first=not episode.rounds)


def reply(key: nip.Key, label: int, is_first: bool) -> nip.Completion:
    is_right = nip.keys.uniform(nip.keys.fold_in(key, "right")) < (0.9 if is_first else 0.2)
    decides = nip.keys.uniform(nip.keys.fold_in(key, "decides")) < 0.5
    verdict = f"Decision: {'accept' if is_right == label else 'reject'}"
    asks = "Question for Expert_1: a?\nQuestion for Expert_2: b?"
    return nip.Completion(verdict if decides else asks, "stop", "m")


@pytest.mark.parametrize(
    ("params", "how", "last"),
    [(PARAMS, "joint", 3), (DEBATE, "joint", 2), (DEBATE, "product", 2)],
)
def test_trees_measure_what_plain_dialogues_of_the_same_policy_measure(
    params: nip.HyperParameters, how: SimultaneousBranching, last: int
) -> None:
    """Expected: 0.45, then 0.1 / 2 of the games that go on, halving with every turn.

    Within 4.5 standard errors of it, with 200 problems; the shares of leaves are far away.
    """
    exact = 0.45 + sum(0.1 * 0.5**turn for turn in range(1, last + 1))
    game = nip.protocol_of(params)
    dialogues = nip.play(game, POINTS, policy, key=nip.key(1), num=4)
    plain = [verdict(one) == one.datapoint.label for one in dialogues]
    assert abs(mean(plain) - exact) < 4.5 * sqrt(exact * (1 - exact) / len(plain))
    rules = nip.Rules(game, 2, simultaneous_branching=how)
    keys = nip.split(nip.key(2), len(POINTS))
    forest = nip.grow_many(rules, POINTS, nip.batched(policy), keys=keys)
    measured = dict(stage_metrics(game, POINTS, forest))
    assert abs(measured["accuracy"] - exact) < 4.5 * measured["accuracy_stderr"]
    assert measured["accuracy_low"] < exact < measured["accuracy_high"]
    leaves = [
        g for tree in forest for g in nip.trees.leaf_games(tree, POINTS[tree.datapoint_index])
    ]
    counted = mean([verdict(one) == one.datapoint.label for one in leaves])
    assert not measured["accuracy_low"] < counted < measured["accuracy_high"]
    lengths = [len(one.rounds) for one in dialogues]
    assert measured["episode_length"] == pytest.approx(mean(lengths), abs=0.3)
    assert mean([len(one.rounds) for one in leaves]) > measured["episode_length"] + 0.5
    # Branching buys precision: no more replies are asked of the root than in two dialogues.
    assert measured["accuracy_stderr"] < sqrt(exact * (1 - exact) / len(POINTS))


def test_trees_are_counted_as_the_dialogues_of_their_first_replies() -> None:
    """So that no accuracy exceeds 1, and a world's measures are those of a test without trees."""
    data = make_dataset(nip.key(1), num_train=1, num_validation=0, num_test=20)

    def sampler(request: nip.run.Request) -> tuple[nip.Completion, ...]:
        cup = world_of(data.test[0]).cups[0]
        words = ["Decision: accept", f"Question for Expert: {cup}"]
        if not request.is_verifier:
            words = [f"Answer: {cup}T", "Answer: no"]
        return tuple(
            nip.Completion(words[nip.randint(key, len(words))], "stop", "m") for key in request.keys
        )

    rows, found = [], []
    for is_tree in (False, True):
        table = {
            "dataset": "builtin:tea",
            "rl": {"num_iterations": 0},
            "text_rl": {"test_scheme": "all", "test_trees": is_tree},
            "malt": {"num_responses_per_timestep": 3},
            "protocol_common": {"verifier_first": True},
            "nip_protocol": {"max_message_rounds": 3},
        }
        params = nip.from_dict(table).unwrap()
        run = nip.simulate(nip.run.started(params, data), nip.run.pure_world(data, sampler))
        replayed = nip.replay([event for event, _ in run]).unwrap()
        (test,) = replayed.stages
        rows.append(dict(replayed.state.rows[0].metrics))
        batch = test.batch
        found.append(nip.stats.verdicts(batch.datapoints, batch.trees))
        assert nip.stats.judged(batch.protocol, batch.datapoints, batch.trees).verdicts == found[-1]
    plain, trees = rows
    assert trees["games"] > 2 * plain["games"] == 40
    assert found[0] == found[1]
    assert nip.stats.accuracy(found[1]).value == plain["accuracy"] != trees["accuracy"]
    worlds = [{k: v for k, v in row.items() if k.startswith("tea.")} for row in rows]
    assert worlds[0] == worlds[1]
    assert 0 < worlds[0]["tea.asks.1"] < 1


# ------------------------------------------------------------------------------------- formulas


@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_one_game_about_each_datapoint_is_as_many_independent_games(hits: list[bool]) -> None:
    clusters = [(1.0, float(hit)) for hit in hits]
    assert effective_size(clusters, len(hits)) == pytest.approx(len(hits))


@given(
    st.lists(st.tuples(st.integers(1, 9), st.fractions(0, 1)), min_size=1, max_size=20),
    st.integers(1, 9),
)
def test_the_effective_size_lies_between_the_datapoints_and_the_games(
    clusters: list[tuple[int, Fraction]], per: int
) -> None:
    """Between the whole weight over the greatest one, and all games."""
    known = [(float(weight), float(share)) for weight, share in clusters]
    least = sum(weight for weight, _ in known) / max(weight for weight, _ in known)
    games = per * len(known)
    assert least * (1 - 1e-9) <= effective_size(known, games) <= games


def test_datapoints_that_are_alike_tell_as_much_as_all_games() -> None:
    assert effective_size([(1.0, 0.5)] * 10, 80) == 80.0
    assert effective_size([(1.0, 1.0)] * 10, 80) == 10.0  # all right: one each is what is sure
    assert effective_size([(1.0, 1.0), (1.0, 0.0)] * 5, 80) == pytest.approx(10.0)


@given(st.lists(st.tuples(st.floats(-9, 9), st.integers(1, 4)), min_size=1, max_size=12))
def test_a_weight_of_n_is_n_values(rows: list[tuple[float, int]]) -> None:
    values, weights = [value for value, _ in rows], [float(weight) for _, weight in rows]
    many = [value for value, weight in rows for _ in range(weight)]
    assert mean(values, weights) == pytest.approx(mean(many), abs=1e-12)
    assert deviation(values, weights) == pytest.approx(deviation(many), abs=1e-9)
    assert dict(totals(values, weights)) == {value: many.count(value) for value in many}


def test_trees_of_one_branch_weigh_one() -> None:
    line = tree(inner(leaf("decided", "accept")))
    assert leaf_probabilities(flat(line)) == (1.0,)
    assert len(list(walk(line))) == 3
