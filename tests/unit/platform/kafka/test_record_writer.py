"""What is written to a Kafka that librdkafka plays, and what becomes of it when it does not take it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.played_kafka import played_kafka, written
from tocsin.declare.model.errors import TransientError
from tocsin.declare.setting_blocks import KafkaSettings
from tocsin.declare.settings import Settings
from tocsin.platform.kafka.record_writer import RecordWriter

LONGEST = 1_000


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    with played_kafka() as kafka:
        yield Settings(project=tmp_path, state=tmp_path, kafka=kafka)


@pytest.fixture
def without_kafka(tmp_path: Path) -> Settings:
    return Settings(project=tmp_path, state=tmp_path, kafka=KafkaSettings(bootstrap_servers="127.0.0.1:1"))


def test_records_are_there_when_the_writer_is_closed_and_one_that_is_too_long_is_refused(settings: Settings) -> None:
    told: list[int | None] = []
    with RecordWriter(settings, LONGEST) as writer:
        assert writer.write("t", b"a", "k", partition=0)
        assert not writer.write("t", b"x" * (LONGEST + 1), partition=0)
        assert writer.write("t", "b", partition=0, on_delivery=lambda error, message: told.append(message.offset()))
        assert writer.write("t", b"c", partition=0)
    assert written(settings, "t") == [(b"k", b"a"), (None, b"b"), (None, b"c")]
    assert told == [1], "who hears of a record itself counts it itself"
    assert (writer.sent, writer.delivered, writer.refused, writer.failed) == (4, 2, 1, 0)
    assert "too large" in (writer.error or "")


def test_records_that_were_lost_are_told_once(without_kafka: Settings) -> None:
    writer = RecordWriter(without_kafka, LONGEST, timeout_seconds=0.1)
    writer.write("t", b"a")
    with pytest.raises(TransientError, match="1 of 1 records did not reach Kafka at 127"):
        writer.flush(10)
    writer.flush(10)
    assert (writer.sent, writer.delivered, writer.failed) == (1, 0, 1)


def test_a_kafka_that_takes_nothing_is_not_waited_for_longer_than_was_said(without_kafka: Settings) -> None:
    full = {"queue.buffering.max.messages": 1, "message.timeout.ms": 60_000}
    writer = RecordWriter(without_kafka, LONGEST, timeout_seconds=0.1, config=full)
    writer.write("t", b"a")
    with pytest.raises(TransientError, match="Kafka accepts no records for t"):
        writer.write("t", b"b")


def test_an_error_of_the_writers_user_is_not_hidden_by_lost_records(without_kafka: Settings) -> None:
    with pytest.raises(ZeroDivisionError), RecordWriter(without_kafka, LONGEST, timeout_seconds=0.1) as writer:
        writer.write("t", b"a")
        raise ZeroDivisionError
