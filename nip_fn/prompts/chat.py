"""Chats: a game so far, as one agent's model is shown it."""

from functools import lru_cache
from itertools import groupby

from nip_fn.game.answer import ANSWER_INSTRUCTIONS
from nip_fn.game.chat import Chat, Message
from nip_fn.game.datapoint import Datapoint
from nip_fn.game.decision import SPECTRA, decision_instructions
from nip_fn.game.episode import Episode, may_decide, movers
from nip_fn.game.protocol import Protocol, channels_seen, has_answers, verifier_rounds
from nip_fn.params.agent import (
    AgentParameters,
    merges_same_role_messages,
    names_speakers_in_content,
)
from nip_fn.params.run import HyperParameters
from nip_fn.prompts.render import render, render_text
from nip_fn.prompts.wording import WORDING


def build_chat(
    params: HyperParameters, protocol: Protocol, datapoint: Datapoint, episode: Episode, agent: int
) -> Chat:
    """The chat from which an agent's next reply is sampled.

    It holds the system prompt; every earlier round as this agent saw it, its own replies as the
    assistant and the messages of others, in channels that it can see, as the user; and a closing
    instruction from the supervisor if the agent's parameters ask for one, if the chat would end
    with the agent's own words otherwise, and at the verifier's last turn, which it announces.  A
    chat without any other message says that it is the agent's turn: many models need to be
    addressed.

    Args:
        params: The run's parameters.
        protocol: The game.
        datapoint: The problem and the solution that the game is about.
        episode: The game so far.
        agent: The index of the agent that speaks next.
    """
    agent_params = params.agents[agent]
    max_questions = len(verifier_rounds(protocol, episode.key)) - 1
    prompt = _system_prompt(protocol, params, datapoint, agent, max_questions)
    messages = history(protocol, episode, agent, named=names_speakers_in_content(agent_params))
    last = protocol.is_verifier(agent) and questions_left(protocol, episode) == 0
    answers = _is_to_answer(protocol, episode, agent)
    # A model that is shown its own words last continues them instead of replying.
    unaddressed = not messages or messages[-1].role != "user"
    supervised = last or answers or _supervised(agent_params, len(episode.rounds))
    if not messages and not supervised:
        messages = (Message("user", "It is your turn."),)
    elif supervised or unaddressed:
        messages = (
            *messages,
            _supervisor_message(params, protocol, datapoint, agent, episode, messages),
        )
    return (
        Message("system", prompt),
        *(_merged(messages) if merges_same_role_messages(agent_params) else messages),
    )


def questions_left(protocol: Protocol, episode: Episode) -> int:
    """The number of the verifier's turns after the next round; 0 at its own turn: decide now."""
    return sum(r > len(episode.rounds) for r in verifier_rounds(protocol, episode.key))


def _supervised(agent_params: AgentParameters, round_id: int) -> bool:
    rule = agent_params.use_supervisor_message
    return rule == "all" or rule == ("first" if round_id == 0 else "all_but_first")


def history(protocol: Protocol, episode: Episode, agent: int, *, named: bool) -> Chat:
    """All earlier rounds as one agent saw them.

    Args:
        protocol: The game; decides which channels the agent sees, and in which order.
        episode: The game so far.
        agent: The index of the reader, whose own replies are the assistant's.
        named: Begin each message with its speaker's name.
    """
    messages: list[Message] = []
    # All rounds, also those in which the agent hears nothing.  The *nip* library stops at the first
    # of these, so that in a sequential mnip the second prover is never shown a question again.
    for round_id, turn in enumerate(episode.rounds):
        messages.extend(
            Message("assistant", utterance.raw)
            for utterance in turn
            if utterance.agent == agent and utterance.raw.strip()
        )
        # By channel, because the reader's order of channels decides, not the order of speaking.
        heard = {
            channel: (protocol.agents[utterance.agent], text)
            for utterance in turn
            if utterance.agent != agent
            for channel, text in utterance.messages
        }
        for channel in channels_seen(protocol, agent, round_id, episode.key):
            if channel in heard:
                speaker, text = heard[channel]
                content = f"{speaker.shown_name}: {text}" if named else text
                name = None if speaker.anonymous else speaker.shown_name
                messages.append(Message("user", content, name))
    return tuple(messages)


def _merged(chat: Chat) -> Chat:
    """The chat with consecutive messages of one role merged.

    A merged message has a name only if all its parts have the same.
    """
    merged = []
    for role, group in groupby(chat, key=lambda message: message.role):
        messages = tuple(group)
        # A name that is not that of all parts would put words into somebody's mouth.
        names = {part.name for part in messages}
        content = "\n\n".join(part.content for part in messages)
        merged.append(Message(role, content, names.pop() if len(names) == 1 else None))
    return tuple(merged)


# Keyed by the protocol itself, not only by its name in `params`: whoever redefines a protocol in a
# notebook must not be shown the prompts of the one before.
@lru_cache(maxsize=8192)
def _system_prompt(
    protocol: Protocol,
    params: HyperParameters,
    datapoint: Datapoint,
    agent: int,
    max_questions: int,
) -> str:
    agent_params, spec = params.agents[agent], protocol.agents[agent]
    variables = system_variables(params, protocol, datapoint, agent, max_questions=max_questions)
    if agent_params.system_prompt_template is not None:
        return render_text(agent_params.system_prompt_template, **variables)
    version = params.code_validation.system_prompt_version
    return render(version, protocol.name, (spec.name, spec.role), **variables)


