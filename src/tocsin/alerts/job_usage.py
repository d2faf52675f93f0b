"""Follow the reports of the jobs, and add up by UTC day what each job takes.

Counters in a report begin at 0 with each process and only grow, so a day is given what they have grown by since the
last report that counted. That one is remembered with the sums, in one transaction: reports that come again change
nothing, and after a pause the next report makes up for those between. Only a process that began and ended while nobody
read, and whose reports the topic no longer holds, is missing.
"""

from __future__ import annotations

import contextlib
import operator
from dataclasses import astuple, dataclass
from datetime import UTC, date, datetime

from sqlalchemy import Connection, insert, select, update

from tocsin.alerts.store.database import Database
from tocsin.alerts.store.schema import job_counters, job_usage
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.job_report import JobReport
from tocsin.declare.settings import Settings
from tocsin.platform.kafka.reporter import ReportReader
from tocsin.platform.kafka.retry import Backoff

_PAUSE_SECONDS = 5.0


@dataclass(frozen=True)
class _Counters:
    """Counters of one process; `seconds` since its start."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    rows_in: int = 0
    rows_out: int = 0

    def highest(self, other: _Counters) -> _Counters:
        """A child that ends takes its CPU seconds away; nothing is counted twice when they have grown again."""
        return _Counters(*map(max, astuple(self), astuple(other)))

    def since(self, other: _Counters) -> _Counters:
        return _Counters(*map(operator.sub, astuple(self), astuple(other)))


@dataclass(frozen=True)
class _Span:
    """The reports of one process on one day: the last time, the highest counters and memory."""

    at: datetime
    counters: _Counters
    rss_bytes: int


_Process = tuple[str, int, datetime]
"""Job, pid and start."""


class UsageTally:
    """Gathers reports, and adds them to the alerts DB from time to time."""

    def __init__(self) -> None:
        self._spans: dict[tuple[_Process, date], _Span] = {}

    def take(self, report: JobReport) -> None:
        """Remember what `report` says; of any number of reports only a few figures stay."""
        if report.started_at is None:
            return
        key = ((report.job, report.pid, report.started_at), report.at.astimezone(UTC).date())
        running = max(0.0, (report.at - report.started_at).total_seconds())
        counters = _Counters(running, report.cpu_seconds, report.rows_in, report.rows_out)
        span = _Span(report.at, counters, report.rss_bytes)
        if (usage_span := self._spans.get(key)) is not None:
            memory = max(usage_span.rss_bytes, span.rss_bytes)
            span = _Span(max(usage_span.at, span.at), usage_span.counters.highest(counters), memory)
        self._spans[key] = span

    def write(self, connection: Connection) -> None:
        """Add all that was taken and is not counted yet; `written` forgets it once the transaction is committed."""
        for (process, day), span in sorted(self._spans.items(), key=lambda item: item[1].at):
            _add(connection, process, day, span)

    def written(self) -> None:
        """Forget what was written: it is committed."""
        self._spans.clear()


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


def _add(connection: Connection, process: _Process, day: date, span: _Span) -> None:
    job, pid, started_at = process
    last = connection.execute(select(job_counters).filter_by(job=job)).mappings().first()
    if last is not None and span.at <= last["at"]:
        return
    is_same = last is not None and (last["pid"], last["started_at"]) == (pid, started_at)
    before = _Counters(**{name: last[name] for name in _COUNTERS}) if last is not None and is_same else _Counters()
    reached = span.counters.highest(before)
    grown = reached.since(before)
    sums = {name: job_usage.c[name] + getattr(grown, name) for name in _COUNTERS}
    sums["restarts"] = job_usage.c.restarts + int(last is not None and not is_same)
    today = connection.execute(select(job_usage.c.rss_bytes).filter_by(job=job, day=day)).scalar()
    if today is None:
        empty = dict.fromkeys((*_COUNTERS, "rss_bytes", "restarts"), 0)
        connection.execute(insert(job_usage).values(job=job, day=day, **empty))
    memory = max(today or 0, span.rss_bytes)
    connection.execute(update(job_usage).filter_by(job=job, day=day).values(rss_bytes=memory, **sums))
    values = {"pid": pid, "started_at": started_at, "at": span.at, **vars(reached)}
    if last is None:
        connection.execute(insert(job_counters).values(job=job, **values))
    else:
        connection.execute(update(job_counters).filter_by(job=job).values(values))


_COUNTERS = ("seconds", "cpu_seconds", "rows_in", "rows_out")
