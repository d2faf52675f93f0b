"""The list of alerts: choose, look for an entity, acknowledge many; it follows what changes."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.responses import RedirectResponse, StreamingResponse
from pydantic import BaseModel, Field
from sqlalchemy import Select, func, select

from tocsin.alerts import actions
from tocsin.alerts.actions import Actor, Silence
from tocsin.alerts.store.alert_rows import Alert
from tocsin.alerts.store.queries import AlertFilter, list_alerts
from tocsin.alerts.store.schema import alerts
from tocsin.declare.model.names import dag_of, detector_job
from tocsin.web.access import Answerer, User, Visitor
from tocsin.web.site import ROW_ID, Form, Here, Site, field, version_of

ROWS = 50
# Silences are patterns, which no DB knows: so many of the latest alerts are compared with them.
_COMPARED = 2000
# A stream ends soon, and the browser opens it again: a server that stops must not wait for all who look.
_LOOK_SECONDS, _STREAM_SECONDS = 0.5, 10.0
routes = APIRouter()


class Choice(BaseModel):
    """The alerts to list; an empty text leaves a side open."""

    state: Literal["active", "open", "acknowledged", "resolved", "all"] = "active"
    level: Literal["", "urgent", "email"] = ""
    detector: str = ""
    entity: str = ""
    silenced: Literal["", "yes", "no"] = ""
    page: int = Field(default=1, ge=1, le=10_000)

    def query(self, **changes: Any) -> str:
        """Write it as the query of an address, without what is so by default."""
        return urlencode(self.model_copy(update=changes).model_dump(exclude_defaults=True))


@routes.get("/alerts")
def show(request: Request, site: Here, user: Visitor, choice: Annotated[Choice, Query()]) -> Response:
    """The page."""
    with site.read() as connection:
        now = datetime.now(UTC)
        active = [silence for silence in actions.list_silences(connection, now) if silence.is_active(now)]
        # Before the list is read: what changes in between is taken for news, and the page asks once more.
        counts, version = connection.execute(_counts()).all(), version_of(connection)
    seen = seen_detectors(site, user, {row.detector for row in counts})
    found = _find(site, choice, seen, active)
    facts = {
        "counts": [row for row in counts if row.detector in seen],
        "detectors": [(name, name) for name in sorted(seen)],
        "choice": choice,
        "version": version,
    }
    muted = {alert.id: muting(active, alert) for alert in found}
    return site.page(request, "alerts.html", alerts=found[:ROWS], more=len(found) > ROWS, muted=muted, **facts)


def seen_detectors(site: Site, user: User, detectors: set[str]) -> set[str]:
    """Return those of `detectors` that `user` may see, which their DAGs say."""
    dags = {detector: dag_of(detector_job(detector)) for detector in detectors}
    seen = site.access.rights(user, dags.values()).seen
    return {detector for detector, dag in dags.items() if dag in seen}


def muting(active: list[Silence], alert: Alert) -> Silence | None:
    """Return the silence that mutes an alert; None if there is none."""
    labels = alert.labels(alert.detector, alert.level, alert.entity)
    return next((silence for silence in active if silence.matcher.matches(labels)), None)


def _counts() -> Select[Any]:
    columns = (alerts.c.detector, alerts.c.state, alerts.c.level)
    return select(*columns, func.count().label("count")).group_by(*columns)


def _find(site: Site, choice: Choice, seen: set[str], active: list[Silence]) -> list[Alert]:
    """Read the alerts of a page, and one more if there are more."""
    offset = (choice.page - 1) * ROWS
    wanted = AlertFilter(
        state=None if choice.state == "all" else choice.state,
        level=choice.level or None,
        detector=choice.detector or None,
        text=choice.entity or None,
        detectors=seen,
        limit=_COMPARED if choice.silenced else ROWS + 1,
        offset=0 if choice.silenced else offset,
    )
    found = list_alerts(site.database, wanted)
    if choice.silenced:
        found = [alert for alert in found if (muting(active, alert) is not None) == (choice.silenced == "yes")]
        found = found[offset : offset + ROWS + 1]
    return found


@routes.post("/alerts")
def acknowledge(request: Request, site: Here, user: Answerer, form: Form) -> Response:
    """Acknowledge the alerts that were ticked."""
    given = [str(alert) for alert in form.getlist("alert")]
    if not all(re.fullmatch(ROW_ID, alert) for alert in given):
        raise HTTPException(422, "alert: must be the number of an alert")
    ids = [int(alert) for alert in given]
    now = datetime.now(UTC)
    by = Actor(user.name, now, field(form, "why"))
    found = list_alerts(site.database, AlertFilter(ids=ids, limit=len(ids)))
    seen = seen_detectors(site, user, {alert.detector for alert in found})
    with site.write() as connection:
        until = actions.in_hours(now, float(field(form, "hours") or 4))
        done = actions.acknowledge(connection, [alert.id for alert in found if alert.detector in seen], by, until)
    if refused := [f"alert {one.alert}: {one.refused}" for one in done if one.refused]:
        text = f"{len(done) - len(refused)} of {len(done)} alerts were acknowledged; not " + "; ".join(refused)
        return site.message(request, text, 409)
    back = field(form, "back")
    return RedirectResponse(f"{request.scope.get('root_path', '')}/alerts{'?' * bool(back)}{back}", 303)


@routes.get("/alerts/events")
async def events(site: Here, user: Visitor) -> StreamingResponse:
    """Send an event whenever an alert or a silence has changed."""
    del user
    return StreamingResponse(_changes(site), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


async def _changes(site: Site) -> AsyncIterator[str]:
    yield "retry: 1000\n\n"
    before, opened, end = None, time.time(), time.monotonic() + _STREAM_SECONDS
    while time.monotonic() < end:
        found = site.version.known()
        if found.at is not None and found.at >= opened and found.value != before:
            yield f"data: {found.value}\n\n"  # the page knows its own, so that nothing between two streams is lost
            before = found.value
        await asyncio.sleep(_LOOK_SECONDS)
