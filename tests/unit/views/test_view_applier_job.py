"""The job, on a Kafka that librdkafka plays."""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.rig.played_kafka import played_kafka, running_job
from tests.rig.samples.words import declare_words
from tests.rig.waiting import await_that
from tests.unit.views.view_scene import NOON, SECOND, view_row
from tocsin.declare.model.job_report import JobReport, JobState
from tocsin.declare.model.sizes import EVENT_BYTES
from tocsin.declare.settings import Settings
from tocsin.platform.kafka.record_writer import PROMPT, RecordWriter
from tocsin.platform.kafka.reporter import Reporter
from tocsin.views.row_query import ViewReader
from tocsin.views.row_store import store_path
from tocsin.views.stored_row import ViewRow
from tocsin.views.view_applier_job import ViewApplierJob


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    for module in ("views.view_applier_job", "platform.kafka.topic_follower"):
        monkeypatch.setattr(f"tocsin.{module}._LOOK_SECONDS", 0.05)
    declare_words(tmp_path, keep="60 seconds")
    with played_kafka("views.word_counts", "job-metrics") as kafka:
        yield Settings(project=tmp_path, state=tmp_path / "state", kafka=kafka)


def running(settings: Settings) -> AbstractContextManager[Reporter]:
    return running_job(settings, "view:word_counts", lambda *outside: ViewApplierJob(settings, "word_counts", *outside))


def write(settings: Settings, *rows: ViewRow) -> None:
    with RecordWriter(settings, EVENT_BYTES, config=PROMPT) as writer:
        for row in rows:
            writer.write("views.word_counts", row.model_dump_json(), row.identity)


def report(settings: Settings, **fields: object) -> None:
    known = {"job": "compute:word_counts", "instance": settings.installation_id, "state": JobState.RUNNING}
    sent = JobReport.model_validate({**known, "at": datetime.now(UTC), **fields})
    with RecordWriter(settings, EVENT_BYTES, config=PROMPT) as writer:
        writer.write("job-metrics", sent.model_dump_json(), sent.job, partition=0)


def seen(settings: Settings) -> dict[str, tuple[int, bool]]:
    try:
        reader = ViewReader(store_path(settings, "word_counts"))
    except FileNotFoundError:
        return {}
    with contextlib.closing(reader):
        rows = reader.page().rows if reader.freshness() else []
        return {row.name: (row.values["count"], row.is_final) for row in rows}


def test_rows_are_applied_finished_rebuilt_and_removed(settings: Settings) -> None:
    with running(settings) as reporter:
        write(settings, view_row("a", 1), view_row("gone", 1), view_row("a", 2), view_row("new", 1, window=10))
        await_that(lambda: seen(settings) == {"a": (2, False), "gone": (1, False), "new": (1, False)}, 20)
        report(settings, build="a", watermark=NOON + 10 * SECOND)
        await_that(lambda: seen(settings) == {"a": (2, True), "gone": (1, True), "new": (1, False)}, 20)
        report(settings, build="b")
        write(settings, view_row("a", 3, build="b"), view_row("new", 3, window=10, build="b"))
        await_that(lambda: reporter.report().rows_in >= 6, 20)
        assert seen(settings)["a"] == (2, True)
        await_that(lambda: "filling" in reporter.report().reason, 20)
    with running(settings):
        report(settings, build="b", is_build_complete=True, watermark=NOON + 10 * SECOND)
        await_that(lambda: seen(settings) == {"a": (3, True), "new": (3, False)}, 20)
        report(settings, build="b", is_build_complete=True, watermark=NOON + 75 * SECOND)
        await_that(lambda: seen(settings) == {"new": (3, True)}, 20)
    store_path(settings, "word_counts").unlink()
    with running(settings):  # the topic alone tells the same
        await_that(lambda: seen(settings) == {"new": (3, True)}, 20)


def test_rows_are_as_stale_as_the_last_report_that_told_the_lag(settings: Settings) -> None:
    def fresh() -> tuple[int | None, int] | None:
        with contextlib.closing(ViewReader(store_path(settings, "word_counts"))) as reader:
            found = reader.freshness()
        return None if found is None else (found.lag_records, round(found.lag_seconds / 1000))

    def await_read(**fields: object) -> None:
        report(settings, **fields)
        await_that(lambda: reporter.report().watermark == fields["watermark"], 20)

    with running(settings) as reporter:
        write(settings, view_row("a", 1))
        await_read(build="a", watermark=NOON, lag_records=3, lag_seconds=2)
        await_that(lambda: fresh() == (3, 0), 20)  # it may report before it leads
        hour_ago = datetime.now(UTC) - timedelta(hours=1)
        await_read(build="a", watermark=NOON + SECOND, lag_records=3, at=hour_ago)
        assert fresh() == (None, 4), "a job that hangs says nothing more"
        for number, state in enumerate((JobState.STARTING, JobState.WAITING), 2):
            await_read(build="a", watermark=NOON + number * SECOND, state=state)
            assert fresh() == (None, 4), "one that starts, or waits, has measured nothing"
        await_read(build="a", watermark=NOON + 4 * SECOND)
        assert fresh() == (0, 0)


def test_a_sink_without_an_address_leaves_the_read_model(settings: Settings) -> None:
    path = settings.project / "views" / "word_counts.py"
    path.write_text(path.read_text().replace("owner=", 'sink="redis", owner='))
    with running(settings) as reporter:
        write(settings, view_row("a", 1))
        await_that(lambda: seen(settings) == {"a": (1, False)}, 20)
        await_that(lambda: "redis has no address" in reporter.report().reason, 20)
        assert reporter.report().state is JobState.RUNNING


def test_a_topic_that_is_not_there_is_waited_for(settings: Settings) -> None:
    away = settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"topic_prefix": "none."})})
    with running(away) as reporter:
        await_that(lambda: reporter.report().state is JobState.WAITING, 20)
        assert reporter.report().reason
