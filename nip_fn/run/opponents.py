"""Opponents from a pool of earlier models and of scripts: fictitious play.

After Brown, "Iterative solution of games by fictitious play", 1951, in which each player replies to
the average of what the others have played so far.  In a share of its iteration's trees an agent
meets earlier models of the others, or scripts in their place, and is the only one that these trees
train.  A verifier that learns against the last prover alone forgets what earlier ones had taught
it, and never hears an attack that no prover of its run has found.

Which tree is played by which models follows from the state and the key of the tree's game, so a
replay derives it, and the recorded utterances name the models that did play.
"""

from typing import NamedTuple

from nip_fn.keys import Key, fold_in, randint, uniform
from nip_fn.params.agent import is_scripted, meets_others
from nip_fn.params.run import HyperParameters
from nip_fn.training.groups import Group


class Script(NamedTuple):
    """A strategy in the place of a model."""

    strategy: str


def learner(params: HyperParameters, game: Key) -> int | None:
    """The agent that meets earlier models or scripts in this game; None if none does."""
    if not any(map(meets_others, params.agents)):
        return None  # as a rule, and asked for every reply
    draw = uniform(fold_in(game, "opponents"))
    for index, agent in enumerate(params.agents):
        share = agent.opponent_pool_share if meets_others(agent) else 0.0
        if draw < share:
            return index
        draw -= share
    return None


def player_of(params: HyperParameters, group: Group, agent: int, game: Key) -> str | Script | None:
    """The model or script that plays an agent's part in a game of the sample stage.

    Args:
        params: Of the run.
        group: The agent's group, as it is when it samples.
        agent: The agent.
        game: The key of the game.

    Returns:
        The adapter that is served (None: the base model), except to those that the game's learner
        is to meet.  For each model group of theirs it is drawn uniformly from the learner's
        `opponent_scripts` and the last of the group's earlier models, as many as the learner's
        `opponent_pool` says; the base model is the first of all.
    """
    learns = learner(params, game)
    # A scripted agent follows its script in every game: it has no earlier models.
    if learns is None or learns == agent or is_scripted(params.agents[agent]):
        return group.serving
    learner_params = params.agents[learns]
    versions = (None, *(adapter.name for adapter in group.lineage))
    earlier = versions.index(group.serving)
    models = versions[max(0, earlier - learner_params.opponent_pool) : earlier]
    pool = (*models, *map(Script, learner_params.opponent_scripts))
    # By group: agents that share a model meet the learner as one and the same model.
    draw_key = fold_in(game, "opponents", group.name)
    return pool[randint(draw_key, len(pool))] if pool else group.serving


def is_learnt_from(params: HyperParameters, group: Group, agent: int, game: Key) -> bool:
    """True if the agent plays its present model in the game, so that the replies are its own."""
    return player_of(params, group, agent, game) == group.serving
