"""Attacks on a frozen verifier as configurations of runs: other provers, searches, trainings."""

from collections.abc import Iterable, Mapping
from typing import Any

from nip_fn.config.codec import default_table, merge, to_dict
from nip_fn.config.schema import parameters
from nip_fn.game.protocol import Protocol
from nip_fn.params.agent import AgentParameters
from nip_fn.params.run import DEFAULT_AGENT, HyperParameters
from nip_fn.protocols.registry import protocol_of
from nip_fn.protocols.sides import Attackers, speakers

# Leaves of a tree up to which a search branches at one more turn of the attackers.
MOST_LEAVES = 1024


def frozen_table(params: HyperParameters, *, datapoints: int, games: int) -> dict[str, Any]:
    """The written configuration of a run that tests the agents as they are and trains none.

    Args:
        params: Of the run whose agents are tested.
        datapoints: The number of held-out datapoints.
        games: The games about each.
    """
    table = to_dict(params)
    fixed = {
        "trainer": "malt",
        "rl": {"num_iterations": 0, "num_test_iterations": games},
        "text_rl": {"test_scheme": "all", "test_on_whole_dataset": True, "test_trees": False},
        # The best of the replies against the worst: of replies that all fail, or nearly so, no rule
        # that asks for success would make a pair.
        "malt": {
            "num_initial_ei_iterations": 0,
            "pair_selection_method": "best_worst",
            "min_pair_margin": 0.25,
        },
        # Provers may be trained, on other rows than those on which all of them are tested.
        "dataset_options": {"max_test_size": datapoints, "only_split": None},
    }
    defaults = default_table()
    # Nobody shares a model, since each may be replaced, and what the run's own training asked for
    # is none of the attack's.
    fields, agent = parameters(AgentParameters), defaults["agents"][DEFAULT_AGENT]
    reset = {name: agent[name] for name in agent if fields[name].meaning.reset_in_attacks}
    # In their place and not over them: schedules of different kinds have different fields.
    agents = {
        name: {**values, **reset, "freeze_agent": True} for name, values in table["agents"].items()
    }
    return {**merge(table, fixed), "agents": agents}


def with_strategy(table: Mapping[str, Any], agents: Iterable[str], strategy: str) -> dict[str, Any]:
    """The table with these agents following a strategy."""
    script = {"model_provider": "scripted", "model_name": strategy, "quantization": "none"}
    return merge(table, {"agents": dict.fromkeys(agents, script)})


def with_search(
    table: Mapping[str, Any], params: HyperParameters, attackers: Attackers, *, n: int, games: int
) -> dict[str, Any]:
    """The table with a tree about each datapoint: n replies of the attackers, `games` after it."""
    numbers = replies_by_turn(protocol_of(params), attackers, n=n, m=games)
    agents = {params.agents[agent].name: {"num_responses": ks} for agent, ks in numbers.items()}
    search = {
        "agents": agents,
        "rl": {"num_test_iterations": 1},
        "text_rl": {"test_trees": True},
        "malt": {"simultaneous_branching": "joint"},
    }
    return merge(table, search)


def with_training(
    table: Mapping[str, Any],
    params: HyperParameters,
    attackers: Attackers,
    *,
    trainer: str,
    iterations: int,
) -> dict[str, Any]:
    """The table with a training of the attackers against everybody else, and a test after it.

    Their reward is the game's own: that of a verdict for their side.
    """
    k = max(2, params.malt.num_responses_per_timestep)
    numbers = replies_by_turn(protocol_of(params), attackers, n=k, m=4)
    agents: dict[str, Any] = {
        params.agents[index].name: {"num_responses": ks} for index, ks in numbers.items()
    }
    for attacker in attackers:
        agents = merge(agents, {params.agents[attacker].name: {"freeze_agent": False}})
    training = {
        "trainer": trainer,
        "agents": agents,
        "rl": {"num_iterations": iterations},
        "text_rl": {"test_scheme": "last", "switch_adapters": True},
    }
    return merge(table, training)


def replies_by_turn(
    protocol: Protocol, attackers: Attackers, *, n: int, m: int
) -> dict[int, tuple[int, ...]]:
    """The number of replies of each agent at each of its turns, for a search among n replies.

    Attackers give n, and the first to speak after them m; everybody else gives one.  From the turn
    on at which a tree would have more than `MOST_LEAVES` leaves, attackers give one, too.
    """
    numbers: dict[int, list[int]] = {index: [] for index in range(len(protocol.agents))}
    leaves, undecided = 1, False
    for movers in speakers(protocol):
        if movers & set(attackers):
            branches = undecided or leaves == 1 or leaves * n * m <= MOST_LEAVES
            leaves *= n if branches else 1
            replies, undecided = (n if branches else 1), branches
        else:
            replies, undecided = (m if undecided else 1), False
            leaves *= replies
        for agent in movers:
            numbers[agent].append(replies)
    return {agent: tuple(replies) for agent, replies in numbers.items() if replies}
