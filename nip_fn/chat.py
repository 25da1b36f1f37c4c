"""From a game to the chat that one agent's model is shown."""

from functools import lru_cache
from typing import Literal

import msgspec

from nip_fn.data import Datapoint
from nip_fn.episode import Episode
from nip_fn.params import AgentParameters, HyperParameters
from nip_fn.prompts import render
from nip_fn.protocols.protocol import Protocol, verifier_rounds
from nip_fn.protocols.registry import protocol_of
from nip_fn.spectra import decision_instructions


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str
    name: str | None = None  # who speaks, for providers that keep it


Chat = tuple[Message, ...]


def build_chat(params: HyperParameters, datapoint: Datapoint, episode: Episode, agent: int) -> Chat:
    """What the agent's model is shown when it is to speak next in `episode`.

    The system prompt; every earlier round as this agent saw it, its own words as the assistant and
    the words of others, in channels it can see, as the user with the speaker named; and a closing
    instruction from the supervisor where the agent's parameters ask for one, where the chat would
    otherwise not end with a user's turn, and at the verifier's last turn, so that it learns of it.
    """
    protocol, own = protocol_of(params), params.agents[agent]
    max_questions = len(verifier_rounds(protocol, episode.key)) - 1
    system = Message("system", _system_prompt(params, datapoint, agent, max_questions))
    history = _history(protocol, episode, agent)
    round = len(episode.turns)
    last = protocol.is_verifier(agent) and questions_left(protocol, episode) == 0
    unaddressed = not history or history[-1].role != "user"
    if last or unaddressed or _supervised(own, round):
        content = _supervisor_message(params, datapoint, agent, round, episode)
        return (system, *history, Message("user", content, own.supervisor_name))
    return (system, *history)


def questions_left(protocol: Protocol, episode: Episode) -> int:
    """The verifier's turns after the coming round; 0 at its own turn means: decide now."""
    return sum(r > len(episode.turns) for r in verifier_rounds(protocol, episode.key))


def _supervised(own: AgentParameters, round: int) -> bool:
    rule = own.use_supervisor_message
    return (
        rule == "all" or (rule == "first" and round == 0) or (rule == "all_but_first" and round > 0)
    )


def _history(protocol: Protocol, episode: Episode, agent: int) -> Chat:
    messages: list[Message] = []
    for turn in episode.turns:
        own = (said for said in turn if said.agent == agent)
        messages.extend(Message("assistant", said.raw) for said in own)
        for said in turn:
            if said.agent != agent:
                speaker = protocol.agents[said.agent].human_name
                messages.extend(
                    Message("user", f"{speaker}: {text}", speaker)
                    for channel, text in said.messages
                    if protocol.visibility[agent][channel]
                )
    return tuple(messages)


@lru_cache(maxsize=8192)
def _system_prompt(
    params: HyperParameters, datapoint: Datapoint, agent: int, max_questions: int
) -> str:
    protocol = protocol_of(params)
    return render(
        params.code_validation.system_prompt_version,
        protocol.name,
        protocol.agents[agent].name,
        question=datapoint.question,
        solution=datapoint.solution,
        max_questions=max_questions,
        **_common_context(params, datapoint, agent),
    )


def _supervisor_message(
    params: HyperParameters, datapoint: Datapoint, agent: int, round: int, episode: Episode
) -> str:
    protocol = protocol_of(params)
    return render(
        params.code_validation.system_prompt_version,
        protocol.name,
        f"{protocol.agents[agent].name}_supervisor",
        round_id=round,
        num_questions_left=questions_left(protocol, episode),
        **_common_context(params, datapoint, agent),
    )


def _common_context(params: HyperParameters, datapoint: Datapoint, agent: int) -> dict[str, object]:
    stance = protocol_of(params).stance(agent, datapoint.stance)
    return {
        "agent_stance_string": "accept" if stance else "reject",
        "stances_are_randomised": params.protocol_common.randomize_prover_stance,
        "max_response_words": params.agents[agent].max_response_words,
        "verifier_decision_instructions": decision_instructions("accept_reject"),
    }
