"""The notifier as a job: rounds of a `Notifier`, and a watch over the supervisor, until it is asked to stop."""

from __future__ import annotations

import contextlib
import threading
import time
from datetime import UTC, date, datetime
from typing import NamedTuple

import httpx
import structlog
from sqlalchemy import Connection, insert, select, update

from tocsin.alerts.evidence.gathering import EvidenceGatherer
from tocsin.alerts.notify.channel import ChannelAway
from tocsin.alerts.notify.mail.compose import Notice
from tocsin.alerts.notify.notices import operators, post, put, send_overdue
from tocsin.alerts.notify.notifier import Notifier
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.schema import job_counters, job_usage, upsert
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.durations import span
from tocsin.declare.model.errors import TocsinError, TransientError
from tocsin.declare.model.job_report import JobReport
from tocsin.declare.settings import Settings
from tocsin.job import Job
from tocsin.platform.heartbeat import seconds_since_look
from tocsin.platform.kafka.reporter import Reporter, ReportReader
from tocsin.platform.kafka.retry import Backoff, Retry

POLL_SECONDS = 0.5
_TIDY_SECONDS = 10.0
_FINISH_SECONDS = 10.0
"""So long a stop waits for messages under way: one whose outcome is not known is sent again."""
_HOUR = 3600.0
_LOOK_SECONDS, _RETRY_SECONDS = 10.0, 60.0

log = structlog.get_logger()


class NotifierJob:
    """Runs a `Notifier` until `stop` is set, and tells how it is."""

    def __init__(self, settings: Settings, reporter: Reporter, stop: threading.Event) -> None:
        self._settings, self._reporter, self._stop = settings, reporter, stop
        self._database = Database(settings.alerts_database)
        self._reports = CountedReports(settings, self._database)
        self._tidy_after = 0.0
        self._retry = Retry(reporter, stop, first_seconds=2 * POLL_SECONDS)

    def run(self) -> None:
        """Notify until asked to stop; ConfigError if a setting, a secret or the schema of the alerts DB is wrong."""
        self._settings.smtp.password()
        evidence = EvidenceGatherer(self._settings, self._database)
        notifier = Notifier(self._settings, self._database, self._reports.latest, enrich=evidence.enrich)
        supervisor, switch = SupervisorWatch(self._settings), DeadMansSwitch(self._settings)
        migrated = False
        while not self._stop.is_set():
            supervisor.look()
            try:
                if not migrated:
                    self._database.migrate()
                    migrated = True
                self._reporter.goes_on()
                trouble = self._pass(notifier)
            except TransientError as error:
                send_overdue(self._settings)  # the DB is away, and its outbox with it
                self._retry.failed(str(error))
            else:
                self._retry.recovered(trouble)
                if not notifier.away:
                    switch.worked()
                self._stop.wait(POLL_SECONDS)
        notifier.finish(_FINISH_SECONDS)
        self._database.close()
        self._reports.close()

    def _pass(self, notifier: Notifier) -> str:
        tidies = time.monotonic() >= self._tidy_after
        try:
            trouble = self._send(notifier) if tidies or notifier.has_work() else ""
        finally:
            if tidies:
                self._tidy(notifier)
        return trouble or notifier.stuck

    def _tidy(self, notifier: Notifier) -> None:
        left = notifier.tidy()
        self._reports.count()
        self._tidy_after = time.monotonic() + _TIDY_SECONDS
        self._reporter.update(rows_out=notifier.sent, counts={k: float(v) for k, v in left.items()})

    def _send(self, notifier: Notifier) -> str:
        trouble = ""
        notifier.take_notices()
        try:
            notifier.release_closed()
        except TransientError as error:
            trouble = str(error)
        try:
            notifier.send_due(self._stop, self._reporter.goes_on)
        except ChannelAway as error:  # what goes to others was sent
            trouble = str(error)
        return trouble


