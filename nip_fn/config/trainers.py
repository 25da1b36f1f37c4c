"""The one place that translates parameters into values: selectors, backups, schedules, trainers.

Whatever TOML can say about training is said here in terms of functions that a script can call.  A
script adds its own with `TRAINERS["mine"] = ...`, and likewise to `SELECTORS` and `BACKUPS`; they
are read when a run starts, so redefining one in a notebook takes effect in the next run.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from returns.result import Result

from nip_fn.errors import Problem, collect, or_raise
from nip_fn.params.agent import AgentParameters, agent_group, is_frozen
from nip_fn.params.names import look_up
from nip_fn.params.run import HyperParameters
from nip_fn.params.training import PureTextMaltParameters
from nip_fn.select.filters import balance, cap, dedupe, margin, one_per_node
from nip_fn.select.pairs import (
    Selector,
    about,
    about_mean,
    best_worst,
    by_agent,
    chain,
    every,
    interval,
)
from nip_fn.select.rollouts import RolloutRule, at_least, weighted
from nip_fn.training.compose import accumulate, sequence
from nip_fn.training.ei import ei
from nip_fn.training.losses import BUILT_IN_LOSSES, DPO, Loss, OwnLoss
from nip_fn.training.malt import malt
from nip_fn.training.policy_gradient import (
    Advantage,
    normalised,
    policy_gradient,
    running_baseline,
    tree_advantage,
)
from nip_fn.training.schedules import Schedule, constant, exponential, linear
from nip_fn.training.trainer import Trainer
from nip_fn.trees.backup import Backup, by_probability, mean_children, mean_leaves
from nip_fn.trees.grow import Turn

MakeTrainer = Callable[[HyperParameters], Trainer[Any]]

BACKUPS: dict[str, Backup] = {"children": mean_children, "leaves": mean_leaves}

# Pair rules by name; each may look at the parameters.  A selector of one's own is a rule, too: the
# filters that the parameters ask for come after it.
SELECTORS: dict[str, Callable[[PureTextMaltParameters], Selector]] = {
    "positive_negative": lambda malt: about(),
    "interval": lambda malt: interval(malt.interval_threshold_proportion),
    "about_mean": lambda malt: about_mean(),
    "best_worst": lambda malt: best_worst(),
    "all": lambda malt: every(),
}


def backup_of(malt: PureTextMaltParameters) -> Backup:
    """The expected rewards that MALT's parameters describe."""
    backup = BACKUPS[malt.value_backup]
    return by_probability(backup) if malt.verdict == "probability" else backup


def selector_of(malt: PureTextMaltParameters, agents: Sequence[AgentParameters] = ()) -> Selector:
    """The chain of rule and filters that MALT's parameters describe, and those of the agents."""
    # Duplicates of a node are left out before its pair is drawn, so that a reply that was sampled
    # often is no more likely to be drawn; those of different nodes afterwards.
    within, across = ([dedupe("node")], [dedupe()]) if malt.deduplicate_pairs else ([], [])
    most = malt.max_pairs_per_datapoint

    def at_nodes(agent: AgentParameters) -> Selector:
        name = agent.pair_selection_method or malt.pair_selection_method
        least = malt.min_pair_margin if agent.min_pair_margin is None else agent.min_pair_margin
        # "all" means all; every other rule, a user's own included, ends with one pair of each node.
        draws = [] if name == "all" else [one_per_node()]
        # The margin is asked for before the draw, so that a pair that is too close does not take
        # the place of a clear one.
        return chain(SELECTORS[name](malt), margin(least), *within, *draws)

    differ = any(a.pair_selection_method or a.min_pair_margin is not None for a in agents)
    rules = tuple(map(at_nodes, agents))
    # Caps and balances come last, because they count what will be trained on.
    return chain(
        by_agent(rules.__getitem__) if differ else at_nodes(AgentParameters()),
        *across,
        *([] if most is None else [cap(most)]),
        *([] if malt.balance_pairs == "none" else [balance(malt.balance_pairs)]),
    )


def rollout_rule_of(params: HyperParameters) -> RolloutRule:
    """The rollouts to imitate, as Expert Iteration's parameters describe them."""
    settings = params.ei
    if settings.rollout_selection_method == "threshold":
        return at_least(settings.reward_threshold)
    return weighted(
        settings.weighting_sample_size_factor,
        minimum=settings.weighting_minimum,
        epsilon=settings.weighting_epsilon,
        replace=settings.weighting_use_replacement,
    )


def replacement_of(params: HyperParameters) -> Schedule:
    """The share of rollouts whose verdict is replaced by the true label, by iteration."""
    text_rl = params.text_rl
    share = text_rl.verifier_guess_replacement_proportion
    rate = text_rl.verifier_guess_replacement_annealing_rate
    match text_rl.verifier_guess_replacement_annealing:
        case "linear":
            return linear(share, rate)
        case "exponential":
            return exponential(share, rate)
    return constant(share)


