"""The notifier: sends what the outbox holds, and lets e-mails out when their windows have closed.

It reads the alerts DB and the reports of the jobs, and nothing else. While a channel is away what it should carry stays
in the outbox; while Kafka is away urgent notifications leave all the same, and e-mails once they have waited enough.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import structlog
from sqlalchemy import Connection

from tocsin.alerts import alert_policy
from tocsin.alerts.alert_policy import NotificationKind
from tocsin.alerts.notify import notification_outbox
from tocsin.alerts.notify.channel import ChannelAway, Delivery, Message, Result
from tocsin.alerts.notify.channel_registry import Channels
from tocsin.alerts.notify.mail import compose
from tocsin.alerts.notify.notification_outbox import Claimed
from tocsin.alerts.notify.supervisor_watch import SupervisorWatch
from tocsin.alerts.returns import Returns
from tocsin.alerts.store import alert_retention
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.fence import fence_of
from tocsin.alerts.store.job_usage import UsageTally
from tocsin.alerts.store.queries import alert_details
from tocsin.kafka.job_reports import ReportReader
from tocsin.kafka.reporter import Reporter
from tocsin.model.errors import ConfigError, TransientError
from tocsin.model.job_report import JobReport, JobState
from tocsin.model.names import INDEXER, NOTIFIER, detector_job
from tocsin.project.settings import Settings

POLL_SECONDS = 0.5
_TIDY_SECONDS, _REPORTS_PAUSE = 10.0, 5.0
_PRUNE_EVERY = timedelta(hours=1)
_LONGEST_AWAY, _LONGEST_TROUBLE = 30.0, 5.0
_log = structlog.get_logger()

Reports = Callable[[], dict[str, JobReport]]


def now() -> datetime:
    """The time, UTC."""
    return datetime.now(UTC)


class Notifier:
    """Moves notifications through the outbox, step by step."""

    def __init__(
        self, settings: Settings, database: Database, reports: Reports, clock: Callable[[], datetime] = now
    ) -> None:
        """Send what is in `database`; `reports` gives the latest report of each job, or raises TransientError."""
        self._settings, self._database, self._reports, self._clock = settings, database, reports, clock
        self._lease = timedelta(seconds=5 * settings.smtp.timeout_seconds)
        self._domain, self._returns = settings.smtp.domain, Returns(database, reports, settings.smtp.domain)
        self._unwritten: list[Callable[[Connection], None]] = []
        self._closed_at: dict[int, datetime] = {}
        self._prune_at = clock()
        self.sent = 0

    def begin(self) -> None:
        """Give back the claims of a notifier that died: this one holds the lock, so there is no other."""
        with self._database.write() as connection:
            notification_outbox.unclaim(connection)

    def has_work(self) -> bool:
        """Check whether anything is left to send, or to write down; a round without does nothing.

        Raises:
            TransientError: the DB cannot be used now.
        """
        with self._database.read() as connection:
            return bool(self._unwritten) or notification_outbox.has_unsent(connection)

    def release_closed(self) -> None:
        """Let out the e-mails whose window has closed, or whose patience is at its end.

        Raises:
            TransientError: the DB cannot be used now, or the reports could not be read; in the second case e-mails
                whose patience is at its end have been let out all the same.
        """
        with self._database.read() as connection:
            waiting = notification_outbox.waiting_emails(connection)
        self._closed_at = {one.id: self._closed_at[one.id] for one in waiting if one.id in self._closed_at}
        if not waiting:
            return
        trouble: TransientError | None = None
        reports: dict[str, JobReport] = {}
        try:
            reports = self._reports()
        except TransientError as error:
            trouble = error
        for email in waiting:
            jobs = alert_policy.LastReports(reports.get(detector_job(email.detector)), reports.get(INDEXER))
            closed_at = self._closed_at.get(email.id)
            closing = alert_policy.closing(email.window_end, email.wait_until, jobs, self._clock(), closed_at)
            if closing.closed_at is not None:
                self._closed_at[email.id] = closing.closed_at
            if closing.ready:
                with self._database.write() as connection:
                    notification_outbox.release(connection, email, closing.incomplete)
        if trouble is not None:
            raise trouble

    def send_due(self, stop: threading.Event, goes_on: Callable[[], None] = lambda: None) -> None:
        """Send all that is due, urgent first, until `stop` is set; says `goes_on` before each mail.

        Raises:
            ChannelAway: a channel takes nothing now; what goes through others has been sent, and nothing is lost.
            TransientError: the DB cannot be used now; nothing is lost.
            ConfigError: a setting or secret of a channel is wrong.
        """
        self._write_outcomes()
        unreachable: set[str] = set()
        with Channels(self._settings) as channels:
            while not stop.is_set():
                goes_on()
                claimed = self._claim(unreachable)
                if claimed is None:
                    break
                if self._deliver(channels, claimed) is Result.AWAY:
                    unreachable.add(claimed.recipient)
        if channels.away:
            raise ChannelAway("; ".join(channels.away.values()))

    def tidy(self) -> dict[str, int]:
        """End alerts that are over and remove some of what is old; what is left in the outbox, by state."""
        if self._clock() >= self._prune_at:
            before = self._clock() - timedelta(days=self._settings.alerts.history_days)
            with self._database.write() as connection:
                removed = alert_retention.prune(connection, before)
            self._prune_at = self._clock() + (timedelta(0) if removed else _PRUNE_EVERY)
        self._returns.look(self._clock())
        with self._database.write() as connection:
            notification_outbox.resolve(connection, self._clock())
            return notification_outbox.counts(connection)

    def _claim(self, unreachable: set[str]) -> Claimed | None:
        wanted = notification_outbox.Wanted(self._clock(), self._lease, unreachable)
        with self._database.write() as connection:
            claimed = notification_outbox.claim(connection, wanted)
            return claimed or notification_outbox.claim_summary(connection, wanted, self._domain)

    def _deliver(self, channels: Channels, claimed: Claimed) -> Result:
        """Send one message and write down what became of it.

        What cannot be written now is written before anything else is sent: forgetting it would send it twice.
        """
        try:
            delivery = channels.send(self._composed(claimed))
        except (TransientError, ConfigError):
            self._unwritten.append(lambda c: notification_outbox.unclaim(c, claimed.ids))
            raise
        except Exception as error:
            # One message that cannot be composed must not keep back all others.
            _log.exception("notification not composed", message_id=claimed.message_id)
            delivery = Delivery(Result.POSTPONED, f"{type(error).__name__}: {error}"[:1000])
        self._note(claimed, delivery)
        self._write_outcomes()
        return delivery.result

    def _note(self, claimed: Claimed, delivery: Delivery) -> None:
        """Log what became of a message, and keep it to be written."""
        ids, who = claimed.ids, {name: getattr(claimed, name) for name in ("recipient", "message_id", "findings")}
        match delivery.result:
            case Result.SENT:
                self.sent += 1
                sent_at = self._clock()
                self._unwritten.append(lambda c: notification_outbox.mark_sent(c, ids, sent_at))
                _log.info("notification sent", kind=claimed.notifications[0].kind, alerts=len(claimed.alerts), **who)
            case Result.REFUSED:
                _log.error("notification rejected", error=delivery.reason, **who)
                self._unwritten.append(lambda c: notification_outbox.mark_failed(c, ids, delivery.reason))
            case Result.POSTPONED:
                self._postpone(claimed, delivery.reason)
            case Result.AWAY:
                self._unwritten.append(lambda c: notification_outbox.unclaim(c, ids))

    def _postpone(self, claimed: Claimed, error: str) -> None:
        attempts = claimed.notifications[0].attempts
        until = self._clock() + min(timedelta(seconds=2 ** min(attempts, 20)), notification_outbox.LONGEST_PAUSE)
        _log.warning("notification postponed", recipient=claimed.recipient, error=error, until=until.isoformat())
        self._unwritten.append(lambda c: notification_outbox.postpone(c, claimed.ids, error, until))

    def _write_outcomes(self) -> None:
        while self._unwritten:
            with self._database.write() as connection:
                self._unwritten[0](connection)
            del self._unwritten[0]

    def _composed(self, claimed: Claimed) -> Message:
        kind, shown = claimed.notifications[0].kind, claimed.alerts[: compose.SUMMARY_LINES]
        with self._database.read() as connection:
            details = [one for alert in shown if (one := alert_details(connection, alert)) is not None]
            detectors = notification_outbox.detectors(connection, claimed) if kind == NotificationKind.DELAYED else []
        envelope = compose.Envelope(recipient=claimed.recipient, message_id=claimed.message_id, date=self._clock())
        if kind == NotificationKind.DELAYED:
            return compose.summary_mail(details, len(claimed.alerts), detectors, envelope)
        composed = compose.return_mail if kind == NotificationKind.RETURNED else compose.alert_mail
        return composed(details[0], claimed.notifications[0], envelope)


class NotifierJob:
    """Runs a `Notifier` until `stop` is set, and tells how it is."""

    def __init__(self, settings: Settings, reporter: Reporter, stop: threading.Event) -> None:
        """Describe the job; nothing is opened yet."""
        self._settings, self._reporter, self._stop = settings, reporter, stop
        self._database = Database(settings.alerts_database, fence=fence_of(settings, NOTIFIER))
        self._reader: ReportReader | None = None
        self._usage = UsageTally()
        self._reports_after = self._tidy_after = 0.0
        self._reports_trouble = ""
        self._reported_trouble: str | None = None

    def run(self) -> None:
        """Notify until told to stop.

        Raises:
            ConfigError: the schema of the alerts DB is newer than this code, or a setting or secret is wrong.
        """
        self._settings.smtp.password()
        # Drawing loads a large library: do it before the first urgent mail waits for it.
        threading.Thread(target=compose.warm_up, name="warm-up", daemon=True).start()
        notifier, supervisor = Notifier(self._settings, self._database, self._reports), SupervisorWatch(self._settings)
        pause, begun = POLL_SECONDS, False
        while not self._stop.is_set():
            supervisor.look()
            try:
                if not begun:
                    self._database.migrate()
                    notifier.begin()
                    begun = True
                self._reporter.goes_on()
                trouble = self._pass(notifier)
            except TransientError as error:
                trouble = str(error)
                pause = min(pause * 2, _LONGEST_AWAY if isinstance(error, ChannelAway) else _LONGEST_TROUBLE)
            else:
                pause = POLL_SECONDS
            self._say(trouble)
            self._stop.wait(pause)
        self._database.close()
        if self._reader is not None:
            self._reader.close()

    def _pass(self, notifier: Notifier) -> str:
        """One round; the trouble that does not keep mails back, if any."""
        tidies = time.monotonic() >= self._tidy_after
        trouble = self._send(notifier) if tidies or notifier.has_work() else ""
        if tidies:
            left = notifier.tidy()
            self._count_usage()
            self._tidy_after = time.monotonic() + _TIDY_SECONDS
            self._reporter.update(rows_out=notifier.sent, counts={k: float(v) for k, v in left.items()})
        return trouble

    def _send(self, notifier: Notifier) -> str:
        """Send what is due; the trouble with what waits, if any."""
        trouble = ""
        try:
            notifier.release_closed()
        except TransientError as error:
            trouble = str(error)
        notifier.send_due(self._stop, self._reporter.goes_on)
        return trouble

    def _count_usage(self) -> None:
        """Add what the jobs took since the last time; while Kafka is away there is nothing to add."""
        with contextlib.suppress(TransientError):
            self._reports()
        with self._database.write() as connection:
            self._usage.write(connection)
        self._usage.written()

    def _say(self, trouble: str) -> None:
        if trouble != self._reported_trouble:
            if trouble:
                _log.warning("waiting", reason=trouble)
            elif self._reported_trouble:
                _log.info("resumed", after=self._reported_trouble)
            self._reported_trouble = trouble
            self._reporter.update(state=JobState.WAITING if trouble else JobState.RUNNING, reason=trouble)

    def _reports(self) -> dict[str, JobReport]:
        if time.monotonic() < self._reports_after:
            raise TransientError(self._reports_trouble)
        try:
            self._reader = self._reader or ReportReader(self._settings, self._usage.take, timeout_seconds=1.0)
            return self._reader.latest()
        except TransientError as error:
            self._reports_after, self._reports_trouble = time.monotonic() + _REPORTS_PAUSE, str(error)
            raise