class SupervisorWatch:
    """Mails operators when the supervisor no longer looks at the jobs, since it cannot mail about itself.

    It posts one message an absence, at most one an hour. For one thread.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings, self._look_at = settings, 0.0
        self._name, self._reached = "", set[str]()

    def look(self) -> None:
        """Look, if it is time; never raises because a message cannot leave: a later look tries again."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + _LOOK_SECONDS
        silent = seconds_since_look(self._settings.state)
        if silent is None or silent < SUPERVISOR_SECONDS:
            return
        # Named by the hour of the last look: another notifier posts the same message, which leaves once.
        name = f"unsupervised__{int((time.time() - silent) // _HOUR)}"
        if name != self._name:
            self._name, self._reached = name, set()
        try:
            to = sorted(set(operators(read_catalog(self._settings.project), self._settings)))
            if not self._reached.issuperset(to):
                self._look_at = time.monotonic() + _RETRY_SECONDS
                self._reached = post(_notice(silent), name, to, self._settings, self._reached)
        except TocsinError as error:
            log.warning("message about the supervisor waiting", error=str(error))


def _notice(silent: float) -> Notice:
    return Notice(
        subject="[tocsin] supervisor: does not look at the jobs",
        paragraphs=(
            f"The supervisor last looked at the jobs {span(silent)} ago. Jobs that run go on, one that fails is "
            "not restarted, and mails about conditions do not leave.",
            "Start it again: `tocsin dev up`, or the service or container that runs it. In Airflow, unpause the "
            "DAG `supervisor` and look at its last run. If the disk is full, make room.",
            "Runbook: docs/run/runbooks.md#supervisor. We will mail again only if it looks and stops again.",
        ),
        commands=["tocsin status", "tocsin doctor"],
    )


def run(job: Job) -> None:
    """Run the job `notifier`; errors as of `NotifierJob.run`."""
    NotifierJob(job.settings, job.reporter, job.stop).run()


SUPERVISOR_SECONDS = 300.0
"""A supervisor that has not looked for so long does not watch."""
_REQUEST_SECONDS = 10.0
_EVERY_SECONDS = 300.0


