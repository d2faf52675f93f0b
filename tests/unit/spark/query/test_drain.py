"""When a detector drains, and what a record says about its age."""

import contextlib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import Message

from tests.rig.samples.checkpoints import P0, P1
from tocsin.declare.feeding import Feeder
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.source import ingested_at, tick_value
from tocsin.declare.setting_blocks import StorageSettings
from tocsin.declare.settings import Settings
from tocsin.platform.kafka.topic_set import Place, Position, TopicSet
from tocsin.spark.query import drain
from tocsin.spark.query.drain import (
    FEW_RECORDS,
    SLACK,
    Backlog,
    Unread,
    WatermarkDelay,
    decide,
    is_too_narrow,
    unread_upstream,
)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATENESS = timedelta(seconds=10)
NONE = timedelta(0)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def test_nothing_unread_is_no_backlog() -> None:
    decision = decide(LATENESS, Backlog(), NONE, NOW)
    assert not decision.is_draining
    assert decision.delay == LATENESS + SLACK


@pytest.mark.parametrize(
    ("records", "age", "draining"),
    [
        (5, 10, False),
        (5, 10.001, True),
        (FEW_RECORDS, 1, False),
        (FEW_RECORDS + 1, 1, True),  # one batch might not read them
    ],
)
def test_a_backlog_older_than_the_lateness_or_a_long_one_is_drained(records: int, age: float, draining: bool) -> None:
    assert decide(LATENESS, Backlog(records, ago(age)), NONE, NOW).is_draining is draining


def test_the_delay_covers_the_age_of_the_oldest_unread_record() -> None:
    decision = decide(LATENESS, Backlog(22_000, ago(540)), NONE, NOW)
    assert decision.delay >= LATENESS + timedelta(seconds=540)
    assert decision.reason == "22000 unread records are up to 540 s old, lateness is 10 s"


@pytest.mark.parametrize(("records", "short"), [(500, True), (501, False)])
def test_an_old_backlog_is_short_when_one_real_time_batch_reads_it(records: int, short: bool) -> None:
    decision = decide(LATENESS, Backlog(records, ago(60)), NONE, NOW, few=500)
    assert decision.is_draining
    assert decision.is_short is short
    assert decision.delay >= LATENESS + timedelta(seconds=60)


def test_no_backlog_is_short_while_the_ingest_drains() -> None:
    assert not decide(LATENESS, Backlog(5, ago(1)), timedelta(seconds=6), NOW).is_short


def test_the_backlog_of_the_ingest_counts_like_an_own_one() -> None:
    decision = decide(LATENESS, Backlog(5, ago(1)), timedelta(seconds=300), NOW)
    assert decision.is_draining
    assert decision.delay >= LATENESS + timedelta(seconds=300)
    assert decision.reason == "its input is up to 300 s behind, lateness is 10 s"


def test_an_ingest_that_drains_is_believed_however_young_its_backlog_is() -> None:
    """It tells early, because what it has not read grows older until it is read."""
    decision = decide(LATENESS, Backlog(), timedelta(seconds=6), NOW)
    assert decision.is_draining
    assert decision.delay >= 2 * LATENESS + timedelta(seconds=6)


def test_a_drain_that_lasts_too_long_is_widened() -> None:
    decision = decide(LATENESS, Backlog(1_000_000, ago(100)), NONE, NOW)
    assert not is_too_narrow(decision, LATENESS, Backlog(500_000, ago(100)), NOW)
    assert is_too_narrow(decision, LATENESS, Backlog(500_000, ago(100)), NOW + timedelta(seconds=121))
    narrow = decide(LATENESS, Backlog(), NONE, NOW)
    assert not is_too_narrow(narrow, LATENESS, Backlog(1, ago(500)), NOW), "not a drain"


def test_the_age_of_a_record_is_read_without_parsing_it() -> None:
    times = b'"event_time":"2026-01-01T11:00:00.000000Z","ingested_at":"2026-01-01T11:59:00.123456Z"'
    event = b'{"raw_topic":"raw.logins",' + times + b"}"
    assert ingested_at(event) == "2026-01-01T11:59:00.123456Z"
    assert ingested_at(b'{"tick":true,"event_time":"2026-01-01T11:58:00.000000Z"}') == "2026-01-01T11:58:00.000000Z"
    assert ingested_at(b"nothing of ours") is None


class Records(TopicSet):
    """A topic of which partition 0 holds `values`."""

    def __init__(self, values: list[bytes]) -> None:
        self.values, self.seen = values, 0
        self.breaks_at: int | None = None

    def bounds(self, partitions: Iterable[Place] | None = None) -> tuple[Position, Position]:
        return {P0: 0, P1: 0}, {P0: len(self.values), P1: 0}

    def records(self, place: Place, start: int, end: int) -> Iterator[Message]:
        assert place == P0
        for offset in range(start, min(end, len(self.values))):
            if offset == self.breaks_at:
                raise TransientError("Kafka is away")
            self.seen += 1
            yield Message(value=self.values[offset], offset=offset)


