"""Define a message to people, the channel that each kind of receiver implements, and the channels of an installation.

To add one, write a module with its `Channel` and enter its record in `tocsin.declare.receivers`.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pkgutil import resolve_name
from typing import Any, Protocol, Self

from pydantic import BaseModel, ConfigDict
from sqlalchemy import Connection, select

from tocsin.alerts.alert_policy import NotificationKind
from tocsin.alerts.alert_states import Action
from tocsin.alerts.evidence.alert_evidence import AlertEvidence
from tocsin.alerts.store.alert_rows import AlertDetails, Notification, alert_parts, digest
from tocsin.alerts.store.schema import alerts
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.finding import canonical_entity
from tocsin.declare.receivers import MAIL, RECEIVERS, kind_of
from tocsin.declare.settings import Settings

SENDING_SECONDS = 3600.0
"""Within which a channel has handed over a message or given up: whoever waits so long does not hang."""

PICTURE = "chart@tocsin"
"""The id under which the HTML of a message shows its picture, as `cid:chart@tocsin`."""


class Message(BaseModel):
    """Message to one recipient, in every form that a channel may need.

    Attributes:
        id: a Message-ID with its angle brackets; the same at each attempt, so that a receiver knows a repetition.
        recipient: an e-mail address, or `KIND:ADDRESS`.
        thread: the id that all messages about one alert share; empty for none.
        series: by which a receiver may filter, such as the detector; empty for none.
        picture: PNG that `html` shows; empty for none.
        several: of a message about several alerts those of the ones that it shows, the highest first.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")

    id: str
    recipient: str
    subject: str
    text: str
    html: str
    date: datetime
    thread: str = ""
    series: str = ""
    urgent: bool = False
    picture: bytes = b""
    facts: AlertFacts | None = None
    several: tuple[AlertFacts, ...] = ()
    alerts: int = 0


class Result(StrEnum):
    """Outcome of a message, by what to do about it."""

    SENT = "sent"
    """It was accepted: never send it again."""
    REFUSED = "refused"
    """It, or its recipient, was refused for good: give it up."""
    POSTPONED = "postponed"
    """It, or its recipient, was refused for now: try it again later, and others at once."""
    FAILED = "failed"
    """It did not get through, and nobody said why: try it again later. If the next message fails, too, so does the
    channel."""
    AWAY = "away"
    """The channel takes nothing now: try all its messages again later."""


@dataclass(frozen=True)
class Delivery:
    """Delivery of a message, and why if it was not sent.

    Attributes:
        retry_after: seconds for which a postponed one should wait at least, if the receiver said so.
    """

    result: Result
    reason: str = ""
    retry_after: float | None = None


class ChannelAway(TransientError):
    """A channel takes nothing now; what it should carry waits in its outbox."""


class Channel(Protocol):
    """Carries messages to receivers of one kind.

    It is handed one at a time, by one thread at a time. Messages to other recipients leave side by side, each through a
    channel of its own.
    """

    def send(self, message: Message) -> Delivery:
        """Hand over one message. ConfigError: a setting or secret is wrong, so that a retry does not help."""

    def close(self) -> None:
        """End the connection, if there is one."""


def server_of(recipient: str) -> str:
    """Name the server that takes the messages of `recipient`: one takes all mails, any other has its own."""
    kind = kind_of(recipient)
    return kind if kind == MAIL else recipient


class Channels:
    """The channels of one installation, each opened when there is a message for it and none idle. Threads may share it.

    Leave the `with` statement to close them; one that is sending is closed afterwards. A server that is away is not
    tried again (`away` says why, by `server_of`), and delays no other. A message that fails may be the cause
    itself, such as a mail at which its server drops the connection; a server is away if two different ones fail in a
    row.
    """

    def __init__(self, settings: Settings, away: Mapping[str, str] | None = None) -> None:
        """Open channels of `settings`; the servers of `away` are away from the start."""
        self._settings, self._lock, self._closed = settings, threading.Lock(), False
        self._idle: dict[str, list[Channel]] = defaultdict(list)
        self._failed: dict[str, str] = {}
        self.away = dict(away or {})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._closed = True
            idle = [channel for channels in self._idle.values() for channel in channels]
            self._idle.clear()
        for channel in idle:
            channel.close()

    def send(self, message: Message) -> Delivery:
        """Hand over one message to a channel of its recipient; see `Channel.send`."""
        name, server = kind_of(message.recipient), server_of(message.recipient)
        with self._lock:
            if server in self.away:
                return Delivery(Result.AWAY, self.away[server])
            idle = self._idle[name].pop() if self._idle[name] else None
        channel = idle or resolve_name(RECEIVERS[name].channel)(self._settings)
        try:
            delivery = channel.send(message)
        except BaseException:
            channel.close()
            raise
        with self._lock:
            if is_reusable := not self._closed:
                self._idle[name].append(channel)
            failed = self._failed.pop(server, message.id)
            if delivery.result is Result.FAILED:
                self._failed[server] = message.id
            if delivery.result is Result.AWAY or (delivery.result is Result.FAILED and failed != message.id):
                self.away[server] = delivery.reason
        if not is_reusable:
            channel.close()
        return delivery