class DeadMansSwitch:
    """Gives the signs of one installation; does nothing unless `alerts.heartbeat` is set. For one thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._due = settings, float("-inf")
        self._request: threading.Thread | None = None

    def worked(self) -> None:
        """A round of the notifier has worked: give a sign if it is time. Never raises, and waits for nobody."""
        target = self._settings.alerts.heartbeat
        if target is None or time.monotonic() < self._due:
            return
        silent = seconds_since_look(self._settings.state)
        if silent is not None and silent >= SUPERVISOR_SECONDS:
            return
        self._due = time.monotonic() + _EVERY_SECONDS
        if not target.startswith(("http://", "https://")):
            self._send(target)
        elif self._request is None or not self._request.is_alive():
            self._request = threading.Thread(target=_ask, args=(target,), name="heartbeat", daemon=True)
            self._request.start()

    def _send(self, to: str) -> None:
        notice = Notice(
            subject="[tocsin] heartbeat",
            paragraphs=(
                "Supervisor and notifier work. This message comes every five minutes: when it stops, nobody watches "
                "the jobs, or messages do not leave.",
            ),
            commands=["tocsin status", "tocsin doctor"],
        )
        try:
            put(notice, f"heartbeat__{int(time.time() // _EVERY_SECONDS)}", [to], self._settings)
        except OSError as error:
            log.warning("heartbeat not sent", error=str(error))


def _ask(url: str) -> None:
    try:
        response = httpx.get(url, timeout=_REQUEST_SECONDS)
        why = "" if response.is_success else f"it answers {response.status_code}"
    except httpx.HTTPError as error:
        why = str(error)[:500]
    if why:  # without the address, whoever knows which can give the sign
        log.warning("heartbeat not taken", error=why)


_PAUSE_SECONDS = 5.0


class _Taken(NamedTuple):
    """The highest figures that one process reported on one day; `seconds` since its start."""

    at: datetime
    rss_bytes: int
    seconds: float
    cpu_seconds: float
    rows_in: int
    rows_out: int


_Process = tuple[str, int, datetime]
"""Job, pid and start."""
_COUNTERS = ("seconds", "cpu_seconds", "rows_in", "rows_out")


class UsageTally:
    """Gathers reports, and adds them to the alerts DB from time to time."""

    def __init__(self) -> None:
        self._taken: dict[tuple[_Process, date], _Taken] = {}

    def take(self, report: JobReport) -> None:
        """Remember what `report` says; of any number of reports only a few figures stay."""
        if report.started_at is None:
            return
        key = ((report.job, report.pid, report.started_at), report.at.astimezone(UTC).date())
        running = max(0.0, (report.at - report.started_at).total_seconds())
        counters = (running, report.cpu_seconds, report.rows_in, report.rows_out)
        taken = _Taken(report.at, report.rss_bytes, *counters)
        self._taken[key] = _Taken._make(map(max, self._taken.get(key, taken), taken))

    def write(self, connection: Connection) -> None:
        """Add all that was taken and is not counted yet; `written` forgets it once the transaction is committed."""
        for (process, day), taken in sorted(self._taken.items(), key=lambda item: item[1].at):
            _add(connection, process, day, taken)

    def written(self) -> None:
        """Forget what was written: it is committed."""
        self._taken.clear()


class CountedReports:
    """Reads reports once, for who asks for the latest ones and for the usage of each day. For one thread."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings, self._database = settings, database
        self._usage = UsageTally()
        self._reader: ReportReader | None = None
        self._backoff, self._trouble = Backoff(_PAUSE_SECONDS, _PAUSE_SECONDS), ""

    def latest(self) -> dict[str, JobReport]:
        """See `ReportReader.latest`. Once Kafka is away it is not asked again for 5 seconds."""
        if not self._backoff.is_due:
            raise TransientError(self._trouble)
        try:
            self._reader = self._reader or ReportReader(self._settings, self._usage.take, timeout_seconds=1.0)
            return self._reader.latest()
        except TransientError as error:
            self._trouble = str(error)
            self._backoff.failed()
            raise

    def count(self) -> None:
        """Add what the jobs took since the last time, if Kafka is there; after a TransientError the next call does."""
        with contextlib.suppress(TransientError):
            self.latest()
        with self._database.write() as connection:
            self._usage.write(connection)
        self._usage.written()

    def close(self) -> None:
        """Leave Kafka."""
        if self._reader is not None:
            self._reader.close()


def _add(connection: Connection, process: _Process, day: date, taken: _Taken) -> None:
    job, pid, started_at = process
    last = connection.execute(select(job_counters).filter_by(job=job)).mappings().first()
    if last is not None and taken.at <= last["at"]:
        return
    is_same = last is not None and (last["pid"], last["started_at"]) == (pid, started_at)
    before = {name: last[name] if last is not None and is_same else 0 for name in _COUNTERS}
    # A child that ends takes its CPU seconds away; nothing is counted twice when they have grown again.
    reached = {name: max(before[name], getattr(taken, name)) for name in _COUNTERS}
    sums = {name: job_usage.c[name] + reached[name] - before[name] for name in _COUNTERS}
    sums["restarts"] = job_usage.c.restarts + int(last is not None and not is_same)
    today = connection.execute(select(job_usage.c.rss_bytes).filter_by(job=job, day=day)).scalar()
    if today is None:
        empty = dict.fromkeys((*_COUNTERS, "rss_bytes", "restarts"), 0)
        connection.execute(insert(job_usage).values(job=job, day=day, **empty))
    memory = max(today or 0, taken.rss_bytes)
    connection.execute(update(job_usage).filter_by(job=job, day=day).values(rss_bytes=memory, **sums))
    values = {"pid": pid, "started_at": started_at, "at": taken.at, **reached}
    upsert(connection, job_counters, {"job": job}, values)
