"""Compare scores with labels, for each limit of a ladder. Pure.

* An alert is what people would have got: the windows of one key whose score is above the limit, within one dedup period
  from the first of them on.
* An alert is right if one of its windows overlaps a label of its key that is real. It is wrong if it is not right and
  overlaps a label that is not real (a verdict that it was a false alarm), or if the labels are complete. Else nobody
  knows.
* A real label is found if a window of an alert of its key overlaps it. The delay runs from its start to the end of the
  first such window, for that is when the alert can leave.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from statistics import median
from typing import NamedTuple

from pydantic import BaseModel

from tocsin.alerts.alert_policy import alert_start


class ScoredWindow(NamedTuple):
    """The score of one window, UTC; of an event without a window `start` and `end` are its time.

    `key` is what tells alerts apart: see `tocsin.alerts.alert_policy.dedup_key`.
    """

    key: str
    start: datetime
    end: datetime
    score: float


class Label(NamedTuple):
    """What is known about `key` from `start` up to, not including, `end`: an incident, or if not `is_real` none."""

    key: str
    start: datetime
    end: datetime
    is_real: bool = True


class Labels(NamedTuple):
    """All that is known; if it `is_complete`, there was no other incident."""

    labels: Sequence[Label] = ()
    is_complete: bool = False


class LimitQuality(BaseModel, frozen=True):
    """What alerts above one limit would have been worth.

    Attributes:
        precision: right among right and wrong; null if there are none.
        recall: found among the real labels; null if there are none.
        delay_seconds: the median of the labels that were found; null if none was.
    """

    limit: float
    alerts: int
    alerts_a_day: float
    right: int
    wrong: int
    found: int
    precision: float | None
    recall: float | None
    delay_seconds: float | None


def evaluate(
    scores: Iterable[ScoredWindow], labels: Labels, ladder: Iterable[float], period: timedelta, days: int
) -> list[LimitQuality]:
    """Say of each limit of the `ladder` what its alerts of so many `days` would have been worth."""
    ordered = sorted(scores, key=lambda window: window.start)
    known: dict[str, list[Label]] = defaultdict(list)
    for label in dict.fromkeys(labels.labels):
        known[label.key].append(label)
    return [_at_limit(ordered, known, labels.is_complete, (limit, period, days)) for limit in ladder]


def alerts_above(scores: Iterable[ScoredWindow], limit: float, period: timedelta) -> list[list[ScoredWindow]]:
    """Divide the windows of `scores`, which are in the order of their start, above `limit` into alerts."""
    alerts: list[list[ScoredWindow]] = []
    latest: dict[str, list[ScoredWindow]] = {}
    for window in scores:
        if window.score > limit:
            alert = latest.get(window.key)
            if alert is None or alert_start(window.start, [alert[0].start], period) is None:
                alert = latest[window.key] = []
                alerts.append(alert)
            alert.append(window)
    return alerts


def choose_limit(scores: Iterable[ScoredWindow], period: timedelta, most: float) -> float | None:
    """Find the lowest score that as a limit leaves at most so many alerts; None if there are no scores.

    A higher limit never leaves more: as many alerts are left as windows fit that are a period apart.
    """
    ordered = sorted(scores, key=lambda window: window.start)
    limits = sorted({window.score for window in ordered})
    place = bisect_left(limits, True, key=lambda limit: len(alerts_above(ordered, limit, period)) <= most)
    return limits[place] if limits else None


def ladder_of(scores: Sequence[float], declared: Iterable[float]) -> list[float]:
    """Choose limits: the `declared` ones, and such that about 1, 2, 4, 8... of the highest scores are above them."""
    highest = sorted(scores, reverse=True)
    chosen = {highest[2**n] for n in range(len(highest).bit_length()) if 2**n < len(highest)}
    return sorted({*declared, *(chosen - {highest[0]} if highest else chosen)})


def _at_limit(
    ordered: list[ScoredWindow],
    known: dict[str, list[Label]],
    is_complete: bool,
    at: tuple[float, timedelta, int],
) -> LimitQuality:
    limit, period, days = at
    alerts = alerts_above(ordered, limit, period)
    first_hits: dict[Label, datetime] = {}
    right = wrong = 0
    for alert in alerts:
        hits = [(label, window) for window in alert for label in known.get(window.key, ()) if _overlap(window, label)]
        real = [(label, window) for label, window in hits if label.is_real]
        for label, window in real:
            first_hits[label] = min(window.end, first_hits.get(label, window.end))
        right += bool(real)
        wrong += not real and (is_complete or bool(hits))
    there = sum(label.is_real for labels in known.values() for label in labels)
    delays = [(end - label.start).total_seconds() for label, end in first_hits.items()]
    return LimitQuality(
        limit=limit,
        alerts=len(alerts),
        alerts_a_day=len(alerts) / days,
        right=right,
        wrong=wrong,
        found=len(delays),
        precision=_share(right, right + wrong),
        recall=_share(len(delays), there),
        delay_seconds=median(delays) if delays else None,
    )


def _overlap(window: ScoredWindow, label: Label) -> bool:
    return window.start < label.end and (window.end > label.start or window.start >= label.start)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
