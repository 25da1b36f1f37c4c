"""The end of a training about a world whose theory is known: before, after, and the optimum."""

from nip_fn.export.curves import is_right
from nip_fn.protocols.registry import protocol_of
from nip_fn.run.replay import StageForest, summary
from nip_fn.trees.rollouts import Rollout
from nip_fn.worlds import IMPROVEMENTS
from nip_fn_adapters.recording.runs import Run
from nip_fn_cli.shown.printing import console, print_rows


def print_improvements(run: Run) -> None:
    """Print the table and a game of each test; nothing without a theory or without two tests."""
    state = run.state
    improvements = IMPROVEMENTS.get(state.params.dataset)
    prefix = f"{state.params.test_dataset_split}."
    tests = [
        {name.removeprefix(prefix): value for name, value in record.items() if prefix in name}
        for record in summary(state)
        if f"{prefix}accuracy" in record
    ]
    if improvements is None or len(tests) < 2:
        return
    rows = [
        (one.name, *(_cell(value, one.share) for value in (one.before, one.after, one.optimum)))
        for one in improvements(tests[0], tests[-1])
    ]
    print()
    print_rows(("", "before", "after", "optimum"), rows)
    out = console()
    first, *_, last = run.stages("test")
    names = tuple(agent.name for agent in protocol_of(state.params).agents)
    for told in _told_apart(first, last, names):
        out.print(told, soft_wrap=True)


def _cell(value: float | None, share: bool) -> str:
    if value is None:
        return "-"
    return f"{value:.1%}" if share else f"{value:.1f}"


def _told_apart(first: StageForest, last: StageForest, names: tuple[str, ...]) -> tuple[str, ...]:
    """The same problem before and after: decided wrongly at first, and rightly in the end."""
    pairs = zip(first.games(), last.games(), strict=True)
    better = [(one, other) for one, other in pairs if not is_right(one) and is_right(other)]
    # A false claim that is found out says more than a true one that is believed, and a long game
    # more than a short one.
    better.sort(key=lambda pair: (pair[0].datapoint.label, -len(pair[1].rounds)))
    if not better:
        return ()
    before, after = better[0]
    views = "\n".join(f"{role} is shown\n{_indented(view)}" for role, view in after.datapoint.views)
    truth = "true" if after.datapoint.label else "false"
    return (
        f"\nThe same problem before and after; the claim is {truth}.\n\n{views}",
        f"\nbefore\n{_indented(_words(before, names))}",
        f"\nafter\n{_indented(_words(after, names))}",
    )


def _words(game: Rollout, names: tuple[str, ...]) -> str:
    said = (utterance for turn in game.rounds for utterance in turn)
    return "\n".join(f"{names[one.agent]}: {one.raw.strip()}" for one in said)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
