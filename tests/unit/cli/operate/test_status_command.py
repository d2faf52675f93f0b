import contextlib
import json
import os
import pty
import re
import select
import signal
import sys
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from tests.rig.command_line import invoke
from tests.rig.samples.history import day_rows, refuse
from tests.rig.samples.project import copy_project
from tocsin.cli.operate import status_command
from tocsin.declare.catalog import Catalog
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.job_report import FailureCause, JobReport, JobState
from tocsin.declare.settings import Settings
from tocsin.platform import heartbeat
from tocsin.platform.heartbeat import note_look
from tocsin.supervise.job_states import Condition, Past
from tocsin.supervise.job_status import JobStatus, Severity, Snapshot
from tocsin.supervise.switches import ask_switches

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
ROOT = Path(__file__).resolve().parents[4]


def report(job: str, state: JobState, *, age: float = 1.0, reason: str = "") -> JobReport:
    at = NOW - timedelta(seconds=age)
    return JobReport(job=job, at=at, started_at=at - timedelta(seconds=100), state=state, reason=reason, cpu_seconds=25)


def seen(**pasts: Past) -> Snapshot:
    """A look at a machine on which nothing runs."""
    return Snapshot(at=NOW.timestamp(), project=ROOT, catalog=Catalog(), pasts=pasts)


@pytest.mark.parametrize(
    ("state", "age", "standing"),
    [
        (JobState.RUNNING, 1, Severity.OK),
        (JobState.DRAINING, 1, Severity.OK),
        (JobState.STARTING, 1, Severity.WARNING),
        (JobState.READY, 1, Severity.WARNING),
        (JobState.WAITING, 1, Severity.WARNING),
        (JobState.STOPPING, 1, Severity.WARNING),
        (JobState.STOPPED, 1, Severity.PROBLEM),
        (JobState.FAILED, 1, Severity.PROBLEM),
        (JobState.RUNNING, 20, Severity.OK),
        (JobState.RUNNING, 21, Severity.PROBLEM),
        (JobState.WAITING, 3600, Severity.PROBLEM),
        (JobState.FAILED, 3600, Severity.PROBLEM),
    ],
)
def test_how_a_job_stands_follows_from_its_report_and_its_age(state: JobState, age: float, standing: Severity) -> None:
    (one,) = seen().statuses(["indexer"], {"indexer": report("indexer", state, age=age)}, {})
    assert (one.standing, one.age_seconds) == (standing, age)
    assert one.state is state


def test_a_silent_job_says_what_it_last_did() -> None:
    (one,) = seen().statuses(["indexer"], {"indexer": report("indexer", JobState.RUNNING, age=60)}, {})
    assert (one.health, one.state) == ("silent", JobState.RUNNING)
    assert one.reason == "no heartbeat for 60 s; it was running then. It hangs, is gone, or cannot write"
    assert one.lag_seconds == 60, "so long nobody knows how far behind it is"


def test_a_job_that_failed_keeps_its_own_words() -> None:
    failed = report("indexer", JobState.FAILED, age=60, reason="the disk is full")
    (one,) = seen().statuses(["indexer"], {"indexer": failed}, {})
    assert one.reason == "the disk is full"


def test_a_job_that_should_not_run_is_shown_while_it_does() -> None:
    reports = {
        "detector:gone": report("detector:gone", JobState.RUNNING),
        "detector:stopped": report("detector:stopped", JobState.STOPPED),
        "detector:old": report("detector:old", JobState.RUNNING, age=600),
    }
    assert [one.job for one in seen().statuses([], reports, {})] == ["detector:gone"]


def test_the_last_finding_stands_beside_its_job() -> None:
    found = {"detector:x": NOW - timedelta(hours=1)}
    (one,) = seen().statuses(["detector:x"], {"detector:x": report("detector:x", JobState.RUNNING)}, found)
    assert one.last_finding_at == NOW - timedelta(hours=1)


def test_supervision_on_this_machine_knows_more_than_the_last_report() -> None:
    """A job in a crash loop reports that it starts, again and again."""
    looping = Past(condition=Condition.CRASH_LOOP, reason="4 failures within 30 min")
    starting = {"notifier": report("notifier", JobState.STARTING)}
    (one,) = seen(notifier=looping).statuses(["notifier"], starting, {})
    assert (one.standing, one.health, one.reason) == (Severity.PROBLEM, "crash loop", "4 failures within 30 min")
    (one,) = seen(notifier=Past(expected=True)).statuses(["notifier"], starting, {})
    assert (one.standing, one.health) == (Severity.PROBLEM, "gone")


