"""The exact exploitability of a verifier."""

from nip_fn.metrics.inference import Estimate
from nip_fn_adapters.recording.exact_attacks import ExactAttack, Exploitability
from nip_fn_cli.shown.numbers import percent, share_with_interval
from nip_fn_cli.shown.printing import print_rows


def print_exact(attack: ExactAttack) -> None:
    """Print the errors against the best reply by iteration, and the best replies of the last."""
    is_soundness = attack.attacked == "wrong"
    error = "soundness error" if is_soundness else "completeness"
    honest = "completeness" if is_soundness else "rejects wrong"
    titles = ("iteration", "accuracy in the run", "value of the game [95 %]",
              f"{honest}, honest prover", f"{error}, best reply [95 %]", "bounds")  # fmt: skip
    print_rows(titles, [_row(each, is_soundness) for each in attack.iterations])
    last = attack.iterations[-1]
    problems = "problem" if attack.problems == 1 else "problems"
    drawn = f", {attack.questions} questions drawn for each" if attack.questions else ""
    print(
        f"\nThe best replies in iteration {last.iteration}, "
        f"about {attack.problems} {problems}{drawn}:"
    )
    print(", ".join(f"{sort} {percent(share)}" for sort, share in last.sorts.items()))
    print(f"\nAbout the first one, of which the prover is shown:\n{attack.view}\n")
    rows = [
        (percent(shown.probability), shown.heard, shown.reply, shown.sort, percent(shown.success))
        for shown in last.shown
    ]
    print_rows(("of the games", "it hears", "its best reply", "sort", "succeeds"), rows)
    print(f"\nrecorded in {attack.file}")


def _row(each: Exploitability, is_soundness: bool) -> tuple[str, ...]:
    share, least, most = each.success, each.least, each.most
    if not is_soundness:
        share = Estimate(1 - share.value, 1 - share.high, 1 - share.low)
        least, most = 1 - most, 1 - least
    return (
        str(each.iteration),
        percent(each.accuracy),
        share_with_interval(each.value),
        percent(each.honest.value),
        share_with_interval(share),
        f"{percent(least)} to {percent(most)}",
    )
