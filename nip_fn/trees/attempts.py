"""Attempts at a reply: a completion is parsed, and fills its slot or has it wait once more."""

from collections.abc import Callable

from returns.result import Failure

from nip_fn.game.episode import Episode, Utterance, forced_decision, may_decide, movers
from nip_fn.game.protocol import Protocol
from nip_fn.game.reply import (
    FINAL_ERRORS,
    MOST_EMPTY,
    Completion,
    Reply,
    ReplyError,
    is_empty_at_limit,
    parse_reply,
)
from nip_fn.trees.node import Slot

Parse = Callable[[Completion], tuple[Reply | None, ReplyError | None]]


def after_attempt(
    parse: Parse,
    most_attempts: int,
    slot: Slot,
    completion: Completion,
    *,
    answers: bool = False,
) -> Slot:
    """The slot after one more attempt: filled, waiting for the next one, or for a check.

    Args:
        parse: The `parser` of the slot's agent.
        most_attempts: The last attempt is recorded as invalid if it is.
        slot: Waits for the completion.
        completion: The model's.
        answers: True if the reply is to state an answer.
    """
    agent = slot.agent
    reply, error = parse(completion)
    attempts = slot.attempts + 1
    prompt_tokens = slot.prompt_tokens + completion.prompt_tokens
    completion_tokens = slot.completion_tokens + completion.completion_tokens
    cached_tokens = slot.cached_tokens + completion.cached_tokens
    # A failed attempt is asked for again under a key of its own; the last one is recorded as it is,
    # so that a model that never speaks properly ends the game instead of the run.
    latest = (*slot.failed, completion)[-MOST_EMPTY:]
    is_limited = len(latest) == MOST_EMPTY and all(map(is_empty_at_limit, latest))
    is_final = error in FINAL_ERRORS or is_limited
    if reply is None and attempts < most_attempts and not is_final:
        tokens = (prompt_tokens, completion_tokens, cached_tokens)
        return Slot(agent, None, attempts, *tokens, failed=(*slot.failed, completion))
    utterance = Utterance(
        agent=agent,
        raw=completion.text or "",
        messages=reply.messages if reply else (),
        decision=reply.decision if reply else None,
        error=error,
        attempts=attempts,
        token_limit=completion.finish_reason == "length",
        model=completion.model,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        cached_tokens=cached_tokens,
        tokens=completion.tokens,
        verdict_probabilities=reply.verdict_probabilities if reply else (),
        answer=reply.answer if reply else None,
        # Whoever states no answer, as often as it is asked, has not answered rightly.
        label=0 if answers and reply is None else None,
    )
    if utterance.is_unchecked:
        return Slot(agent, None, failed=slot.failed, answered=utterance)
    return Slot(agent, utterance, failed=slot.failed)


def parser(protocol: Protocol, episode: Episode, agent: int) -> Parse:
    """The function of a completion that is the agent's reply in this game, or why it is none.

    Under `force_guess` the reply is the forced decision.
    """
    # The decision itself is replaced.  The *nip* library forces only the test that the game is
    # decided, and then pays for whatever the verifier had said.
    counts = may_decide(protocol, len(episode.rounds), agent)
    forced = forced_decision(protocol, episode) if counts else None
    if forced is not None:
        reply = Reply(messages=(), decision=forced)
        return lambda completion: (reply, None)
    move = next(move for move in movers(protocol, episode) if move.agent == agent)
    headers = protocol.headers(move)

    def parse(completion: Completion) -> tuple[Reply | None, ReplyError | None]:
        parsed = parse_reply(
            completion,
            move=move,
            may_decide=counts,
            spectrum=protocol.spectrum,
            headers=headers,
        )
        if isinstance(parsed, Failure):
            return None, parsed.failure()
        return parsed.unwrap(), None

    return parse
