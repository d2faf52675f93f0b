from __future__ import annotations

import json
import subprocess
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from tocsin.declare.model.errors import TransientError
from tocsin.declare.settings import Settings
from tocsin.web.page_shapes import Today
from tocsin.web.usage_query import JobActivity, parse_usage, read_usage

DAY = date(2026, 1, 2)
JOB = "detector:bursts"


def told(**fields: Any) -> dict[str, Any]:
    return {
        "job": JOB,
        "day": "2026-01-02",
        "seconds": 5.0,
        "cpu_seconds": 2.5,
        "rss_bytes": 1,
        "rows_in": 10,
        "rows_out": 2,
        "findings": 1,
        "restarts": 3,
        "cores": 0.5,
        "last_finding_at": "2026-01-02T00:00:01Z",
    } | fields


def test_today_is_told_and_the_last_finding_of_whatever_day() -> None:
    days = [told(), told(job="indexer", last_finding_at=None), told(job="detector:old", day="2026-01-01")]
    found = parse_usage(json.dumps(days).encode(), DAY)
    today = Today(cpu_seconds=2.5, rows_in=10, rows_out=2, findings=1, restarts=3)
    assert found == {
        JOB: JobActivity(today, datetime(2026, 1, 2, 0, 0, 1, tzinfo=UTC)),
        "indexer": JobActivity(today, None),
        "detector:old": JobActivity(None, datetime(2026, 1, 2, 0, 0, 1, tzinfo=UTC)),
    }


def test_the_days_may_come_in_any_order() -> None:
    days = [told(), told(day="2026-01-01", rows_in=99)]
    for order in (days, days[::-1]):
        today = parse_usage(json.dumps(order).encode(), DAY)[JOB].today
        assert today is not None
        assert today.rows_in == 10


def test_something_else_is_told(tmp_path: Path) -> None:
    with pytest.raises(TransientError, match="something unknown"):
        parse_usage(b"Usage: tocsin", DAY)


def test_the_command_runs_with_what_a_job_is_given_and_nothing_of_airflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        seen.update(options, command=command)
        return subprocess.CompletedProcess(command, 1, b"", b"cannot open the alerts DB")

    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "secret")
    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(TransientError, match="ended with 1: cannot open the alerts DB"):
        read_usage(Settings(project=tmp_path, state=tmp_path / "state"))
    assert seen["command"][-3:] == ["usage", "--days=31", "--json"]
    assert seen["env"]["TOCSIN_STATE"] == str(tmp_path / "state")
    assert not [name for name in seen["env"] if name.startswith("AIRFLOW")]
    assert seen["timeout"] > 0
