"""The whole of what is served: from Kafka, heartbeats, the alerts DB, ledgers and views."""

import re
import sqlite3
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi import Response
from prometheus_client import CollectorRegistry
from pydantic import ValidationError

from tests.rig.served import Served
from tests.unit.views.view_scene import NOON
from tests.unit.web.metrics.installation import COUNTED, DETECTOR, INGEST, Installation, kafka_of
from tocsin.declare.model.job_report import JobState
from tocsin.declare.setting_blocks import MetricsSettings
from tocsin.platform import heartbeat
from tocsin.supervise.job_status import JobStatus, Severity
from tocsin.views.row_store import store_path
from tocsin.web.metrics.exporter import Scrape, exporter_api
from tocsin.web.metrics.job_figures import JobFigures

ROOT = Path(__file__).resolve().parents[4]


def test_everything_is_served_and_described(installation: Installation) -> None:
    with kafka_of(installation):
        installation.publish(
            installation.report(INGEST, lag_records=4, counts=COUNTED), installation.report(DETECTOR, watermark=NOON)
        )
        served = Served(Scrape(installation.settings).collect())
    assert served.by("tocsin_job_lag_records", "job") == {INGEST: 4, DETECTOR: 0}
    assert served.get("tocsin_history_dates", source="logins", state="published") == 1
    assert served.get("tocsin_history_dates", source="logins", state="failed") == 0
    day = datetime(2026, 11, 19, tzinfo=UTC).timestamp()
    assert served.by("tocsin_history_newest_day_timestamp_seconds", "source")["logins"] == day
    assert served.get("tocsin_backfill_dates", detector="failed_logins", state="due") == 1
    assert served.get("tocsin_parity_findings", detector="failed_logins", result="same") == 5
    assert served.get("tocsin_parity_findings", detector="failed_logins", result="late") == 2
    assert served.get("tocsin_parity_findings", detector="failed_logins", result="unexplained") == 0
    assert served.get("tocsin_view_lag_seconds", view="word_counts") == 2.5
    assert served.get("tocsin_view_lag_records", view="word_counts") == 7
    assert served.get("tocsin_view_watermark_timestamp_seconds", view="word_counts") == NOON.timestamp()
    whats = ("kafka", "jobs", "alerts", "views", "days")
    assert served.by("tocsin_scrape_errors_total", "what") == dict.fromkeys(whats, 0)
    page = (ROOT / "docs" / "run" / "metrics.md").read_text(encoding="utf-8")
    described = set(re.findall(r"^\| `(tocsin_\w+)", page, re.MULTILINE))
    totals = {f"{family.name}_total" if family.type == "counter" else family.name for family in served.families}
    assert described == totals


