"""The indexer: the one consumer of the findings topic, and the one writer of findings and alerts.

A batch is stored in one transaction, then its offsets are committed; a crash in between delivers it again, which
changes nothing. What is no finding is put aside. While the topics of detectors that read findings cannot be written,
alerts go on, and offsets wait. Between two batches it stores what backfills have published, a chunk
in one transaction. While Kafka or the alerts DB is away it waits, says so, and resumes.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import structlog
from sqlalchemy import Connection, exc, select

from tocsin.alerts import recording
from tocsin.alerts.alert_policy import DetectorFacts
from tocsin.alerts.backfilled import published_day
from tocsin.alerts.backfilled.ledger_follower import FollowedBackfills
from tocsin.alerts.backfilled.published_day import BackfilledDay
from tocsin.alerts.finding_feed import (
    FindingFeed,
    FindingRecord,
    Rejected,
    WaitingFindings,
    put_aside,
    read_or_reject,
    record_of,
)
from tocsin.alerts.followed_routes import FollowedRoutes
from tocsin.alerts.recording import Recorded, Rules
from tocsin.alerts.store.alert_rows import finding_of, read_facts, write_facts
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.schema import findings
from tocsin.declare.catalog import Catalog
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.finding import Finding
from tocsin.declare.model.job_report import TOPICS_RECREATED, UNDECLARED_DETECTORS, JobState
from tocsin.declare.model.names import INDEXER
from tocsin.declare.settings import Settings
from tocsin.job import Job
from tocsin.platform.code_versions import FollowedCatalog
from tocsin.platform.kafka.reporter import Reporter
from tocsin.platform.kafka.retry import Retry
from tocsin.platform.kafka.topic_follower import TopicFollower

BATCH = 2000
_WORK, _NEW, _KNOWN = 1000, 10, 3
"""Work of one transaction, for which the notifier waits on SQLite: some 20 ms. A record of a finding counts as `_NEW`
at a level that it was not stored with, else as `_KNOWN`, and further ones in the transaction as 1."""
_REMEMBERED = 100_000
COLLECT_AFTER = 50_000
"""Objects: a batch makes as many, none of them in cycles, and by default looking for cycles took a third of its CPU."""
# A writer waits for SQLite's lock by trying; without a pause between two chunks it never gets in.
_PAUSE_SECONDS = 0.004
_log = structlog.get_logger()

_Read = tuple[FindingRecord, Finding | Rejected]


def now() -> datetime:
    """The time, UTC."""
    return datetime.now(UTC)


class Indexer:
    """Stores batches of records; knows nothing of Kafka, so that a batch can be tried as often as one likes."""

    def __init__(self, settings: Settings, database: Database, clock: Callable[[], datetime] = now) -> None:
        """Index into `database`, which has its schema; TransientError while it cannot be read."""
        self._settings, self._database, self._clock = settings, database, clock
        with database.read() as connection:
            self._stored_facts = read_facts(connection)
        self._declared, self.routes = DeclaredFacts(settings, self._stored_facts), FollowedRoutes(settings)
        self._undeclared: set[str] = set()
        self._levels: set[tuple[str, str]] = set()
        self.days = published_day.StoredDays(database.read, self._writing, clock)

    def facts(self) -> dict[str, DetectorFacts]:
        """Tell what is declared of each detector, or was when its file could last be read."""
        return self._declared.current()

    def store(self, records: list[FindingRecord]) -> Recorded:
        """Store a batch in short transactions, and what the DB refuses record by record. Retry a TransientError."""
        done, free_until = Recorded(), 0.0
        for part in self._parts(records):  # takes a part of the pause
            if self._database.has_one_writer:
                time.sleep(max(0.0, free_until - time.monotonic()))
            done.add(self._store_together(part))
            free_until = time.monotonic() + _PAUSE_SECONDS
        return done

    def _parts(self, records: list[FindingRecord]) -> Iterator[list[_Read]]:
        levels, part, work = set[tuple[str, str]](), list[_Read](), 0
        if len(self._levels) > _REMEMBERED:
            self._levels.clear()
        for record in records:
            read = read_or_reject(record)
            level = (read.finding_id, read.level) if isinstance(read, Finding) else (record.topic, str(record.offset))
            own = 1 if level in levels else _KNOWN if level in self._levels else _NEW
            if part and work + own > _WORK:
                yield part
                self._levels |= levels
                levels, part, work = set(), [], 0
            part.append((record, read))
            levels.add(level)
            work += own
        yield part
        self._levels |= levels

    def _store_together(self, part: list[_Read]) -> Recorded:
        try:
            return self._transaction(part)
        except (exc.StatementError, ValueError, OverflowError) as error:
            if len(part) > 1:
                for read in part:
                    self._store_together([read])
                return Recorded()
            ((record, _),) = part
            _log.error("finding rejected by the alerts DB", offset=record.offset, error=str(error)[:500])
            with self._database.write() as connection:
                reason = f"the alerts DB refuses it: {str(error)[:500]}"
                put_aside(connection, [Rejected(record=record, reasons=(reason,))], self._clock())
            return Recorded()

    def _transaction(self, part: list[_Read]) -> Recorded:
        found = [read for _, read in part if isinstance(read, Finding)]
        with self._writing() as (connection, rules):
            put_aside(connection, (read for _, read in part if isinstance(read, Rejected)), self._clock())
            done = recording.record(connection, found, rules, self._clock())
        self._log_alerts({finding.detector for finding in found}, done)
        return done

    def follow_declarations(self) -> None:
        """Open alerts of findings stored before their detector was declared; a call after a TransientError resumes."""
        declared = self._declared.current()
        for name in sorted(declared.keys() - self._stored_facts.keys()):
            last = ""
            while True:
                with self._database.write() as connection:
                    part = _without_alert(connection, name, last)
                    done = recording.record(connection, part, self._rules(), self._clock())
                    if len(part) < BATCH:
                        write_facts(connection, [declared[name]])
                self._log_alerts(set(), done)
                if len(part) < BATCH:
                    break
                last = part[-1].finding_id
                time.sleep(_PAUSE_SECONDS)
            self._stored_facts[name] = declared[name]

    def apply(self, backfilled: BackfilledDay) -> Generator[None, None, Recorded]:
        """Store what a backfill has published for a day, in short transactions; see `StoredDays.apply`."""
        done = yield from self.days.apply(backfilled)
        self._log_alerts({backfilled.detector}, done)
        return done

    @contextmanager
    def _writing(self) -> Iterator[tuple[Connection, Rules]]:
        self.follow_declarations()
        declared = dict(self._declared.current())
        changed = [facts for name, facts in declared.items() if self._stored_facts.get(name) != facts]
        with self._database.write() as connection:
            write_facts(connection, changed)
            yield connection, self._rules()
        self._stored_facts = declared

    def _rules(self) -> Rules:
        alerts = self._settings.alerts
        return Rules(
            facts=self._declared.current(),
            routes=self.routes.read(),
            paged=alerts.urgent_recipients,
            repeat_interval=alerts.repeat_interval,
            domain=self._settings.smtp.domain,
        )

    @property
    def undeclared(self) -> list[str]:
        """Detectors that no file declares and of which findings were stored since this process began, by name."""
        return sorted(self._undeclared - self._declared.current().keys())

    def _log_alerts(self, found: set[str], done: Recorded) -> None:
        unknown = found - self._stored_facts.keys() - self._undeclared
        for name in sorted(unknown):
            _log.warning("findings of an undeclared detector stored without an alert", detector=name)
        self._undeclared |= unknown
        if done.alerts or done.notifications:
            plans = {kind.value: count for kind, count in done.notifications.items()}
            _log.info("alerts", opened=done.alerts, **plans)


class IndexerJob:
    """Feeds an `Indexer` from Kafka, and with what backfills publish, until `stop` is set."""

    def __init__(self, settings: Settings, reporter: Reporter, stop: threading.Event) -> None:
        self._settings, self._reporter, self._stop = settings, reporter, stop
        self._database = Database(settings.alerts_database)
        self._backfills: FollowedBackfills | None = None
        self._retry, self._stored, self._batches = Retry(reporter, stop, wait=self._wait), 0, 0

    def run(self) -> None:
        """Index until asked to stop; ConfigError if the schema of the alerts DB or its address is wrong."""
        gc.set_threshold(COLLECT_AFTER)
        indexer = self._retry.call(self._open)
        if indexer is None:
            return
        self._backfills = FollowedBackfills(self._settings, self._database, indexer.days, indexer.apply)
        topic = TopicFollower(self._settings, INDEXER, self._settings.names.findings)
        waiting = WaitingFindings(FindingFeed(self._settings, indexer.facts))
        try:
            while not self._stop.is_set():
                self._retry.call(lambda: self._step(topic, indexer, waiting))
        finally:
            topic.close()
            self._database.close()

    def _open(self) -> Indexer:
        self._database.migrate()
        return Indexer(self._settings, self._database)

    def _step(self, topic: TopicFollower, indexer: Indexer, waiting: WaitingFindings) -> None:
        """Store what is there, or learn after a moment that nothing is. A chunk of a backfilled day comes between."""
        more = self._backfills is not None and self._backfills.step()
        if waiting.is_full and not waiting.pass_on():
            raise TransientError(waiting.trouble)
        if not topic.is_following:
            topic.follow_committed()
        messages = topic.poll(BATCH, _PAUSE_SECONDS if more else 0.2)
        if messages:
            records = [record_of(message) for message in messages]
            if self._retry.call(lambda: indexer.store(records)) is None:
                return
            topic.done(messages)
            waiting.add(records)
            self._stored += len(records)
            self._batches += 1
        if waiting.pass_on():
            topic.commit()
        if topic.measure() is not None:
            indexer.follow_declarations()
            waiting.tick(topic.complete_at)
            indexer.routes.read()
            feed = "alerts go on, but detectors that read findings wait for them: "
            troubles = [f"{feed}{waiting.trouble}" if waiting.trouble else "", indexer.routes.trouble]
            self._report(topic, troubles, indexer.undeclared)

    def _report(self, topic: TopicFollower, troubles: list[str], undeclared: list[str]) -> None:
        self._retry.recovered()
        counts = {TOPICS_RECREATED: topic.recreated, UNDECLARED_DETECTORS: len(undeclared)}
        troubles += [f"no file declares {', '.join(undeclared[:5])}"] if undeclared else []
        self._reporter.update(
            state=JobState.RUNNING,
            reason="; ".join(filter(None, troubles)),
            rows_in=self._stored,
            batch_id=self._batches,
            lag_records=topic.lag_records,
            lag_seconds=topic.lag_seconds,
            watermark=topic.complete_at,
            counts={name: float(count) for name, count in counts.items() if count},
        )

    def _wait(self, seconds: float) -> None:
        """Apply backfills also while Kafka is away: they do not need it."""
        until = time.monotonic() + seconds
        while self._backfills is not None and time.monotonic() < until and not self._stop.is_set():
            if not self._backfills.step() or self._stop.wait(_PAUSE_SECONDS):
                break
        self._stop.wait(max(0.0, until - time.monotonic()))


class DeclaredFacts:
    """The facts of every detector, read again whenever a file of sources/ or detectors/ has changed.

    If a file is broken or gone its last good facts stay: its job may still run, and its findings must reach people.
    """

    def __init__(self, settings: Settings, known: dict[str, DetectorFacts]) -> None:
        self._followed, self._facts = FollowedCatalog(settings), dict(known)
        self._catalog: Catalog | None = None

    def current(self) -> dict[str, DetectorFacts]:
        """The facts by detector."""
        catalog = self._followed.read()
        if catalog is not self._catalog:
            for name, spec in catalog.detectors.items():
                read = [catalog.source(source) for source in spec.sources if catalog.has_source(source)]
                lateness = max((source.lateness for source in read), default=timedelta(0))
                self._facts[name] = DetectorFacts.of(spec, lateness)
            self._catalog = catalog
        return self._facts


def _without_alert(connection: Connection, detector: str, after: str) -> list[Finding]:
    """Read findings of `detector` that count and have no alert, by id from `after` on: `BATCH` at most."""
    table = findings.c
    own = (
        table.detector == detector,
        table.alert_id.is_(None),
        table.superseded_at.is_(None),
        table.finding_id > after,
    )
    rows = connection.execute(select(findings).where(*own).order_by(table.finding_id).limit(BATCH))
    return [finding_of(row) for row in rows.mappings()]


def run(job: Job) -> None:
    """Run the job `indexer`; errors as of `IndexerJob.run`."""
    IndexerJob(job.settings, job.reporter, job.stop).run()
