"""Datapoints: a problem with a labelled solution, or one whose answer is written in the game."""

from collections.abc import Iterable
from hashlib import blake2b, sha256
from typing import Literal

import msgspec

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")

# What `solution` is: a Python program, an answer in words, one of lettered options, or steps that
# end in a number.  No prompt calls any of the others a program.
Kind = Literal["code", "prose", "choice", "number"]


# The hash is cached because the prompts' caches are keyed by datapoints, whose texts are long.
class Datapoint(msgspec.Struct, frozen=True, cache_hash=True, omit_defaults=True):
    """One question to a verifier: does `solution` do what `question` asks?

    A world that is not about code leaves `solution` empty, and gives each side a view of its own.
    In a game whose prover writes the answer there is no solution to begin with, and no label.

    id: content hash of question, solution, label, views and reference.
    problem_id: datapoints of one problem never straddle two splits.
    question: the claim that the verifier judges, or the task that the solution solves.
    solution: the solution; "" where there is none.
    label: 1 if the solution is right, 0 if it is wrong; None where the answer is written in the
        game, and the label comes from a checker.
    stance: the side that a prover with a randomised stance takes: 0 reject, 1 accept.
    views: (role or agent's name, what it alone is shown).
    kind: "code" if the solution is a Python program; "prose", "choice" or "number" if it is an
        answer in words, one of several options, or the result of a calculation.
    reference: the right answer, with which a checker compares an answer; shown to nobody.
    """

    id: str
    problem_id: str
    question: str
    solution: str
    label: int | None
    stance: int
    # Left out of the encoding where there are none, so that data without views keeps its hashes;
    # likewise the kind.
    views: tuple[tuple[str, str], ...] = ()
    kind: Kind = "code"
    reference: str = ""

    def view(self, *names: str) -> str:
        """The view of the first of `names` (of an agent, then of its role) that has one, or ""."""
        views = dict(self.views)
        return next((views[name] for name in names if name in views), "")


def text_hash(text: str) -> str:
    """A short name for a text: 16 hexadecimal digits of its content."""
    return blake2b(text.encode(), digest_size=8).hexdigest()


def make_datapoint(
    problem_id: str,
    question: str,
    solution: str,
    label: int | None,
    views: tuple[tuple[str, str], ...] = (),
    kind: Kind = "code",
    reference: str = "",
) -> Datapoint:
    """A datapoint with its content hash as id and its stance.

    The stance is the parity of the SHA-256 of the solution text (of the views, where there is no
    solution, and of the question where there are none), so it is a coin that always falls the same
    way for the same solution.

    Args:
        problem_id: The name of the problem; its datapoints never straddle two splits.
        question: The claim that the verifier judges, or the task that the solution solves.
        solution: The solution, "" where there is none.
        label: 1 if the claim is true, 0 if it is false; None if the answer is written in the game.
        views: (role or agent's name, what it alone is shown).
        kind: "code" if the solution is a Python program; "prose", "choice" or "number" if it is an
            answer in words, one of several options, or the result of a calculation.
        reference: The right answer, for a checker to compare with.
    """
    # Encoded and not joined: a text that moved from the end of one field to the beginning of the
    # next would leave a joined text as it was.
    further = [*([views] if views else []), *([reference] if reference else [])]
    content = msgspec.msgpack.encode((question, solution, label, *further))
    coin = solution.encode() or (msgspec.msgpack.encode(views) if views else question.encode())
    return Datapoint(
        id=blake2b(content, digest_size=8).hexdigest(),
        problem_id=problem_id,
        question=question,
        solution=solution,
        label=label,
        # The parity of SHA-256, as in the *nip* library: the same text has the same stance in
        # both.
        stance=sha256(coin).digest()[-1] & 1,
        views=views,
        kind=kind,
        reference=reference,
    )


class Dataset(msgspec.Struct, frozen=True):
    """Three splits that share no problem."""

    name: str
    train: tuple[Datapoint, ...]
    validation: tuple[Datapoint, ...]
    test: tuple[Datapoint, ...]

    def split(self, name: Split) -> tuple[Datapoint, ...]:
        """The datapoints of one split."""
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        return splits[name]


def content_hash(datapoints: Iterable[Datapoint]) -> str:
    """A hash of the datapoints in their order (32 hexadecimal digits)."""
    digest = blake2b(digest_size=16)
    for datapoint in datapoints:
        digest.update(msgspec.msgpack.encode(datapoint))
    return digest.hexdigest()
