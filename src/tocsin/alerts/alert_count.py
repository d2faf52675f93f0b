"""How many alerts findings would open, by the rule that opens them for real. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import date, datetime, timedelta

from tocsin.alerts.alert_policy import alert_start
from tocsin.model.finding import Finding, canonical_entity


def alerts_by_day(findings: Iterable[Finding], period: timedelta) -> dict[date, int]:
    """Alerts by the UTC day on which they open, of findings of one detector whose alerts last `period`.

    A day without any is not in it.
    """
    starts: dict[str, list[datetime]] = defaultdict(list)
    opened: Counter[date] = Counter()
    for moment, entity in sorted((one.moment, canonical_entity(one.entity)) for one in findings):
        if alert_start(moment, starts[entity][-1:], period) is None:
            starts[entity].append(moment)
            opened[moment.date()] += 1
    return dict(opened)
