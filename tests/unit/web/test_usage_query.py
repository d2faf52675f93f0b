"""What jobs used today, as the alerts DB says."""

from __future__ import annotations

import shutil
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import insert

from tests.unit.alerts.scene import RULES, finding
from tocsin.alerts.recording import record
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.schema import job_usage
from tocsin.declare.model.errors import TransientError
from tocsin.declare.settings import Settings
from tocsin.web.job_rows import JobActivity, Today, read_usage

NOW = datetime.now(UTC)
JOB = "detector:failed_logins"


def test_today_is_told_and_the_last_finding_of_whatever_day(tmp_path: Path, migrated_file: Path) -> None:
    settings = Settings(state=tmp_path)
    assert read_usage(settings) == {}, "nothing has made the DB yet"
    shutil.copy(migrated_file, tmp_path / "alerts.db")
    counts = {"seconds": 5.0, "cpu_seconds": 2.5, "rss_bytes": 1, "rows_in": 10, "rows_out": 2, "restarts": 3}
    days = [(JOB, 0), (JOB, 1), ("indexer", 0), ("detector:old", 1), ("detector:older", 31)]
    with closing(Database(settings.alerts_database)) as database, database.write() as connection:
        record(connection, [finding(60, detected_at=NOW)], RULES, NOW)
        rows = [{"job": job, "day": (NOW - timedelta(days=ago)).date(), **counts} for job, ago in days]
        connection.execute(insert(job_usage), rows)
    used = Today(cpu_seconds=2.5, rows_in=10, rows_out=2, findings=0, restarts=3)
    assert read_usage(settings) == {
        "detector:old": JobActivity(None, None),
        JOB: JobActivity(used.model_copy(update={"findings": 1}), NOW),
        "indexer": JobActivity(used, None),
    }


def test_a_database_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    (tmp_path / "alerts.db").mkdir()
    with pytest.raises(TransientError, match="alerts DB"):
        read_usage(Settings(state=tmp_path))