def test_without_kafka_the_heartbeats_of_this_machine_serve(installation: Installation) -> None:
    heartbeat.beat(installation.settings.state, installation.report(DETECTOR, lag_records=9))
    scrape = Scrape(installation.settings)
    began = time.monotonic()
    for number in (1, 2):
        served = Served(scrape.collect())
        assert served.by("tocsin_job_lag_records", "job") == {DETECTOR: 9}
        errors = served.by("tocsin_scrape_errors_total", "what")
        assert errors == {"kafka": number, "jobs": 0, "alerts": 0, "views": 0, "days": 0}
    assert time.monotonic() - began < 15, "Prometheus waits 10 s for each"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock is not waited for longer than it takes to see it."""
    monkeypatch.setattr("tocsin.web.metrics.alert_figures._BUSY_SECONDS", 0.1)


def lock(installation: Installation) -> Callable[[], None]:
    connection = sqlite3.connect(installation.settings.state / "alerts.db", isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    return connection.close


def break_views(installation: Installation) -> Callable[[], None]:
    path = store_path(installation.settings, "word_counts")
    aside = path.rename(path.with_name("aside"))
    path.mkdir()

    def repair() -> None:
        path.rmdir()
        aside.rename(path)

    return repair


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("what", "breakage", "gone", "name"),
    [
        ("alerts", lock, "tocsin_findings_total", "tocsin_view_lag_seconds"),
        ("views", break_views, "tocsin_view_lag_seconds", "tocsin_findings_total"),
    ],
)
def test_what_cannot_be_read_is_left_out_counted_and_comes_back(
    installation: Installation, what: str, breakage: Callable[[Installation], Callable[[], None]], gone: str, name: str
) -> None:
    with kafka_of(installation):
        installation.publish(installation.report(DETECTOR))
        scrape = Scrape(installation.settings)
        assert {gone, name} <= Served(scrape.collect()).names
        repair = breakage(installation)
        for number in (1, 2):
            served = Served(scrape.collect())
            assert gone not in served.names, "what was read before is not of now"
            assert {name, "tocsin_job_info"} <= served.names
            errors = served.by("tocsin_scrape_errors_total", "what")
            assert {one: count for one, count in errors.items() if count} == {what: number}
        repair()
        assert {gone, name} <= Served(scrape.collect()).names


# --- who is given the figures -----------------------------------------------------------------------------------------


def answered(token: str | None, sent: str) -> int:
    """Ask for the figures as the server does."""
    nothing: Any = CollectorRegistry()
    (route,) = [one for one in exporter_api(nothing, token).routes if getattr(one, "path", "") == "/metrics"]
    answer: Response = route.endpoint(authorization=sent)  # type: ignore[attr-defined]
    return answer.status_code


def test_figures_are_given_to_who_sends_the_token() -> None:
    sent = {text: answered("secret", text) for text in ("Bearer secret", "Bearer other", "secret", "Bearer sécret", "")}
    assert [text for text, code in sent.items() if code == 200] == ["Bearer secret"]
    assert set(sent.values()) == {200, 401}
    assert answered(None, "") == 200


def test_the_exporter_is_not_open_to_others_without_a_token() -> None:
    with pytest.raises(ValidationError, match="needs token_file"):
        MetricsSettings(host="0.0.0.0")
    assert MetricsSettings(host="0.0.0.0", token_file=Path("t")).host == "0.0.0.0"


# --- figures of jobs --------------------------------------------------------------------------------------------------


NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


def status(job: str = DETECTOR, *, age: float | None = 1.0, **fields: Any) -> JobStatus:
    values: dict[str, Any] = {"state": JobState.RUNNING, "standing": Severity.OK, "health": "running", "pid": 7}
    at = NOW - timedelta(seconds=age or 0)
    return JobStatus(job=job, at=at, age_seconds=age, started_at=NOW - timedelta(hours=1), **values | fields)


def test_a_job_is_shown_with_what_it_does_and_what_it_takes() -> None:
    job = status(
        mode="real-time", version="abc", lag_records=12, lag_seconds=3.5, stalled_seconds=2, rss_bytes=500_000_000,
        cpu_seconds=80.25, rows_in=1000, rows_out=50, rows_dropped_late=4, watermark=NOW - timedelta(seconds=10),
    )  # fmt: skip
    served = Served(JobFigures().families([job]))
    assert served.get(
        "tocsin_job_info", job=DETECTOR, kind="detector", health="running", mode="real-time", version="abc"
    )
    expected = {
        "tocsin_job_lag_records": 12,
        "tocsin_job_lag_seconds": 3.5,
        "tocsin_job_stalled_seconds": 2,
        "tocsin_job_resident_memory_bytes": 500_000_000,
        "tocsin_job_cpu_seconds_total": 80.25,
        "tocsin_job_records_in_total": 1000,
        "tocsin_job_records_out_total": 50,
        "tocsin_job_late_records_dropped_total": 4,
        "tocsin_job_watermark_timestamp_seconds": NOW.timestamp() - 10,
        "tocsin_job_start_timestamp_seconds": NOW.timestamp() - 3600,
        "tocsin_job_report_timestamp_seconds": NOW.timestamp() - 1,
    }
    assert {name: served.get(name, job=DETECTOR) for name in expected} == expected


def test_the_figures_of_a_source_are_those_that_it_counts() -> None:
    counts = {"quarantined": 5.0, "ignored": 7.0, "bad_ratio": 0.25, "ignored_ratio": 0.0, "latest_event_time": 1.0}
    served = Served(JobFigures().families([status("ingest:logins", counts=counts), status()]))
    assert served.by("tocsin_job_records_quarantined_total", "job") == {"ingest:logins": 5}
    assert served.by("tocsin_job_records_ignored_total", "job") == {"ingest:logins": 7}
    assert served.by("tocsin_job_quarantine_ratio", "job") == {"ingest:logins": 0.25}
    assert served.by("tocsin_job_records_removed_unread_total", "job") == {}


def test_each_job_has_one_standing() -> None:
    jobs = [status(), status("indexer", standing=Severity.PROBLEM, health="silent")]
    served = Served(JobFigures().families(jobs))
    for job in jobs:
        given = {one: served.get("tocsin_job_standing", job=job.job, standing=str(one)) for one in Severity}
        assert given == {one: float(one is job.standing) for one in Severity}


def test_what_a_silent_or_ended_job_said_last_is_no_figure_of_now() -> None:
    jobs = [
        status("silent", age=21, lag_records=9),
        status("stopped", state=JobState.STOPPED, lag_records=9),
        status("starting", state=JobState.STARTING, lag_records=9),
        status("never", age=None, lag_records=9),
        status("alive", age=20, lag_records=9),
    ]
    served = Served(JobFigures().families(jobs))
    assert served.by("tocsin_job_lag_records", "job") == {"alive": 9}
    assert served.by("tocsin_job_cpu_seconds_total", "job").keys() == {"starting", "alive"}
    assert served.by("tocsin_job_info", "job").keys() == {job.job for job in jobs}
    assert served.by("tocsin_job_report_timestamp_seconds", "job").keys() == {"silent", "stopped", "starting", "alive"}


def test_the_end_of_a_child_process_looks_like_no_restart_and_a_restart_does() -> None:
    figures = JobFigures()

    def cpu(seconds: float, **process: Any) -> float | None:
        served = Served(figures.families([status(cpu_seconds=seconds, **process)]))
        return served.get("tocsin_job_cpu_seconds_total", job=DETECTOR)

    assert [cpu(80), cpu(78), cpu(81)] == [80, 80, 81]
    assert cpu(3) == 81
    assert cpu(3, pid=8) == 3


def test_restarts_and_the_last_look_of_the_supervisor_are_figures_of_jobs_that_are_down_too() -> None:
    looked = NOW - timedelta(seconds=70)
    jobs = [status("indexer", age=900, restarts=3, supervised_at=looked), status(supervised_at=looked)]
    served = Served(JobFigures().families(jobs))
    assert served.by("tocsin_job_restarts_total", "job") == {"indexer": 3, DETECTOR: 0}
    assert served.get("tocsin_supervisor_look_timestamp_seconds") == looked.timestamp()
