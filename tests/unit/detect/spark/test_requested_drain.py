"""When a job that was asked to drain says that it has."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tocsin.detect.drain_request import RequestedDrain, ask_drain, end_drain, read_drains
from tocsin.kafka.reader import Offsets
from tocsin.model.errors import TransientError

JOB = "detector:a"


class Ends:
    """A topic that ends where a test says."""

    def __init__(self, ends: Offsets | None) -> None:
        self.ends = ends

    def __call__(self) -> tuple[Offsets, Offsets]:
        if self.ends is None:
            raise TransientError("Kafka is away")
        return {}, dict(self.ends)


def keeps_up() -> timedelta:
    return timedelta(0)


def is_drained(state: Path) -> bool:
    return JOB in read_drains(state).drained


def test_it_is_done_once_all_partitions_are_read_up_to_where_they_ended_when_it_was_asked(tmp_path: Path) -> None:
    drain, ends = RequestedDrain(tmp_path, JOB), Ends({0: 10, 1: 5})
    ask_drain(tmp_path, JOB)
    drain.look(ends, keeps_up, {0: 3})
    ends.ends = {0: 99, 1: 99}
    drain.look(ends, keeps_up, {0: 10, 1: 4})
    assert not is_drained(tmp_path), "one partition is behind"
    drain.look(ends, keeps_up, {0: 10, 1: 5})
    assert is_drained(tmp_path), "what came later does not count"


def test_nobody_who_was_not_asked_drains(tmp_path: Path) -> None:
    drain = RequestedDrain(tmp_path, JOB)
    drain.look(lambda: pytest.fail("Kafka is asked for nothing"), keeps_up, {0: 1})
    assert not is_drained(tmp_path)


def test_its_end_is_told_only_once_the_ingest_has_written_what_it_had_to_read(tmp_path: Path) -> None:
    drain, ends = RequestedDrain(tmp_path, JOB), Ends({0: 5})
    ask_drain(tmp_path, JOB)
    drain.look(ends, lambda: timedelta(seconds=30), {0: 5})
    assert not is_drained(tmp_path)
    ends.ends = {0: 9}
    drain.look(ends, keeps_up, {0: 5})
    assert not is_drained(tmp_path)
    drain.look(ends, lambda: timedelta(seconds=30), {0: 9})
    assert is_drained(tmp_path), "what it reads later does not count"


def test_an_empty_topic_is_read(tmp_path: Path) -> None:
    ask_drain(tmp_path, JOB)
    RequestedDrain(tmp_path, JOB).look(Ends({0: 0, 1: 0}), keeps_up, {})
    assert is_drained(tmp_path)


def test_while_kafka_is_away_nothing_is_finished(tmp_path: Path) -> None:
    drain, ends = RequestedDrain(tmp_path, JOB), Ends(None)
    ask_drain(tmp_path, JOB)
    drain.look(ends, keeps_up, {0: 7})
    assert not is_drained(tmp_path)
    ends.ends = {0: 7}
    drain.look(ends, keeps_up, {0: 7})
    assert is_drained(tmp_path)


def test_one_that_is_ended_and_asked_again_reads_up_to_the_new_end(tmp_path: Path) -> None:
    drain, ends = RequestedDrain(tmp_path, JOB), Ends({0: 5})
    ask_drain(tmp_path, JOB)
    drain.look(ends, keeps_up, {0: 1})
    end_drain(tmp_path, JOB)
    ends.ends = {0: 9}
    ask_drain(tmp_path, JOB)
    drain.look(ends, keeps_up, {0: 5})
    assert not is_drained(tmp_path)
    drain.look(ends, keeps_up, {0: 9})
    assert is_drained(tmp_path)


def test_a_process_that_starts_in_the_middle_takes_it_up(tmp_path: Path) -> None:
    ask_drain(tmp_path, JOB)
    RequestedDrain(tmp_path, JOB).look(Ends({0: 5}), keeps_up, {0: 1})
    RequestedDrain(tmp_path, JOB).look(Ends({0: 8}), keeps_up, {0: 5})
    assert not is_drained(tmp_path)
    RequestedDrain(tmp_path, JOB).look(Ends({0: 8}), keeps_up, {0: 8})
    assert is_drained(tmp_path)
