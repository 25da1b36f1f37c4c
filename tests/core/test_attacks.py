"""Attacks as configurations: everybody is frozen but those who attack, and trees stay small."""

from math import prod
from typing import Any

import pytest
from hypothesis import given

from nip_fn.config.attacks import (
    MOST_LEAVES,
    frozen_table,
    replies_by_turn,
    with_search,
    with_strategy,
    with_training,
)
from nip_fn.config.codec import from_dict
from nip_fn.config.groups import is_due, make_groups
from nip_fn.game.datapoint import Datapoint, make_datapoint
from nip_fn.game.protocol import Protocol
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.registry import protocol_of
from nip_fn.protocols.sides import only_label, sees_everything, sides, speak_alone
from nip_fn.run.state import is_tested

from .games import Setup, setups


def params_of(name: str, **tables: Any) -> HyperParameters:
    return from_dict({"interaction_protocol": name, **tables}).unwrap()


def game(name: str, **tables: Any) -> Protocol:
    return protocol_of(params_of(name, **tables))


@pytest.mark.parametrize(
    ("protocol", "attackers", "expected"),
    [
        # A question, n answers to it, m verdicts on each.
        (game("nip", nip_protocol={"max_message_rounds": 3}), (0,), {0: (16,), 1: (1, 8)}),
        (game("adp"), (0,), {0: (16,), 1: (8,)}),
        (
            game("mnip", mnip_protocol={"max_message_rounds": 3}),
            (0, 1),
            {0: (16,), 1: (16,), 2: (1, 8)},
        ),
        # A second search would make 16 * 8 * 16 * 8 leaves.
        (game("nip", nip_protocol={"max_message_rounds": 5}), (0,), {0: (16, 1), 1: (1, 8, 1)}),
    ],
)
def test_a_search_asks_for_n_replies_and_m_continuations(
    protocol: Protocol, attackers: tuple[int, ...], expected: dict[int, tuple[int, ...]]
) -> None:
    assert replies_by_turn(protocol, attackers, n=16, m=8) == expected


def test_small_searches_are_made_at_every_turn_that_a_tree_has_room_for() -> None:
    long = game("nip", nip_protocol={"max_message_rounds": 9})
    found = replies_by_turn(long, (0,), n=2, m=4)
    assert found == {0: (2, 2, 2, 1), 1: (1, 4, 4, 4, 1)}
    assert prod(found[0]) * prod(found[1]) <= MOST_LEAVES


def test_a_sequential_opponent_answers_before_the_verifier_decides() -> None:
    debate = game("debate", debate_protocol={"max_message_rounds": 4, "sequential": True})
    assert replies_by_turn(debate, (0,), n=4, m=2) == {0: (4,), 1: (2,), 2: (1, 1)}
    assert replies_by_turn(debate, (1,), n=4, m=2) == {0: (1,), 1: (4,), 2: (1, 2)}


@pytest.mark.parametrize(
    ("name", "tables", "alone"),
    [
        ("nip", {}, [True]),
        ("mnip", {}, [True]),
        ("debate", {}, [False, False]),
        ("debate", {"debate_protocol": {"sequential": True}}, [True, True]),
        ("merlin_arthur", {}, [True, True]),
    ],
)
def test_whoever_speaks_at_the_same_time_as_others_is_not_searched(
    name: str, tables: dict[str, Any], alone: list[bool]
) -> None:
    protocol = game(name, **tables)
    assert [speak_alone(protocol, own) for own in sides(protocol)] == alone


def with_views(**views: str) -> Datapoint:
    return make_datapoint("p", "Is it?", "", 1, views=tuple(views.items()))


def test_whoever_misses_a_view_or_a_channel_does_not_see_everything() -> None:
    nip, mnip, debate = game("nip"), game("mnip"), game("debate")
    assert sees_everything(nip, (0,), with_views())
    assert sees_everything(nip, (0,), with_views(verifier="abc", prover="abc"))
    assert sees_everything(nip, (0,), with_views(prover="abc"))
    assert sees_everything(nip, (0,), with_views(verifier="b", prover="abc"))
    assert not sees_everything(nip, (0,), with_views(verifier="abc", prover="b"))
    assert not sees_everything(nip, (0,), with_views(verifier="abc"))
    # Two provers who cannot hear one another, or are shown something else.
    assert not sees_everything(mnip, (0, 1), with_views())
    assert sees_everything(debate, (0,), with_views())
    assert not sees_everything(debate, (0,), with_views(prover0="a", prover1="b"))


def test_attackers_are_trained_where_their_verdict_is_wrong() -> None:
    debate = game("debate")
    assert [only_label(debate, own) for own in sides(debate)] == [1, 0]
    assert only_label(game("nip"), (0,)) == 0
    either = game("nip", protocol_common={"randomize_prover_stance": True})
    assert only_label(either, (0,)) is None


@given(setups())
def test_every_run_can_be_attacked_and_nobody_but_the_attackers_is_trained(setup: Setup) -> None:
    params = setup.params
    protocol = protocol_of(params)
    tested = from_dict(frozen_table(params, datapoints=7, games=3)).unwrap()
    assert is_tested(tested, 0)
    assert not any(is_due(tested, group, 0) for group in make_groups(tested))
    assert tested.dataset_options.max_test_size == 7
    for attackers in sides(protocol):
        names = [params.agents[at].name for at in attackers]
        table = frozen_table(params, datapoints=7, games=3)
        script = from_dict(with_strategy(table, names, "liar")).unwrap()
        assert [agent.model_name == "liar" for agent in script.agents] == [
            agent.name in names for agent in script.agents
        ]
        search = from_dict(with_search(table, params, attackers, n=4, games=2)).unwrap()
        assert search.text_rl.test_trees
        trained = with_training(table, params, attackers, trainer="malt", iterations=2)
        training = from_dict(trained).unwrap()
        due = [group.name for group in make_groups(training) if is_due(training, group, 1)]
        assert due == sorted(names)
        assert [is_tested(training, at) for at in range(3)] == [False, False, True]


def test_what_the_run_asked_for_in_its_own_training_is_left_out() -> None:
    own = {
        "update_schedule": {"_type": "ContiguousPeriodicUpdateSchedule", "period": 3, "start": 0,
                            "stop": 1},
        "num_responses": [2, 3],
        "num_idle_responses": 5,
        "shared_model_group": "all",
        "load_checkpoint_and_parameters": True,
        "checkpoint_run_id": "earlier",
    }  # fmt: skip
    params = params_of("nip", agents={"_default": own})
    tested = from_dict(frozen_table(params, datapoints=1, games=1)).unwrap()
    plain = from_dict({"agents": {"_default": {"freeze_agent": True}}}).unwrap()
    assert tested.agents == plain.agents
