"""The list of alerts: choose, look for an entity, acknowledge many; it follows what changes."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.responses import RedirectResponse, StreamingResponse
from pydantic import BaseModel, Field, ValidationError
from sqlalchemy import Select, func, select

from tocsin.alerts import actions
from tocsin.alerts.actions import Actor, Silence
from tocsin.alerts.store.alert_rows import Alert
from tocsin.alerts.store.queries import AlertFilter, list_alerts
from tocsin.alerts.store.schema import alerts
from tocsin.declare.model.alert_matcher import AlertMatcher
from tocsin.declare.model.names import dag_of, detector_job
from tocsin.web.access import Answerer, Role, User, Visitor
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
        active = actions.list_active(connection, now)
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


_ENDED = 50
_FIELDS = ("detector", "entity", "owner", "level", "tags", "hours", "why")


@routes.get("/silences")
def show_silences(request: Request, site: Here, user: Visitor) -> Response:
    """The page: silences of detectors that the user may see, and of none that is declared."""
    return _page(request, site, user)


def _page(request: Request, site: Site, user: User, form: dict[str, str] | None = None, fault: str = "") -> Response:
    now = datetime.now(UTC)
    with site.read() as connection:
        found = actions.list_silences(connection, now, ended=True)
    names = set(site.installation.detectors())
    unseen = names - seen_detectors(site, user, names)
    found = [one for one in found if not (own := _muted(one.matcher, names)) or own - unseen]
    active = sorted((one for one in found if one.ends_at > now), key=lambda one: one.ends_at)
    ended = [one for one in found if one.ends_at <= now][:_ENDED]
    # Who may not see every detector reads no name of one in a hint.
    idle = {one.id: "" if unseen else site.installation.why_idle(one.matcher) for one in active}
    facts = {"active": active, "ended": ended, "idle": idle, "form": form or dict.fromkeys(_FIELDS, ""), "fault": fault}
    return site.page(request, "silences.html", 422 if fault else 200, **facts)


@routes.post("/silences")
def make(request: Request, site: Here, user: Answerer, form: Form) -> Response:
    """Make one; for one that mutes everything the page asks back."""
    given, matcher = {name: field(form, name) for name in _FIELDS}, None
    try:
        matcher = _matcher(given)
        everything = bool(field(form, "everything"))
        if matcher.takes_all and everything and user.role < Role.OPERATE:
            raise HTTPException(403, "To mute every alert needs the role operate.")
        _check(site, user, matcher)
        now = datetime.now(UTC)
        until = actions.in_hours(now, float(given["hours"]))
        with site.write() as connection:
            actions.silence(connection, matcher, Actor(user.name, now, given["why"]), until, everything=everything)
    except ValidationError as error:
        return _page(request, site, user, given, f"{error.errors()[0]['loc'][0]}: {error.errors()[0]['msg']}")
    except ValueError as error:
        given |= {"asked": "yes"} if matcher and matcher.takes_all else {}
        return _page(request, site, user, given, str(error))
    return RedirectResponse(request.url.path, 303)


def _muted(matcher: AlertMatcher, names: set[str]) -> set[str]:
    """Return those of `names` whose alerts it could mute."""
    return {name for name in names if not matcher.detector or any(fnmatchcase(name, own) for own in matcher.detector)}


def _check(site: Site, user: User, matcher: AlertMatcher) -> None:
    """Refuse what would change the alerts of a detector that `user` may not see, by an HTTPException."""
    muted = _muted(matcher, set(site.installation.detectors()))
    if muted - seen_detectors(site, user, muted):
        raise HTTPException(403, "It mutes detectors that you may not see; name the detectors.")


def _matcher(given: dict[str, str]) -> AlertMatcher:
    entity: dict[str, tuple[str, ...]] = {}
    for pair in filter(str.strip, given["entity"].split(",")):
        column, equals, value = pair.partition("=")
        if not equals or not column.strip():
            raise ValueError(f"entity: write column=value, not {pair.strip()}")
        entity[column.strip()] = (*entity.get(column.strip(), ()), value.strip())
    words = {name: tuple(given[name].replace(",", " ").split()) for name in ("detector", "owner", "level", "tags")}
    return AlertMatcher(entity=entity, **words)


@routes.post("/silences/{silence_id:row}/end")
def end(request: Request, site: Here, user: Answerer, silence_id: int, form: Form) -> Response:
    """End one now."""
    del form
    try:
        with site.write() as connection:
            _check(site, user, actions.unsilence(connection, silence_id, Actor(user.name, datetime.now(UTC))).matcher)
    except LookupError as error:
        raise HTTPException(404, str(error)) from error
    return RedirectResponse(f"{request.scope.get('root_path', '')}/silences", 303)
