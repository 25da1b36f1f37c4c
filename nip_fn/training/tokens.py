"""Estimates, without a tokenizer, of how many tokens a chat or a training row holds."""

from math import ceil

from nip_fn.game.chat import Chat
from nip_fn.training.tuning import Job

# --------------------------------------------------------------------------------------- estimates

# The core has no tokenizer, which would be another one for every model; forecasts and budgets need
# a size of the right order before anything is sent.
CHARACTERS_A_TOKEN = 4  # of English and code, roughly
TOKENS_A_MESSAGE = 4  # for its role and its ends


def estimated_tokens(text: str) -> int:
    """A guess without a tokenizer: a token for every four characters."""
    return ceil(len(text) / CHARACTERS_A_TOKEN)


def estimated_prompt(chat: Chat) -> int:
    """A guess at the tokens of a prompt."""
    return sum(estimated_tokens(message.content) + TOKENS_A_MESSAGE for message in chat)


def estimated_training(job: Job, prompts: float = 1.0, replies: float = 1.0) -> float:
    """A guess at the tokens that a training is paid for: those of its rows, times the epochs.

    Args:
        job: The training.
        prompts: The provider's count of a prompt's tokens, as a multiple of the guess.
        replies: The same of a reply's.
    """
    return job.num_epochs * sum(
        prompts * estimated_prompt(row.prompt) + replies * sum(map(estimated_tokens, row.replies))
        for row in job.rows
    )


def trained_tokens(job: Job, adapter: str | None, report: tuple[tuple[str, float], ...]) -> float:
    """The tokens that a training was paid for: as its trainer reported, or else a guess.

    A training that failed without a word about them was not paid for.
    """
    reported = dict(report).get("train_tokens")
    if reported is not None:
        return max(0.0, reported)
    return float(estimated_training(job)) if adapter is not None else 0.0
