"""Opponents from a pool of earlier models: fictitious play.

After Brown, "Iterative solution of games by fictitious play", 1951, in which each player replies to
the average of what the others have played so far.  In a share of its iteration's trees an agent
meets earlier models of the others, and is the only one that these trees train.  A verifier that
learns against the last prover alone forgets what earlier ones had taught it.

Which tree is played by which models follows from the state and the key of the tree's game, so a
replay derives it, and the recorded utterances name the models that did play.
"""

from nip_fn.keys import Key, fold_in, randint, uniform
from nip_fn.params.run import HyperParameters
from nip_fn.training.groups import Group


def learner(params: HyperParameters, game: Key) -> int | None:
    """The agent that meets earlier models of the others in this game; None if none does."""
    if not any(agent.opponent_pool for agent in params.agents):
        return None  # as a rule, and asked for every reply
    place = uniform(fold_in(game, "opponents"))
    for index, agent in enumerate(params.agents):
        share = agent.opponent_pool_share if agent.opponent_pool else 0.0
        if place < share:
            return index
        place -= share
    return None


def model_of(params: HyperParameters, group: Group, agent: int, game: Key) -> str | None:
    """The adapter that an agent plays with in a game of the sample stage; None: the base model.

    It is the one that is served, except to those that the game's learner is to meet.  Each model
    group of theirs is drawn uniformly from the last of its earlier models, as many as the learner's
    `opponent_pool` says; the base model is the first of all.

    Args:
        params: Of the run.
        group: The agent's group, as it is when it samples.
        agent: The agent.
        game: The key of the game.
    """
    learns = learner(params, game)
    if learns is None or learns == agent:
        return group.serving
    known = (None, *(adapter.name for adapter in group.lineage))
    earlier = known[: known.index(group.serving)]
    pool = earlier[-params.agents[learns].opponent_pool :]
    # By group: agents that share a model meet the learner as one and the same model.
    place = fold_in(game, "opponents", group.name)
    return pool[randint(place, len(pool))] if pool else group.serving


def is_learnt_from(params: HyperParameters, group: Group, agent: int, game: Key) -> bool:
    """True if the agent plays its present model in the game, so that the replies are its own."""
    return model_of(params, group, agent, game) == group.serving
