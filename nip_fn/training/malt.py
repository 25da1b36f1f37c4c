"""MALT: trees of replies, expected rewards, preference pairs, DPO.

After Motwani et al., "MALT: Improving Reasoning with Multi-Agent LLM Training", 2024, as the *nip*
library adapts it to prover-verifier games.
"""

from nip_fn.game.protocol import Move
from nip_fn.keys import Key, fold_in
from nip_fn.params.run import HyperParameters
from nip_fn.prompts.chat import build_chat
from nip_fn.protocols.registry import protocol_of
from nip_fn.select.pairs import Pair, refine, select_pairs
from nip_fn.training.groups import Group, trained_agents
from nip_fn.training.jobs import PreferenceRow
from nip_fn.training.trainer import SampleBatch, Selection, Trainer
from nip_fn.trees.tree import backup, flatten


def branching(params: HyperParameters, moves: tuple[Move, ...]) -> int:
    """k replies from each mover; one where only frozen agents move and one is enough."""
    frozen = all(params.agents[move.agent].freeze_agent for move in moves)
    if frozen and params.malt.frozen_agents_generate_one_response:
        return 1
    return params.malt.num_responses_per_timestep


def select(harvest: SampleBatch, key: Key) -> tuple[Pair, ...]:
    """The preference pairs of all trees for all trained agents, tree by tree; `key` is consumed."""
    params = harvest.params
    protocol, agents = protocol_of(params), trained_agents(params)
    pairs: list[Pair] = []
    trees = tuple(map(flatten, harvest.forest))
    for index, tree in enumerate(trees):
        pairs.extend(
            select_pairs(
                tree,
                backup(tree, params.malt.value_backup),
                index=index,
                protocol=protocol,
                agents=agents,
                malt=params.malt,
                key=fold_in(key, index),
            )
        )
    return refine(tuple(pairs), trees, params.malt, fold_in(key, "refine"))


def rows(harvest: SampleBatch, selection: Selection, group: Group) -> tuple[PreferenceRow, ...]:
    """The group's pairs as DPO rows, on exactly the chats that the replies were given to."""
    pairs = [pair for pair in selection if isinstance(pair, Pair) and pair.agent in group.agents]
    trees = {index: flatten(harvest.forest[index]) for index in {pair.tree for pair in pairs}}
    examples = []
    for pair in pairs:
        tree = trees[pair.tree]
        episode = harvest.episode(pair.tree, tree.path_N[pair.parent])
        said = {
            node: next(said for said in tree.turn_N[node] if said.agent == pair.agent)
            for node in (pair.chosen, pair.rejected)
        }
        examples.append(
            PreferenceRow(
                prompt=build_chat(
                    harvest.params, harvest.datapoint(pair.tree), episode, pair.agent
                ),
                chosen=said[pair.chosen].raw,
                rejected=said[pair.rejected].raw,
            )
        )
    return tuple(examples)


malt = Trainer("malt", branching, select, rows)
