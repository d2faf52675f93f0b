"""What detectors on findings read: an event for each level of a finding, and how far its detector has got."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.rig.played_kafka import played_kafka, written
from tests.unit.alerts.scene import FACTS, MINUTE, NOON, RULES, SECOND, finding, raw, record
from tocsin.alerts.finding_feed import FindingFeed, event_of, reached_levels
from tocsin.declare.model.finding import Finding
from tocsin.declare.model.job_report import JobReport, JobState
from tocsin.declare.settings import Settings
from tocsin.platform.kafka.record_writer import RecordWriter

TOPIC = "events.findings.failed_logins"


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    with played_kafka(TOPIC, "job-metrics") as kafka:  # no file is declared: one that breaks must stop nothing
        yield Settings(project=tmp_path, state=tmp_path / "state", kafka=kafka)


def events(settings: Settings) -> list[dict[str, Any]]:
    values = [value for partition in range(4) for _, value in written(settings, TOPIC, partition)]
    return [json.loads(value or b"") for value in values]


def identities(settings: Settings) -> list[tuple[str, str]]:
    return sorted((one["finding_id"], one["level"]) for one in events(settings) if "tick" not in one)


def pass_on(feed: FindingFeed, *found: Finding) -> None:
    feed.pass_on([record(one) for one in found])


def test_each_level_of_a_finding_is_one_event_however_often_it_is_updated(settings: Settings) -> None:
    feed, one, two = FindingFeed(settings, lambda: RULES.facts), finding(60), finding(60, user="trent")
    pass_on(feed, one, finding(61), two)
    pass_on(feed, finding(99), finding(101), finding(150))
    expected = [(one.finding_id, "email"), (one.finding_id, "urgent"), (two.finding_id, "email")]
    assert identities(settings) == sorted(expected)


def test_a_restart_repeats_events_that_are_equal_so_that_readers_can_drop_them(settings: Settings) -> None:
    pass_on(FindingFeed(settings, lambda: RULES.facts), finding(60))
    later = finding(180, event_time_max=NOON + 9 * SECOND)
    pass_on(FindingFeed(settings, lambda: RULES.facts), later)
    same = [one for one in events(settings) if one["level"] == "email"]
    assert len(same) == 2
    assert same[0] | {"ingested_at": ""} == same[1] | {"ingested_at": ""}


def test_a_finding_that_jumps_over_the_lower_limit_has_reached_it() -> None:
    assert reached_levels(finding(150), FACTS) == ["email", "urgent"]
    assert reached_levels(finding(150), FACTS.model_copy(update={"email_limit": None})) == ["urgent"]
    assert reached_levels(finding(60), FACTS) == ["email"]


def test_an_event_has_the_time_of_its_finding_and_nothing_that_changes_later() -> None:
    one = event_of(finding(60), "email")
    assert one["event_time"] == one["window_start"] == "2026-11-21T12:00:00.000000Z"
    assert (one["user_id"], one["source"]) == ("mallory", "findings.failed_logins")
    assert not {"score", "context", "evidence", "at_least", "version"} & one.keys()
    alone = finding(60, window_start=None, window_end=None)
    assert event_of(alone, "email")["event_time"] == "2026-11-21T12:00:05.000000Z"


def test_records_that_are_no_findings_or_that_nobody_reads_are_passed_over(settings: Settings) -> None:
    feed = FindingFeed(settings, lambda: RULES.facts)
    feed.pass_on([raw(b"{"), raw(None)])
    pass_on(feed, finding(60, detector="password_spraying"), finding(60, detector="unknown"))
    assert events(settings) == []


def report(settings: Settings, watermark: datetime, at: datetime) -> None:
    own = settings.installation_id
    said = JobReport(job="detector:failed_logins", instance=own, at=at, state=JobState.RUNNING, watermark=watermark)
    with RecordWriter(settings, 10_000) as writer:
        writer.write("job-metrics", said.model_dump_json(), said.job, partition=0)


def test_a_tick_says_how_far_a_detector_has_got_once_all_that_it_found_is_passed_on(settings: Settings) -> None:
    feed = FindingFeed(settings, lambda: RULES.facts)
    report(settings, NOON, at=NOON + MINUTE)
    feed.tick(None)
    feed.tick(NOON + MINUTE - timedelta(microseconds=1))
    assert events(settings) == []
    for _ in range(2):
        feed.tick(NOON + MINUTE)
    assert [one["event_time"] for one in events(settings)] == ["2026-11-21T12:00:00.000000Z"]
    report(settings, NOON - SECOND, at=NOON + 2 * MINUTE)  # another version has begun again
    feed.tick(NOON + 3 * MINUTE)
    assert len(events(settings)) == 1
