"""How far back Kafka holds all events of a source, when its topic has lost its beginning."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from tests.rig.samples.sealed_days import LOGINS
from tocsin.history.kafka_reach import find_reach
from tocsin.history.landing_ledger import Entry, LandedFile, LandingLedger, OffsetSpan
from tocsin.platform.kafka.reader import TopicReader

NOON = datetime(2026, 11, 19, 12, tzinfo=UTC)
DAY, NEXT = date(2026, 11, 18), date(2026, 11, 19)


class Topic:
    """A topic whose partitions begin at these offsets; the first record of each was appended at NOON."""

    def __init__(self, *first: int) -> None:
        self._first = dict(enumerate(first))

    def bounds(self) -> tuple[dict[int, int], dict[int, int]]:
        return self._first, dict.fromkeys(self._first, 1000)

    def appended_at(self, partition: int, start: int, end: int) -> datetime:
        assert (start, end) == (self._first[partition], 1000)
        return NOON


def run(number: int, spans: Mapping[int, tuple[int, int]], rows: Mapping[date, Mapping[int, int]]) -> Entry:
    """A run of landing that read these offsets, and found so many rows of days in partitions."""
    files = [
        LandedFile(path=Path(f"{day}"), day=day, rows=dict(found), late=0, newest_event=NOON, newest_append=NOON,
                   bytes=1, sha256="")
        for day, found in rows.items()
    ]  # fmt: skip
    partitions = {partition: OffsetSpan(from_offset=low, to_offset=high) for partition, (low, high) in spans.items()}
    moment = NOON + timedelta(hours=number)
    fields: dict[str, Any] = {"run": f"r{number}", "began": moment, "ended": moment, "columns": {}}
    return Entry(topic="events.logins", partitions=partitions, files=tuple(files), **fields)


def since(topic: Topic, *entries: Entry) -> datetime | None:
    return find_reach(cast(TopicReader, topic), LOGINS, LandingLedger("logins", entries)).since


FIRST = run(0, {0: (0, 100), 1: (0, 50)}, {DAY: {0: 90, 1: 50}, NEXT: {0: 10}})
SECOND = run(1, {0: (100, 200), 1: (50, 60)}, {NEXT: {0: 100, 1: 10}})
MIDNIGHT = datetime(2026, 11, 19, tzinfo=UTC)
BY_TIME = NOON + LOGINS.max_ahead


def test_a_topic_that_has_its_beginning_holds_all() -> None:
    assert since(Topic(0, 0)) is None
    assert since(Topic(0, 0), FIRST) is None


def test_without_a_ledger_append_times_tell_it() -> None:
    assert since(Topic(5, 0)) == BY_TIME


def test_what_landed_tells_which_days_have_lost_something() -> None:
    later = run(0, {0: (0, 100), 1: (0, 50)}, {DAY: {0: 90, 1: 50}})
    assert since(Topic(100, 50), later, SECOND) == MIDNIGHT, "all of the day before, and nothing of the next"
    assert since(Topic(100, 50), FIRST, SECOND) == BY_TIME, "it had something of the next day"
    assert since(Topic(0, 7), FIRST, SECOND) == MIDNIGHT, "not in the partition that lost records"


@pytest.mark.parametrize("first", [(201, 0), (150, 61)])
def test_what_was_removed_before_it_landed_is_known_by_append_times_alone(first: tuple[int, int]) -> None:
    assert since(Topic(*first), FIRST, SECOND) == BY_TIME


def test_what_came_before_the_first_run_is_not_known() -> None:
    only = run(0, {0: (40, 100), 1: (0, 50)}, {DAY: {0: 60}})
    assert since(Topic(40, 0), only) == BY_TIME


def test_runs_of_a_topic_that_was_recreated_are_gone() -> None:
    anew = run(2, {0: (0, 30), 1: (0, 30)}, {})
    assert since(Topic(10, 0), FIRST, SECOND, anew) == BY_TIME
    old = run(0, {0: (0, 100), 1: (0, 50)}, {DAY: {0: 90}})
    assert since(Topic(10, 0), old, anew) == MIDNIGHT
