"""Worlds: games in which a weak verifier needs a prover, with exact optima to compare with."""

from collections.abc import Callable, Mapping, Sequence

from nip_fn.trees.rollouts import Rollout
from nip_fn.worlds import bughunt, tea

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
LEARNT: Mapping[
    str, Callable[[Mapping[str, float], Mapping[str, float]], tuple[tea.Learnt, ...]]
] = {"builtin:tea": tea.learnt, "builtin:tea-public": tea.learnt}