def _ei(params: HyperParameters) -> Trainer[Any]:
    trainer = ei(
        rollout_rule_of(params),
        replacement_of(params),
        batch_size=params.ei.rollouts_per_iteration,
    )
    return _remembering(trainer, params)


def malt_of(params: HyperParameters, backup: Backup | None = None) -> Trainer[Any]:
    """MALT by the parameters, or by another backup than theirs."""
    backup = backup_of(params.malt) if backup is None else backup
    selector = selector_of(params.malt, params.agents)
    trainer = malt(selector, backup, loss=losses_of(params), k=num_replies_of(params))
    return _warmed_up(trainer, params)


def _reinforce(params: HyperParameters) -> Trainer[Any]:
    trainer = policy_gradient(
        advantage_of(params),
        losses_of(params),
        backup_of(params.malt),
        k=num_replies_of(params),
    )
    return _warmed_up(trainer, params)


def advantage_of(params: HyperParameters) -> Advantage[Any]:
    """The weights of replies that the parameters describe."""
    settings = params.reinforce
    by_tree = settings.advantage == "tree"
    advantage: Advantage[Any] = (
        tree_advantage() if by_tree else running_baseline(settings.baseline_decay)
    )
    by = settings.normalise_by
    return advantage if by == "none" else normalised(advantage, by)


def losses_of(params: HyperParameters) -> dict[str, Loss]:
    """The loss of each group, by its name."""
    return {agent_group(agent): loss_of(params, agent) for agent in params.agents}


def loss_of(params: HyperParameters, agent: AgentParameters) -> Loss:
    """The loss that the parameters of an agent describe."""
    loss = agent.loss or ("policy_gradient" if params.trainer == "reinforce" else "dpo")
    if not isinstance(loss, str):
        return loss
    if loss == "dpo":
        # Resolved here for every provider: the *nip* library passes None on, which its server
        # rejects.
        return DPO(beta=agent.dpo_beta or 0.1, sft_weight=agent.dpo_sft_weight)
    return BUILT_IN_LOSSES.get(loss) or OwnLoss(loss)


def _warmed_up(trainer: Trainer[Any], params: HyperParameters) -> Trainer[Any]:
    """The trainer after the iterations of Expert Iteration that go before it."""
    # Each part remembers for itself: rows of Expert Iteration have another loss than the others.
    warm_up = params.malt.num_initial_ei_iterations
    return sequence((_ei(params), warm_up), (_remembering(trainer, params), None))


def num_replies_of(params: HyperParameters) -> Callable[[Turn], int]:
    """The number of replies that are sampled at an agent's turn."""
    k = params.malt.num_responses_per_timestep
    # More replies of a frozen agent train nobody; they only make the values of earlier replies less
    # uncertain, at the full price of the rounds below.
    frozen_k = 1 if params.malt.frozen_agents_generate_one_response else k

    def replies(turn: Turn) -> int:
        agent = params.agents[turn.agent]
        idle = None if turn.trained else agent.num_idle_responses
        by_turn = agent.num_responses if idle is None else idle
        if by_turn is None:
            return frozen_k if is_frozen(agent) else k
        if isinstance(by_turn, int):
            return by_turn
        return by_turn[min(turn.number, len(by_turn) - 1)]

    return replies


def _remembering(trainer: Trainer[Any], params: HyperParameters) -> Trainer[Any]:
    all_previous = params.text_rl.fine_tune_on_all_previous_rollouts
    return accumulate(trainer) if all_previous else trainer


TRAINERS: dict[str, MakeTrainer] = {"malt": malt_of, "ei": _ei, "reinforce": _reinforce}


def trainer_of(params: HyperParameters) -> Trainer[Any]:
    """The trainer that the parameters describe; the same parameters give the same object.

    Raises:
        ValueError: It, a pair rule or the backup is not registered; its cause is the `Problem`.
    """
    return or_raise(find_trainer(params))


def find_trainer(params: HyperParameters) -> Result[Trainer[Any], Problem]:
    """The trainer that the parameters describe, or the problem of a name that is unknown."""
    rules = {"malt.pair_selection_method": params.malt.pair_selection_method} | {
        f"agents.{agent.name}.pair_selection_method": agent.pair_selection_method
        for agent in params.agents
        if agent.pair_selection_method is not None
    }
    # Read outside the cache, as in `protocols.registry`: a notebook may redefine any of them.
    values = collect(
        (
            look_up(
                BACKUPS,
                params.malt.value_backup,
                address="malt.value_backup",
                noun="backup",
                variable="BACKUPS",
            ),
            *(
                look_up(SELECTORS, name, address=address, noun="pair rule", variable="SELECTORS")
                for address, name in rules.items()
            ),
        )
    )
    make = look_up(TRAINERS, params.trainer, address="trainer", noun="trainer", variable="TRAINERS")
    return make.bind(lambda maker: values.map(lambda named: _made(maker, named, params)))


@lru_cache(maxsize=64)
def _made(make: MakeTrainer, values: object, params: HyperParameters) -> Trainer[Any]:
    # `values` are part of the key only: a redefined one must not find the old trainer.
    return make(params)
