import contextlib
import os
import pty
import re
import select
import signal
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.rig.command_line import invoke
from tests.rig.samples.project import copy_project
from tocsin.model.job_report import JobReport, JobState
from tocsin.runtime import heartbeat


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation whose Kafka is away, and two jobs of which give a sign of life."""
    copy_project(tmp_path / "project")
    monkeypatch.setenv("TOCSIN_PROJECT", str(tmp_path / "project"))
    monkeypatch.setenv("TOCSIN_STATE", str(tmp_path / "state"))
    now = datetime.now(UTC)
    for job, cpu in (("ingest:logins", 30.0), ("detector:failed_logins", 90.0)):
        started = now - timedelta(seconds=100)
        one = JobReport(job=job, at=now, started_at=started, state=JobState.RUNNING, cpu_seconds=cpu, lag_records=12)
        heartbeat.beat(tmp_path / "state", one)
    return tmp_path / "state"


def test_a_pipe_gets_one_look_with_the_problems_first(state: Path) -> None:
    done = invoke(["top"])
    assert done.exit_code == 0
    assert re.match(r"\d{4}-\d\d-\d\d .*Z  4 jobs: 2 problem, 2 ok\n", done.stdout)
    rows = [line.split() for line in done.stdout.splitlines()[2:6]]
    assert [row[0] for row in rows] == ["indexer", "notifier", "ingest:logins", "detector:failed_logins"]
    assert [row[1:5] for row in rows[2:]] == [["running", "12", "0.0", "s"], ["running", "12", "0.0", "s"]]
    assert ["30%" in rows[2], "90%" in rows[3]] == [True, True], "of a single look: since the start"
    assert "notifier: never ran here" in done.stdout
    assert "cannot reach Kafka" in done.stdout


def test_in_a_terminal_it_looks_again_until_q_and_leaves_the_terminal_as_it_was(state: Path) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-m", "tocsin.cli", "top", "--every", "60"],
                  os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"})  # fmt: skip
    shown, deadline = b"", time.monotonic() + 60
    looks = 0
    try:
        while time.monotonic() < deadline and looks < 2:
            ready, _, _ = select.select([terminal], [], [], 1)
            if ready:
                shown += os.read(terminal, 65536)
            if shown.count(b"4 jobs:") > looks:
                looks += 1
                os.write(terminal, b" " if looks < 2 else b"q")
        assert looks == 2, shown
        with contextlib.suppress(OSError):  # it says that it has ended, which may wait for a reader
            while more := os.read(terminal, 65536):
                shown += more
        _, status = os.waitpid(pid, 0)
        pid = 0
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0
    assert b"detector:failed_logins" in shown
    assert b"\x1b[?1049l" in shown, "the screen of before is back"
