"""Define the JSON of the verbs (`--json`): the shapes that programs may rely on.

Fields are added, but never renamed or removed within a major version. Times are UTC in ISO 8601; what is not known is
null.
"""

from __future__ import annotations

from datetime import date, datetime

from pydantic import BaseModel

from tocsin.alerts.store.queries import AlertCounts
from tocsin.declare.routes import Target, TriedRoute


class DetectorShape(BaseModel, frozen=True):
    """One declared detector.

    Attributes:
        source: whose events it reads; names with a comma between them if there are several.
        window_seconds: length of the window; null for a detector of single events.
        email, urgent: the limits, which a score must exceed; null where there is none.
        memory_bytes: what its job may hold resident before it is restarted; null for that of the settings.
        alerts: how many there were and are; null when the alerts DB cannot be read.
    """

    name: str
    title: str
    stage: str
    source: str
    entity: list[str]
    window_seconds: float | None
    email: float | None
    urgent: float | None
    owner: str
    runbook: str
    tags: list[str]
    references: list[str]
    notify: bool
    memory_bytes: int | None
    version: str
    path: str
    alerts: AlertCounts | None


class ResentShape(BaseModel, frozen=True):
    """How many `notifications` will be sent again."""

    notifications: int


class FaultShape(BaseModel, frozen=True):
    """One fault in a file or setting.

    Attributes:
        nearest: the valid name closest to the one written; null when none is close.
    """

    where: str
    line: int | None
    key: str | None
    what: str
    nearest: str | None


class VersionShape(BaseModel, frozen=True):
    """A version of a detector or a flow that ran here.

    Attributes:
        fingerprint: of its checkpoint; versions that differ in their limits alone share one, and all of a flow.
        file: the copy of it in the state folder.
    """

    version: str
    fingerprint: str
    first_at: datetime
    last_at: datetime
    in_force: bool
    file: str


class JobPlanShape(BaseModel, frozen=True):
    """The effect of a deploy of the present files on one job.

    Attributes:
        effect: nothing, restart, new state, restart or new state (only Spark's plan tells which), start, stop or
            refused.
        changed: names of the inputs that changed, such as declared.window or code; of a job that is refused, the faults
            of its file; of one that is not to run, its file, declared.stage, switch or settings.
    """

    job: str
    effect: str
    changed: list[str]


class ModelShape(BaseModel, frozen=True):
    """One model of a detector, or why there is none of a day.

    Attributes:
        day: the first day that it is for.
        hash: SHA-256 of its file; null if it was refused, as what follows.
        holds_from, holds_until: the windows that it judges begin then, UTC; `holds_until` null while it does.
        findings: of the seven last days that it was trained on.
    """

    day: date
    hash: str | None = None
    holds_from: datetime | None = None
    holds_until: datetime | None = None
    rows: int | None = None
    seconds: float | None = None
    findings: int | None = None
    refused: str | None = None


class TableShape(BaseModel, frozen=True):
    """One table.

    Attributes:
        made_of: `source`, `view`, `topic`, `file` or `history`, and which.
        rows: versions of its rows, those that have ended too; null while there are none.
        complete_until: all that came in by then is in them; of history, all events before it find a row. UTC.
    """

    name: str
    made_of: str
    rows: int | None
    complete_until: datetime | None
    owner: str
    title: str


class RoutedReceiver(Target, frozen=True):
    """A receiver of an alert, the route that leads to it, and the outcome of a test message; empty without a test."""

    outcome: str = ""


class RoutedShape(BaseModel, frozen=True):
    """Where an alert would go at a time."""

    detector: str
    owner: str
    level: str
    entity: dict[str, str]
    tags: list[str]
    at: datetime
    tried: list[TriedRoute]
    to: list[RoutedReceiver]
