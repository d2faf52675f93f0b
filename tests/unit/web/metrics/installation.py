"""An installation with something of everything that the exporter reads."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from tests.rig.played_kafka import played_kafka
from tests.rig.samples.project import copy_project
from tests.rig.samples.sealed_days import landed, sealed
from tests.rig.samples.words import declare_words
from tests.unit.views.view_scene import NOON, record, view_row, view_spec
from tocsin.declare.model.job_report import JobReport, JobState
from tocsin.declare.model.sizes import EVENT_BYTES
from tocsin.declare.settings import load_settings
from tocsin.history.backfill.parity.comparison import DifferenceReason
from tocsin.history.backfill.parity.parity_report import ParityReport, keep
from tocsin.platform.kafka.record_writer import RecordWriter
from tocsin.views.applier import Applier
from tocsin.views.row_store import RowStore, store_path

DETECTOR, INGEST = "detector:failed_logins", "ingest:logins"
COUNTED = dict.fromkeys(("quarantined", "ignored", "set_aside", "removed_unread"), 1.0) | {
    "bad_ratio": 0.5,
    "ignored_ratio": 0.5,
}


class Installation:
    """Something of everything that the exporter reads."""

    def __init__(self, project: Path, migrated: Path) -> None:
        copy_project(project, "sources", "detectors", "expectations")
        declare_words(project)
        self.settings = load_settings(project)
        state = self.settings.state
        state.mkdir(parents=True)
        shutil.copy(migrated, state / "alerts.db")
        with closing(sqlite3.connect(state / "alerts.db")) as connection:
            connection.execute("PRAGMA journal_mode=DELETE")  # or readers pass every lock
        landed(self.settings, "run-1", 3)
        sealed(self.settings, "v1", 3)
        reasons = {DifferenceReason.LATE: 2}
        report = ParityReport(
            detector="failed_logins", day=date(2026, 11, 18), run="r", version="v", compared_at=NOON,
            stream=7, batch=9, same=5, reasons=reasons, differences=(),
        )  # fmt: skip
        keep(state, report)
        self.store = RowStore(store_path(self.settings, "word_counts"))
        Applier(view_spec(), self.store, None).apply([record(view_row("w", 1), 0)])
        now = datetime.now(UTC).isoformat()
        self.store.note(freshness={"watermark": NOON.isoformat(), "at": now, "lag_records": 7, "lag_seconds": 2.5})

    def report(self, job: str, **fields: Any) -> JobReport:
        now = datetime.now(UTC)
        instance = self.settings.installation_id
        return JobReport(job=job, instance=instance, at=now, started_at=now, state=JobState.RUNNING, **fields)

    def publish(self, *reports: JobReport) -> None:
        writer = RecordWriter(self.settings, EVENT_BYTES)
        for one in reports:
            writer.write(self.settings.names.job_metrics, one.model_dump_json(), one.job, partition=0)
        writer.flush(10)


@contextmanager
def kafka_of(installation: Installation) -> Iterator[None]:
    with played_kafka(installation.settings.names.job_metrics) as kafka:
        installation.settings = installation.settings.model_copy(update={"kafka": kafka})
        yield
