from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tocsin.declare.model.job_report import (
    REFUSED_RECIPIENTS,
    TOPICS_RECREATED,
    UNDECLARED_DETECTORS,
    JobReport,
    JobState,
)
from tocsin.declare.model.names import INDEXER
from tocsin.supervise.incidents.conditions import Bounds, Facts, Memory, is_due, judge
from tocsin.supervise.job_states import HUNG, Condition, Past

JOB, INGEST = "detector:bad", "ingest:logins"
BOUNDS = Bounds(lag=300.0, patience={INGEST: 3600.0})


def stands(condition: Condition, reason: str = "why") -> Facts:
    return Facts(pasts={JOB: Past(condition=condition, reason=reason)})


def says(job: str, **figures: Any) -> Facts:
    """The job runs, and says so of itself."""
    known = {"state": JobState.RUNNING, "batch_id": 1, "pid": 7} | figures
    report = JobReport(job=job, at=datetime.now(UTC), **known)
    return Facts(pasts={job: Past()}, reports={job: report})


class Watched:
    """Looks at what it is shown, and notes what people are told."""

    def __init__(self) -> None:
        self.memory, self.told, self.now = Memory(), list[str](), 1_800_000_000.25

    def look(self, facts: Facts, after: float = 0.0) -> list[str]:
        """What people are told of `facts`, `after` seconds since the look before."""
        self.now += after
        self.memory = judge(facts, self.memory, BOUNDS, self.now)
        due = {key: one for key, one in self.memory.incidents.items() if is_due(one, self.now)}
        written = {key: replace(one, written=True) for key, one in due.items()}
        self.memory = replace(self.memory, incidents={**self.memory.incidents, **written})
        return [f"{one.job} {one.condition}: {one.reason}" for one in due.values()]


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.mark.parametrize(
    "failing", [Condition.CRASH_LOOP, Condition.MISCONFIGURED, Condition.LOCKED, Condition.NO_ROOM]
)
def test_each_failing_condition_is_told_once(watched: Watched, failing: Condition) -> None:
    assert watched.look(stands(Condition.FINE)) == watched.look(stands(Condition.RESTARTING), 5) == []
    assert watched.look(stands(failing), 5) == [f"{JOB} {failing}: why"]
    assert [one for _ in range(1000) for one in watched.look(stands(failing), 60)] == []


def test_a_restart_is_told_to_nobody_unless_the_job_was_hung(watched: Watched) -> None:
    assert watched.look(stands(Condition.RESTARTING, "was killed by signal 9 (SIGKILL)")) == []
    hung = f"{HUNG}: no heartbeat for 61 s"
    assert watched.look(stands(Condition.RESTARTING, hung), 5) == [f"{JOB} hung: {hung}"]


def test_what_comes_and_goes_is_told_again_only_after_an_hour_without_it(watched: Watched) -> None:
    assert len(watched.look(stands(Condition.CRASH_LOOP))) == 1
    for _ in range(6):
        assert watched.look(stands(Condition.FINE), 1800) == []
        assert watched.look(stands(Condition.CRASH_LOOP), 600) == []
    assert watched.look(stands(Condition.FINE), 3600) == []
    assert len(watched.look(stands(Condition.CRASH_LOOP), 5)) == 1


def test_another_condition_of_the_same_job_is_told_too(watched: Watched) -> None:
    assert len(watched.look(stands(Condition.CRASH_LOOP))) == 1
    assert len(watched.look(stands(Condition.MISCONFIGURED), 5)) == 1


def test_a_job_that_is_gone_has_no_incident(watched: Watched) -> None:
    watched.look(stands(Condition.CRASH_LOOP))
    assert watched.look(Facts(), 5) == []
    assert watched.memory.incidents == {}


def test_an_incident_keeps_its_name_and_another_has_another(watched: Watched) -> None:
    """Airflow and the outbox take it as it is: neither a colon nor a space."""
    both = {JOB: Past(condition=Condition.NO_ROOM), "notifier": Past(condition=Condition.NO_ROOM)}
    watched.look(Facts(pasts=both))
    names = {one.name for one in watched.memory.incidents.values()}
    assert len(names) == 2
    watched.look(Facts(pasts=both), 600)
    assert {one.name for one in watched.memory.incidents.values()} == names
    assert sorted(name.rpartition("-")[0] for name in names) == [
        "no-room__detector__bad__1800000000", "no-room__notifier__1800000000",
    ]  # fmt: skip


def test_a_broken_file_is_told_when_it_stays_so_for_a_minute(watched: Watched) -> None:
    broken = Facts(broken={JOB: "detectors/bad.py:1: is not Python"})
    assert watched.look(broken) == []
    assert watched.look(stands(Condition.FINE), 30) == [], "it was being written"
    assert watched.look(broken, 30) == watched.look(broken, 59) == []
    assert watched.look(broken, 1) == [f"{JOB} broken file: detectors/bad.py:1: is not Python"]


