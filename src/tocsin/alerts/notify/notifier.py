"""Send what the outbox holds, and let e-mails out when their windows have closed.

While a channel is away what it should carry stays in the outbox; while Kafka is away urgent notifications leave all the
same, and e-mails once they have waited enough.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import structlog
from sqlalchemy import Connection

from tocsin.alerts import alert_lifecycle, alert_policy
from tocsin.alerts.alert_lifecycle import Returns
from tocsin.alerts.alert_policy import NotificationKind
from tocsin.alerts.links import Links
from tocsin.alerts.notify import outbox
from tocsin.alerts.notify.channel import SENDING_SECONDS, ChannelAway, Channels, Delivery, Message, Result
from tocsin.alerts.notify.mail import compose
from tocsin.alerts.notify.notices import NoticeFiles
from tocsin.alerts.notify.outbox import OutgoingMail
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.queries import alert_details
from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.declare.model.job_report import JobReport
from tocsin.declare.model.names import INDEXER, detector_job
from tocsin.declare.settings import Settings
from tocsin.platform.lock import LockHeld

_PRUNE_EVERY, _LEASE = timedelta(hours=1), timedelta(seconds=SENDING_SECONDS)
# The indexer waits for SQLite's lock by trying; without a pause between two chunks it never gets in.
_PAUSE_SECONDS = 0.05
_log = structlog.get_logger()

Reports = Callable[[], dict[str, JobReport]]


def now() -> datetime:
    """The time, UTC."""
    return datetime.now(UTC)


class Notifier:
    """Moves notifications through the outbox, step by step.

    Raises from every method:
        TransientError: the DB cannot be used now; nothing is lost and a retry helps.
    """

    def __init__(
        self, settings: Settings, database: Database, reports: Reports, clock: Callable[[], datetime] = now
    ) -> None:
        """Send what is in `database`; `reports` gives the latest report of each job, or raises TransientError."""
        self._settings, self._database, self._reports, self._clock = settings, database, reports, clock
        self._domain, self._returns = settings.smtp.domain, Returns(database, reports, settings.smtp.domain)
        self._unwritten: list[Callable[[Connection], None]] = []
        self._closed_at: dict[int, datetime] = {}
        self._prune_at = clock()
        self.sent, self.stuck = 0, ""

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

    def begin(self) -> None:
        """Give back the claims of a notifier that died: this one holds the lock, so there is no other."""
        with self._database.write() as connection:
            outbox.unclaim(connection)

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
            waiting = outbox.waiting_emails(connection)
        self._closed_at = {email.id: self._closed_at[email.id] for email in waiting if email.id in self._closed_at}
        if not waiting:
            return
        trouble: TransientError | None = None
        reports: dict[str, JobReport] = {}
        try:
            reports = self._reports()
        except TransientError as error:
            trouble = error
        leaving: dict[int, str] = {}
        for email in waiting:
            jobs = alert_policy.LastReports(reports.get(detector_job(email.detector)), reports.get(INDEXER))
            closed_at = self._closed_at.get(email.id)
            closing = alert_policy.closing(email.window_end, email.wait_until, jobs, self._clock(), closed_at)
            if closing.closed_at is not None:
                self._closed_at[email.id] = closing.closed_at
            if closing.ready:
                leaving[email.id] = closing.incomplete
        parts = outbox.chunks(list(leaving))
        self._write([partial(outbox.release, emails={email: leaving[email] for email in ids}) for ids in parts])
        if trouble is not None:
            raise trouble

    def send_due(self, stop: threading.Event, goes_on: Callable[[float], None] = lambda within: None) -> None:
        """Send all that is due, urgent first, until `stop` is set; says `goes_on` before each step, with its seconds.

        Raises:
            ChannelAway: a channel takes nothing now; what goes through others has been sent.
            ConfigError: a setting or secret of a channel is wrong.
        """
        self._write(self._unwritten)
        unreachable: set[str] = set()
        with Channels(self._settings) as channels:
            while not stop.is_set():
                goes_on(0.0)
                mail = self._claim(unreachable)
                if mail is None:
                    break
                goes_on(SENDING_SECONDS)
                if self._deliver(channels, mail) is Result.AWAY:
                    unreachable.add(mail.recipient)
        if channels.away:
            raise ChannelAway("; ".join(channels.away.values()))

    def tidy(self) -> dict[str, int]:
        """End alerts that are over, remove some of what is old, set `stuck`; returns what the outbox has, by state."""
        if self._clock() >= self._prune_at:
            before = self._clock() - timedelta(days=self._settings.alerts.history_days)
            with self._database.write() as connection:
                removed = alert_lifecycle.prune(connection, before)
            self._prune_at = self._clock() + (timedelta(0) if removed else _PRUNE_EVERY)
        self._returns.look(self._clock())
        with self._database.read() as connection:
            over = alert_lifecycle.find_over(connection, self._clock())
            refused = outbox.find_refused(connection, self._clock())
            self.stuck = outbox.stuck(connection)
            counts = outbox.counts(connection)
        if over or refused:
            with self._database.write() as connection:
                alert_lifecycle.resolve(connection, over, self._clock())
                outbox.forget_refused(connection, refused)
        return counts

    def _claim(self, unreachable: set[str]) -> OutgoingMail | None:
        wanted = outbox.ClaimFilter(self._clock(), _LEASE, unreachable)
        with self._database.read() as connection:
            mail = outbox.next_mail(connection, wanted, self._domain)
        if mail is None:
            return None
        mine: set[int] = set()

        def claim(connection: Connection, ids: Sequence[int]) -> None:
            mine.update(outbox.claim(connection, mail, ids, wanted))

        try:
            self._write([partial(claim, ids=ids) for ids in outbox.chunks(mail.ids)])
        except TransientError:
            self._later(outbox.unclaim, mail)
            raise
        rows = [pair for pair in zip(mail.ids, mail.alerts, strict=True) if pair[0] in mine]
        return replace(mail, ids=[row_id for row_id, _ in rows], alerts=[alert for _, alert in rows]) if rows else None

    def _write(self, steps: list[Callable[[Connection], None]]) -> None:
        """Take each step in a transaction of its own, and out of `steps`; others may write between two."""
        while steps:
            with self._database.write() as connection:
                steps[0](connection)
            del steps[0]
            if steps:
                time.sleep(_PAUSE_SECONDS)

    def _deliver(self, channels: Channels, mail: OutgoingMail) -> Result:
        try:
            delivery = channels.send(self._compose(mail))
        except (TransientError, ConfigError):
            self._later(outbox.unclaim, mail)
            raise
        except Exception as error:
            # One message that cannot be composed must not keep back all others.
            _log.exception("notification not sent", message_id=mail.message_id)
            delivery = Delivery(Result.POSTPONED, f"{type(error).__name__}: {error}"[:1000])
        # What cannot be written now is written before anything else is sent: forgetting it would send it twice.
        self._note(mail, delivery)
        self._write(self._unwritten)
        return delivery.result

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
                pause = timedelta(seconds=2 ** min(mail.first.attempts, 20))
                until = now + min(pause, outbox.LONGEST_PAUSE)
                _log.warning("notification postponed", error=delivery.reason, until=until.isoformat(), **who)
                self._later(outbox.postpone, mail, error=delivery.reason, until=until)
            case Result.AWAY:
                self._later(outbox.unclaim, mail)

    def _later(self, step: Callable[..., None], mail: OutgoingMail, **how: object) -> None:
        """Keep a step with all notifications of `mail` to be written."""
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
        kind, shown = mail.first.kind, mail.alerts[: compose.SUMMARY_LINES]
        with self._database.read() as connection:
            details = [found for alert in shown if (found := alert_details(connection, alert)) is not None]
            delayed = kind == NotificationKind.DELAYED
            detectors = outbox.detectors(connection, mail.alerts) if delayed else []
        if delayed:
            return compose.summary_mail(details, len(mail.alerts), detectors, envelope)
        composed = compose.return_mail if kind == NotificationKind.RETURNED else compose.alert_mail
        return composed(details[0], mail.first, envelope)
