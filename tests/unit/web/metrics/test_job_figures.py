from datetime import UTC, datetime, timedelta
from typing import Any

from tests.rig.served import Served
from tocsin.declare.model.job_report import JobState
from tocsin.supervise.job_status import JobStatus, Severity
from tocsin.web.metrics.job_figures import JobFigures

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
DETECTOR = "detector:failed_logins"


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
