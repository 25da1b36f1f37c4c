"""Opponents from a pool of earlier models: who plays, who learns, and what is recorded of it."""

from collections import Counter
from typing import Any

import pytest

import nip_fn as nip
from nip_fn.config.codec import from_dict
from nip_fn.keys import fold_in
from nip_fn.params.run import HyperParameters
from nip_fn.run.opponents import Script, is_learnt_from, learner, player_of
from nip_fn.run.replay import replay
from nip_fn.run.state import RunState
from nip_fn.training.groups import Adapter, Group
from nip_fn.trees.tree import flatten, replies_in

from .games import MANY_PAIRS, RETRIES, Setup, ends, events_of, make_params, play, shuffled

PROVER, VERIFIER = 0, 1
GAMES = [fold_in(nip.key(5), index) for index in range(600)]
LINEAGE = tuple(Adapter(f"prover-{i}-x", i, None, None, "") for i in range(4))
TRAINED = Group("prover", (PROVER,), "m", True, LINEAGE, serving="prover-3-x")


def meeting(pool: int, share: float = 0.5, scripts: tuple[str, ...] = ()) -> HyperParameters:
    fields = {"opponent_pool": pool, "opponent_pool_share": share, "opponent_scripts": scripts}
    return make_params({"agents": {"verifier": fields}})


def played(params: HyperParameters, group: Group = TRAINED) -> Counter[str | Script | None]:
    return Counter(player_of(params, group, PROVER, game) for game in GAMES)


def test_a_share_of_games_is_played_by_earlier_models_drawn_uniformly() -> None:
    counts = played(meeting(pool=3))
    assert set(counts) == {f"prover-{i}-x" for i in range(4)}
    assert counts["prover-3-x"] == pytest.approx(300, abs=50)
    for i in range(3):
        assert counts[f"prover-{i}-x"] == pytest.approx(100, abs=35)


def test_the_base_model_is_the_first_of_all_models() -> None:
    assert set(played(meeting(pool=9))) == {None, *(adapter.name for adapter in LINEAGE)}
    assert set(played(meeting(pool=1))) == {"prover-2-x", "prover-3-x"}
    assert set(played(meeting(pool=9, share=1.0))) == {
        None,
        "prover-0-x",
        "prover-1-x",
        "prover-2-x",
    }


def test_scripts_are_drawn_as_earlier_models_are() -> None:
    mimic, silent = Script("mimic"), Script("silent")
    counts = played(meeting(pool=1, scripts=("mimic", "silent")))
    assert set(counts) == {"prover-2-x", "prover-3-x", mimic, silent}
    assert counts[mimic] == pytest.approx(100, abs=35)
    assert counts[silent] == pytest.approx(100, abs=35)
    untrained = Group("prover", (PROVER,), "m", True)
    assert set(played(meeting(pool=0, scripts=("mimic",)), untrained)) == {None, mimic}


def test_without_a_pool_or_an_earlier_model_the_present_one_plays() -> None:
    assert set(played(meeting(pool=0))) == {"prover-3-x"}
    untrained = Group("prover", (PROVER,), "m", True)
    assert set(played(meeting(pool=3), untrained)) == {None}


def test_a_model_that_was_trained_and_never_served_is_none_of_the_pool() -> None:
    """As where `switch_adapters` is off, or an adapter was refused."""
    control = Group("prover", (PROVER,), "m", True, LINEAGE, serving=None)
    assert set(played(meeting(pool=3), control)) == {None}


def test_in_each_game_at_most_one_agent_learns_against_earlier_models_of_the_others() -> None:
    both = {"opponent_pool": 2, "opponent_pool_share": 0.4}
    params = make_params({"agents": {"_default": both}})
    assert Counter(learner(params, game) for game in GAMES) == pytest.approx(
        {PROVER: 240, VERIFIER: 240, None: 120}, abs=50
    )
    for game in GAMES:
        assert is_learnt_from(params, TRAINED, PROVER, game) == (learner(params, game) != VERIFIER)


POOL: dict[str, Any] = {
    "rl": {"num_iterations": 4, "rollouts_per_iteration": 40},
    "agents": {"verifier": {"opponent_pool": 2, "opponent_pool_share": 0.3}},
}


def sampled(*tables: dict[str, Any], **order: Any) -> list[RunState]:
    params = make_params(MANY_PAIRS, RETRIES, POOL, *tables)
    return ends(play(Setup(params, decision_rate=0.5), **order), "sample")


