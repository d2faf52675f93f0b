"""What jobs take by day: whatever is read twice, late or not at all, the sums are those of the processes."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update

from tests.unit.alerts.scene import RULES, finding
from tocsin.alerts.notify.notifier_job import UsageTally
from tocsin.alerts.recording import record
from tocsin.alerts.store.alert_rows import JobUsage
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.queries import last_findings, list_usage
from tocsin.alerts.store.schema import findings
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.finding import Origin
from tocsin.declare.model.job_report import JobReport, JobState

JOB = "detector:failed_logins"
DAY = date(2026, 1, 1)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MIDNIGHT = datetime(2026, 1, 2, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def report(at: datetime, *, pid: int = 1, began: datetime = NOON, job: str = JOB, **fields: Any) -> JobReport:
    return JobReport(job=job, at=at, started_at=began, pid=pid, state=JobState.RUNNING, **fields)


def count(database: Database, *reports: JobReport) -> None:
    """As one writer does that has just started."""
    usage = UsageTally()
    for one in reports:
        usage.take(one)
    write(database, usage)
    usage.written()


def days(database: Database, job: str = JOB) -> list[JobUsage]:
    return [one for one in list_usage(database, date(2000, 1, 1)) if one.job == job]


def day(database: Database, job: str = JOB) -> JobUsage:
    (one,) = days(database, job)
    return one


def test_counters_of_one_process_are_what_it_took_however_long_the_writer_was_away(database: Database) -> None:
    count(database, report(NOON + 5 * SECOND, cpu_seconds=4, rows_in=10, rows_out=1, rss_bytes=700))
    count(database, report(NOON + 3600 * SECOND, cpu_seconds=1710, rows_in=30, rows_out=2, rss_bytes=600))
    assert day(database) == JobUsage(
        job=JOB, day=DAY, seconds=3600, cpu_seconds=1710, rss_bytes=700, rows_in=30, rows_out=2, findings=0, restarts=0
    )
    assert day(database).cores == pytest.approx(0.475)


@pytest.mark.parametrize(
    ("pid", "began", "last"), [(2, 60 * SECOND, 3), (1, 11 * SECOND, 12)], ids=["another", "another of its number"]
)
def test_the_next_process_begins_at_0_and_is_a_restart(
    database: Database, pid: int, began: timedelta, last: int
) -> None:
    first = [report(NOON + n * SECOND, cpu_seconds=n, rows_in=10 * n) for n in (5, 10)]
    second = [
        report(NOON + began + n * SECOND, pid=pid, began=NOON + began, cpu_seconds=n, rows_in=n) for n in (1, last)
    ]
    count(database, *first, *second)
    one = day(database)
    assert (one.cpu_seconds, one.rows_in, one.seconds, one.restarts) == (10 + last, 100 + last, 10 + last, 1)


def test_a_writer_that_reads_all_again_doubles_nothing(database: Database) -> None:
    began = NOON + 60 * SECOND
    reports = [report(NOON + n * SECOND, cpu_seconds=n, rows_in=n) for n in (5, 10)]
    reports += [report(began + n * SECOND, pid=2, began=began, cpu_seconds=n, rows_in=n) for n in (1, 3)]
    count(database, *reports)
    before = day(database)
    count(database, *reports)
    count(database, *reports[:1])
    assert day(database) == before
    count(database, *reports, report(began + 4 * SECOND, pid=2, began=began, cpu_seconds=4, rows_in=3))
    assert day(database).cpu_seconds == before.cpu_seconds + 1


def test_a_transaction_that_fails_is_made_up_for(database: Database) -> None:
    usage = UsageTally()
    usage.take(report(NOON + 5 * SECOND, cpu_seconds=4))
    with pytest.raises(TransientError), database.write() as connection:
        usage.write(connection)
        raise TransientError("the disk is full")
    assert days(database) == []
    usage.take(report(NOON + 6 * SECOND, cpu_seconds=5))
    write(database, usage)
    write(database, usage)
    assert day(database).cpu_seconds == 5


def write(database: Database, usage: UsageTally) -> None:
    with database.write() as connection:
        usage.write(connection)


def test_what_is_taken_after_midnight_belongs_to_the_new_day(database: Database) -> None:
    reports = [
        report(MIDNIGHT - 5 * SECOND, began=MIDNIGHT - 60 * SECOND, cpu_seconds=50, rss_bytes=900),
        report(MIDNIGHT + 5 * SECOND, began=MIDNIGHT - 60 * SECOND, cpu_seconds=58, rss_bytes=800),
    ]
    count(database, *reports)
    new, old = days(database)
    assert [(one.day, one.cpu_seconds, one.seconds, one.rss_bytes) for one in (old, new)] == [
        (date(2026, 1, 1), 50, 55, 900),
        (date(2026, 1, 2), 8, 10, 800),
    ]
    assert (old.restarts, new.restarts) == (0, 0)


def test_a_child_that_ends_takes_nothing_away_and_is_not_counted_again(database: Database) -> None:
    for second, cpu, sum_ in ((1, 100, 100), (2, 7, 100), (3, 101, 101)):
        count(database, report(NOON + second * SECOND, cpu_seconds=cpu))
        assert day(database).cpu_seconds == sum_
    count(database, report(NOON + 4 * SECOND, cpu_seconds=150), report(NOON + 5 * SECOND, cpu_seconds=9))
    assert day(database).cpu_seconds == 150


def test_a_clock_that_is_set_back_loses_nothing_in_the_end(database: Database) -> None:
    for second, cpu in ((60, 10), (30, 11), (61, 12)):
        count(database, report(NOON + second * SECOND, cpu_seconds=cpu))
    assert day(database).cpu_seconds == 12


def test_a_report_without_a_start_is_left_out(database: Database) -> None:
    count(database, report(NOON, cpu_seconds=5).model_copy(update={"started_at": None}))
    assert days(database) == []


def test_of_a_day_the_job_that_took_most_cpu_comes_first(database: Database) -> None:
    later = MIDNIGHT + SECOND
    taken = [("notifier", NOON, 1), ("detector:busy", NOON, 900), ("indexer", NOON, 5), ("indexer", later, 6)]
    count(database, *(report(at + SECOND, job=job, cpu_seconds=cpu, began=at) for job, at, cpu in taken))
    assert [one.job for one in list_usage(database, DAY)] == ["indexer", "detector:busy", "indexer", "notifier"]
    assert [one.job for one in list_usage(database, DAY + timedelta(days=1))] == ["indexer"]


def test_findings_are_counted_on_the_day_of_their_detection(database: Database) -> None:
    with database.write() as connection:
        for user, at in (("ann", NOON), ("bob", MIDNIGHT - SECOND), ("cid", MIDNIGHT)):
            record(connection, [finding(60, user=user, detected_at=at)], RULES, at)
    for at in (NOON, MIDNIGHT):
        count(database, report(at + SECOND, cpu_seconds=1), report(at + SECOND, job="indexer", cpu_seconds=1))
    assert [(one.day, one.findings) for one in days(database)] == [(date(2026, 1, 2), 1), (date(2026, 1, 1), 2)]
    assert [one.findings for one in days(database, "indexer")] == [0, 0]
    assert {one.last_finding_at for one in days(database)} == {MIDNIGHT}, "whatever the day"
    assert {one.last_finding_at for one in days(database, "indexer")} == {None}


def test_what_a_backfill_found_or_no_longer_reproduces_is_no_finding_of_the_job(database: Database) -> None:
    with database.write() as connection:
        for user in ("ann", "bob"):
            record(connection, [finding(60, user=user, detected_at=NOON)], RULES, NOON)
        late = [finding(60, user=user, detected_at=MIDNIGHT, origin=Origin.BACKFILL) for user in ("ann", "cid")]
        record(connection, late, RULES, MIDNIGHT)
    for at in (NOON, MIDNIGHT):
        count(database, report(at + SECOND, cpu_seconds=1))
    assert [one.findings for one in days(database)] == [0, 2]
    assert {one.last_finding_at for one in days(database)} == {NOON}
    assert last_findings(database) == {JOB: NOON}, "as `tocsin status` shows it"
    with database.write() as connection:
        connection.execute(update(findings).where(findings.c.entity.contains("bob")).values(superseded_at=MIDNIGHT))
    assert [one.findings for one in days(database)] == [0, 1]
