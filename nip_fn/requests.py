"""What a sampler is asked for."""

import msgspec

from nip_fn.chat import Chat, build_chat
from nip_fn.events import AskTree
from nip_fn.finetune import group_of
from nip_fn.growth import descend
from nip_fn.keys import Key, fold_in
from nip_fn.params import max_tokens
from nip_fn.protocols.registry import protocol_of
from nip_fn.state import RunState, datapoint_of, episode_of, tree_key


class Request(msgspec.Struct, frozen=True):
    """What a sampler needs to know: a chat, and how many replies to it, each with its own key."""

    model: str
    adapter: str | None  # None: the base model
    chat: Chat
    keys: tuple[Key, ...]  # one for each reply: the same place always draws the same reply
    temperature: float
    max_tokens: int
    agent: str
    is_verifier: bool


def request(state: RunState, effect: AskTree) -> Request:
    """The sampler's request for replies that a tree waits for."""
    tree, ask = effect.tree, effect.ask
    agent = state.params.agents[ask.agent]
    group = group_of(state.groups, ask.agent)
    _, episode = descend(state.forest[tree], episode_of(state, tree), ask.path)
    place = fold_in(tree_key(state, tree), *ask.path, agent.name)
    return Request(
        model=group.model,
        adapter=group.serving,
        chat=build_chat(state.params, datapoint_of(state, tree), episode, ask.agent),
        keys=tuple(fold_in(place, index, ask.attempt) for index in ask.indices),
        temperature=1.0 if agent.temperature is None else agent.temperature,
        max_tokens=max_tokens(agent),
        agent=agent.name,
        is_verifier=protocol_of(state.params).is_verifier(ask.agent),
    )
