"""Whole games as the arrays of the *nip* library: one row for each round of each game.

Letters for dimensions: R rollouts, T rounds at most, C channels, A agents; of plain arrays, N texts
of B bytes in all, K prompts of M messages in all.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from nip_fn.game.chat import Chat, Message
from nip_fn.game.decision import NO_DECISION
from nip_fn.game.episode import Episode, Utterance, play_round, reset
from nip_fn.game.protocol import Protocol, game_seed
from nip_fn.metrics.oversight import NO_LABEL
from nip_fn.params.run import HyperParameters
from nip_fn.prompts.chat import build_chat
from nip_fn.protocols.registry import protocol_of
from nip_fn.trees.rollouts import Rollout

# References to texts and chats that equal cells share: games of a tree have most words in common.
# The *nip* library stores `StringDType`, which holds a copy in each cell.
TEXT_DTYPE = np.object_
NO_AGENT = -1


class Column(NamedTuple):
    """One of the arrays."""

    name: str
    shape: str  # a letter for each dimension
    dtype: DTypeLike
    empty: object  # where nothing is written


ARRAY_COLUMNS = (
    Column("round", "RT", np.int64, 0),
    Column("seed", "RT", np.int64, 0),
    Column("message_history", "RTTC", TEXT_DTYPE, None),
    Column("message_agent_id", "RTTC", np.int64, NO_AGENT),
    Column("raw_message_history", "RTTA", TEXT_DTYPE, None),
    Column("question", "RT", TEXT_DTYPE, None),
    Column("solution", "RT", TEXT_DTYPE, None),
    Column("prover_stance", "RT", np.int64, 0),
    Column("y", "RT", np.int64, 0),
    Column("datapoint_id", "RT", TEXT_DTYPE, None),
    # Empty cells decide nothing.  In the *nip* library they hold 0, which reads as a rejection
    # wherever somebody forgets the mask.
    Column("decision", "RTA", np.int64, NO_DECISION),
    Column("continuous_decision", "RTA", np.float32, np.nan),
    Column("raw_decision", "RTA", TEXT_DTYPE, None),
    Column("message", "RTAC", TEXT_DTYPE, None),
    Column("raw_message", "RTA", TEXT_DTYPE, None),
    Column("prompt", "RTA", TEXT_DTYPE, None),
    # For the same reason padding is valid: only a reply can be invalid.
    Column("valid_response", "RTA", np.bool_, True),
    Column("retry_count", "RTAC", np.int64, 0),
    Column("token_limit", "RTAC", np.bool_, False),
    Column("done", "RT", np.bool_, False),
    Column("terminated", "RT", np.bool_, False),
    Column("padding", "RT", np.bool_, False),
    Column("agent_done", "RTA", np.bool_, False),
    Column("reward", "RTA", np.float32, 0.0),
    Column("end", "RT", TEXT_DTYPE, "open"),
)


def to_arrays(params: HyperParameters, rollouts: Sequence[Rollout]) -> dict[str, NDArray[Any]]:
    """The games as arrays, a row for each round; rows after a game's end are padding.

    The game before the round, whoever can see it; in padding, as it stands after its last round.

        round                [R, T]           rounds played so far
        seed                 [R, T]           the game's 16 bits of chance
        message_history      [R, T, T, C]     what was said in each earlier round and channel
        message_agent_id     [R, T, T, C]     who said it, -1 nobody
        raw_message_history  [R, T, T, A]     what each agent wrote in each earlier round
        question, solution   [R, T]           the datapoint's
        prover_stance        [R, T]           its side: 0 reject, 1 accept
        y                    [R, T]           its label: 0 buggy, 1 correct, -1 unknown
        datapoint_id         [R, T]           its id, a content hash

    What each agent does in the round; in padding, and where an agent is silent, nothing.

        decision             [R, T, A]        0 reject, 1 accept, 2 no decision, 3 neither
        continuous_decision  [R, T, A]        from -1 to 1, NaN without a decision
        raw_decision         [R, T, A]        its words, "" where an agent speaks undecided
        message              [R, T, A, C]     what it says in each channel
        raw_message          [R, T, A]        the model's text, untouched
        prompt               [R, T, A]        the chat that it was shown, a tuple of `Message`s
        valid_response       [R, T, A]        False only for a reply that could not be used
        retry_count          [R, T, A, C]     its unusable attempts, the same in every channel
        token_limit          [R, T, A, C]     whether it was cut, the same in every channel

    What comes of the round; in padding the game stays as it ended, and nobody is rewarded.

        done                 [R, T]           the verifier has decided
        terminated           [R, T]           the game has ended without a decision
        agent_done           [R, T, A]        as `done`
        end                  [R, T]           "open", "decided", "truncated" or "aborted"
        reward               [R, T, A]        for this round alone
        padding              [R, T]           the game was over before this round

    The histories of row t hold rounds < t: a row never shows the decision that is taken in it, and
    the words of round T - 1 are in no history.  A game's last real row is the one with
    `(done | terminated) & ~padding`.  What was decided, invalid or paid can be read without a mask:
    padding holds decision 2, NaN, a valid response, and reward 0.

    Texts and prompts are objects, `None` where there is none: see `plain_arrays` for files.

    Raises `ValueError` where a rollout is not a whole game of the protocol that `params` ask for.
    """
    protocol = protocol_of(params)
    sizes = {"R": len(rollouts), **_sizes(protocol)}
    arrays = {
        column.name: np.full([sizes[d] for d in column.shape], column.empty, dtype=column.dtype)
        for column in ARRAY_COLUMNS
    }
    messages: dict[Message, Message] = {}
    chats: dict[Chat, Chat] = {}
    for index, rollout in enumerate(rollouts):
        try:
            positions = _positions(protocol, rollout)
        except ValueError as error:
            raise ValueError(f"rollout {index}: {error}") from error
        # Views, so that writing a game's row writes the array.
        game = {name: array[index] for name, array in arrays.items()}
        _write_game(game, rollout)
        for t, turn in enumerate(rollout.rounds):
            for utterance in turn:
                built = build_chat(
                    params, protocol, rollout.datapoint, positions[t], utterance.agent
                )
                # One object for all equal ones: prompts repeat their beginnings, and siblings all.
                chat = tuple(messages.setdefault(message, message) for message in built)
                game["prompt"][t, utterance.agent] = chats.setdefault(chat, chat)
                _write_said(game, t, utterance)
    return arrays


def plain_arrays(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The arrays of `to_arrays` as numbers alone, which NumPy saves and loads without pickles.

    A cell of text holds the text's index, and one of `prompt` the prompt's; -1 where there is none.
    Each distinct text is held once:

        text_bytes       [B]     all texts in UTF-8, one after the other
        text_ends        [N]     the byte at which each text ends
        prompt_messages  [M, 3]  the texts of each message of all prompts: content, role, name
        prompt_ends      [K]     the message at which each prompt ends
    """
    texts: dict[str, int] = {}
    prompts: dict[Chat, int] = {}

    def indices(array: NDArray[Any], numbers: dict[Any, int]) -> NDArray[np.int32]:
        cells = (
            -1 if cell is None else numbers.setdefault(cell, len(numbers)) for cell in array.flat
        )
        return np.fromiter(cells, np.int32, array.size).reshape(array.shape)

    plain = {
        name: indices(array, prompts if name == "prompt" else texts)
        if array.dtype == TEXT_DTYPE
        else array
        for name, array in arrays.items()
    }
    rows = [(message.content, message.role, message.name) for chat in prompts for message in chat]
    messages = indices(np.array(rows, dtype=TEXT_DTYPE).reshape(-1, 3), texts)
    encoded = bytearray()
    ends = []
    for text in texts:
        encoded += text.encode()
        ends.append(len(encoded))
    return {
        **plain,
        "text_bytes": np.frombuffer(encoded, np.uint8),
        "text_ends": np.array(ends, np.int64),
        "prompt_messages": messages,
        "prompt_ends": np.cumsum([len(chat) for chat in prompts], dtype=np.int64),
    }


