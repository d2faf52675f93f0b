"""One alert: how its score rose, what is behind it, what happened to it, and what can be done."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import RedirectResponse

from tocsin.alerts import actions
from tocsin.alerts.actions import Actor
from tocsin.alerts.alert_states import Verdict
from tocsin.alerts.finding_merging import StoredFinding, time_of
from tocsin.alerts.notify.mail.compose import evidence_sections
from tocsin.alerts.store.alert_rows import Alert, AlertDetails
from tocsin.alerts.store.queries import AlertCounts, alert_details, count_alerts
from tocsin.declare.model.alert_matcher import AlertMatcher
from tocsin.web.access import Answerer, User, Visitor
from tocsin.web.pages.alerts import muting, seen_detectors
from tocsin.web.site import Form, Here, Site, field

routes = APIRouter()


@routes.get("/alerts/{alert_id:row}")
def show(request: Request, site: Here, user: Visitor, alert_id: int) -> Response:
    """The page."""
    return _page(request, site, user, alert_id)


@routes.post("/alerts/{alert_id:row}")
def act(request: Request, site: Here, user: Answerer, alert_id: int, form: Form) -> Response:
    """Acknowledge, resolve or silence it; the page says so if somebody else was first."""
    alert = _read(site, user, alert_id).alert
    with site.write() as connection:
        by = Actor(user.name, datetime.now(UTC), field(form, "why"))
        refused = _act(connection, alert, by, form)
    if refused:
        return _page(request, site, user, alert_id, refused)
    return RedirectResponse(request.url.path, 303)


def _act(connection: Any, alert: Alert, by: Actor, form: Form) -> str:
    match field(form, "action"):
        case "acknowledge":
            until = actions.in_hours(by.at, float(field(form, "hours")))
            return actions.acknowledge(connection, [alert.id], by, until)[0].refused
        case "resolve":
            return actions.resolve(connection, [alert.id], by, Verdict(field(form, "verdict")))[0].refused
        case "silence":
            until = actions.in_hours(by.at, float(field(form, "hours")))
            actions.silence(connection, matcher_of(alert, whole=field(form, "scope") == "detector"), by, until)
            return ""
    raise HTTPException(422, "action: must be acknowledge, resolve or silence")


def matcher_of(alert: Alert, *, whole: bool = False) -> AlertMatcher:
    """Match the alerts of the same entity, or those of the `whole` detector."""
    entity = {} if whole else {name: (glob.escape(value),) for name, value in alert.entity.items()}
    return AlertMatcher(detector=(glob.escape(alert.detector),), entity=entity)


def _read(site: Site, user: User, alert_id: int) -> AlertDetails:
    with site.read() as connection:
        details = alert_details(connection, alert_id)
    if details is None:
        raise HTTPException(404, f"There is no alert {alert_id}, or it is so old that it was removed.")
    if not seen_detectors(site, user, {details.alert.detector}):
        raise HTTPException(403, f"You may not see alerts of {details.alert.detector}.")
    return details


def _page(request: Request, site: Site, user: User, alert_id: int, refused: str = "") -> Response:
    details = _read(site, user, alert_id)
    alert, now = details.alert, datetime.now(UTC)
    with site.read() as connection:
        active = actions.list_active(connection, now)
    judged = count_alerts(site.database, alert.detector).get(alert.detector, AlertCounts())
    facts = {"details": details, "alert": alert, "chart": draw(details), "verdicts": judged}
    facts["evidence"] = list(evidence_sections(details.evidence))
    facts |= {"silence": muting(active, alert), "refused": refused, "timeline": _timeline(details)}
    return site.page(request, "alert.html", 409 if refused else 200, **facts)


def _timeline(details: AlertDetails) -> list[tuple[datetime, str, str, str]]:
    """List what happened, the newest first: when, what, who, and why."""
    lines = [(step.at, step.action, step.who, step.why) for step in details.history]
    for sent in details.notifications:
        what = f"{sent.kind} notification {sent.state}"
        lines.append((sent.sent_at or sent.created_at, what, sent.recipient, sent.error or sent.incomplete))
    return sorted(lines, key=lambda line: line[0], reverse=True)


WIDTH, HEIGHT = 1000, 240
_MOST = 50
_ROOM = 1.08


def draw(details: AlertDetails) -> dict[str, Any]:
    """Draw the latest findings of an alert, and the limits of its detector, as paths in a box that may be stretched.

    `bars` are of a box of their own, the findings of earlier alerts and the highest of this one: x, width, y, level.
    """
    shown = {stored.finding.finding_id: stored for stored in [*details.findings[:_MOST], details.highest]}
    found = sorted(shown.values(), key=lambda stored: stored.start)
    start, end = found[0].start, max(stored.end for stored in found)
    if end <= start:
        start, end = start - timedelta(seconds=1), end + timedelta(seconds=1)
    limits = {"e-mail": details.alert.email_limit, "urgent": details.alert.urgent_limit}
    peak = max(stored.finding.score for stored in found)
    heights = [0.0, peak, *(limit for limit in limits.values() if limit is not None)]
    low, high = min(heights), max(heights)
    scale = HEIGHT / ((high - low) * _ROOM or 1)

    def x(time: datetime) -> float:
        return round(WIDTH * ((min(max(time, start), end) - start) / (end - start)), 1)

    def y(score: float) -> float:
        return round(HEIGHT - (score - low) * scale, 1)

    return {
        "start": start,
        "end": end,
        "peak": peak,
        "windows": [(x(stored.start), round(x(stored.end) - x(stored.start), 1)) for stored in found],
        "line": " ".join(_steps([(x(time), y(score)) for time, score in _points(stored)], y(low)) for stored in found),
        # A line without length has round ends: a dot that keeps its form when the box is stretched.
        "dots": " ".join(f"M{x(time)} {y(score)}h0" for stored in found for time, score in list(_points(stored))[-1:]),
        "bars": _bars(details),
        "limits": [(level, limit, y(limit)) for level, limit in limits.items() if limit is not None],
    }


def _bars(details: AlertDetails) -> list[tuple[float, float, float, str]]:
    scores = [(earlier.score, earlier.level) for earlier in details.earlier[1 - _MOST :]]
    scores.append((details.highest.finding.score, details.alert.level))
    high, step = max(score for score, _ in scores) * _ROOM or 1, WIDTH / max(12, len(scores))
    return [
        (round(step * place, 1), round(step * 0.8, 1), round(HEIGHT - HEIGHT * max(0.0, score) / high, 1), level)
        for place, (score, level) in enumerate(scores)
    ]


def _points(stored: StoredFinding) -> Iterator[tuple[datetime, float]]:
    """Give the times and scores of a finding; one that was not seen to rise has its score at the end of its window."""
    end = stored.end
    for micros, score in stored.trajectory:
        yield min(max(time_of(micros), stored.start), end), score
    if not stored.trajectory or stored.trajectory[-1][1] != stored.finding.score:
        yield end, stored.finding.score


def _steps(points: list[tuple[float, float]], floor: float) -> str:
    """Rise from the floor to the first point, then in steps from point to point."""
    (first, height), *others = points
    return f"M{first} {floor}V{height}" + "".join(f"H{x}V{y}" for x, y in others)
