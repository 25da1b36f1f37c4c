"""Edits of chats that the *nip* library's agents have; nothing else here uses them."""

from msgspec.structs import replace
from returns.result import Failure, Result, Success

from nip_fn.errors import Problem
from nip_fn.game.decision import SpectrumName, strongest
from nip_fn.prompts.chat import Chat


def ensure_last_message_is_assistant(chat: Chat) -> Result[Chat, Problem]:
    """The chat up to the last message of the assistant; a failure if there is none.

    >>> from nip_fn.prompts.chat import Message
    >>> chat = (Message("system", "s"), Message("assistant", "a"), Message("user", "u"))
    >>> [message.content for message in ensure_last_message_is_assistant(chat).unwrap()]
    ['s', 'a']
    """
    own = [index for index, message in enumerate(chat) if message.role == "assistant"]
    if not own:
        return Failure(Problem("the chat has no message of the assistant"))
    return Success(chat[: own[-1] + 1])


def replace_last_message_with_true_label(
    chat: Chat, label: int, spectrum: SpectrumName
) -> Result[Chat, Problem]:
    """A verifier's chat whose last message is replaced by the firmest correct decision.

    A failure if the last message is not the assistant's.

    >>> from nip_fn.prompts.chat import Message
    >>> chat = (Message("user", "u"), Message("assistant", "Decision: accept"))
    >>> replace_last_message_with_true_label(chat, 0, "out_of_10").unwrap()[-1].content
    'Decision: 0'
    """
    if not chat or chat[-1].role != "assistant":
        return Failure(
            Problem(
                "the chat does not end with a message of the assistant",
                remedy="cut it with ensure_last_message_is_assistant first",
            )
        )
    decision = strongest(spectrum, label)
    return Success((*chat[:-1], replace(chat[-1], content=f"Decision: {decision.text}")))
