"""Training rows: what a trainer makes of trees, and what a model is trained on."""

from collections import Counter

import msgspec

from nip_fn.errors import Problem
from nip_fn.game.chat import Chat
from nip_fn.training.groups import Method

# A group with fewer rows than this is not trained in that iteration: OpenAI's API refuses them, and
# all providers are held to the same rule, so that their runs can be compared.
MIN_EXAMPLES = 10


class PreferenceRow(msgspec.Struct, frozen=True, omit_defaults=True, tag="preference"):
    """One DPO example: a chat, the reply to prefer after it, and the one to avoid."""

    prompt: Chat
    chosen: str
    rejected: str


class SupervisedRow(msgspec.Struct, frozen=True, omit_defaults=True, tag="supervised"):
    """One example of supervised fine-tuning: a chat, and the reply to give after it."""

    prompt: Chat
    reply: str


TrainingRow = PreferenceRow | SupervisedRow


def method_of(rows: tuple[TrainingRow, ...]) -> Method:
    """The training method for rows of that kind."""
    return "sft" if rows and isinstance(rows[0], SupervisedRow) else "dpo"


def rows_problem(trainer: str, group: str, rows: tuple[TrainingRow, ...]) -> Problem | None:
    """The reason why no training can take a trainer's rows for a group; None if one can."""
    counts = Counter(type(row) for row in rows)
    kinds = " and ".join(f"{number:,} {kind.__name__}" for kind, number in counts.items())
    unknown = [kind for kind in counts if kind not in (PreferenceRow, SupervisedRow)]
    if len(counts) <= 1 and not unknown:
        return None
    # Whoever is trained on both kinds by one loss learns to imitate the rejected replies, too.
    takes = "PreferenceRow or SupervisedRow" if unknown else "rows of one kind"
    return Problem(
        f"its update has {kinds} for the group {group!r}, and a training takes {takes}",
        f"trainer {trainer}",
        "make them with batch.preference_row or batch.supervised_row"
        if unknown
        else "let it make one kind in an iteration (nip_fn.sequence)",
        lasting=True,
    )


def row_metrics(rows: tuple[TrainingRow, ...]) -> tuple[tuple[str, float], ...]:
    """Counts of repeated and contradictory training rows.

    duplicates: rows that are the same as an earlier one
    contradictory: preferences whose reverse is among the rows, too
    """
    # Identical rows weigh double and opposite ones cancel: neither is an error, but both explain a
    # training that does not go as its number of rows suggests.
    preferences = {
        (row.prompt, row.chosen, row.rejected) for row in rows if isinstance(row, PreferenceRow)
    }
    contradictory = sum(
        (row.prompt, row.rejected, row.chosen) in preferences
        for row in rows
        if isinstance(row, PreferenceRow)
    )
    return (
        ("duplicates", float(len(rows) - len(set(rows)))),
        ("contradictory", float(contradictory)),
    )
