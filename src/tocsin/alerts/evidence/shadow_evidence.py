"""Collect what a detector has shown in its days in shadow, before somebody promotes it. Reads local state alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from datetime import UTC, date, datetime, timedelta

from pydantic import BaseModel

from tocsin.alerts.alert_policy import alerts_by_day
from tocsin.alerts.store.queries import findings_since, list_usage, open_store
from tocsin.backfill.parity.parity_report import read
from tocsin.history.land.landing_ledger import read_ledger
from tocsin.history.places import Places
from tocsin.model.detector import DetectorSpec
from tocsin.model.names import detector_job
from tocsin.model.source import Source
from tocsin.project.settings import Settings
from tocsin.runtime.code_versions import Version, kept_versions
from tocsin.runtime.heartbeat import read_beat

NEEDED = timedelta(days=1)
_TOLERATED = timedelta(hours=2)
"""Restarts, and reports that nobody counted, may take so much of the day."""


class ShadowDay(BaseModel, frozen=True):
    """One UTC day of a version in shadow.

    Attributes:
        day: which one.
        hours: that its job ran it, as far as its reports were counted; on its first day at least these, since an
            earlier version may have run until then.
        findings, urgent: that count, in all and of level urgent.
        alerts: that these would have opened.
        quarantined: records of its sources that went to quarantine, as far as landing has counted them.
        parity: findings by stream and backfill that agree, that differ, and that differ without a reason; null if the
            day was not compared.
    """

    day: date
    hours: float
    findings: int
    urgent: int
    alerts: int
    quarantined: int
    parity: tuple[int, int, int] | None = None


class ShadowEvidence(BaseModel, frozen=True):
    """The days in shadow of the version that is to be promoted.

    Attributes:
        detector, version: which one.
        since: when it was first started here, UTC; null if it never was.
        days: since then, the oldest first.
        late: events that its present process has dropped as late; null while it does not run.
    """

    detector: str
    version: str
    since: datetime | None
    days: list[ShadowDay]
    late: int | None

    def lacks(self, now: datetime) -> str:
        """Say why this is less than a whole day in shadow; empty if it is one."""
        if self.since is None:
            return "this version has never run here"
        if now - self.since < NEEDED:
            return f"this version first ran {self.since:%Y-%m-%d %H:%M} UTC, less than a day ago"
        hours = sum(one.hours for one in self.days)
        if timedelta(hours=hours) < NEEDED - _TOLERATED:
            return f"since {self.since:%Y-%m-%d %H:%M} UTC its job ran only {hours:.1f} hours"
        return ""


def collect_evidence(settings: Settings, spec: DetectorSpec, sources: list[Source], now: datetime) -> ShadowEvidence:
    """Collect what is known of the days in shadow of `spec`.

    Raises:
        TransientError: the alerts DB cannot be read now; a retry helps.
        BrokenLedger: an entry of the ledger of landing cannot be read.
    """
    job = detector_job(spec.name)
    kept = kept_versions(settings, job)
    since = next((one.first_at for one in kept if one.version == spec.version), None)
    beat = read_beat(settings.state, job)
    return ShadowEvidence(
        detector=spec.name,
        version=spec.version,
        since=since,
        days=[] if since is None else _days(settings, spec, sources, (since, _shared(kept, since)), now),
        late=None if beat is None else beat.report.rows_dropped_late,
    )


def _shared(kept: Iterable[Version], since: datetime) -> float:
    """Measure how many hours of the day of `since` earlier versions of `kept` may have run."""
    begin = since.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    earlier = [one.first_at for one in kept if one.first_at < since]
    return (since - max(begin, min(earlier))).total_seconds() / 3600 if earlier else 0.0


def _days(
    settings: Settings, spec: DetectorSpec, sources: list[Source], began: tuple[datetime, float], now: datetime
) -> list[ShadowDay]:
    """List the days since the first time of `began`, whose own day has so many hours of earlier versions."""
    since, shared = began
    with closing(open_store(settings)) as database:
        stored = findings_since(database, spec.name, since)
        usage = list_usage(database, since.date())
    found = [one.finding for one in stored if one.finding.version == spec.version and one.superseded_at is None]
    hours = {one.day: one.seconds / 3600 for one in usage if one.job == detector_job(spec.name)}
    first = since.astimezone(UTC).date()
    hours[first] = max(0.0, hours.get(first, 0.0) - shared)
    alerts, counts = alerts_by_day(found, spec), Counter(one.day for one in found)
    urgent = Counter(one.day for one in found if one.level == "urgent")
    ledgers = [read_ledger(Places.of(settings, source.name)) for source in sources]
    count = (now.astimezone(UTC).date() - first).days + 1
    return [
        ShadowDay(
            day=day,
            hours=round(hours.get(day, 0.0), 2),
            findings=counts[day],
            urgent=urgent[day],
            alerts=alerts.get(day, 0),
            quarantined=sum(ledger.quarantined(day) for ledger in ledgers),
            parity=_parity(settings, spec, day),
        )
        for day in (first + timedelta(days=number) for number in range(count))
    ]


def _parity(settings: Settings, spec: DetectorSpec, day: date) -> tuple[int, int, int] | None:
    report = read(settings.state, spec.name, day)
    if report is None or report.version != spec.version:
        return None
    return report.same, report.differing, report.unexplained
