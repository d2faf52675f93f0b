"""The silences: which mute alerts now, make and end one."""

from __future__ import annotations

from datetime import UTC, datetime
from fnmatch import fnmatchcase

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError

from tocsin.alerts import actions
from tocsin.alerts.actions import Actor
from tocsin.declare.model.alert_matcher import AlertMatcher
from tocsin.web.access import Answerer, Role, User, Visitor
from tocsin.web.pages.alerts import seen_detectors
from tocsin.web.site import Form, Here, Site, field

_ENDED = 50
_FIELDS = ("detector", "entity", "owner", "level", "tags", "hours", "why")
routes = APIRouter()


@routes.get("/silences")
def show(request: Request, site: Here, user: Visitor) -> Response:
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
    facts = {"active": active, "ended": ended, "form": form or dict.fromkeys(_FIELDS, ""), "fault": fault}
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
        if not equals:
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
