"""From a game to the chat that one agent's model is shown."""

from functools import lru_cache
from itertools import groupby
from typing import Literal

import msgspec
from msgspec.structs import replace
from returns.result import Failure, Result, Success

from nip_fn.game.datapoint import Datapoint
from nip_fn.game.decision import SPECTRA, SpectrumName, decision_instructions, strongest
from nip_fn.game.episode import Episode, may_decide
from nip_fn.game.protocol import Protocol, channels_seen, verifier_rounds
from nip_fn.params.agent import (
    AgentParameters,
    merges_same_role_messages,
    names_speakers_in_content,
)
from nip_fn.params.run import HyperParameters
from nip_fn.prompts.render import render, render_text
from nip_fn.protocols.registry import protocol_of


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str
    name: str | None = None  # who speaks, for providers that keep it


Chat = tuple[Message, ...]


def build_chat(params: HyperParameters, datapoint: Datapoint, episode: Episode, agent: int) -> Chat:
    """What the agent's model is shown when it is to speak next in `episode`.

    The system prompt; every earlier round as this agent saw it, its own words as the assistant and
    the words of others, in channels it can see, as the user; and a closing instruction from the
    supervisor where the agent's parameters ask for one, where the chat would otherwise not end with
    a user's turn, and at the verifier's last turn, so that it learns of it.
    """
    protocol, own = protocol_of(params), params.agents[agent]
    max_questions = len(verifier_rounds(protocol, episode.key)) - 1
    system = Message("system", _system_prompt(params, datapoint, agent, max_questions))
    said = history(protocol, episode, agent, named=names_speakers_in_content(own))
    last = protocol.is_verifier(agent) and questions_left(protocol, episode) == 0
    unaddressed = not said or said[-1].role != "user"
    if last or unaddressed or _supervised(own, len(episode.turns)):
        said = (*said, _supervisor_message(params, datapoint, agent, episode, said))
    return (system, *(_merged(said) if merges_same_role_messages(own) else said))


def questions_left(protocol: Protocol, episode: Episode) -> int:
    """The verifier's turns after the coming round; 0 at its own turn means: decide now."""
    return sum(r > len(episode.turns) for r in verifier_rounds(protocol, episode.key))


def ensure_last_message_is_assistant(chat: Chat) -> Result[Chat, str]:
    """The chat up to the last message of the assistant; a failure where there is none.

    >>> chat = (Message("system", "s"), Message("assistant", "a"), Message("user", "u"))
    >>> [message.content for message in ensure_last_message_is_assistant(chat).unwrap()]
    ['s', 'a']
    """
    own = [index for index, message in enumerate(chat) if message.role == "assistant"]
    return Success(chat[: own[-1] + 1]) if own else Failure("the agent has said nothing yet")


def replace_last_message_with_true_label(
    chat: Chat, label: int, spectrum: SpectrumName
) -> Result[Chat, str]:
    """The chat of a verifier, its last message replaced by the firmest decision that is right.

    A failure where the last message is not the assistant's.

    >>> chat = (Message("user", "u"), Message("assistant", "Decision: accept"))
    >>> replace_last_message_with_true_label(chat, 0, "out_of_10").unwrap()[-1].content
    'Decision: 0'
    """
    if not chat or chat[-1].role != "assistant":
        return Failure("the chat does not end with a message of the assistant")
    decision = strongest(spectrum, label)
    return Success((*chat[:-1], replace(chat[-1], content=f"Decision: {decision.text}")))


def _supervised(own: AgentParameters, round: int) -> bool:
    rule = own.use_supervisor_message
    return (
        rule == "all" or (rule == "first" and round == 0) or (rule == "all_but_first" and round > 0)
    )


def history(protocol: Protocol, episode: Episode, agent: int, *, named: bool) -> Chat:
    """All earlier rounds as the agent saw them; `named` writes who speaks into the content."""
    messages: list[Message] = []
    for round, turn in enumerate(episode.turns):
        messages.extend(
            Message("assistant", said.raw)
            for said in turn
            if said.agent == agent and said.raw.strip()
        )
        heard = {
            channel: (protocol.agents[said.agent], text)
            for said in turn
            if said.agent != agent
            for channel, text in said.messages
        }
        for channel in channels_seen(protocol, agent, round, episode.key):
            if channel in heard:
                speaker, text = heard[channel]
                content = f"{speaker.shown_name}: {text}" if named else text
                name = None if speaker.anonymous else speaker.shown_name
                messages.append(Message("user", content, name))
    return tuple(messages)


