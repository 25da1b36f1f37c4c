"""How true preference labels are: margins re-estimated without bias, in a game of known values."""

from math import fsum, sqrt

import numpy as np
import pytest

import nip_fn as nip
from nip_fn.keys import randint, uniform
from nip_fn.run.stages import Growing
from nip_fn.run.state import sample_batch
from nip_fn.select.pairs import Pair, Selector
from nip_fn.select.reestimate import half_values, reestimated
from nip_fn.training.malt import label_metrics
from nip_fn.trees.backup import Backup, Values

from .games import Setup, ends, make_params, play
from .trees import flat

PROVER, VERIFIER = 0, 1
PROTOCOL = nip.protocol_of(
    make_params(
        {"protocol_common": {"verifier_first": False}, "nip_protocol": {"max_message_rounds": 2}}
    )
)
RIGHT = nip.make_datapoint("p", "Is it?", "x", 1)
# The verifier's chance to accept after each thing that the prover may say: its true value.
TRUE = {"a": 0.5, "b": 0.5, "c": 0.6, "d": 0.4}


def said(point: nip.Datapoint, episode: nip.Episode, agent: int, key: nip.Key) -> nip.Completion:
    if agent == PROVER:
        return nip.Completion(f"Answer: {list(TRUE)[randint(key, len(TRUE))]}", "stop", "m")
    chance = TRUE[episode.rounds[0][0].raw[-1]]
    return nip.Completion(
        f"Decision: {'accept' if uniform(key) < chance else 'reject'}", "stop", "m"
    )


def forest(num: int, k: int, m: int) -> tuple[nip.Tree, ...]:
    """Trees with `k` replies of the prover, and `m` of the verifier after each."""
    rules = nip.Rules(PROTOCOL, lambda turns: k if turns[0].agent == PROVER else m)
    keys = nip.split(nip.key(3), num)
    return nip.grow_many(rules, [RIGHT] * num, nip.batched(said), keys=keys)


def gaps(pairs: tuple[Pair, ...]) -> list[float]:
    return [pair.chosen_value - pair.rejected_value for pair in pairs if pair.agent == PROVER]


def true_gaps(trees: tuple[nip.Tree, ...], pairs: tuple[Pair, ...]) -> list[float]:
    def worth(tree: int, node: int) -> float:
        return TRUE[trees[tree].utterances_N[node][0].raw[-1]]

    own = (pair for pair in pairs if pair.agent == PROVER)
    return [worth(pair.tree, pair.chosen) - worth(pair.tree, pair.rejected) for pair in own]


@pytest.mark.parametrize(
    "select",
    [nip.selectors.every(), nip.chain(nip.best_worst(), nip.one_per_node())],
    ids=["all", "best"],
)
def test_a_reestimated_margin_is_the_true_one_on_average_and_a_recorded_one_too_large(
    select: Selector,
) -> None:
    trees = forest(400, k=3, m=4)
    among = nip.candidates(trees, PROTOCOL)
    pairs = select(among, nip.key(0))
    checked = reestimated(select, among, nip.mean_children, nip.key(0))
    estimates, truth = gaps(checked), true_gaps(trees, checked)
    off = np.array(estimates) - np.array(truth)
    # By tree, as the pairs of one tree share their continuations.
    trees_of = np.array([pair.tree for pair in checked if pair.agent == PROVER])
    sums = np.bincount(trees_of, weights=off)
    error = sqrt(fsum(sums**2)) / len(off)
    assert abs(off.mean()) < 4 * error < 0.15
    recorded = np.mean(gaps(pairs)) - np.mean(true_gaps(trees, pairs))
    assert recorded > 0.2
    metrics = dict(label_metrics(nip.candidates((), PROTOCOL), checked))
    assert metrics["prover.margin_reestimated"] == pytest.approx(np.mean(estimates))
    assert 0.45 < metrics["prover.pairs_right"] < 0.65  # next to coins, and it shows


def test_the_last_replies_have_their_rewards_themselves_and_are_always_right() -> None:
    among = nip.candidates(forest(40, k=2, m=3), PROTOCOL, agents=(VERIFIER,))
    checked = reestimated(nip.selectors.every(), among, nip.mean_children, nip.key(0))
    metrics = dict(label_metrics(nip.candidates((), PROTOCOL), checked))
    assert metrics["verifier.margin_reestimated"] == 2.0
    assert metrics["verifier.pairs_right"] == 1.0
    assert "prover.pairs_right" not in metrics


def halved(tree: nip.Tree, backup: Backup) -> tuple[Values, Values]:
    return half_values(tree, backup, backup(tree))


@pytest.mark.parametrize("how", ["joint", "product"])
def test_the_short_way_to_the_halves_of_means_comes_out_bit_for_bit_as_the_general_one(
    how: str,
) -> None:
    params = make_params(
        {
            "interaction_protocol": "mnip",
            "mnip_protocol": {"max_message_rounds": 3},
            "protocol_common": {"verifier_no_guess_reward": -0.3},
            "malt": {"num_responses_per_timestep": 3, "simultaneous_branching": how},
            "rl": {"num_iterations": 1, "rollouts_per_iteration": 3},
        }
    )
    (end,) = ends(play(Setup(params)), "sample")
    assert isinstance(end.stage, Growing)
    for tree in sample_batch(end, end.stage).trees:
        short, general = (
            halved(tree, nip.mean_children),
            halved(tree, lambda t: nip.mean_children(t)),
        )
        for one, other in zip(short, general, strict=True):
            assert np.array_equal(one, other, equal_nan=True)
        assert np.isnan(short[0]).any()
        assert not np.isnan(short[0]).all()


def test_replies_with_a_single_continuation_cannot_be_split() -> None:
    among = nip.candidates(forest(40, k=3, m=1), PROTOCOL, agents=(PROVER,))
    assert nip.selectors.every()(among, nip.key(0))
    assert reestimated(nip.selectors.every(), among, nip.mean_children, nip.key(0)) == ()


def test_halves_are_every_other_continuation() -> None:
    """By hand: three continuations worth 1, 0 and 0 to the prover, below an inner reward of 1/4."""

    def node(reward: float, *children: nip.trees.Node) -> nip.trees.Node:
        by = (nip.game.Utterance(0, "x", ()), nip.game.Utterance(1, "x", ()))[len(children) == 0]
        return nip.trees.Node(utterances=(by,), reward=(reward, 0.0), children=children)

    root = nip.trees.Node(
        reward=(0.0, 0.0),
        children=(node(0.25, node(1.0), node(0.0), node(0.0)), node(0.5)),
    )
    even, odd = halved(flat(root), nip.mean_children)
    assert even[1:3, PROVER].tolist() == [0.75, 0.5]
    assert odd[1:3, PROVER].tolist() == [0.25, 0.5]
    assert np.isnan(even[0]).all()
    assert np.isnan(odd[0]).all()


@pytest.mark.parametrize("backup", [nip.mean_children, nip.trees.mean_leaves, nip.discounted(0.5)])
def test_the_halves_of_equal_size_have_the_mean_of_the_whole(backup: Backup) -> None:
    (tree,) = forest(1, k=3, m=4)
    even, odd = halved(tree, backup)
    inner = tree.depth_N >= 1
    assert ((even + odd) / 2)[inner] == pytest.approx(backup(tree)[inner])
