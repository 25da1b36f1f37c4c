"""What a sampler is asked for."""

from functools import cache

import msgspec

from nip_fn.game.decision import SPECTRA, SpectrumName
from nip_fn.game.episode import may_decide, movers
from nip_fn.keys import Key, fold_in
from nip_fn.params.agent import max_tokens
from nip_fn.prompts.chat import Chat, build_chat
from nip_fn.protocols.registry import protocol_of
from nip_fn.run.events import SampleReplies
from nip_fn.run.state import RunState, datapoint_of, episode_of, tree_key
from nip_fn.training.groups import group_of
from nip_fn.trees.grow import node_at


class Request(msgspec.Struct, frozen=True):
    """What a sampler needs to know: a chat, and how many replies to it, each with its own key."""

    model: str
    adapter: str | None  # None: the base model
    chat: Chat
    keys: tuple[Key, ...]  # one for each reply: the same place always draws the same reply
    temperature: float | None  # None: the model's default, as for all that follows
    top_p: float | None
    repetition_penalty: float | None
    max_tokens: int
    agent: str
    is_verifier: bool
    headers: tuple[str, ...]  # what the parts of a message to several channels must begin with
    decisions: tuple[str, ...]  # what may follow "Decision: "; () where no decision counts


def request(state: RunState, effect: SampleReplies) -> Request:
    """The sampler's request for replies that a tree waits for."""
    tree, ask = effect.tree, effect.ask
    agent, protocol = state.params.agents[ask.agent], protocol_of(state.params)
    group = group_of(state.groups, ask.agent)
    _, episode = node_at(state.forest[tree], episode_of(state, tree), ask.path)
    move = next(move for move in movers(protocol, episode) if move.agent == ask.agent)
    decides = may_decide(protocol, len(episode.turns), ask.agent)
    place = fold_in(tree_key(state, tree), *ask.path, agent.name)
    return Request(
        model=group.model,
        adapter=group.serving,
        chat=build_chat(state.params, datapoint_of(state, tree), episode, ask.agent),
        keys=tuple(fold_in(place, index, ask.attempt) for index in ask.indices),
        temperature=agent.temperature,
        top_p=agent.top_p,
        repetition_penalty=agent.repetition_penalty,
        max_tokens=max_tokens(agent),
        agent=agent.name,
        is_verifier=protocol.is_verifier(ask.agent),
        headers=protocol.headers(move),
        decisions=_decision_texts(protocol.spectrum) if decides else (),
    )


@cache
def _decision_texts(spectrum: SpectrumName) -> tuple[str, ...]:
    return tuple(decision.text for decision in SPECTRA[spectrum])
