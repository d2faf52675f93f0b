"""Send what the outbox holds, and let e-mails out when their windows have closed.

While a channel is away what it should carry stays in the outbox; while Kafka is away urgent notifications leave all the
same, and e-mails once they have waited enough.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

import structlog
from sqlalchemy import Connection

from tocsin.alerts import alert_lifecycle, alert_policy
from tocsin.alerts.alert_lifecycle import Returns
from tocsin.alerts.alert_policy import SUMMARIZED, NotificationKind
from tocsin.alerts.followed_routes import FollowedRoutes
from tocsin.alerts.links import Links
from tocsin.alerts.notify import muting, outbox
from tocsin.alerts.notify.channel import SENDING_SECONDS, ChannelAway, Channels, Delivery, Message, Result, server_of
from tocsin.alerts.notify.mail import compose
from tocsin.alerts.notify.muting import Mutes
from tocsin.alerts.notify.notices import NoticeFiles
from tocsin.alerts.notify.outbox import Group, OutgoingMail, WaitingWindow
from tocsin.alerts.store.alert_rows import AlertDetails
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.queries import alert_details
from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.declare.model.job_report import REFUSED_RECIPIENTS, JobReport
from tocsin.declare.model.names import INDEXER, detector_job
from tocsin.declare.receivers import MAIL, kind_of
from tocsin.declare.settings import Settings
from tocsin.platform.lock import LockHeld

_PRUNE_EVERY = timedelta(hours=1)
# The indexer waits for SQLite's lock by trying; without a pause between two chunks it never gets in.
_PAUSE_SECONDS = 0.004
_PATIENCE_SECONDS = 0.2
"""For a message that is under way, before the notifier looks for others."""
_FIRST_SERVER_PAUSE, _LONGEST_SERVER_PAUSE = timedelta(seconds=1), timedelta(seconds=30)
_log = structlog.get_logger()

Reports = Callable[[], dict[str, JobReport]]


def now() -> datetime:
    """The time, UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class _Pause:
    reason: str
    until: datetime
    length: timedelta

    @classmethod
    def after(cls, before: _Pause | None, reason: str, now: datetime) -> _Pause:
        length = min(2 * before.length, _LONGEST_SERVER_PAUSE) if before else _FIRST_SERVER_PAUSE
        return cls(reason, now + length, length)

    def lasts(self, now: datetime) -> bool:
        return timedelta(0) < self.until - now <= self.length


