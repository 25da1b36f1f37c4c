"""Worlds: games in which a weak verifier needs a prover, with exact optima to compare with."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from nip_fn.game.datapoint import Datapoint
from nip_fn.trees.rollouts import Rollout
from nip_fn.worlds import bughunt, sums, tea
from nip_fn.worlds.improvement import Improvement
from nip_fn.worlds.replies import PossibleReply, hunt_replies, tea_replies

# Data set: the measures of games about it that a test logs besides those of every game.
MEASURES: Mapping[str, Callable[[Sequence[Rollout]], tuple[tuple[str, float], ...]]] = {
    "builtin:tea": tea.measures,
    "builtin:tea-public": tea.measures,
    "builtin:bug-hunt": bughunt.measures,
    "builtin:bug-hunt-12": bughunt.measures,
    "builtin:bug-hunt-16": bughunt.measures,
    "builtin:sums": sums.measures,
}

# Data set: the greatest accuracy of a verifier that plays nip as in some games, against the worst
# provers.  In public the saucers leave none.
ACCURACY_BOUNDS: Mapping[str, Callable[[Sequence[Rollout]], float]] = {"builtin:tea": tea.bound}

# Data set: the scripted provers of a card besides those of every game.
CARD_PROVERS: Mapping[str, tuple[str, ...]] = {
    "builtin:tea": ("tastes_or_guesses", "answers_one"),
    "builtin:tea-public": ("tastes_or_guesses", "answers_one"),
}

# Data set: all datapoints, equally likely, of which the provers see what they see of a given one.
POSSIBLE: Mapping[str, Callable[[Datapoint], tuple[Datapoint, ...]]] = {
    "builtin:tea": tea.possible,
    "builtin:tea-public": partial(tea.possible, public=True),
    "builtin:bug-hunt": bughunt.possible,
    "builtin:bug-hunt-12": bughunt.possible,
    "builtin:bug-hunt-16": bughunt.possible,
    "builtin:sums": sums.possible,
}

# Data set: (a datapoint, what the verifier has said) -> all replies that a prover chooses from.
REPLIES: Mapping[str, Callable[[Datapoint, str], tuple[PossibleReply, ...]]] = {
    "builtin:tea": tea_replies,
    "builtin:tea-public": tea_replies,
    "builtin:bug-hunt": hunt_replies,
    "builtin:bug-hunt-12": hunt_replies,
    "builtin:bug-hunt-16": hunt_replies,
}

# Data set: two tests, by the names of their metrics, beside the theory.
IMPROVEMENTS: Mapping[
    str, Callable[[Mapping[str, float], Mapping[str, float]], tuple[Improvement, ...]]
] = {
    "builtin:tea": tea.improvements,
    "builtin:tea-public": partial(tea.improvements, public=True),
    "builtin:bug-hunt": bughunt.improvements,
    "builtin:bug-hunt-12": partial(bughunt.improvements, num_steps=12),
    "builtin:bug-hunt-16": partial(bughunt.improvements, num_steps=16),
    "builtin:sums": sums.improvements,
}
