"""The table of a run about a world whose theory is known, and a problem before and after."""

from pathlib import Path

from nip_fn.export.curves import is_right
from nip_fn.export.improvements import TITLES, cells, improvements_of
from nip_fn.run.replay import StageForest
from nip_fn.run.state import RunState
from nip_fn.trees.rollouts import Rollout
from nip_fn_adapters.recording.exact_attacks import best_replies_of
from nip_fn_adapters.recording.runs import Run
from nip_fn_cli.shown.printing import console, print_rows


def print_improvements(state: RunState, folder: Path) -> None:
    """Print the measures of a run before and after; nothing without a theory or two tests."""
    if improvements := improvements_of(state, best_replies_of(folder)):
        print()
        print_rows(TITLES, list(map(cells, improvements)))


def print_improved_game(run: Run) -> None:
    """Print a game of the first test and of the last; nothing without a theory or two tests."""
    if not improvements_of(run.state):
        return
    first, *_, last = run.stages("test")
    names = tuple(agent.name for agent in run.protocol.agents)
    for part in _improved_game(first, last, names):
        console().print(part, soft_wrap=True)


def _improved_game(
    first: StageForest, last: StageForest, names: tuple[str, ...]
) -> tuple[str, ...]:
    """The same problem before and after: decided wrongly at first, and rightly in the end."""
    games = zip(first.games(), last.games(), strict=True)
    better = [
        (before, after) for before, after in games if not is_right(before) and is_right(after)
    ]
    # A false claim that is found out says more than a true one that is believed, and a long game
    # more than a short one.
    better.sort(key=lambda games: (games[0].label or 0, -len(games[1].rounds)))
    if not better:
        return ()
    before, after = better[0]
    views = "\n".join(f"{role} is shown\n{_indented(view)}" for role, view in after.datapoint.views)
    truth = "true" if after.label else "false"
    return (
        f"\nThe same problem before and after; the claim is {truth}.\n\n{views}",
        f"\nbefore\n{_indented(_words(before, names))}",
        f"\nafter\n{_indented(_words(after, names))}",
    )


def _words(game: Rollout, names: tuple[str, ...]) -> str:
    utterances = (utterance for turn in game.rounds for utterance in turn)
    return "\n".join(
        f"{names[utterance.agent]}: {utterance.raw.strip()}" for utterance in utterances
    )


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
