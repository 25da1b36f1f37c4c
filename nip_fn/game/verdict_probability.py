"""The probability of each verdict, at the token at which a sampled reply decides between them."""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from math import fsum

from nip_fn.game.verdict import statements

# (text, weight) of each token that could have been drawn; weights are in proportion to probability.
TokenWeights = Iterable[tuple[str, float]]

# Most words of a scale share no first token with another one, but a token of the emphasis around
# them, which leaves all of them possible, always has some probability.
MOST_OPEN = 0.01


def verdict_probabilities(
    tokens: Sequence[str], weights_at: Callable[[int], TokenWeights], decisions: Sequence[str]
) -> tuple[float, ...]:
    """`[D]` the probability of each decision, given the reply up to the token that decides.

    This token is the first of the verdict's words that hardly ever leaves two decisions possible:
    those that do have no more than a hundredth of the weight of those that leave one.  Tokens that
    leave none, such as "maybe", are not counted: the reply would be invalid, and asked for again.

    Args:
        tokens: `[T]` the texts of the tokens of a reply that states a decision.
        weights_at: The index of a token -> the tokens that could have been drawn in its place.
        decisions: `[D]` the texts of the spectrum's decisions, in lower case.

    Returns:
        Probabilities that add up to 1; () if there is no such token: where "1" may go on as "10",
        the token after it does not tell of the other numbers.

    >>> choices = {0: [("Decision:", 1.0)], 1: [(" accept", 0.6), (" Acc", 0.1), (" reject", 0.3)]}
    >>> verdict_probabilities(["Decision:", " accept"], choices.get, ["reject", "accept"])
    (0.3, 0.7)
    """
    tokens = [token.lower() for token in tokens]
    text = "".join(tokens)
    stated = [offset for offset, _ in statements(text)]
    if len(stated) != 1:
        return ()
    for index, (token, begin) in enumerate(
        zip(tokens, accumulate(map(len, tokens), initial=0), strict=False)
    ):
        if begin + len(token) <= stated[0]:
            continue
        before = text[stated[0] : begin]
        if _value(before) in decisions:
            break
        # Of a token that begins before the verdict, such as ": accept", the others begin alike.
        marker = token[: max(0, stated[0] - begin)]
        weights = [0.0] * len(decisions)
        undecided = 0.0
        for words, weight in weights_at(index):
            if not words or not words.lower().startswith(marker):
                continue
            value = _value(before + words.lower().removeprefix(marker))
            possible = [d for d, decision in enumerate(decisions) if _is_begun(decision, value)]
            if len(possible) == 1:
                weights[possible[0]] += weight
            elif possible:
                undecided += weight
        total = fsum(weights)
        if total > 0 and undecided <= MOST_OPEN * total:
            return tuple(weight / total for weight in weights)
    return ()


def may_state(token: str, decisions: Sequence[str]) -> bool:
    """True if the token may hold a part of one of the decisions, or of the emphasis before it."""
    # Small vocabularies have "Decision: accept" as one token.
    value = _value(token.lower().rpartition(":")[2])
    return bool(token) and any(
        value in decision or _is_begun(decision, value) for decision in decisions
    )


def _value(words: str) -> str:
    """The words without the space and emphasis before them."""
    return words.lstrip(" \t*_")


def _is_begun(decision: str, value: str) -> bool:
    """True if the value is a beginning of the decision, or the whole of it and what follows."""
    after = value.removeprefix(decision)
    return decision.startswith(value) or (after != value and not after[:1].isalnum())