def came(seconds_ago: float) -> bytes:
    return b'{"ingested_at":"%s"}' % ago(seconds_ago).strftime("%Y-%m-%dT%H:%M:%S.%fZ").encode()


def tick(seconds_ago: float) -> bytes:
    return tick_value(ago(seconds_ago))


def test_nothing_older_follows_a_tick() -> None:
    topic = Records([came(60), tick(50), came(40), came(30)])
    assert Unread(topic).look({P0: 0}) == Backlog(4, ago(60))
    assert topic.seen == 2
    assert Unread(topic).look({P0: 1}) == Backlog(3, ago(50))


def test_no_record_is_looked_at_twice() -> None:
    topic = Records([came(5000 - number) for number in range(3000)])
    unread = Unread(topic)
    assert unread.look({P0: 0}) == Backlog(3000, ago(5000))
    assert unread.look({P0: 1500}).oldest == ago(4000), "the chunk that is read in part counts as a whole"
    assert unread.look({P0: 2000}) == Backlog(1000, ago(3000))
    topic.values.append(came(9000))
    assert unread.look({P0: 2999}) == Backlog(2, ago(9000))
    assert unread.look({P0: 3001}) == Backlog(0, None)
    assert topic.seen == 3001


def test_behind_a_tick_that_was_read_the_looking_goes_on() -> None:
    topic = Records([tick(50), came(40), tick(30), came(20)])
    unread = Unread(topic)
    assert unread.look({P0: 0}).oldest == ago(50)
    assert unread.look({P0: 1}).oldest == ago(40)
    assert topic.seen == 3


def test_what_was_seen_before_kafka_went_away_is_not_forgotten() -> None:
    topic = Records([came(60), came(5)])
    unread = Unread(topic)
    topic.breaks_at = 1
    with pytest.raises(TransientError):
        unread.look({P0: 0})
    topic.breaks_at = None
    assert unread.look({P0: 0}) == Backlog(2, ago(60))
    assert topic.seen == 2


class Drain:
    """A job that has chosen its delay when its oldest unread record was `age` seconds old."""

    def __init__(self, age: float, few: int = 5) -> None:
        self.ingest_lag, self.topic = NONE, Records([self.came(age)])
        self.delay = WatermarkDelay(LATENESS, lambda: self.ingest_lag, few)
        self.delay.choose(self.topic, {P0: 0})

    def came(self, seconds_ago: float) -> bytes:
        return came((NOW - datetime.now(UTC)).total_seconds() + seconds_ago)

    def reason(self, read: int, lag_seconds: float = 0.0) -> str | None:
        return self.delay.restart_reason({P0: read}, lag_seconds)


def test_a_job_that_keeps_up_starts_again_when_it_or_the_ingest_falls_behind() -> None:
    job = Drain(age=1)
    assert job.reason(0, lag_seconds=10) is None
    assert job.reason(0, lag_seconds=11) == "behind by 11 s"
    job.ingest_lag = timedelta(seconds=6)
    assert job.reason(0) == "the ingest drains a backlog of 6 s"


def test_a_drain_ends_when_all_is_read_and_a_short_one_not_in_its_first_batch() -> None:
    job = Drain(age=60)
    assert job.delay.decision.is_draining
    job.topic.values.append(job.came(9000))
    assert job.reason(0) is None, "no watermark moves before the first batch ends"
    assert job.reason(2) == "backlog drained"


def test_a_drain_starts_again_when_its_delay_has_become_too_narrow() -> None:
    job = Drain(age=60, few=0)
    assert job.reason(0) is None
    job.ingest_lag = timedelta(hours=1)
    assert job.reason(0) == "the ingest's backlog is older than the watermark delay"
    job.ingest_lag = NONE
    job.topic.values.append(job.came(9000))
    assert job.reason(0) == "the backlog has grown older than the watermark delay"


def test_what_was_looked_at_counts_no_longer_for_a_job_that_begins_elsewhere() -> None:
    job = Drain(age=60)
    job.delay.choose(job.topic, {P0: 1})
    job.delay.forget_backlog()
    job.delay.choose(job.topic, {P0: 0})
    assert job.delay.decision.is_draining


def test_what_a_feeder_has_read_stands_where_checkpoints_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = StorageSettings(checkpoints=f"file:{tmp_path}/shared")
    settings = Settings(project=tmp_path, state=tmp_path / "state", instance="one", storage=storage)
    asked: list[object] = []
    monkeypatch.setattr(drain, "TopicSet", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(drain, "read_committed", asked.append)
    monkeypatch.setattr(drain, "oldest", lambda *_: None)
    assert unread_upstream(settings, [Feeder("ingest:logins", ("logins",), is_ingest=True)]) is None
    assert asked == [tmp_path / "shared" / "ingest__logins" / "query"]