def _sizes(protocol: Protocol) -> dict[str, int]:
    """The length of every dimension but R."""
    T, C, A = protocol.max_message_rounds, len(protocol.channels), len(protocol.agents)
    return {"T": T, "C": C, "A": A}


def _positions(protocol: Protocol, rollout: Rollout) -> tuple[Episode, ...]:
    """The game before each round and after the last; `ValueError` where it is none of the protocol.

    Rewards are those that were recorded: only their number is checked.
    """
    rounds, most = len(rollout.rounds), protocol.max_message_rounds
    if rounds > most:
        raise ValueError(f"{rounds} rounds, but {protocol.name} has {most} at most")
    positions = [reset(rollout.datapoint, rollout.key)]
    for turn in rollout.rounds:
        # Played again and not trusted: under other parameters the same words would be another game,
        # and the arrays would say so nowhere.
        positions.append(play_round(protocol, positions[-1], turn)[0])
    end = positions[-1].status
    if end == "open" or end != rollout.status:
        raise ValueError(f"ends as {rollout.status!r}, but this game of {protocol.name} is {end!r}")
    if [len(reward) for reward in rollout.rewards] != [len(protocol.agents)] * rounds:
        raise ValueError(f"not a reward for each round and agent of {protocol.name}")
    return tuple(positions)


def _write_game(game: dict[str, NDArray[Any]], rollout: Rollout) -> None:
    """Write what no single reply decides; `game` holds views of one rollout's rows, `[T, ...]`."""
    datapoint, rounds = rollout.datapoint, len(rollout.rounds)
    game["round"][:] = np.minimum(np.arange(len(game["round"])), rounds)
    game["seed"][:] = game_seed(rollout.key)
    game["question"][:] = datapoint.question
    game["solution"][:] = datapoint.solution
    game["prover_stance"][:] = datapoint.stance
    game["y"][:] = NO_LABEL if rollout.label is None else rollout.label
    game["datapoint_id"][:] = datapoint.id
    game["reward"][:rounds] = rollout.rewards
    game["padding"][rounds:] = True
    # In padding the game stays as it ended, so that any row at or after the end tells how it did.
    last = slice(rounds - 1, None)  # the last round, and the padding after it
    game["end"][last] = rollout.status
    game["done"][last] = game["agent_done"][last] = rollout.status == "decided"
    game["terminated"][last] = rollout.status != "decided"


def _write_said(game: dict[str, NDArray[Any]], t: int, utterance: Utterance) -> None:
    """Write an agent's reply of round t, and what the later rows remember of it."""
    agent, later = utterance.agent, slice(t + 1, None)
    game["raw_message"][t, agent] = game["raw_message_history"][later, t, agent] = utterance.raw
    for channel, text in utterance.messages:
        game["message"][t, agent, channel] = text
        game["message_history"][later, t, channel] = text
        game["message_agent_id"][later, t, channel] = agent
    game["raw_decision"][t, agent] = utterance.decision.text if utterance.decision else ""
    if utterance.decision:
        game["decision"][t, agent] = utterance.decision.discrete
        game["continuous_decision"][t, agent] = utterance.decision.continuous
    game["valid_response"][t, agent] = utterance.error is None
    # A last attempt that stayed unusable was a failure like those before it.
    game["retry_count"][t, agent] = utterance.attempts - (utterance.error is None)
    game["token_limit"][t, agent] = utterance.token_limit