class Notifier:
    """Moves notifications through the outbox, step by step.

    Raises from every method:
        TransientError: the DB cannot be used now; nothing is lost and a retry helps.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        reports: Reports,
        clock: Callable[[], datetime] = now,
        enrich: Callable[[AlertDetails], AlertDetails] = lambda details: details,
    ) -> None:
        """Send what is in `database`.

        `reports` gives the latest report of each job, or raises TransientError; `enrich` adds evidence to an alert that
        gets a message of its own.
        """
        self._enrich = enrich
        self._settings, self._database, self._reports, self._clock = settings, database, reports, clock
        self._domain, self._returns = settings.smtp.domain, Returns(database, reports, settings.smtp.domain)
        self._unwritten: list[Callable[[Connection], None]] = []
        self._closed_at: dict[tuple[str, datetime], datetime] = {}
        self._routes = FollowedRoutes(settings)
        self._sends, self._pauses = Sends(), dict[str, _Pause]()
        self._prune_at = clock()
        self.sent, self.stuck, self.away = 0, "", ""

    def take_notices(self) -> None:
        """Move messages about jobs and runs from their files to the outbox; on an error they stay in their files."""
        files = NoticeFiles(self._settings.state)
        if not files.waiting():
            return
        try:
            with files.lock():
                for name in files.waiting():
                    message = files.read(name)
                    if message is not None:
                        with self._database.write() as connection:
                            outbox.add_notice(connection, message, self._clock())
                        files.remove(name)
        except LockHeld:
            return  # the supervisor sends them, since this notifier was down
        except OSError as error:
            raise TransientError(f"messages about jobs cannot be taken from their files: {error}") from error

    def has_work(self) -> bool:
        """Check whether anything is left to take, to send, or to write down; a round without does nothing."""
        if self._unwritten or NoticeFiles(self._settings.state).waiting():
            return True
        with self._database.read() as connection:
            return outbox.has_unsent(connection)

    def release_closed(self) -> None:
        """Let out the e-mails whose window has closed, or whose patience is at its end.

        If the reports cannot be read, it lets out the latter and then raises TransientError.
        """
        with self._database.read() as connection:
            waiting = outbox.waiting_windows(connection)
        known = {(window.detector, window.window_end) for window in waiting}
        self._closed_at = {window: at for window, at in self._closed_at.items() if window in known}
        if not waiting:
            return
        trouble: TransientError | None = None
        reports: dict[str, JobReport] = {}
        try:
            reports = self._reports()
        except TransientError as error:
            trouble = error
        leaving: dict[WaitingWindow, str] = {}
        for window in waiting:
            jobs = alert_policy.LastReports(reports.get(detector_job(window.detector)), reports.get(INDEXER))
            closed_at = self._closed_at.get((window.detector, window.window_end))
            closing = alert_policy.closing(window.window_end, window.wait_until, jobs, self._clock(), closed_at)
            if closing.closed_at is not None:
                self._closed_at[window.detector, window.window_end] = closing.closed_at
            if closing.ready:
                leaving[window] = closing.incomplete
        if leaving:
            with self._database.read() as connection:
                emails = outbox.emails_of(connection, leaving)
            parts = outbox.chunks(list(emails))
            self._write([partial(outbox.release, emails={email: emails[email] for email in ids}) for ids in parts])
        if trouble is not None:
            raise trouble

    def send_due(
        self, stop: threading.Event, heartbeat: Callable[[], None] = lambda: None, patience: float = _PATIENCE_SECONDS
    ) -> None:
        """Send all that is due, the urgent first, until `stop` is set; calls `heartbeat` before each step.

        Messages that take longer than `patience` seconds stay under way, and a later call notes what became of them.

        Raises:
            ChannelAway: a server takes nothing now; what goes to others has been sent.
            ConfigError: a setting or secret of a channel is wrong.
        """
        before = dict(self._pauses)
        paused = {server: pause.reason for server, pause in before.items() if pause.lasts(self._clock())}
        with Channels(self._settings, paused) as channels:
            while not stop.is_set():
                if self._sends.longest_seconds < SENDING_SECONDS:
                    heartbeat()
                self._write(self._unwritten)
                self._start_due(channels)
                if not self._note_ended(patience, channels):
                    break
        # A copy: a thread that still sends may add another.
        away = {server: why for server, why in dict(channels.away).items() if server not in paused}
        self._pauses |= {server: _Pause.after(before.get(server), why, self._clock()) for server, why in away.items()}
        self.away = "; ".join(pause.reason for pause in self._pauses.values())
        if self.away:
            raise ChannelAway(self.away)

    def finish(self, within: float) -> None:
        """Note what becomes of the messages that are under way, for `within` seconds at most."""
        until = time.monotonic() + within
        while len(self._sends) and (left := until - time.monotonic()) > 0:
            self._note_ended(left)

    def tidy(self) -> dict[str, int]:
        """End alerts and mutes that are over, remove some of what is old; set `stuck`.

        Returns what the outbox has by state, and how many `REFUSED_RECIPIENTS` there are.
        """
        if self._clock() >= self._prune_at:
            before = self._clock() - timedelta(days=self._settings.alerts.history_days)
            with self._database.write() as connection:
                removed = alert_lifecycle.prune(connection, before)
                outbox.prune_groups(connection, before)
            self._prune_at = self._clock() + (timedelta(0) if removed else _PRUNE_EVERY)
        self._returns.look(self._clock())
        self._end_mutes()
        with self._database.read() as connection:
            over = alert_lifecycle.find_over(connection, self._clock())
            refused = outbox.find_refused(connection, self._clock())
            self.stuck = outbox.stuck(connection)
            counts = outbox.counts(connection)
            refusing = outbox.refused_recipients(connection, self._clock())
        counts[REFUSED_RECIPIENTS] = len(refusing)
        if refusing and not self.stuck:
            recipient, reason = next(iter(refusing.items()))
            self.stuck = f"{recipient} refuses what is sent: {reason}"
        if over or refused:
            with self._database.write() as connection:
                alert_lifecycle.resolve(connection, over, self._clock())
                outbox.forget_refused(connection, refused)
        return counts

    def _end_mutes(self) -> None:
        while True:
            with self._database.read() as connection:
                expired = muting.find_expired(connection, self._clock())
                unmuted = muting.find_unmuted(connection, self._clock())
            if expired:
                self._write([partial(muting.expire, ids=expired, domain=self._domain, now=self._clock())])
            if unmuted:
                self._write([partial(muting.unmute, ids=unmuted, now=self._clock())])
            if max(len(expired), len(unmuted)) < outbox.CHUNK:
                break
            time.sleep(_PAUSE_SECONDS)

    def _start_due(self, channels: Channels) -> None:
        with self._database.read() as connection:
            due = outbox.list_due(connection, self._clock(), self._settings.alerts.group_interval)
            mutes = muting.read_mutes(connection, self._routes.read().inhibit, self._clock()) if due else Mutes()
        for item in due:
            if not self._sends.has_room(item.recipient, item.message_id) or server_of(item.recipient) in channels.away:
                continue
            message_id = item.message_id if item.group is None else self._gather(item.group, mutes)
            with self._database.read() as connection:
                mail = outbox.bound_mail(connection, item.recipient, message_id)
            if mail is not None:
                self._sends.start(channels, mail, self._compose)

    def _gather(self, group: Group, mutes: Mutes) -> str:
        """Bind what leaves of a group now, but for what is muted, to one message; returns its id, empty for none."""
        with self._database.read() as connection:
            rows = outbox.rows_of(connection, group)
            may_wait = dict.fromkeys(row.alert_id for row in rows if row.kind != NotificationKind.RETURNED)
            muted = muting.judge(connection, list(may_wait), mutes)
        parts = outbox.chunks(list(muted))
        steps = [partial(muting.mute, muted={alert: muted[alert] for alert in ids}, now=self._clock()) for ids in parts]
        self._write(list(steps))
        rows = [row for row in rows if row.alert_id not in muted or row.kind == NotificationKind.RETURNED]
        urgent = [row for row in rows if row.kind == NotificationKind.URGENT]
        departure = group.decide(len({row.alert_id for row in rows}), len(urgent), self._clock())
        if departure is None:
            return ""
        rows = urgent if departure.urgent_alone else rows
        message_id = outbox.message_of_group(rows, self._domain)
        first, *others = outbox.chunks([row.id for row in rows])

        def begin(connection: Connection) -> None:
            outbox.write_state(connection, group, departure.after)
            outbox.bind(connection, first, message_id)

        self._write([begin, *(partial(outbox.bind, ids=ids, message=message_id) for ids in others)])
        return message_id

    def _write(self, steps: list[Callable[[Connection], None]]) -> None:
        """Take each step in a transaction of its own, and out of `steps`; others may write between two."""
        while steps:
            with self._database.write() as connection:
                steps[0](connection)
            del steps[0]
            if steps:
                time.sleep(_PAUSE_SECONDS)

    def _note_ended(self, within: float, channels: Channels | None = None) -> bool:
        """Write what became of messages; waits `within` seconds for the first. Returns whether there were any.

        `channels` learn which servers are away: a try that took long was made by others.
        """
        ended = self._sends.collect(within)
        errors: list[BaseException] = []
        for sent in ended:
            match sent.outcome:
                case Delivery() as delivery:
                    server = server_of(sent.mail.recipient)
                    if delivery.result is not Result.AWAY:
                        self._pauses.pop(server, None)
                    elif channels is not None:
                        channels.away.setdefault(server, delivery.reason)
                    self._note(sent.mail, delivery)
                case Exception() as error if not isinstance(error, TransientError | ConfigError):
                    # One message that cannot be composed must not keep back all others.
                    _log.error("notification not sent", message_id=sent.mail.message_id, exc_info=error)
                    self._note(sent.mail, Delivery(Result.POSTPONED, f"{type(error).__name__}: {error}"[:1000]))
                case error:
                    errors.append(error)
        # What cannot be written now is written before anything else is sent: forgetting it would send it twice.
        self._write(self._unwritten)
        for error in errors:
            raise error
        return bool(ended)

    def _note(self, mail: OutgoingMail, delivery: Delivery) -> None:
        now, who = self._clock(), {"recipient": mail.recipient, "message_id": mail.message_id}
        who["finding"] = mail.first.finding_id or "none"
        match delivery.result:
            case Result.SENT:
                self.sent += 1
                self._later(outbox.mark_sent, mail, now=now)
                _log.info("notification sent", kind=mail.first.kind, alerts=len(mail.alerts), **who)
            case Result.REFUSED:
                _log.error("notification rejected", error=delivery.reason, **who)
                self._later(outbox.mark_failed, mail, error=delivery.reason, now=now)
            case Result.POSTPONED | Result.FAILED:
                pause = timedelta(
                    seconds=max(2 ** min(mail.first.attempts, 20), min(delivery.retry_after or 0, 86_400))
                )
                until = now + min(pause, outbox.LONGEST_PAUSE)
                _log.warning("notification postponed", error=delivery.reason, until=until.isoformat(), **who)
                self._later(outbox.postpone, mail, error=delivery.reason, until=until)

    def _later(self, step: Callable[..., None], mail: OutgoingMail, **how: object) -> None:
        self._unwritten += [partial(step, ids=ids, **how) for ids in outbox.chunks(mail.ids)]

    def _compose(self, mail: OutgoingMail) -> Message:
        if mail.notice is not None:
            # Dated when it leaves: after days of waiting a mail program would sort it in below what has been read.
            return mail.notice.model_copy(update={"date": self._clock()})
        envelope = compose.Envelope(
            recipient=mail.recipient, message_id=mail.message_id, date=self._clock(), links=Links(self._settings)
        )
        try:
            return self._compose_whole(mail, envelope)
        except TransientError:
            raise
        except Exception as error:
            # Whoever reads it learns what there is to look at, and a mail that cannot be sent tells nothing.
            _log.exception("notification not composed", message_id=mail.message_id, alert=mail.alerts[0])
            return compose.bare_mail(mail.alerts, error, envelope)

    def _compose_whole(self, mail: OutgoingMail, envelope: compose.Envelope) -> Message:
        kind = mail.first.kind
        with self._database.read() as connection:
            if kind not in SUMMARIZED and len(set(mail.alerts)) == 1:
                overview, shown = None, self._details(connection, mail.alerts[:1])
            else:
                overview = outbox.overview(connection, mail, compose.SUMMARY_LINES)
                shown = self._details(connection, overview.highest)
        if overview is not None:
            return compose.summary_mail(shown, overview, envelope)
        (details,) = shown
        if kind == NotificationKind.RETURNED:
            return compose.return_mail(details, mail.first, envelope)
        if kind == NotificationKind.UPDATE:
            return compose.update_mail(details, mail.first, envelope)
        return compose.alert_mail(self._enrich(details), mail.first, envelope)

    def _details(self, connection: Connection, alerts: Sequence[int]) -> list[AlertDetails]:
        return [found for alert in alerts if (found := alert_details(connection, alert)) is not None]


_CONNECTIONS = 8
"""To one server at a time: few limit a client to less."""
_TO_PERSON = 4
"""Mails to one person at a time: each may wait for its evidence. Programs get one message after the other."""


@dataclass(frozen=True)
class Sent:
    """Outcome of one message: its delivery, or the error that composing or sending it raised."""

    mail: OutgoingMail
    outcome: Delivery | BaseException


class Sends:
    """The messages under way, each in a thread. For one thread, which notes their outcomes."""

    def __init__(self) -> None:
        self._under_way: dict[tuple[str, str], float] = {}
        self._done: queue.SimpleQueue[Sent] = queue.SimpleQueue()

    def __len__(self) -> int:
        return len(self._under_way)

    @property
    def longest_seconds(self) -> float:
        """For how long the oldest of them has been under way."""
        return max((time.monotonic() - since for since in self._under_way.values()), default=0.0)

    def has_room(self, recipient: str, message_id: str) -> bool:
        """Return whether a message to `recipient` may leave now; not if it is under way."""
        own = sum(other == recipient for other, _ in self._under_way)
        busy = sum(server_of(other) == server_of(recipient) for other, _ in self._under_way)
        room = own < (_TO_PERSON if kind_of(recipient) == MAIL else 1) and busy < _CONNECTIONS
        return room and (recipient, message_id) not in self._under_way

    def start(self, channels: Channels, mail: OutgoingMail, compose: Callable[[OutgoingMail], Message]) -> None:
        """Begin to compose and send a message; there must be room for its recipient."""
        self._under_way[mail.recipient, mail.message_id] = time.monotonic()
        # A daemon: a receiver that hangs must not keep the process from ending.
        threading.Thread(target=self._send, args=(channels, mail, compose), name="send", daemon=True).start()

    def collect(self, within: float) -> list[Sent]:
        """Return what has ended; waits `within` seconds for the first."""
        ended: list[Sent] = []
        while len(ended) < len(self._under_way):
            try:
                ended.append(self._done.get(timeout=0.0 if ended else within))
            except queue.Empty:
                break
        for sent in ended:
            del self._under_way[sent.mail.recipient, sent.mail.message_id]
        return ended

    def _send(self, channels: Channels, mail: OutgoingMail, compose: Callable[[OutgoingMail], Message]) -> None:
        try:
            self._done.put(Sent(mail, channels.send(compose(mail))))
        except BaseException as error:  # whatever it is, the thread that waits for it decides
            self._done.put(Sent(mail, error))
