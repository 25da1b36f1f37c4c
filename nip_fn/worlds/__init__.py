"""Worlds: games in which a weak verifier needs a prover, with exact optima to compare with."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from nip_fn.trees.rollouts import Rollout
from nip_fn.worlds import bughunt, tea
from nip_fn.worlds.learnt import Learnt

# Data set: the measures of games about it that a test logs besides those of every game.
MEASURES: Mapping[str, Callable[[Sequence[Rollout]], tuple[tuple[str, float], ...]]] = {
    "builtin:tea": tea.measures,
    "builtin:tea-public": tea.measures,
    "builtin:bug-hunt": bughunt.measures,
    "builtin:bug-hunt-12": bughunt.measures,
    "builtin:bug-hunt-16": bughunt.measures,
}

# Data set: the greatest accuracy of a verifier that plays nip as in some games, against the worst
# provers.  In public the saucers leave none.
BOUNDS: Mapping[str, Callable[[Sequence[Rollout]], float]] = {"builtin:tea": tea.bound}

# Data set: two tests, by the names of their metrics, beside the theory.
LEARNT: Mapping[str, Callable[[Mapping[str, float], Mapping[str, float]], tuple[Learnt, ...]]] = {
    "builtin:tea": tea.learnt,
    "builtin:tea-public": partial(tea.learnt, public=True),
    "builtin:bug-hunt": bughunt.learnt,
    "builtin:bug-hunt-12": partial(bughunt.learnt, num_steps=12),
    "builtin:bug-hunt-16": partial(bughunt.learnt, num_steps=16),
}