def test_lag_is_told_when_it_lasts_and_a_backlog_that_drains_is_not(watched: Watched) -> None:
    behind = says(JOB, lag_seconds=301.0, lag_records=12_000, state=JobState.DRAINING)
    assert watched.look(behind) == watched.look(behind, 60) == watched.look(says(JOB, lag_seconds=300.0), 59) == []
    assert watched.look(behind, 5) == watched.look(behind, 119) == []
    assert watched.look(behind, 1) == [f"{JOB} lags: is 5 min behind, with 12,000 records unread"]


def test_late_drops_are_told_above_a_share_of_the_latest_records(watched: Watched) -> None:
    assert watched.look(says(JOB, rows_in=99, rows_dropped_late=99)) == [], "too few to say anything"
    assert watched.look(says(JOB, rows_in=100_000, rows_dropped_late=999), 5) == [], "since the process began"
    assert watched.look(says(JOB, rows_in=101_000, rows_dropped_late=1000), 601) == []
    (told,) = watched.look(says(JOB, rows_in=102_000, rows_dropped_late=1100), 601)
    assert told == f"{JOB} drops late events: 10.0% of the latest records were too late for their window"
    assert watched.look(says(JOB, rows_in=100, rows_dropped_late=0, pid=8), 5) == [], "another process counts anew"


def test_what_an_ingest_writes_again_after_its_restart_is_not_late(watched: Watched) -> None:
    """The detector drops the repeats as late; it had counted each of them before."""
    began = datetime(2026, 11, 20, 12, tzinfo=UTC)

    def both(batch: int | None, hour: int = 0, **figures: int) -> Facts:
        fed = says(INGEST, batch_id=batch, rows_in=1, started_at=began + timedelta(hours=hour))
        found = says(JOB, **figures)
        return Facts(pasts={}, reports={**fed.reports, **found.reports}, feeders={JOB: [INGEST]})

    assert watched.look(both(7, rows_in=5_000)) == watched.look(both(8, rows_in=6_000), 100) == []
    assert watched.look(both(None, hour=1, rows_in=6_000), 30) == []
    assert watched.look(both(8, hour=1, rows_in=6_500, rows_dropped_late=400), 60) == []
    assert watched.look(both(9, hour=1, rows_in=6_600, rows_dropped_late=450), 60) == []
    assert watched.look(both(9, hour=1, rows_in=6_900, rows_dropped_late=451), 60) == []
    (told,) = watched.look(both(10, hour=1, rows_in=7_100, rows_dropped_late=500), 60)
    assert told == f"{JOB} drops late events: 10.0% of the latest records were too late for their window"


def test_a_few_late_records_behind_a_new_beginning_are_no_share(watched: Watched) -> None:
    assert watched.look(says(JOB, rows_in=5_000)) == watched.look(says(JOB, rows_in=9_000), 601) == []
    assert watched.look(says(JOB, rows_in=9_100, rows_dropped_late=9), 5) == []
    assert len(watched.look(says(JOB, rows_in=9_100, rows_dropped_late=10), 5)) == 1


def test_late_records_of_a_process_with_the_number_of_an_earlier_one_are_counted_anew(watched: Watched) -> None:
    """In a container that was started again they are mostly the same."""
    watched.look(says(JOB, rows_in=5_000))
    watched.look(says(JOB, rows_in=9_000), 601)
    assert len(watched.look(says(JOB, rows_in=1_000, rows_dropped_late=500), 5)) == 1


def waits(**seconds: float) -> Facts:
    """Jobs that have waited for Kafka for so long."""
    reports = {
        job: JobReport(
            job=job,
            at=datetime.now(UTC),
            state=JobState.WAITING,
            reason="Kafka does not answer",
            waiting_seconds=waited,
        )
        for job, waited in seconds.items()
    }
    return Facts(pasts=dict.fromkeys(reports, Past()), reports=reports)


def test_a_job_that_waits_for_ten_minutes_is_told_with_those_that_wait_for_the_same(watched: Watched) -> None:
    assert watched.look(waits(indexer=599, notifier=400)) == []
    assert watched.look(waits(indexer=600, notifier=401, exporter=200), 1) == [
        "indexer waits: has waited for 10 min: Kafka does not answer",
        "notifier waits: has waited for 7 min: Kafka does not answer",
    ]
    assert {one.cause for one in watched.memory.incidents.values()} == {"Kafka"}
    assert watched.look(waits(indexer=4200, notifier=4001), 3600) == []


