import os
import time
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from tocsin.declare.model.job_report import JobReport, JobState
from tocsin.platform.heartbeat import beat, end_beside, read_beat, read_besides

REPORT = JobReport(job="ingest:logins", at=datetime(2026, 1, 1, tzinfo=UTC), state=JobState.WAITING, pid=7)


def test_a_beat_is_read_back_with_its_age(tmp_path: Path) -> None:
    beat(tmp_path, REPORT)
    written = tmp_path / "heartbeats" / "ingest__logins.json"
    os.utime(written, (time.time() - 90, time.time() - 90))
    found = read_beat(tmp_path, "ingest:logins")
    assert found is not None
    assert found.report == REPORT
    assert 89 < found.age_seconds < 120


def test_no_beat_or_a_broken_one_is_none(tmp_path: Path) -> None:
    assert read_beat(tmp_path, "ingest:logins") is None
    beat(tmp_path, REPORT)
    (tmp_path / "heartbeats" / "ingest__logins.json").write_text("{")
    assert read_beat(tmp_path, "ingest:logins") is None


def test_a_full_disk_still_renews_the_time_of_the_last_beat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beat(tmp_path, REPORT)
    written = tmp_path / "heartbeats" / "ingest__logins.json"
    os.utime(written, (1, 1))

    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    beat(tmp_path, REPORT)
    found = read_beat(tmp_path, "ingest:logins")
    assert found is not None
    assert found.age_seconds < 60
    assert list(written.parent.iterdir()) == [written]


def test_the_process_beside_the_leading_one_has_a_heartbeat_of_its_own(tmp_path: Path) -> None:
    beat(tmp_path, REPORT)
    beat(tmp_path, REPORT.model_copy(update={"pid": 8}), beside=True)
    leads, beside = read_beat(tmp_path, "ingest:logins"), read_beat(tmp_path, "ingest:logins", beside=True)
    assert leads is not None
    assert beside is not None
    assert (leads.report.pid, beside.report.pid) == (7, 8)
    found = read_besides(tmp_path, ["indexer", "ingest:logins"])
    assert {job: one.report.pid for job, one in found.items()} == {"ingest:logins": 8}
    end_beside(tmp_path, "ingest:logins")
    end_beside(tmp_path, "ingest:logins")
    assert read_beat(tmp_path, "ingest:logins", beside=True) is None
    assert read_beat(tmp_path, "ingest:logins") is not None


@pytest.mark.parametrize("step", [28_800.0, 120.0, -3600.0])
def test_a_suspended_machine_or_a_clock_that_was_set_makes_no_beat_older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    """While a machine sleeps the clock runs and the seconds since its boot stand, as when the clock is set forward."""
    clock, boot = time.time, psutil.boot_time
    beat(tmp_path, REPORT)
    monkeypatch.setattr("tocsin.platform.heartbeat.time.time", lambda: clock() + step + 5)
    monkeypatch.setattr(psutil, "boot_time", lambda: boot() + step)
    found = read_beat(tmp_path, "ingest:logins")
    assert found is not None
    assert 0 <= found.age_seconds < 20


def test_of_a_process_with_a_clock_of_its_own_or_of_another_boot_the_file_tells_the_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = time.time
    with monkeypatch.context() as false_clock:
        false_clock.setattr("tocsin.platform.heartbeat.time.time", lambda: clock() + 3600)
        beat(tmp_path, REPORT)
    found = [read_beat(tmp_path, "ingest:logins")]
    monkeypatch.setattr("tocsin.platform.heartbeat.boot_id", lambda: "another")
    monkeypatch.setattr(psutil, "boot_time", lambda: 1.0)
    found.append(read_beat(tmp_path, "ingest:logins"))
    assert [each is not None and each.age_seconds < 15 for each in found] == [True, True]