def _merged(chat: Chat) -> Chat:
    """The chat with neighbours of one role joined, for templates that want the roles to alternate.

    A joined message has a name only where all its parts have the same.
    """
    merged = []
    for role, group in groupby(chat, key=lambda message: message.role):
        parts = tuple(group)
        names = {part.name for part in parts}
        content = "\n\n".join(part.content for part in parts)
        merged.append(Message(role, content, names.pop() if len(names) == 1 else None))
    return tuple(merged)


@lru_cache(maxsize=8192)
def _system_prompt(
    params: HyperParameters, datapoint: Datapoint, agent: int, max_questions: int
) -> str:
    protocol, own = protocol_of(params), params.agents[agent]
    variables = {
        **prompt_variables(params, datapoint, agent),
        "question": datapoint.question,
        "solution": datapoint.solution,
        "max_questions": max_questions,
    }
    if own.system_prompt_template is not None:
        return render_text(own.system_prompt_template, **variables)
    spec = protocol.agents[agent]
    version = params.code_validation.system_prompt_version
    return render(version, protocol.name, (spec.name, spec.role), **variables)


def _supervisor_message(
    params: HyperParameters, datapoint: Datapoint, agent: int, episode: Episode, said: Chat
) -> Message:
    protocol, own = protocol_of(params), params.agents[agent]
    spec = protocol.agents[agent]
    content = render(
        params.code_validation.system_prompt_version,
        protocol.name,
        (f"{spec.name}_supervisor", f"{spec.role}_supervisor"),
        **prompt_variables(params, datapoint, agent),
        round_id=len(episode.turns),
        num_questions_left=questions_left(protocol, episode),
        may_decide=may_decide(protocol, len(episode.turns), agent),
        is_asked=_is_asked(protocol, episode, agent),
    )
    signed = merges_same_role_messages(own) and names_speakers_in_content(own)
    content = f"{own.supervisor_name}: {content}" if signed and said else content
    return Message("user", content, own.supervisor_name)


def _is_asked(protocol: Protocol, episode: Episode, agent: int) -> bool:
    """Whether the agent has heard anything from a verifier."""
    return any(
        protocol.is_verifier(said.agent) and protocol.visibility[agent][channel]
        for turn in episode.turns
        for said in turn
        if said.agent != agent
        for channel, _ in said.messages
    )


def prompt_variables(
    params: HyperParameters, datapoint: Datapoint, agent: int
) -> dict[str, object]:
    """What every template may name, about the agent and about its protocol."""
    protocol = protocol_of(params)
    spec, verifiers = protocol.agents[agent], [a for a in protocol.agents if a.role == "verifier"]
    provers = [i for i, other in enumerate(protocol.agents) if other.role == "prover"]
    stances = [protocol.stance(prover, datapoint.stance) for prover in provers]
    randomised = [protocol.stance(p, 0) != protocol.stance(p, 1) for p in provers]
    experts = list(dict.fromkeys(protocol.agents[prover].shown_name for prover in provers))
    asked = [header for _, header in spec.headers] or [f"Question for {' and '.join(experts)}:"]
    stance = protocol.stance(agent, datapoint.stance)
    return {
        "agent_name": spec.shown_name,
        "agent_stance": stance,
        "agent_stance_string": _verdict(stance),
        "verifier_name": verifiers[0].shown_name,
        "experts": experts,
        "expert_verdicts": [_verdict(side) for side in stances],
        "stances_are_randomised": any(randomised),
        "shared_reward": params.protocol_common.shared_reward,
        "max_response_words": params.agents[agent].max_response_words,
        "min_message_rounds": protocol.min_message_rounds,
        "question_headers": asked,
        "decisions": [decision.text for decision in reversed(SPECTRA[protocol.spectrum])],
        "verifier_decision_instructions": decision_instructions(protocol.spectrum),
    }


def _verdict(stance: int) -> str:
    return "accept" if stance else "reject"
