"""The job, on a Kafka that librdkafka plays: what it publishes, and that no record ends it."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.rig.played_kafka import played_kafka, running_job
from tests.rig.samples.project import source_file
from tests.rig.samples.segments import segments
from tests.rig.waiting import await_that
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.job_report import JobReport, JobState
from tocsin.declare.model.sizes import EVENT_BYTES
from tocsin.declare.setting_blocks import StorageSettings
from tocsin.declare.settings import Settings
from tocsin.platform.kafka.record_writer import PROMPT, RecordWriter
from tocsin.platform.kafka.reporter import Reporter
from tocsin.spark.tables.file_table_job import make_job
from tocsin.spark.tables.published_table import TableFolder, read_rows_of

FILE = """title = "Segments"
owner = "crm@example.com"
{made_of}
key = "customer_id"

[schema]
customer_id = "string"
segment = "string"

[optional]
usual = "double"
"""
VIEW = '''"""Segments by customer."""
from tocsin import view
@view(source="lines", key="customer_id", window=None, owner="crm@example.com", stage="live")
def view(events):
    return events
'''
SOURCE = source_file("customer_id")


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    declare(tmp_path, 'topic = "segments"')
    with played_kafka("segments", "views.by_customer", "job-metrics") as kafka:
        yield Settings(project=tmp_path, state=tmp_path / "state", kafka=kafka)


def declare(project: Path, made_of: str) -> None:
    for path, text in (
        ("tables/segments.toml", FILE.format(made_of=made_of)),
        ("views/by_customer.py", VIEW),
        ("sources/lines.toml", SOURCE),
    ):
        (project / path).parent.mkdir(exist_ok=True)
        (project / path).write_text(text)


def running(settings: Settings) -> AbstractContextManager[Reporter]:
    return running_job(settings, "table:segments", lambda *outside: make_job(settings, "segments", *outside))


def write(settings: Settings, topic: str, *records: tuple[str | None, Any]) -> None:
    with RecordWriter(settings, EVENT_BYTES, config=PROMPT) as writer:
        for key, value in records:
            sent = value if isinstance(value, bytes | None) else json.dumps(value).encode()
            writer.write(topic, sent, key, partition=0)


def row(customer: str, segment: str) -> tuple[str, dict[str, str]]:
    return customer, {"customer_id": customer, "segment": segment}


def held(settings: Settings) -> dict[str, str]:
    """The rows that hold and have no end, in the snapshot in force."""
    folder = TableFolder(settings, read_catalog(settings.project).table("segments"))
    published = folder.current()
    if published is None:
        return {}
    rows = pq.read_table(folder.place(published)).to_pylist()
    return {one["customer_id"]: one["segment"] for one in rows if one["valid_to"] is None}


def test_rows_are_published_and_no_record_ends_the_job(settings: Settings) -> None:
    strange: list[tuple[str | None, Any]] = [
        ("x", b"\xff\xfe"), ("x", b"[" * 60_000), (None, {"customer_id": 5}), ("x", b""), (None, None), ("", None),
        ("x", {"customer_id": "\ud800", "segment": "s"}), ("x" * 100_000, {"customer_id": "long", "segment": "s"}),
        ("x", {"customer_id": "y" * 70_000, "segment": "s"}),
    ]  # fmt: skip
    write(settings, "segments", row("a", "student"), *strange, row("b", "family"))
    with running(settings) as reporter:
        await_that(lambda: held(settings) == {"a": "student", "b": "family", "long": "s"}, 20)
        write(settings, "segments", row("a", "senior"), ("b", None))
        await_that(lambda: held(settings) == {"a": "senior", "long": "s"}, 20)
        await_that(lambda: (reporter.report().counts or {}).get("unusable") == 6, 10)
        assert reporter.report().state is JobState.RUNNING
        assert "left out record 0/" in reporter.report().reason
    with running(settings) as reporter:  # it goes on where it was
        write(settings, "segments", row("c", "new"))
        await_that(lambda: held(settings) == {"a": "senior", "long": "s", "c": "new"}, 20)
        await_that(lambda: reporter.report().rows_in == 1, 10)
    declare(settings.project, 'topic = "segments"\nmax_rows = 2')
    with running(settings) as reporter:
        write(settings, "segments", row("c", "newer"))
        await_that(lambda: "has max_rows = 2 versions" in reporter.report().reason, 20)
        assert held(settings)["c"] == "new"


def test_a_snapshot_that_is_still_right_is_confirmed(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.spark.tables.table_job._CONFIRM", datetime.min - datetime.min)
    folder = TableFolder(settings, read_catalog(settings.project).table("segments"))
    write(settings, "segments", row("a", "student"))
    with running(settings):
        await_that(lambda: folder.current() is not None, 20)
        first = folder.current()
        assert first is not None
        await_that(lambda: (one := folder.current()) is not None and one.complete_at > first.complete_at, 20)
        assert (folder.current() or first).number == first.number


@pytest.mark.long
def test_another_machine_takes_over_with_the_same_rows_since_the_same_time(settings: Settings, tmp_path: Path) -> None:
    """And the first one again, though the file that it has kept is old by then."""
    declare(tmp_path, 'topic = "segments"\nsettle = "12 seconds"')  # told in time within a quarter of it
    storage = StorageSettings(checkpoints=f"file:{tmp_path}/shared")
    first, second = (settings.model_copy(update={"state": tmp_path / one, "storage": storage}) for one in "ab")
    folder, known = TableFolder(first, read_catalog(tmp_path).table("segments")), dict[str, datetime]()

    def since() -> dict[str, datetime]:
        if (published := folder.current()) is None:
            return {}
        return {one["segment"]: one["valid_from"] for one in read_rows_of(folder.place(published)).to_pylist()}

    for machine, segment in ((first, "student"), (second, "family"), (first, "senior")):
        with running(machine):
            write(settings, "segments", row("a", segment))
            await_that(lambda: segment in since(), 20)  # noqa: B023 - called before the next round
        assert since().items() >= known.items()
        known = since()
        time.sleep(4)  # what is told now for the first time would begin later
    assert list(known) == ["student", "family", "senior"]


def test_a_table_of_a_view_follows_the_build_that_readers_see(settings: Settings) -> None:
    declare(settings.project, 'view = "by_customer"')

    def put(build: str, customer: str, segment: str) -> tuple[str, Any]:
        return customer, {"key": {"customer_id": customer}, "values": {"segment": segment}, "build": build}

    def report(build: str, *, complete: bool) -> None:
        told = JobReport(
            job="compute:by_customer", instance=settings.installation_id, state=JobState.RUNNING, at=datetime.now(UTC),
            build=build, is_build_complete=complete,
        )  # fmt: skip
        write(settings, "job-metrics", (told.job, told.model_dump_json().encode()))

    report("one", complete=True)
    write(settings, "views.by_customer", put("one", "a", "x"), put("one", "b", "x"))
    with running(settings):
        await_that(lambda: held(settings) == {"a": "x", "b": "x"}, 20)
        write(settings, "views.by_customer", put("two", "a", "y"), put("one", "c", "x"))
        await_that(lambda: held(settings) == {"a": "x", "b": "x", "c": "x"}, 20)
        report("two", complete=True)
        await_that(lambda: held(settings) == {"a": "y"}, 20)


def test_snapshots_are_kept_while_somebody_may_read_them(settings: Settings) -> None:
    folder = TableFolder(settings, segments())
    first = folder.publish([], datetime.now(UTC))
    second = folder.publish([], datetime.now(UTC))
    assert (second.number, folder.current()) == (first.number + 1, second)
    assert folder.place(first).is_dir()
    os.utime(str(folder.place(first)), (0, 0))
    third = folder.publish([], datetime.now(UTC))
    assert not folder.place(first).exists()
    assert folder.place(second).is_dir()
    assert TableFolder(settings, segments(columns={"customer_id": "string"})).current() is None
    assert third.rows == 0


def test_a_file_is_read_when_it_changes_and_never_half(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.spark.tables.file_table_job._LOOK_SECONDS", 0.05)
    declare(settings.project, 'file = "segments.csv"')
    file = settings.project / "segments.csv"
    folder = TableFolder(settings, read_catalog(settings.project).table("segments"))

    def refused(why: str) -> bool:
        report = reporter.report()
        return why in report.reason and held(settings) == {"a": "senior", "c": "x"}

    with running(settings) as reporter:
        await_that(lambda: "segments.csv cannot be read" in reporter.report().reason, 10)
        file.write_text("customer_id,usual,segment,more\na,1.5,student,\nb,,family,x\n")
        await_that(lambda: held(settings) == {"a": "student", "b": "family"}, 10)
        first = folder.current()
        assert first is not None
        rows = pq.read_table(folder.place(first)).to_pylist()
        assert {one["valid_from"].year for one in rows} == {1970}, "no job has joined other rows before"
        file.write_text("customer_id,segment\na,senior\nc,x\n")
        await_that(lambda: held(settings) == {"a": "senior", "c": "x"}, 10)
        latest = folder.current()
        assert latest is not None
        changed = {one["valid_from"].year for one in pq.read_table(folder.place(latest)).to_pylist()}
        assert changed == {1970, datetime.now(UTC).year}
        for text, why in (
            ("", "needs the columns customer_id, segment, each once"),
            ("customer_id,segment\n", "has no rows"),
            ("customer_id,segments\na,x\n", "column segment, each once; its first line names customer_id, segments"),
            ("customer_id,segment,segment\na,x,y\n", "needs the column segment, each once"),
            ("customer_id,segment, Usual\na,x,5\n", "needs the column usual, each once"),
            ("customer_id,segment\na,x\nb,y\na,z\n", 'line 4 has the key ["a"] of line 2'),
            ("customer_id,segment,usual\na,x,1_000\n", "line 2 'usual' is no double: '1_000'"),
            ("customer_id,segment\n,x\n", "line 2 has no 'customer_id'"),
            ("customer_id,segment\na,x,y\n", "line 2 has more fields than the header"),
            ("customer_id,segment,usual\na,x\n", "line 2 has fewer fields than the header"),
            ("customer_id,segment\na,\x00" + "x" * 70_000, "longer than"),
        ):
            file.write_text(text)
            await_that(lambda why=why: refused(why), 10)  # type: ignore[misc]
    with running(settings) as reporter:  # it has read the good one before
        await_that(lambda: refused("longer than"), 10)
        file.write_text("customer_id,segment\nd,y\n")
        await_that(lambda: held(settings) == {"d": "y"}, 10)
        good = file.rename(file.with_suffix(".good"))
        file.write_text("customer_id\n")
        await_that(lambda: "stay in force" in reporter.report().reason, 10)
        good.rename(file)
        await_that(lambda: reporter.report().reason == "", 10)