class TestVerb:
    @pytest.fixture(autouse=True)
    def _state(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        copy_project(tmp_path / "project")
        self.state = tmp_path / "state"
        self.state.mkdir()
        monkeypatch.setenv("TOCSIN_PROJECT", str(tmp_path / "project"))
        monkeypatch.setenv("TOCSIN_STATE", str(self.state))

    def reports(self, monkeypatch: pytest.MonkeyPatch, *known: JobReport) -> None:
        """Let Kafka hold these reports, made just now."""

        def read(settings: Settings) -> dict[str, JobReport]:
            return {one.job: one.model_copy(update={"at": datetime.now(UTC)}) for one in known}

        monkeypatch.setattr("tocsin.platform.kafka.reporter.read_reports", read)

    def call(self, *words: str) -> tuple[int, str, str]:
        done = invoke(["status", *words])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, done.stdout, done.stderr

    def all_well(self) -> list[JobReport]:
        names = ("engine:live-1", "ingest:logins", "detector:failed_logins", "indexer", "notifier", "web")
        return [report(name, JobState.RUNNING) for name in names]

    def test_a_supervisor_that_looks_no_more_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reports(monkeypatch, *self.all_well())
        note_look(self.state, "jobs")
        assert self.call("notifier")[0] == 0
        path = self.state / "heartbeats" / "supervisor__jobs.json"
        os.utime(path, (path.stat().st_mtime - 420,) * 2)
        code, _, err = self.call("notifier")
        assert (code, "has not looked at the jobs for 7 min" in err) == (1, True)

    def test_a_day_that_the_gate_refuses_is_told_until_it_is_good(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reports(monkeypatch, *self.all_well())
        day = date(2026, 1, 31)
        refuse(settings := Settings(project=ROOT, state=self.state), day)
        code, out, err = self.call()
        assert code == 1
        assert "logins: the quality gate refuses 2026-01-31. Why: tocsin history list --source logins." in err
        assert "tocsin history publish logins --day 2026-01-31 --by NAME --reason TEXT" in err
        code, out, _ = self.call("--json")
        assert (code, len(json.loads(out))) == (1, 6)
        assert self.call("notifier")[0] == 0, "who asks about one job gets an answer about that one"
        day_rows(settings).remove(day, "v31")
        assert self.call()[0] == 0

    def test_all_well(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reports(monkeypatch, *self.all_well())
        code, out, err = self.call()
        assert (code, err) == (0, "")
        rows = out.splitlines()
        assert rows[0].replace("LAST FINDING", "FINDING").split() == [
            "JOB",
            "HEALTH",
            "MODE",
            "LAG",
            "BEHIND",
            "LATE",
            "MEMORY",
            "CPU",
            "FINDING",
            "REPORT",
        ]
        assert [row.split()[:2] for row in rows[1:]] == [[one.job, "running"] for one in self.all_well()]

    def test_one_that_failed_makes_the_exit_code_1_and_tells_why(self, monkeypatch: pytest.MonkeyPatch) -> None:
        failed = report("notifier", JobState.FAILED, reason="password_file cannot be read\x1b[2J")
        self.reports(monkeypatch, *self.all_well()[:3], self.all_well()[-1], failed)
        code, out, _ = self.call()
        assert code == 1
        assert "notifier: password_file cannot be read\\x1b[2J" in out

    def test_one_job_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reports(monkeypatch, *self.all_well()[1:2])
        assert self.call("ingest:logins")[0] == 0
        assert self.call("notifier")[0] == 1
        done = invoke(["status", "ingest:login"])
        assert "did you mean 'ingest:logins'?" in str(done.exception)
        self.reports(monkeypatch, report("detector:failed_logins", JobState.STOPPED))
        assert self.call("detector:failed_logins")[0] == 1
        ask_switches(self.state, ["detector__failed_logins"], lambda _: True)
        code, out, _ = self.call("detector:failed_logins")
        assert (code, "detector:failed_logins: paused: switched off" in out) == (0, True)

    def test_json_has_the_documented_shape(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reports(monkeypatch, *self.all_well())
        code, out, _ = self.call("--json")
        shown = [JobStatus.model_validate(one) for one in json.loads(out)]
        assert code == 0
        assert json.loads(out)[0].keys() == JobStatus.model_fields.keys()
        assert [one.standing for one in shown] == [Severity.OK] * 6

    def test_without_kafka_the_signs_of_life_on_this_machine_tell(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def read(settings: Settings) -> dict[str, JobReport]:
            raise TransientError("Kafka is away")

        monkeypatch.setattr("tocsin.platform.kafka.reporter.read_reports", read)
        waiting = report("ingest:logins", JobState.WAITING, reason="waits for Kafka")
        heartbeat.beat(self.state, waiting.model_copy(update={"at": datetime.now(UTC)}))
        code, out, err = self.call("ingest:logins")
        assert code == 0
        assert "waits for Kafka" in out
        assert err == "Kafka is away; showing the last heartbeats of jobs on this machine\n"

    def test_a_version_that_is_to_take_over_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reports(monkeypatch, *self.all_well())
        new = report("ingest:logins", JobState.DRAINING).model_copy(update={"version": "abc"})
        heartbeat.beat(self.state, new, beside=True)
        code, out, _ = self.call()
        assert code == 0
        assert "ingest:logins: version abc is draining beside it, to take over" in out

    def test_a_broken_file_is_shown_with_its_first_fault_and_what_to_type(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = tmp_path / "broken" / "detectors"
        folder.mkdir(parents=True)
        (folder / "worse.py").write_text("def detect(:")
        monkeypatch.setenv("TOCSIN_PROJECT", str(folder.parent))
        self.reports(monkeypatch, *self.all_well()[2:])
        code, out, err = self.call()
        assert code == 1
        (row,) = [line for line in out.splitlines() if line.startswith("detector:worse ")]
        assert row.split() == ["detector:worse", "broken"]
        assert "detector:worse: broken: The job is not started. detectors/worse.py:1: is not Python" in out
        assert err == "all faults of broken files: tocsin check\n"

        runs = [report(job, JobState.RUNNING) for job in ("indexer", "notifier", "detector:worse")]
        self.reports(monkeypatch, *runs)
        code, out, _ = self.call()
        assert (code, "The running job keeps running. detectors/worse.py:1" in out) == (1, True)


def test_the_first_cause_stays_while_the_job_is_tried_again() -> None:
    first = FailureCause(what="ZeroDivisionError: division by zero", file="detectors/d.py", line=9, event="e/0/490")
    again = report("detector:d", JobState.STARTING)
    snapshot = seen(**{"detector:d": Past(condition=Condition.RESTARTING, first=first, failures=(1.0,))})
    (one,) = snapshot.statuses(["detector:d"], {"detector:d": again}, {})
    assert one.cause == first
    told = [text for text, _ in status_command._sentences([one])]
    sentence = "detectors/d.py:9: ZeroDivisionError: division by zero, on event e/0/490"
    assert told[-1] == f"detector:d: failed before, at first: {sentence}"


def test_elsewhere_than_on_a_terminal_watch_looks_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_project(tmp_path / "project")
    monkeypatch.setenv("TOCSIN_PROJECT", str(tmp_path / "project"))
    monkeypatch.setenv("TOCSIN_STATE", str(tmp_path / "state"))
    monkeypatch.setattr("tocsin.platform.kafka.reporter.read_reports", lambda _: {})
    done = invoke(["status", "--watch"])
    assert done.exit_code == 1, "as without it: no job has run"
    assert done.stdout.count("notifier: missing: never ran here") == 1


def test_on_a_terminal_watch_looks_again_until_ctrl_c_and_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    copy_project(tmp_path / "project")
    here = {"TOCSIN_PROJECT": str(tmp_path / "project"), "TOCSIN_STATE": str(tmp_path / "state")}
    pid, terminal = pty.fork()
    if pid == 0:
        quick = "from tocsin.cli.operate import status_command as own; own._WATCH_SECONDS = own._KAFKA_SECONDS = 0.2"
        command = [sys.executable, "-c", f"{quick}; from tocsin.cli.app import main; main()", "status", "--watch"]
        os.execve(sys.executable, command, os.environ | here | {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"})
    shown, looks, deadline = b"", set[bytes](), time.monotonic() + 60
    try:
        while time.monotonic() < deadline and len(looks) < 2:
            if select.select([terminal], [], [], 1)[0]:
                shown += os.read(terminal, 65536)
            looks = {*re.findall(rb"\d\d:\d\d:\d\dZ", shown)}
        assert len(looks) >= 2, shown
        os.write(terminal, b"\x03")
        with contextlib.suppress(OSError):  # the terminal is gone
            while more := os.read(terminal, 65536):
                shown += more
        _, ended = os.waitpid(pid, 0)
        pid = 0
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(terminal)
    assert os.waitstatus_to_exitcode(ended) == 0
    assert b"detector:failed_logins" in shown
    assert b"cannot reach Kafka" in shown
    assert b"\x1b[?1049l" in shown, "the screen of before is back"
