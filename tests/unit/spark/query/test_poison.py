"""Which records a search blames, and what stays of it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PySparkException

from tests.rig.samples.checkpoints import P0
from tocsin.declare.model.errors import TransientError
from tocsin.declare.setting_blocks import StorageSettings
from tocsin.declare.settings import Settings
from tocsin.platform.kafka.topic_set import Place, Position, partition_of
from tocsin.platform.storage.job_folders import JobFolders
from tocsin.platform.storage.s3_store import S3Store
from tocsin.platform.storage.stored_path import ObjectPath
from tocsin.spark.query.poison import Poison, SetAside, SuspectSpan, find_poison

OUTAGES = ["org.apache.kafka.common.errors.TimeoutException", "No space left on device"]
TICK = b'{"tick":true,"event_time":"2026-11-19T12:00:00.000000Z"}'


@dataclass
class Message:
    """One record."""

    place: int
    content: bytes

    def offset(self) -> int:
        return self.place

    def value(self) -> bytes:
        return self.content


class Died(Exception):
    """Stands for the end of the process."""


@dataclass
class Job:
    """A job whose topic has one partition, and whose query refuses records with the value `bad`."""

    folder: Path
    values: list[bytes]
    refuses_all: bool = False
    batches: int = 0
    blamed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.poison = Poison(JobFolders(self.folder))
        self.poison._failure = self._failure  # type: ignore[method-assign]  # else it takes a Spark session

    def bounds(self) -> tuple[Position, Position]:
        return {P0: 0}, {P0: len(self.values)}

    def records(self, place: Place, start: int, end: int) -> Iterator[Message]:
        assert place == P0
        return (Message(offset, self.values[offset]) for offset in range(start, end))

    def _failure(self, run: Any, position: Any, span: SuspectSpan, write: Any) -> str:
        del run, position, write
        self.batches += 1
        known = {one.offset for one in self.poison._state.records}
        read = [self.values[one] for one in range(span.start, span.end) if one not in known]
        computed = [value for value in read if value != TICK]
        if b"fatal" in computed:
            raise Died
        return "refused" if b"bad" in computed or (computed and self.refuses_all) else ""

    def fail(self, offset: int, times: int = 2) -> None:
        for _ in range(times):
            assert self.poison.count_failure("the query failed", {P0: offset})

    def start(self, offset: int) -> None:
        """Start the query there, which searches if that failed too often."""
        reporter = SimpleNamespace(update=lambda **_: None)
        run: Any = SimpleNamespace(topics=self, reporter=reporter, is_stopping=False)

        def keep(record: SetAside) -> None:
            self.blamed.append(record.offset)

        self.poison.search(run, {P0: offset}, lambda _: None, keep)


@given(st.sets(st.integers(10, 99)), st.integers(10, 60), st.integers(61, 100))
def test_exactly_the_records_that_fail_are_found(bad: set[int], start: int, end: int) -> None:
    def failure_of(span: SuspectSpan) -> str:
        return "refused" if bad & set(range(span.start, span.end)) else ""

    found = list(find_poison(SuspectSpan(P0, start, end), failure_of))
    assert found == [(SuspectSpan(P0, one, one + 1), "refused") for one in sorted(bad) if start <= one < end]


def test_what_fails_together_alone_blames_no_record() -> None:
    assert list(find_poison(SuspectSpan(P0, 0, 8), lambda span: "" if span.end - span.start < 8 else "too much")) == []


def test_failures_count_at_one_place_over_restarts_and_not_when_kafka_or_a_disk_is_the_cause(tmp_path: Path) -> None:
    assert Poison(JobFolders(tmp_path)).count_failure("a record is too long", {P0: 7})
    assert not Poison(JobFolders(tmp_path)).count_failure("org.apache.kafka.common.errors.TimeoutException", {P0: 7})
    assert not Poison(JobFolders(tmp_path)).count_failure("No space left on device", {P0: 7})
    assert Poison(JobFolders(tmp_path)).count_failure("a record is too long", {P0: 7})
    assert '"failures": 2' in (tmp_path / "set-aside.json").read_text()
    assert Poison(JobFolders(tmp_path)).count_failure("a record is too long", {P0: 8})
    assert '"failures": 1' in (tmp_path / "set-aside.json").read_text()
    assert Poison(JobFolders(tmp_path)).sentence == ""


def deaths(folder: Path, values: list[bytes], position: int) -> tuple[int, Job]:
    """Start processes until one lives, while further records come; returns how many died before it, and it."""
    for died in range(40):
        values += [b"good"] * 7
        job = Job(folder, values)
        try:
            job.start(position)
        except Died:
            continue
        known = {one.offset for one in job.poison._state.records}
        if all(value != b"fatal" or offset in known for offset, value in enumerate(values[position:], position)):
            return died, job
        job.poison.begin({P0: position})  # and its query reads what it dies of
    raise AssertionError("it dies for ever")


def test_a_record_that_ends_the_process_is_found_over_several_lives_and_no_other_is_blamed(tmp_path: Path) -> None:
    values = [b"good"] * 1_500
    values[700] = b"fatal"
    died, job = deaths(tmp_path, values, 5)
    assert [one.offset for one in job.poison._state.records] == [700]
    assert died == 3 + 3 + 2, "three of the query, one for each level, and two of the record alone"
    assert job.poison.sentence.startswith("1 record was set aside, the last is events.logins/0/700 (the process")
    assert (job.poison._state.died_of, job.poison._state.trying) == ({}, "")


def test_a_record_that_ends_the_process_and_is_alone_is_found(tmp_path: Path) -> None:
    _, job = deaths(tmp_path, [b"fatal"], 0)
    assert [one.offset for one in job.poison._state.records] == [0]


def test_kills_and_orderly_ends_blame_nothing(tmp_path: Path) -> None:
    batches = []
    for _ in range(8):
        job = Job(tmp_path, [b"good"] * 20)
        job.start(7)
        job.poison.begin({P0: 7})
        assert job.blamed == []
        batches.append(job.batches > 0)
    assert batches == [False, False, False, True, False, False, True, False], "each third kill starts a search"
    job.poison.end()
    for position in (7, 8, 9, 10):  # it comes on
        job = Job(tmp_path, [b"good"] * 20)
        job.start(position)
        job.poison.begin({P0: position})
        assert job.batches == 0


def test_an_outage_in_a_search_is_no_death(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path, [b"good", b"bad", b"good"])
    job.fail(1)

    def away(*_: Any) -> str:
        raise TransientError("cannot reach Kafka")

    monkeypatch.setattr(job.poison, "_failure", away)
    with pytest.raises(TransientError):
        job.start(1)
    again = Job(tmp_path, job.values)
    again.start(1)
    assert again.blamed == [1]
    assert again.poison._state.deaths == 0


def test_a_broken_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "set-aside.json").write_text("{")
    with pytest.raises(ValueError, match="Invalid JSON"):
        Poison(JobFolders(tmp_path))


@pytest.mark.parametrize(
    ("values", "blamed"),
    [
        ([b"good", b"good", b"bad", b"good", b"bad", b"good"], [2, 4]),
        ([b"good", b"bad", b"bad", b"good"], [2]),  # the one before the place was not read by this version
    ],
)
def test_the_records_that_end_the_query_are_blamed_and_no_others(
    tmp_path: Path, values: list[bytes], blamed: list[int]
) -> None:
    job = Job(tmp_path, values)
    job.fail(2)
    job.start(2)
    assert job.blamed == blamed


def test_one_failure_starts_no_search_and_a_restart_before_the_first_commit_no_second_one(tmp_path: Path) -> None:
    job = Job(tmp_path, [b"good", b"bad", b"good"])
    job.fail(1, times=1)
    job.start(1)
    assert (job.batches, job.blamed) == (0, [])
    job.fail(1, times=1)
    job.start(1)
    searched = job.batches
    again = Job(tmp_path, job.values)
    again.start(1)
    assert (job.blamed, again.batches) == ([1], 0)
    again.fail(1, times=1)
    with pytest.raises(RuntimeError, match="not because of one record"):
        again.start(1)
    assert searched


@pytest.mark.parametrize("before", [[], [TICK] * 20, [b"good"] * 20], ids=["nothing", "ticks", "records"])
def test_a_sink_that_refuses_all_blames_no_record(tmp_path: Path, before: list[bytes]) -> None:
    job = Job(tmp_path, [*before, *[b"good"] * 300], refuses_all=True)
    job.fail(len(before))
    with pytest.raises(RuntimeError, match="not because of one record"):
        job.start(len(before))
    assert job.blamed == []
    assert job.batches <= 10


def test_records_that_were_set_aside_are_no_witnesses(tmp_path: Path) -> None:
    job = Job(tmp_path, [b"bad", b"good"])
    job.fail(0)
    job.start(0)
    job.values, job.refuses_all = [b"bad", b"good", b"good"], True
    job.fail(1)
    with pytest.raises(RuntimeError, match="not because of one record"):
        job.start(1)
    assert job.blamed == [0]


def test_a_record_alone_on_its_topic_is_blamed_once(tmp_path: Path) -> None:
    job = Job(tmp_path, [TICK, b"bad"])
    job.fail(0)
    job.start(0)
    assert job.blamed == [1]
    job.values, job.refuses_all = [TICK, b"bad", b"good"], True
    job.fail(2)
    with pytest.raises(RuntimeError, match="not because of one record"):
        job.start(2)


def test_what_fails_only_for_a_while_is_not_blamed(tmp_path: Path) -> None:
    job = Job(tmp_path, [b"good"] * 50)
    failure, ill = job._failure, range(10, 40)

    def while_ill(*args: Any) -> str:
        return failure(*args) or ("the broker is ill" if job.batches in ill else "")

    job.poison._failure = while_ill  # type: ignore[method-assign,assignment]
    job.fail(20)
    with pytest.raises((RuntimeError, TransientError)):
        job.start(20)
    assert job.blamed == []


def test_a_version_beside_another_forgets_nothing_that_the_other_has_set_aside(tmp_path: Path) -> None:
    job, beside = (Job(tmp_path, [b"good", b"bad", b"good"]) for _ in range(2))
    job.fail(1)
    job.start(1)
    beside.fail(0, times=1)
    assert (Poison(JobFolders(tmp_path)).count, beside.poison.count) == (1, 1)


def test_what_was_set_aside_of_a_topic_that_was_recreated_hides_nothing_of_the_topic_of_now(tmp_path: Path) -> None:
    job = Job(tmp_path, [b"good", b"bad", b"good"])
    job.poison.fit({partition_of(P0)[0]: "first"})
    job.fail(1)
    job.start(1)
    assert job.blamed == [1]
    Poison(JobFolders(tmp_path)).fit({partition_of(P0)[0]: "first"})
    assert Poison(JobFolders(tmp_path)).count == 1
    Poison(JobFolders(tmp_path)).fit({partition_of(P0)[0]: "second"})
    assert Poison(JobFolders(tmp_path)).count == 0


@pytest.mark.parametrize("text", OUTAGES)
def test_a_record_that_names_an_error_of_broker_or_disk_is_found_all_the_same(tmp_path: Path, text: str) -> None:
    job = Job(tmp_path, [b"good", b"bad", b"good"])
    for _ in range(9):
        assert not job.poison.count_failure(f"unknown zone '{text}'", {P0: 1})
    job.start(1)
    assert (job.batches, job.blamed) == (0, [])
    assert not job.poison.count_failure(f"unknown zone '{text}'", {P0: 1})
    job.start(1)
    assert job.blamed == [1]


def test_a_broker_that_was_often_lost_while_nothing_came_in_ends_no_job(tmp_path: Path) -> None:
    job = Job(tmp_path, [b"good"])
    for _ in range(10):
        assert not job.poison.count_failure(OUTAGES[0], {P0: 1})
    job.start(1)
    assert job.blamed == []
    searched = job.batches
    job.start(1)
    assert job.batches == searched


@pytest.mark.parametrize("text", OUTAGES)
def test_a_search_asks_broker_and_disk_instead_of_the_text(tmp_path: Path, text: str) -> None:
    settings = Settings(project=tmp_path, state=tmp_path)
    run: Any = SimpleNamespace(spark=MagicMock(), settings=settings, job="a", topics=MagicMock())

    def write(_: Any) -> None:
        raise PySparkException(f"unknown zone '{text}'")

    poison = Poison(JobFolders(tmp_path))
    assert text in poison._failure(run, {P0: 0}, SuspectSpan(P0, 0, 1), write)
    run.topics.bounds.side_effect = TransientError("cannot reach Kafka")
    with pytest.raises(TransientError):
        poison._failure(run, {P0: 0}, SuspectSpan(P0, 0, 1), write)


@pytest.mark.parametrize("in_store", [False, True])
def test_an_error_of_an_object_store_is_an_outage_where_there_is_one(tmp_path: Path, *, in_store: bool) -> None:
    store = S3Store(MagicMock(**{"open_input_file.side_effect": FileNotFoundError}), StorageSettings())
    poison = Poison(JobFolders(tmp_path, ObjectPath(store, "bucket/prefix") if in_store else None))
    assert poison.count_failure("at software.amazon.awssdk.core.exception", {P0: 7}) is not in_store
