"""Decide who gets an alert: `routes.toml` at the project's root, beside sources/. Pure but for reading the file.

The routes are tried in their order, and the first that takes an alert says where it goes; one with `continue = true`
adds its receivers and lets the next ones be tried. After the last one stand two more: an urgent alert goes to its owner
and to `alerts.urgent_recipients`, any other to its owner. Without a file there are only those.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from tocsin.declare.model.alert_matcher import AlertLabels, AlertMatcher, Inhibition
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.durations import zone_of
from tocsin.declare.model.errors import ConfigError, Fault, nearest
from tocsin.declare.receivers import check_known, check_recipient
from tocsin.declare.settings import Settings
from tocsin.declare.validation import as_list, faults_of

ROUTES_FILE = "routes.toml"
OWNER, URGENT_RECIPIENTS = "owner", "urgent_recipients"
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-(?:([01]\d|2[0-3]):([0-5]\d)|24:00)")
_BLOCK = re.compile(r"\s*\[\[\s*(\w+)\s*\]\]")

_Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]


def _recipient(value: str) -> str:
    return value if value in (OWNER, URGENT_RECIPIENTS) else check_recipient(value)


def _hours(text: str) -> str:
    if text:
        begin, end = _minutes(text)
        if begin == end:
            raise ValueError(f"is an empty span, so the route would never match: {text!r}; leave it out for all day")
    return text


def _zone(name: str) -> str:
    zone_of(name)
    return name


class Target(BaseModel, frozen=True):
    """A receiver of an alert, and the route that leads to it."""

    recipient: str
    route: str


class TriedRoute(BaseModel, frozen=True):
    """A route that was tried for an alert: whether it takes it, and why."""

    route: str
    takes: bool
    why: str


class Route(BaseModel):
    """Where some alerts go.

    Attributes:
        hours: "08:00-18:00", by the clock of `timezone`; "22:00-06:00" lasts beyond midnight, and belongs to the day on
            which it begins. The whole day if empty.
        to: receivers. `owner` stands for the alert's owner, `urgent_recipients` for those of the settings.
        continues: whether the next routes are tried after it has taken an alert; `continue` in the file.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(default="", max_length=100)
    match: AlertMatcher = AlertMatcher()
    hours: Annotated[str, AfterValidator(_hours)] = ""
    days: Annotated[tuple[_Day, ...], BeforeValidator(as_list)] = ()
    timezone: Annotated[str, AfterValidator(_zone)] = "UTC"
    to: Annotated[tuple[Annotated[str, AfterValidator(_recipient)], ...], BeforeValidator(as_list), Field(min_length=1)]
    continues: bool = Field(default=False, alias="continue")

    def is_on(self, now: datetime) -> bool:
        """Return whether `now` (any zone) is in its hours and on its days."""
        local = now.astimezone(zone_of(self.timezone))
        begin, end = _minutes(self.hours)
        minute, day = local.hour * 60 + local.minute, local.weekday()
        if begin > end and minute < end:
            day -= 1  # it began on the day before
        is_inside = begin <= minute < end if begin < end else not end <= minute < begin
        return is_inside and (not self.days or _DAYS[day] in self.days)

    def takes(self, labels: AlertLabels, now: datetime) -> bool:
        """Return whether an alert with `labels` goes its way `now`."""
        return self.match.matches(labels) and self.is_on(now)

    def hides(self, later: Route) -> bool:
        """Return whether `later` never sees an alert because of it."""
        same_days = not self.days or {*self.days} >= {*(later.days or _DAYS)}
        same_clock = self.timezone == later.timezone and self.hours in ("", later.hours)
        always = not self.hours and {*self.days} in (set(), {*_DAYS})
        return not self.continues and self.match.includes(later.match) and (always or (same_clock and same_days))

    @property
    def time_text(self) -> str:
        """Say when it is on."""
        return f"{' '.join(self.days) or 'every day'} {self.hours or 'all day'} {self.timezone}"


_LAST = (
    Route(
        name="after the last route, if urgent",
        match=AlertMatcher(level=("urgent",)),
        to=(OWNER, URGENT_RECIPIENTS),
    ),
    Route(name="after the last route", to=(OWNER,)),
)


