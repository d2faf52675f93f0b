"""The order in which the stack starts its jobs."""

import time
from pathlib import Path

import pytest

from tests.rig.samples.project import copy_project
from tocsin.declare.settings import load_settings
from tocsin.dev.job_supervision import JobSupervision


def test_detectors_in_shadow_wait_until_the_others_have_been_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_project(tmp_path)
    text = (tmp_path / "detectors" / "failed_logins.py").read_text(encoding="utf-8")
    shadow = text.replace('stage="live"', 'stage="shadow"')
    (tmp_path / "detectors" / "quiet.py").write_text(shadow, encoding="utf-8")
    monkeypatch.setenv("TOCSIN_STATE", str(tmp_path / "state"))
    now = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    jobs = JobSupervision(load_settings(tmp_path), tmp_path)

    def detectors() -> list[str]:
        jobs.tick(start=False)
        return sorted(line.name for line in jobs.lines() if line.name.startswith("detector:"))

    assert detectors() == ["detector:failed_logins"]
    monkeypatch.setattr(jobs, "_settled_at", now)
    assert detectors() == ["detector:failed_logins"]
    now += 30
    assert detectors() == ["detector:failed_logins", "detector:quiet"]