_OF_ALERT = (
    "detector", "title", "owner", "state", "entity", "first_seen", "findings", "tags", "references", "runbook",
    "false_positives",
)  # fmt: skip
_OF_FINDING = ("version", "level", "score", "limit", "evidence", "context")
_AGAIN = (Action.EXPIRED, Action.REOPENED)
_AT_ONCE = (NotificationKind.URGENT, NotificationKind.EMAIL)


class AlertFacts(BaseModel):
    """An alert at the moment of a message, and what happened to it. Texts are as they were logged or declared.

    Attributes:
        key: the same in all messages about the alert, and of no other: up to 64 letters, digits and `-`.
        who, why: of a person or rule that acted; empty else.
        level, score, limit, at_least: of its highest finding; the score of one that is `at_least` may be higher.
        window_start, window_end: of that finding, UTC; null for a detector of single events.
        first_seen: event time, UTC.
        gathered: sample events and unusual values that Tocsin found; null if nothing was gathered by then.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    happened: Action
    who: str = ""
    why: str = ""
    alert: int
    detector: str
    version: str
    title: str
    owner: str
    level: str
    state: str
    entity: dict[str, str]
    finding: str
    score: float
    limit: float
    at_least: bool
    window_start: datetime | None
    window_end: datetime | None
    is_window_open: bool
    first_seen: datetime
    findings: int
    tags: tuple[str, ...]
    references: tuple[str, ...]
    runbook: str
    false_positives: str
    evidence: list[Any]
    gathered: AlertEvidence | None = None
    context: dict[str, Any]
    incomplete: str
    links: dict[str, str] = {}

    @classmethod
    def of(
        cls, details: AlertDetails, notification: Notification, date: datetime, links: Mapping[str, str] | None = None
    ) -> AlertFacts:
        """Take the facts for `notification`, a message that leaves at `date`, UTC."""
        alert, finding = details.alert, details.highest.finding
        is_open = finding.window_end is not None and finding.window_end > date and not notification.incomplete
        same = {name: getattr(alert, name) for name in _OF_ALERT}
        same |= {name: getattr(finding, name) for name in _OF_FINDING}
        return cls(
            **_step(details, notification),
            key=_key(alert.id, alert_parts(alert.detector, canonical_entity(alert.entity), alert.period_start)),
            alert=alert.id,
            finding=finding.finding_id,
            at_least=finding.at_least or is_open,
            window_start=finding.window_start,
            window_end=finding.window_end,
            is_window_open=is_open,
            incomplete=notification.incomplete,
            links=dict(links or {}),
            gathered=details.evidence,
            **same,
        )


def find_by_key(connection: Connection, key: str) -> int | None:
    """Return the number of the alert whose messages have `key`; None if there is none, also when its DB was emptied."""
    number = key.partition("-")[0]
    if not (number.isascii() and number.isdecimal() and len(number) <= 9):
        return None
    row = connection.execute(select(alerts).where(alerts.c.id == int(number))).first()
    own = None if row is None else _key(row.id, alert_parts(row.detector, row.entity, row.period_start))
    return int(number) if key == own else None


def _key(alert: int, parts: list[str]) -> str:
    return f"{alert}-{digest(parts)}"


def _step(details: AlertDetails, notification: Notification) -> dict[str, Any]:
    # It is planned with that step, in one transaction; there may have been others since.
    own = [step for step in details.history if step.at == notification.created_at]
    if own and (notification.kind == NotificationKind.UPDATE or own[-1].action in _AGAIN):
        return {"happened": Action(own[-1].action), "who": own[-1].who, "why": own[-1].why}
    return {"happened": _happened(details, notification)}


def _happened(details: AlertDetails, notification: Notification) -> Action:
    if notification.kind == NotificationKind.RETURNED:
        return Action.RETURNED
    before = [other for other in details.notifications if other.revision < notification.revision]
    before = [other for other in before if other.state != "replaced"]
    ended = max((other.revision for other in before if other.kind == NotificationKind.RETURNED), default=0)
    is_known = any(other.kind in _AT_ONCE and other.revision > ended for other in before)
    return Action.RAISED if is_known else Action.OPENED
