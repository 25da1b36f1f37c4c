"""Expert Iteration: dialogues that went well for an agent are imitated (supervised fine-tuning).

After Anthony et al., "Thinking Fast and Slow with Deep Learning and Tree Search", 2017, as the
*nip* library adapts it to prover-verifier games.
"""

from math import fsum

from nip_fn.game.decision import strongest
from nip_fn.game.episode import Utterance
from nip_fn.game.protocol import Move
from nip_fn.keys import Key, fold_in
from nip_fn.params.run import HyperParameters
from nip_fn.prompts.chat import build_chat
from nip_fn.protocols.registry import protocol_of
from nip_fn.select.pairs import Pair
from nip_fn.select.rollouts import SelectedRollout, replacement_share, select_for_agent
from nip_fn.training.groups import Group, trained_agents
from nip_fn.training.jobs import SupervisedRow
from nip_fn.training.trainer import SampleBatch, Selection, Trainer
from nip_fn.trees.grow import Node


def branching(params: HyperParameters, moves: tuple[Move, ...]) -> int:
    """One reply: a tree is a single dialogue."""
    return 1


def select(harvest: SampleBatch, key: Key) -> Selection:
    """For each trained agent the dialogues that it is to learn from; `key` is consumed."""
    params, protocol = harvest.params, protocol_of(harvest.params)
    games = [_dialogue(root) for root in harvest.forest]
    selection: list[SelectedRollout] = []
    for agent in trained_agents(params):
        selection.extend(
            select_for_agent(
                [fsum(node.reward[agent] for node in game) for game in games],
                agent=agent,
                is_verifier=protocol.is_verifier(agent),
                ei=params.ei,
                share=replacement_share(params.text_rl, harvest.iteration),
                key=fold_in(key, "agent", agent),
            )
        )
    return tuple(selection)


def rows(
    harvest: SampleBatch, selection: tuple[Pair | SelectedRollout, ...], group: Group
) -> tuple[SupervisedRow, ...]:
    """A row for each usable reply of the group's agents in their dialogues, on its own chat."""
    return tuple(
        row
        for chosen in selection
        if isinstance(chosen, SelectedRollout) and chosen.agent in group.agents
        for row in _rows_of(harvest, chosen)
    )


def _rows_of(harvest: SampleBatch, chosen: SelectedRollout) -> tuple[SupervisedRow, ...]:
    """What the agent said, turn by turn; its last words are the true label where it is replaced."""
    game, datapoint = _dialogue(harvest.forest[chosen.tree]), harvest.datapoint(chosen.tree)
    turns = [
        (round, said)
        for round, node in enumerate(game)
        for said in node.turn
        if said.agent == chosen.agent
    ]
    spectrum = protocol_of(harvest.params).spectrum
    examples = []
    for round, said in turns:
        reply = said.raw if _is_usable(said) else None
        if chosen.replaced and round == turns[-1][0]:
            reply = f"Decision: {strongest(spectrum, datapoint.label).text}"
        if reply is not None:
            before = harvest.episode(chosen.tree, (0,) * round)
            chat = build_chat(harvest.params, datapoint, before, chosen.agent)
            examples.append(SupervisedRow(chat, reply))
    return tuple(examples)


def _is_usable(said: Utterance) -> bool:
    return said.error is None and bool(said.raw.strip())


def _dialogue(root: Node) -> tuple[Node, ...]:
    """The nodes of a tree of one branch, after its root."""
    nodes, node = [], root
    while node.children:
        (node,) = node.children
        nodes.append(node)
    return tuple(nodes)


ei = Trainer("ei", branching, select, rows)
