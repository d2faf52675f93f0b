"""Explain one finding: what it says, which code made it, the events behind it, and what people were sent."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import UTC, datetime, timedelta

from pydantic import BaseModel

from tocsin.alerts.alert_policy import DetectorFacts, dedup_key
from tocsin.alerts.evidence.event_search import EventSearch, FoundEvents, find_events
from tocsin.alerts.finding_merging import StoredFinding, first
from tocsin.alerts.notify.mail.compose import Envelope, alert_text
from tocsin.alerts.store.alert_rows import Alert, AlertDetails, Notification
from tocsin.alerts.store.queries import find_finding, open_store, show_alert
from tocsin.declare.catalog import Catalog, read_catalog
from tocsin.declare.model.detector import DetectorSpec, Levels
from tocsin.declare.model.finding import Finding, Origin
from tocsin.declare.model.names import detector_job
from tocsin.declare.model.sizes import in_full
from tocsin.declare.settings import Settings
from tocsin.history.backfill.trial_report import declared_limits
from tocsin.ingest.replay.recorded import LATEST
from tocsin.platform.code_versions import kept_versions

_INSTANT = timedelta(microseconds=1)


class FindingExplanation(BaseModel, frozen=True):
    """A finding and all that is known of it.

    Attributes:
        version_in_force: of its detector now; null when that is not declared or cannot be read.
        version_ran: when the version that made it was first and last started here, UTC; empty when that is forgotten.
        searched: the times of the events that were looked for, from and up to, UTC; empty when it has no time.
        events: of its entity in that time, by source, whether or not the detector counted them.
    """

    stored: StoredFinding
    version_in_force: str | None
    version_ran: list[datetime]
    limits: dict[str, float] | None
    otherwise: list[str]
    searched: list[datetime]
    events: list[FoundEvents]
    alert: Alert | None
    notifications: list[Notification]
    mail_subject: str
    mail_text: str


def explain_finding(settings: Settings, what: str | Finding, most_events: int) -> FindingExplanation:
    """Explain the finding `what`, or whose id begins so, with `most_events` of the events behind it.

    Raises:
        ConfigError: there is no such finding, or there are several; a retry does not help.
        TransientError: the alerts DB cannot be read now; a retry helps.
    """
    with closing(open_store(settings)) as database:
        stored = (
            first(what, None, None, datetime.now(UTC)) if isinstance(what, Finding) else find_finding(database, what)
        )
        details = None if stored.alert is None else show_alert(database, stored.alert)
    catalog = read_catalog(settings.project)
    finding = stored.finding
    spec = catalog.detectors.get(finding.detector)
    ran = [
        version
        for version in kept_versions(settings, detector_job(finding.detector))
        if version.version == finding.version
    ]
    searched = _times(finding, spec)
    subject, text = _mail(settings, stored, details, spec)
    return FindingExplanation(
        stored=stored,
        version_in_force=spec.version if spec else None,
        version_ran=[moment for version in ran for moment in (version.first_at, version.last_at)],
        limits=declared_limits(spec.levels) if spec else None,
        otherwise=_otherwise(finding, spec.levels) if spec else [],
        searched=searched,
        events=_events(settings, catalog, stored, searched, most_events) if spec and searched else [],
        alert=details.alert if details else None,
        notifications=details.notifications if details else [],
        mail_subject=subject,
        mail_text=text,
    )


def _otherwise(finding: Finding, levels: Levels) -> list[str]:
    score, now = in_full(finding.score), levels.reached(finding.score)
    found = []
    if now != finding.level:
        found.append(f"with the limits in force now it would be {now or 'no finding'}")
    bound = "; the score is a lower bound" if finding.at_least else ""
    lower = levels.email if levels.email is not None else levels.urgent
    if now == "urgent" and levels.email is not None:
        found.append(f"with an urgent limit of {score} or more it would be email{bound}")
    elif now == "email" and levels.urgent is not None:
        found.append(f"with an urgent limit below {score} it would be urgent")
    if now is not None and lower is not None:
        which = "all limits" if now == "urgent" and levels.email is not None else "the limit"
        found.append(f"with {which} at {score} or more it would be no finding{bound}")
    return found


def _times(finding: Finding, spec: DetectorSpec | None) -> list[datetime]:
    """Find the times of the events that can be behind `finding`, from and up to; empty when it does not tell."""
    if finding.window_start is not None and finding.window_end is not None:
        return [finding.window_start, finding.window_end]
    if finding.event_time_max is None:
        return []
    memory = (spec.forget_after if spec else None) or timedelta(0)
    return [finding.event_time_max - memory, finding.event_time_max + _INSTANT]


def _events(
    settings: Settings, catalog: Catalog, stored: StoredFinding, searched: list[datetime], most: int
) -> list[FoundEvents]:
    finding = stored.finding
    start, end = searched
    written = finding.detected_at or stored.first_detected_at  # what a stream made it of had been written by then
    wanted = EventSearch(
        start=start,
        end=end,
        entity=finding.entity,
        most=most,
        latest=LATEST if finding.origin is Origin.BACKFILL else written - end,
    )
    return [find_events(settings, source, wanted) for source in catalog.sources_of(catalog.detector(finding.detector))]


def _mail(
    settings: Settings, stored: StoredFinding, details: AlertDetails | None, spec: DetectorSpec | None
) -> tuple[str, str]:
    if details is None:
        if spec is None:
            return "", ""
        details = AlertDetails(alert=_make_alert(stored, spec), highest=stored, findings=[stored], notifications=[])
    now = datetime.now(UTC)
    notification = Notification(
        id=0, kind=stored.finding.level, state="pending", revision=1, finding_id=stored.finding.finding_id,
        recipient=details.alert.owner,
        window_end=stored.finding.window_end, wait_until=None, incomplete="", message_id="", created_at=now,
        next_attempt_at=now, sent_at=None, attempts=0, error="",
    )  # fmt: skip
    envelope = Envelope(recipient=details.alert.owner, message_id=f"<explain@{settings.smtp.domain}>", date=now)
    return alert_text(details.model_copy(update={"highest": stored}), notification, envelope)


def _make_alert(stored: StoredFinding, spec: DetectorSpec) -> Alert:
    finding, facts = stored.finding, DetectorFacts.of(spec)
    return Alert.model_validate({
        **facts.guide, "id": 0, "detector": finding.detector, "level": finding.level, "state": "open",
        "entity": json.loads(dedup_key(finding.entity, facts)), "score": finding.score, "findings": 1,
        "period_start": finding.moment, "period_end": finding.moment + facts.dedup_period,
        "first_seen": finding.moment, "last_seen": finding.window_end or finding.moment,
        "opened_at": stored.first_detected_at, "updated_at": stored.first_detected_at,
    })  # fmt: skip