def _supervisor_message(
    params: HyperParameters,
    protocol: Protocol,
    datapoint: Datapoint,
    agent: int,
    episode: Episode,
    messages: Chat,
) -> Message:
    agent_params = params.agents[agent]
    content = _instruction(
        protocol,
        params,
        agent,
        datapoint.stance,
        round_id=len(episode.rounds),
        num_questions_left=questions_left(protocol, episode),
        may_decide=may_decide(protocol, len(episode.rounds), agent),
        is_asked=_is_asked(protocol, episode, agent),
        is_to_answer=_is_to_answer(protocol, episode, agent),
        is_code=datapoint.kind == "code",
    )
    signed = merges_same_role_messages(agent_params) and names_speakers_in_content(agent_params)
    content = f"{agent_params.supervisor_name}: {content}" if signed and messages else content
    return Message("user", content, agent_params.supervisor_name)


# Most chats end with an instruction, but it depends on few facts: a run needs some dozens of them.
@lru_cache(maxsize=1024)
def _instruction(
    protocol: Protocol,
    params: HyperParameters,
    agent: int,
    datapoint_stance: int,
    **facts: int,
) -> str:
    """The supervisor's text for an agent, given the facts of the round."""
    spec = protocol.agents[agent]
    return render(
        params.code_validation.system_prompt_version,
        protocol.name,
        (f"{spec.name}_supervisor", f"{spec.role}_supervisor"),
        **_agent_variables(protocol, params, agent, datapoint_stance),
        **facts,
    )


def _is_to_answer(protocol: Protocol, episode: Episode, agent: int) -> bool:
    """True if the agent's next reply is to state an answer."""
    return any(move.agent == agent and move.answers for move in movers(protocol, episode))


def _is_asked(protocol: Protocol, episode: Episode, agent: int) -> bool:
    """True if the agent has heard anything from a verifier."""
    return any(
        protocol.is_verifier(utterance.agent) and protocol.visibility[agent][channel]
        for turn in episode.rounds
        for utterance in turn
        if utterance.agent != agent
        for channel, _ in utterance.messages
    )


def system_variables(
    params: HyperParameters,
    protocol: Protocol,
    datapoint: Datapoint,
    agent: int,
    *,
    max_questions: int,
) -> dict[str, object]:
    """The variables of a system prompt's template, by name.

    Args:
        params: The run's parameters.
        protocol: The game.
        datapoint: The problem and the solution that the game is about.
        agent: The index of the agent that is shown the prompt.
        max_questions: The verifier's turns besides its last one.
    """
    spec, words = protocol.agents[agent], WORDING[datapoint.kind]
    return {
        **_agent_variables(protocol, params, agent, datapoint.stance),
        "question": datapoint.question,
        "solution": datapoint.solution,
        "view": datapoint.view(spec.name, spec.role),
        "kind": datapoint.kind,
        "subject": words.subject,
        "words": words,
        "max_questions": max_questions,
    }


def _agent_variables(
    protocol: Protocol, params: HyperParameters, agent: int, datapoint_stance: int
) -> dict[str, object]:
    """The variables of every template, by name."""
    spec, verifiers = protocol.agents[agent], [a for a in protocol.agents if a.role == "verifier"]
    provers = [i for i, agent_spec in enumerate(protocol.agents) if agent_spec.role == "prover"]
    stances = [protocol.stance(prover, datapoint_stance) for prover in provers]
    # Found by asking and not from a parameter, so that it holds for protocols of a user's own; the
    # verifier is told if the side is unknown, instead of that everybody argues for acceptance.
    randomised = [protocol.stance(p, 0) != protocol.stance(p, 1) for p in provers]
    experts = tuple(dict.fromkeys(protocol.agents[prover].shown_name for prover in provers))
    headers = tuple(header for _, header in spec.headers)
    stance = protocol.stance(agent, datapoint_stance)
    return {
        "agent_name": spec.shown_name,
        "agent_stance": stance,
        "agent_stance_string": _verdict(stance),
        "verifier_name": verifiers[0].shown_name,
        "experts": experts,
        "expert_verdicts": tuple(map(_verdict, stances)),
        "stances_are_randomised": any(randomised),
        "half_are_right": _half_are_right(params),
        "shared_reward": params.protocol_common.shared_reward,
        "max_response_words": params.agents[agent].max_response_words,
        "min_message_rounds": protocol.min_message_rounds,
        "question_headers": headers or (f"Question for {' and '.join(experts)}:",),
        "is_written": has_answers(protocol),
        "answer_instructions": ANSWER_INSTRUCTIONS,
        "decisions": tuple(decision.text for decision in reversed(SPECTRA[protocol.spectrum])),
        "verifier_decision_instructions": decision_instructions(protocol.spectrum),
    }


def _half_are_right(params: HyperParameters) -> bool:
    """True if half of the solutions that are shown are surely right."""
    options = params.dataset_options
    return options.balance_classes and options.only_label is None


def _verdict(stance: int) -> str:
    return "accept" if stance else "reject"