@pytest.mark.parametrize("trainer", ["malt", "ei"])
def test_replies_of_earlier_models_are_recorded_under_their_names_and_train_nobody(
    trainer: str,
) -> None:
    met = set()
    for state in sampled({"trainer": trainer, "ei": {"reward_threshold": -1.0}}):
        (prover, _) = state.groups
        grown = state.sampled
        assert grown is not None
        for index, tree in enumerate(map(flatten, grown.forest)):
            names = {said.model for _, said in replies_in(tree) if said.agent == PROVER}
            assert len(names) <= 1  # one opponent a tree
            earlier = names - {prover.serving or prover.model}
            met |= earlier
            selection = grown.selection
            trained = {
                one.agent for one in (*selection.pairs, *selection.rollouts) if one.tree == index
            }
            assert not (earlier and PROVER in trained)
    assert len(met) >= 3  # the base model, and the adapters of two iterations


def test_a_script_s_replies_are_the_strategy_s_and_train_only_who_meets_it() -> None:
    table = {"agents": {"verifier": {"opponent_pool": 0, "opponent_scripts": ["silent"]}}}
    for state in sampled(table):
        grown = state.sampled
        assert grown is not None
        metrics = dict(state.rows[-1].metrics)
        trained = {(one.tree, one.agent) for one in grown.selection.pairs}
        silenced = set()
        for index, tree in enumerate(map(flatten, grown.forest)):
            said = {said.model: said for _, said in replies_in(tree) if said.agent == PROVER}
            assert len(said) <= 1
            if script := said.get("silent"):
                silenced.add(index)
                assert script.raw == "Answer: ..."
                assert (index, PROVER) not in trained
        # In a few games the verifier decides before the prover has spoken.
        assert 0.1 < len(silenced) / 40 <= metrics["prover.earlier_share"] < 0.6
        assert {(index, VERIFIER) for index in silenced} & trained


def test_no_earlier_model_is_counted_where_a_scripted_agent_follows_its_script() -> None:
    scripted = {"model_provider": "scripted", "model_name": "honest"}
    pools = {"opponent_pool": 2, "opponent_scripts": ["silent"], "opponent_pool_share": 1.0}
    for state in sampled({"agents": {"prover": scripted, "verifier": pools}}):
        assert dict(state.rows[-1].metrics)["prover.earlier_share"] == 0


@pytest.mark.parametrize("script", ["mimik", "asks_1"])
def test_a_script_that_the_others_cannot_follow_is_refused(script: str) -> None:
    table = {"dataset": "builtin:tea", "agents": {"verifier": {"opponent_scripts": [script]}}}
    problem = from_dict(table).failure()
    assert problem.address == "agents.verifier.opponent_scripts"
    assert script in str(problem)


def test_a_test_is_played_by_the_present_models() -> None:
    params = make_params(MANY_PAIRS, RETRIES, POOL)
    for state in ends(play(Setup(params, decision_rate=0.5)), "test"):
        for game in state.forest:
            for _, said in replies_in(flatten(game)):
                group = state.groups[said.agent]
                assert said.model == (group.serving or group.model)


def test_the_order_of_replies_changes_nothing_and_a_replay_derives_the_same() -> None:
    setup = Setup(make_params(MANY_PAIRS, RETRIES, POOL), decision_rate=0.5)
    one, other = play(setup), play(setup, shuffled(3))
    assert nip.digest(one[-1].state) == nip.digest(other[-1].state)
    replayed = replay(events_of(other)).unwrap()
    assert replayed.state.faults == ()
    assert nip.digest(replayed.state) == nip.digest(one[-1].state)


def test_tokens_are_counted_for_the_model_that_used_them() -> None:
    state = sampled()[-1]
    by_model: Counter[tuple[int, str | None]] = Counter()
    for game in state.forest:
        for _, said in replies_in(flatten(game)):
            adapter = None if said.model == state.groups[said.agent].model else said.model
            by_model[said.agent, adapter] += said.completion_tokens
    used = {(one.agent, one.adapter): one.completion for one in state.rows[-1].usage}
    assert used == dict(by_model)
    assert len(used) >= 3


def test_shares_that_add_up_to_more_than_all_trees_are_refused() -> None:
    both = {"opponent_pool": 2, "opponent_pool_share": 0.6}
    problem = from_dict({"agents": {"_default": both}}).failure()
    assert "add up to at most 1" in str(problem)


def test_a_server_that_serves_one_adapter_of_a_group_cannot_serve_earlier_ones() -> None:
    agents: dict[str, Any] = {
        "verifier": {"opponent_pool": 2},
        "prover": {"model_provider": "SelfHosted"},
    }
    problem = from_dict({"agents": agents}).failure()
    assert problem.address == "agents.verifier.opponent_pool"
    agents["prover"]["freeze_agent"] = True
    from_dict({"agents": agents}).unwrap()
