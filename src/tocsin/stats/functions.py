"""Statistics of plain values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from statistics import median

MAD_TO_DEVIATION = 1.482602218505602
"""The standard deviation of a normal distribution in MADs (median absolute deviations)."""

_HUGE = 1e150


def finite(value: float | None) -> float | None:
    """Return `value` within 1e150 of zero; None if it is missing: None, NaN, infinite."""
    if value is None or not -math.inf < value < math.inf:
        return None
    return float(max(-_HUGE, min(value, _HUGE)))


def in_deviations(change: float, deviation: float, least: float) -> float:
    """Divide `change` by a standard deviation that is at least `least`. ValueError unless `least` is above zero."""
    if not least > 0:
        raise ValueError(f"least must be above zero, not {least}: it is the smallest spread that counts")
    return change / max(deviation, least)


def robust_z(value: float | None, middle: float | None, mad: float | None, *, least: float) -> float:
    """Score how far `value` lies from the median `middle`, in standard deviations estimated by the MAD.

    The modified z-score of Iglewicz and Hoaglin (How to Detect and Handle Outliers, 1993). The deviation is at least
    `least`, so a MAD of zero divides nothing. Returns 0.0 if any of the three is missing.
    """
    number, middle, mad = finite(value), finite(middle), finite(mad)
    if number is None or middle is None or mad is None:
        return 0.0
    return in_deviations(number - middle, MAD_TO_DEVIATION * mad, least)


def median_and_mad(values: Sequence[float]) -> tuple[float, float]:
    """Compute the median, and the median absolute deviation from it, of at least one number."""
    middle = median(values)
    return middle, median(abs(value - middle) for value in values)


def peer_scores(values: Iterable[float | None], *, least: float, after: int = 5) -> list[float]:
    """Score each of `values` among them all by `robust_z`: one value per member of a group, in one window.

    Returns a score for each value in their order: 0.0 for a missing one, and for all if fewer than `after` are known.
    """
    given = [finite(value) for value in values]
    known = [value for value in given if value is not None]
    if len(known) < max(after, 1):
        return [0.0] * len(given)
    middle, mad = median_and_mad(known)
    return [robust_z(value, middle, mad, least=least) for value in given]


def entropy(values: Iterable[object]) -> float:
    """Compute Shannon's entropy of `values` in bits (A Mathematical Theory of Communication, 1948).

    A text gives that of its characters, a mapping that of its counts. 0.0 if all are equal, and of nothing; log2(n) if
    n values come equally often. None is left out. Raises a ValueError for a count that is negative or not finite.
    """
    counts = values if isinstance(values, Mapping) else Counter(value for value in values if value is not None)
    if any(not (math.isfinite(count) and count >= 0) for count in counts.values()):
        raise ValueError(f"counts must be numbers from zero on, not {list(counts.values())!r:.60}")
    total = math.fsum(counts.values())
    return -math.fsum(count / total * math.log2(count / total) for count in counts.values() if count) + 0.0


def hour_of_week(time: datetime) -> int:
    """Number the hour of `time` in its week: 0 on Monday from 00:00, 167 on Sunday from 23:00, by the zone of `time`.

    Events have times in UTC; `time.astimezone(ZoneInfo("Europe/Berlin"))` gives the hours that people there live by.
    """
    return time.weekday() * 24 + time.hour
