"""Numbers in tables: shares, intervals, differences, p-values and dollars; "-" for none."""

from collections.abc import Mapping, Sequence

Interval = Sequence[float | None] | Mapping[str, float | None]
"""A value and the ends of its interval: an `Estimate`, a `Difference`, or one of them as JSON."""


def percent(share: float | None) -> str:
    """A share.

    >>> percent(0.5)
    '50.0%'
    """
    return "-" if share is None else f"{share:.1%}"


def share_with_interval(share: Interval | None) -> str:
    """A share with its interval.

    >>> share_with_interval((0.5, 0.4, 0.6))
    '50.0% [40.0%, 60.0%]'
    """
    if share is None:
        return "-"
    value, low, high = map(percent, _ends(share))
    return f"{value} [{low}, {high}]"


def points(difference: Interval | None) -> str:
    """A difference of shares with its interval, in percentage points.

    An interval of Student's may reach beyond what such a difference can be, and is cut there.

    >>> points((0.05, -0.01, 1.2))
    '+5.0 [-1.0, +100.0]'
    """
    if difference is None:
        return "-"
    value, low, high = (100 * max(-1.0, min(end, 1.0)) for end in _ends(difference))
    return f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"


def p_value(p: float | None) -> str:
    """A p-value.

    >>> p_value(0.0004), p_value(0.04)
    ('< 0.001', '0.04')
    """
    if p is None:
        return "-"
    return "< 0.001" if p < 0.001 else f"{p:.2g}"


def dollars(amount: float | None) -> str:
    """A cost, without a sign for the currency: the column's title has it."""
    return "unknown" if amount is None else f"{amount:.4g}"


def _ends(interval: Interval) -> tuple[float, ...]:
    """(value, low, high) of an interval."""
    if isinstance(interval, Mapping):
        interval = [interval[name] for name in ("value", "low", "high")]
    return tuple(end for end in interval[:3] if end is not None)
