"""Which tick is true: everything appended before its time has been processed."""

import json
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tests.rig.played_kafka import played_kafka, written
from tests.rig.samples.checkpoints import P0, P1
from tests.rig.waiting import await_that
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.source import tick_value
from tocsin.declare.settings import Settings
from tocsin.ingest.ticks import Ticker, TickRule, Watched, by_clock, pause_after
from tocsin.platform.kafka.reporter import Reporter
from tocsin.platform.kafka.topic_set import Position

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def test_a_clock_that_stands_still_or_goes_back_makes_no_tick() -> None:
    rule = TickRule()
    for second, tick in ((2, at(2)), (2, None), (1, None), (3, at(3))):
        rule.ask(at(second), {P0: 0})
        assert rule.answer({}) == tick


def test_under_load_the_latest_true_tick_is_taken() -> None:
    rule = TickRule()
    for second, end in ((1, 10), (2, 20), (3, 30)):
        rule.ask(at(second), {P0: end})
    assert rule.answer({P0: 25}) == at(2)
    assert rule.answer({P0: 29}) is None
    assert rule.answer({P0: 30}) == at(3)


def test_a_new_partition_holds_ticks_back_until_it_is_read() -> None:
    rule = TickRule()
    rule.ask(at(1), {P0: 5, P1: 1})
    assert rule.answer({P0: 5}) is None
    rule.ask(at(2), {P0: 5, P1: 0})
    assert rule.answer({P0: 5, P1: 1}) == at(2)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=60))
def test_a_tick_never_lies_and_never_goes_back(steps: list[tuple[bool, int]]) -> None:
    """Records are appended or processed at random; ticks are checked against the append times themselves."""
    rule, appended, processed, last = TickRule(), [0.0] * 0, 0, None
    for second, (arrives, count) in enumerate(steps):
        if arrives:
            appended += [float(second)] * count
        else:
            processed = min(len(appended), processed + count)
        rule.ask(at(second + 0.5), {P0: len(appended)})
        tick = rule.answer({P0: processed})
        if tick is not None:
            assert all(at(moment) >= tick for moment in appended[processed:])
            assert last is None or tick > last
            last = tick


def test_the_clock_is_read_when_a_second_begins() -> None:
    for begins, shown in ((1, 0.3), (1, 0.995), (2, 1.01)):
        assert at(begins) <= at(shown + pause_after(at(shown))) < at(begins + 0.05)
    assert pause_after(None) == 1


def test_the_record_of_a_tick() -> None:
    assert json.loads(tick_value(at(1.25))) == {"tick": True, "event_time": "2026-01-01T00:00:01.250000Z"}


def test_ticks_are_written_into_each_partition_by_the_clock_of_kafka(tmp_path: Path) -> None:
    with played_kafka("events.logins") as kafka:
        settings = Settings(project=tmp_path, state=tmp_path, kafka=kafka)
        reporter, ended = Reporter(settings, "ingest:logins"), threading.Event()
        ticker = Ticker(settings, "logins", Watched(by_clock(reporter, lambda: {P0: 5}), lambda: [0, 1], ended.is_set))
        await_that(lambda: ticker.asks, 30)
        assert ticker.read({P0: 4}) is None
        by_its_clock = datetime(1970, 1, 1, 0, 0, 1, 234_000, tzinfo=UTC)  # at which librdkafka's stands still
        assert ticker.read({P0: 5}) == by_its_clock
        ticker.note_committed({P0: 5})
        await_that(lambda: written(settings, "events.logins", 0) and written(settings, "events.logins", 1), 30)
        ended.set()
        reporter.close()
        assert (
            written(settings, "events.logins", 0)
            == written(settings, "events.logins", 1)
            == [(None, tick_value(by_its_clock))]
        )


def test_ticks_that_are_refused_are_told_once_and_once_more_when_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tocsin.ingest.ticks.pause_after", lambda _: 0.02)
    asked, ended = Counter[str](), threading.Event()

    def partitions() -> list[int]:
        asked["partitions"] += 1
        if asked["partitions"] <= 2:
            raise ConfigError.one("Kafka", "User:ingest has no right to use events.logins; give it the rights")
        return [0]

    def true_after() -> tuple[datetime, Position] | None:
        asked["clock"] += 1
        return (at(asked["clock"]), {P0: 5}) if asked["clock"] % 2 else None  # after each refusal nothing to write

    with played_kafka("events.logins") as kafka, capture_logs() as logs:
        settings = Settings(project=tmp_path, state=tmp_path, kafka=kafka)
        ticker = Ticker(settings, "logins", Watched(true_after, partitions, ended.is_set))
        ticker.note_committed({P0: 5})
        await_that(lambda: written(settings, "events.logins", 0), 30)
        ended.set()
        await_that(lambda: len(logs) == 2, 10, lambda: logs)
    assert [(one["log_level"], one["event"]) for one in logs] == [
        ("warning", "ticks not written, trying on"),
        ("info", "ticks written again"),
    ]
    assert all("give it the rights" in str(one) for one in logs)
