"""Training rows: what a trainer makes of trees, and what a model is trained on."""

from collections.abc import Iterable

import msgspec

from nip_fn.errors import Problem
from nip_fn.game.chat import Chat
from nip_fn.game.tokens import SampledTokens
from nip_fn.training.losses import Loss

# A group with fewer rows than this is not trained in that iteration: OpenAI's API refuses them, and
# all providers are held to the same rule, so that their runs can be compared.
MIN_EXAMPLES = 10


# One kind of row for all losses, so that nothing downstream asks by which one it will be trained
# on.
class Row(msgspec.Struct, frozen=True, array_like=True):
    """A chat, some replies to it, and how each of them weighs in the loss.

    A preference is two replies that weigh +1 and -1, imitation one reply that weighs 1, and a group
    of siblings weigh their advantages.
    """

    prompt: Chat
    replies: tuple[str, ...]
    weights: tuple[float, ...]
    # What was sampled, of each reply: trained on in place of the text, which may be tokenised
    # otherwise.  Empty, or None for a reply, where it is not known.
    tokens: tuple[SampledTokens | None, ...] = ()

    @property
    def is_preference(self) -> bool:
        """True if it is one reply preferred to another, and no more."""
        return self.weights == PREFERENCE

    @property
    def is_imitation(self) -> bool:
        """True if it is one reply to imitate, and no more."""
        return self.weights == IMITATION


PREFERENCE, IMITATION = (1.0, -1.0), (1.0,)


def preference(prompt: Chat, chosen: str, rejected: str) -> Row:
    """One reply to prefer, and one to avoid."""
    return Row(prompt, (chosen, rejected), PREFERENCE)


def imitated(prompt: Chat, reply: str) -> Row:
    """One reply to imitate."""
    return Row(prompt, (reply,), IMITATION)


def rows_problem(trainer: str, group: str, rows: Iterable[Row], loss: Loss) -> Problem | None:
    """The reason why a group cannot be trained on a trainer's rows by the loss; None if it can."""
    for number, row in enumerate(rows):
        if type(row) is not Row:
            problem, remedy = f"is a {type(row).__name__}", "make rows with `nip_fn.training.Row`"
        elif len(row.replies) != len(row.weights):
            problem = f"has {len(row.replies)} replies and {len(row.weights)} weights"
            remedy = "give each reply its weight"
        elif why := loss.weights_problem(row.weights):
            weights = ", ".join(f"{weight:+.3g}" for weight in row.weights)
            problem = f"weighs its replies {weights}, and {loss.name} {why}"
            remedy = "make its update with a `loss` that takes them, or other rows"
        elif loss.reads_sampler and not (row.tokens and all(map(_is_scored, row.tokens))):
            problem = f"has replies without log-probabilities, and {loss.name} reads them"
            remedy = "set text_rl.record_tokens = true, at a provider that gives them"
        else:
            continue
        message = f"row {number} of its update for the group {group!r} {problem}"
        return Problem(message, f"trainer {trainer}", remedy, lasting=True)
    return None


def _is_scored(tokens: SampledTokens | None) -> bool:
    return tokens is not None and bool(tokens.id_bytes and tokens.log_probability_bytes)


def row_metrics(rows: tuple[Row, ...]) -> tuple[tuple[str, float], ...]:
    """Counts of repeated and contradictory training rows.

    duplicates: rows that are the same as an earlier one
    contradictory: preferences whose reverse is among the rows, too
    """
    # Identical rows weigh double and opposite ones cancel: neither is an error, but both explain a
    # training that does not go as its number of rows suggests.
    distinct = {(row.prompt, row.replies, row.weights) for row in rows}
    contradictory = sum(
        row.is_preference and (row.prompt, row.replies[::-1], row.weights) in distinct
        for row in rows
    )
    return (
        ("duplicates", float(len(rows) - len(distinct))),
        ("contradictory", float(contradictory)),
    )