def test_a_source_without_input_is_told_after_its_patience_and_one_that_never_had_any_is_not(watched: Watched) -> None:
    quiet = says(INGEST, rows_in=0, pid=8)
    assert watched.look(quiet) == watched.look(quiet, 100_000) == watched.look(quiet, 120) == []
    for number in (5, 6):
        assert watched.look(says(INGEST, rows_in=number), 5) == watched.look(says(INGEST, rows_in=number), 3600) == []
    assert watched.look(says(INGEST, rows_in=0, pid=8, lag_records=3), 5) == [], "it has not read what there is"
    assert watched.look(quiet, 5) == watched.look(quiet, 119) == []
    assert watched.look(quiet, 1) == [f"{INGEST} no input: no events for 1 h"], "also across a restart"
    assert watched.look(says(INGEST, rows_in=1, pid=8), 5) == watched.look(says(INGEST, rows_in=1, pid=8), 3601) == []


def test_a_stack_that_was_down_for_long_gives_senders_time_to_come_back(watched: Watched) -> None:
    watched.look(says(INGEST, rows_in=5))
    assert watched.look(says(INGEST, rows_in=0, pid=8), 50_000) == []
    assert watched.look(says(INGEST, rows_in=1, pid=8), 60) == watched.look(says(INGEST, rows_in=1, pid=8), 3000) == []


@pytest.mark.parametrize(
    ("figure", "usual", "high", "told"),
    [
        ("ignored_ratio", 0.99, 1.0, "ignores nearly everything: `ignore` leaves out 100.0% of the latest records"),
        ("bad_ratio", 0.05, 0.31, "much goes to quarantine: 31.0% of the latest records went to quarantine"),
    ],
)
def test_a_share_that_is_too_high_is_told(watched: Watched, figure: str, usual: float, high: float, told: str) -> None:
    assert watched.look(says(INGEST, counts={figure: usual})) == []
    assert watched.look(says(INGEST, counts={figure: high}), 5) == [f"{INGEST} {told}"]


def test_a_topic_that_was_recreated_is_told_and_again_when_another_process_finds_one(watched: Watched) -> None:
    what = (
        "a topic that it reads was deleted and created again: it reads the new one from its start, what was unread of "
    )
    told = f"{INDEXER} topic recreated: {what}the former is lost"
    assert watched.look(says(INDEXER)) == []
    assert watched.look(says(INDEXER, counts={TOPICS_RECREATED: 1.0}), 5) == [told]
    assert watched.look(says(INDEXER, counts={TOPICS_RECREATED: 1.0}), 90_000) == []
    assert watched.look(says(INDEXER), 5) == [], "another process counts from zero"
    assert watched.look(says(INDEXER, counts={TOPICS_RECREATED: 1.0}), 5) == [told]


@pytest.mark.parametrize(
    ("figure", "condition", "seconds", "text"),
    [
        (REFUSED_RECIPIENTS, Condition.REFUSED, 5, "2 recipients refuse what is sent to them: why"),
        (UNDECLARED_DETECTORS, Condition.UNDECLARED, 60, "2 detectors that no file declares have findings: why"),
    ],
)
def test_what_the_jobs_of_alerts_cannot_deliver_is_a_condition(
    watched: Watched, figure: str, condition: Condition, seconds: float, text: str
) -> None:
    facts = says("notifier", reason="why", counts={figure: 2.0})
    assert watched.look(says("notifier", counts={figure: 0.0})) == []
    watched.look(facts, 5)
    assert [*watched.look(facts, seconds), *watched.look(facts, 86_400)] in ([], [f"notifier {condition}: {text}"])
    assert [one.condition for one in watched.memory.incidents.values() if one.written] == [condition]


def test_records_that_are_set_aside_are_told_and_again_when_more_follow_after_an_hour(watched: Watched) -> None:
    assert watched.look(says(JOB, counts={"set_aside": 0.0})) == []
    told = f"{JOB} sets records aside: has set aside 1 record: its query fails on each"
    assert watched.look(says(JOB, counts={"set_aside": 1.0}), 5) == [told]
    assert watched.look(says(JOB, counts={"set_aside": 1.0}), 5) == []
    assert watched.look(says(JOB, counts={"set_aside": 3.0}), 1000) == []
    assert watched.look(says(JOB, counts={"set_aside": 3.0}), 90_000) == []
    more = f"{JOB} sets records aside: has set aside 4 records: its query fails on each"
    assert watched.look(says(JOB, counts={"set_aside": 4.0}), 5) == [more]


def test_records_that_were_removed_unread_are_mailed_and_again_when_more_follow_after_an_hour(watched: Watched) -> None:
    mail = f"{INGEST} loses unread records: has not read 1,500 records that Kafka has removed"
    assert watched.look(says(INGEST, counts={"removed_unread": 1_500.0})) == [mail]
    assert watched.look(says(INGEST, counts={"removed_unread": 1_500.0}), 90_000) == []
    more = f"{INGEST} loses unread records: has not read 1,501 records that Kafka has removed"
    assert watched.look(says(INGEST, counts={"removed_unread": 1_501.0}), 5) == [more]