class Routes(BaseModel):
    """All of `routes.toml`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    route: tuple[Route, ...] = ()
    inhibit: tuple[Inhibition, ...] = ()

    def recipients(self, labels: AlertLabels, now: datetime, urgent_recipients: Sequence[str] = ()) -> list[Target]:
        """List who gets an alert that is sent `now`, at least one and none twice, each by the first route to it."""
        found: dict[str, Target] = {}
        for number, route, takes in self._each(labels, now):
            if takes:
                label = self._label(number, route)
                words = {OWNER: (labels.owner,), URGENT_RECIPIENTS: tuple(urgent_recipients)}
                for recipient in (own for to in route.to for own in words.get(to, (to,))):
                    found.setdefault(recipient, Target(recipient=recipient, route=label))
        nobody = Target(recipient=labels.owner, route="the owner, since `urgent_recipients` is empty")
        return list(found.values()) or [nobody]

    def tried(self, labels: AlertLabels, now: datetime) -> list[TriedRoute]:
        """Say of each route that is tried `now` whether it takes an alert, and why."""
        return [
            TriedRoute(route=self._label(number, route), takes=takes, why=_why(route, labels, now))
            for number, route, takes in self._each(labels, now)
        ]

    def _each(self, labels: AlertLabels, now: datetime) -> Iterator[tuple[int, Route, bool]]:
        for number, route in enumerate((*self.route, *_LAST), start=1):
            takes = route.takes(labels, now)
            yield number, route, takes
            if takes and not route.continues:
                return

    def _label(self, number: int, route: Route) -> str:
        return route.name if number > len(self.route) else _label(number, route)


NO_ROUTES = Routes()


def _label(number: int, route: Route) -> str:
    return f"route {number} ({route.name})" if route.name else f"route {number}"


def _why(route: Route, labels: AlertLabels, now: datetime) -> str:
    if not route.match.matches(labels):
        given = route.match.model_fields_set
        parts = [AlertMatcher.model_validate({name: getattr(route.match, name)}) for name in sorted(given)]
        return "takes only " + next(part.text for part in parts if not part.matches(labels))
    if not route.is_on(now):
        return f"takes {route.match.text}, but only {route.time_text}"
    return f"takes {route.match.text}{', and continues' if route.continues else ''}"


def read_routes(project: Path) -> Routes:
    """Read `routes.toml` of `project`, if there is one; ConfigError with every fault of its form."""
    path = project / ROUTES_FILE
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Routes()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError.one(path, f"cannot be read: {error}") from error
    return parse_routes(text, path)


def parse_routes(text: str, path: Path) -> Routes:
    """Read the text of the file `path`; errors as of `read_routes`."""
    try:
        return Routes.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError.one(path, f"is not TOML: {error}") from error
    except ValidationError as error:
        faults = faults_of(error, path, Routes, "a key of it", lambda key: _line(text, key))
        raise ConfigError([replace(fault, key=fault.key and _spoken(fault.key)) for fault in faults]) from error


def faults_of_receivers(routes: Routes, settings: Settings) -> list[Fault]:
    """List the receivers of `routes` that the settings do not know."""
    faults = []
    for number, route in enumerate(routes.route):
        for recipient in route.to:
            try:
                check_known(recipient, settings.receivers)
            except ValueError as error:
                faults.append(_fault(settings.project, f"route[{number}].to", str(error)))
            if recipient == URGENT_RECIPIENTS and not settings.alerts.urgent_recipients:
                what = f"names `{URGENT_RECIPIENTS}`, but the setting alerts.{URGENT_RECIPIENTS} is empty"
                faults.append(_fault(settings.project, f"route[{number}].to", what))
    return faults


def faults_of_routes(routes: Routes, project: Path, detectors: Iterable[DetectorSpec], broken: set[str]) -> list[Fault]:
    """List the routes and inhibitions that never match. Detectors in `broken` count by their names alone."""
    faults, known = [], list(detectors)
    for number, route in enumerate(routes.route):
        if what := why_never(route.match, known, broken):
            faults.append(_fault(project, f"route[{number}].match", what))
        hiding = next(((n, one) for n, one in enumerate(routes.route[:number], start=1) if one.hides(route)), None)
        if hiding is not None:
            what = f"never matches: {_label(*hiding)} takes all its alerts before it; move it up, or write "
            faults.append(_fault(project, f"route[{number}]", f"{what}`continue = true` there"))
    for number, inhibition in enumerate(routes.inhibit):
        for side in ("wider", "narrower"):
            if what := why_never(getattr(inhibition, side), known, broken):
                faults.append(_fault(project, f"inhibit[{number}].{side}", what))
        if what := why_never(AlertMatcher(entity=dict.fromkeys(inhibition.same, ("*",))), known, broken):
            faults.append(_fault(project, f"inhibit[{number}].same", what))
    return faults


def why_never(matcher: AlertMatcher, known: Sequence[DetectorSpec], broken: set[str]) -> str:
    """Say why `matcher` takes no alert of any detector that is declared; empty if it may."""
    names = {spec.name for spec in known} | broken
    sides = {"detector": (matcher.detector, names)}
    if not broken:  # the file of a broken detector may say what is missing
        sides["owner"] = (matcher.owner, {spec.owner for spec in known})
        sides["tag"] = (matcher.tags, {tag for spec in known for tag in spec.tags})
        sides["entity column"] = (tuple(matcher.entity), {column for spec in known for column in _columns(spec)})
    for side, (patterns, declared) in sides.items():
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in declared):
                near = nearest(pattern, declared)
                hint = f"; did you mean '{near}'?" if near else ""
                return f"never matches: no declared detector has the {side} '{pattern}'{hint}"
    if broken or any(_may_take(matcher, spec) for spec in known):
        return ""
    return f"never matches: no declared detector fits {matcher.text}"


def _may_take(matcher: AlertMatcher, spec: DetectorSpec) -> bool:
    levels = [level for level in ("email", "urgent") if getattr(spec.levels, level) is not None]
    of_any = matcher.model_copy(update={"entity": {}})
    fits = any(of_any.matches(AlertLabels(spec.name, spec.owner, level, {}, spec.tags)) for level in levels)
    return fits and {*matcher.entity} <= {*_columns(spec)}


def _columns(spec: DetectorSpec) -> tuple[str, ...]:
    return spec.dedup or spec.entity


def _minutes(hours: str) -> tuple[int, int]:
    match = _HOURS.fullmatch(hours or "00:00-24:00")
    if match is None:
        raise ValueError(f"must be hours such as '08:00-18:00' or '22:00-06:00', not {hours!r}")
    begin_hour, begin, end_hour, end = (int(part) if part else None for part in match.groups())
    return (begin_hour or 0) * 60 + (begin or 0), 1440 if end_hour is None else end_hour * 60 + (end or 0)


def _fault(project: Path, key: str, what: str) -> Fault:
    path = project / ROUTES_FILE
    try:
        line = _line(path.read_text(encoding="utf-8"), key)
    except OSError:  # gone since
        line = None
    return Fault(str(path), what, key=_spoken(key), line=line)


def _line(text: str, key: str) -> int | None:
    parts = re.fullmatch(r"(\w+)\[(\d+)\](?:\.(\w+))?.*", key)
    if parts is None:
        return None
    block, number, name = parts[1], int(parts[2]), parts[3]
    seen, head = -1, None
    for line_number, line in enumerate(text.splitlines(), start=1):
        if (header := _BLOCK.match(line)) is not None:
            seen += header[1] == block
            inside = header[1] == block and seen == number
            head = line_number if inside else head
        elif head is not None and inside and name and re.match(rf"\s*(?:\[\w+\.)?[\"']?{name}[\"']?\s*[=.\]]", line):
            return line_number
    return head


def _spoken(key: str) -> str:
    return re.sub(r"^(\w+)\[(\d+)\]\.?", lambda found: f"{found[1]} {int(found[2]) + 1}, ", key).rstrip(", ")
