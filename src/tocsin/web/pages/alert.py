"""One alert: how its score rose, what is behind it, what happened to it, and what can be done."""

from __future__ import annotations

import glob
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import RedirectResponse

from tocsin.alerts import actions
from tocsin.alerts.actions import Actor
from tocsin.alerts.alert_states import Verdict
from tocsin.alerts.notify.mail.compose import evidence_sections
from tocsin.alerts.store.alert_rows import Alert, AlertDetails
from tocsin.alerts.store.queries import AlertCounts, alert_details, count_alerts
from tocsin.declare.model.alert_matcher import AlertMatcher
from tocsin.web.access import Answerer, User, Visitor
from tocsin.web.chart import draw
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
        active = [silence for silence in actions.list_silences(connection, now) if silence.is_active(now)]
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
