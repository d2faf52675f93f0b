"""What the page of all jobs says, from what lies in the state folder and what runs."""

import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert

from tests.rig.samples.findings import NOON, V1, found, streamed
from tests.rig.samples.history import refuse
from tests.rig.samples.project import copy_project
from tests.rig.waiting import await_that, patient
from tests.unit.alerts.scene import RULES, finding
from tests.unit.supervise.dummies import SLEEP, launch
from tocsin.alerts import recording
from tocsin.alerts.store.alert_rows import JobUsage
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.schema import job_usage
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.job_report import JobReport, JobState
from tocsin.declare.settings import Settings
from tocsin.history.backfill.parity.comparison import Difference, DifferenceReason, compare
from tocsin.history.backfill.parity.parity_report import ParityReport, keep, summed
from tocsin.platform.background_value import BackgroundValue, Fetched
from tocsin.platform.heartbeat import beat, note_look
from tocsin.supervise.incidents.event_log import EventKind, JobEvent, record
from tocsin.supervise.job_states import Condition, History, Past, memory_of, write_history
from tocsin.supervise.job_status import Severity, Snapshot, look
from tocsin.supervise.runners.local import LocalRunner
from tocsin.supervise.runners.runner import Labels, instance_of
from tocsin.supervise.switches import ask_switches
from tocsin.web import page_data
from tocsin.web import page_data as module
from tocsin.web.job_rows import JobRow, Load, Loads, read_usage
from tocsin.web.page_data import LOG_LINES, Installation, JobList, tail_of
from tocsin.web.parity_page import FEW_DAYS, FEW_DIFFERENCES, Comparisons

ROOT = Path(__file__).resolve().parents[3]
JOB = "detector:failed_logins"
DAG = "detector__failed_logins"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
PLATFORM = ["engine:live-1", "ingest:logins", "indexer", "notifier", "web"]


def used(ago: int = 0, job: str = JOB, **facts: Any) -> JobUsage:
    """What a job took on a day so many days ago."""
    day, took = (datetime.now(UTC) - timedelta(days=ago)).date(), {"seconds": 5, "cpu_seconds": 2.5, "rss_bytes": 1}
    counts = {"rows_in": 10, "rows_out": 2, "findings": 0, "restarts": 3}
    return JobUsage(job=job, day=day, **{**took, **counts, **facts})


@dataclass
class Place:
    """An installation that never ran, and what a test lets run in it."""

    settings: Settings
    usage: dict[str, JobUsage] = field(default_factory=dict)
    usage_fault: str = ""
    pids: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.runner = LocalRunner(instance_of(self.settings), self.settings.log)
        self.page = Installation(self.settings)

    def declare(self, name: str, old: str = "", new: str = "") -> None:
        text = (ROOT / "detectors" / "failed_logins.py").read_text()
        assert old in text
        (self.settings.project / "detectors" / f"{name}.py").write_text(text.replace(old, new))

    def run(self, job: str, spec: str = "v1") -> int:
        labels = Labels(instance_of(self.settings), job, spec)
        self.pids[job] = self.runner.start(launch(self.settings.state, labels, SLEEP))
        return self.pids[job]

    def stop(self) -> None:
        for process in self.runner.list():
            self.runner.stop(process, force=True)
        await_that(lambda: self.runner.list() == [])

    def says(self, job: str, state: JobState = JobState.RUNNING, *, ago: float = 0.0, **fields: Any) -> None:
        now = datetime.now(UTC)
        about = {"at": now, "started_at": now - timedelta(seconds=100), "pid": self.pids.get(job, 1)} | fields
        beat(self.settings.state, JobReport(job=job, state=state, **about))
        path = self.settings.state / "heartbeats" / f"{job.replace(':', '__')}.json"
        os.utime(path, (time.time() - ago, time.time() - ago))

    def remembers(self, **pasts: Past) -> None:
        known = {name.replace("__", ":"): past for name, past in pasts.items()}
        write_history(memory_of(self.settings.state, "jobs"), History(jobs=known))

    def jobs(self, **off: bool) -> JobList:
        self.page.jobs(off)
        self.page._usage.wait(patient(10))
        self.page._looked_at = float("-inf")
        return self.page.jobs(off)

    def row(self, job: str, **off: bool) -> JobRow:
        (row,) = [row for row in self.jobs(**off).rows if row.job == job]
        return row

    def verdict(self, job: str = JOB) -> tuple[Severity, str, str]:
        row = self.row(job)
        return row.standing, row.health, row.reason


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    project = tmp_path / "project"
    copy_project(project)
    (tmp_path / "state").mkdir()
    made = Place(Settings(project=project, state=tmp_path / "state"))

    def read(settings: Settings) -> dict[str, JobUsage]:
        if made.usage_fault:
            raise TransientError(made.usage_fault)
        return made.usage

    monkeypatch.setattr(module, "read_usage", read)
    yield made
    made.stop()


def test_every_declared_job_has_its_row_detectors_first(place: Place) -> None:
    rows = place.jobs().rows
    assert [row.job for row in rows] == [JOB, *PLATFORM]
    assert [row.dag for row in rows] == [DAG, *["platform"] * 5]
    assert rows[0].stage == "live"
    assert rows[0].title.startswith("Bursts of failed logins")


def test_a_running_job_tells_what_it_takes_and_how_far_behind_it_is(place: Place) -> None:
    pid = place.run(JOB)
    place.says(JOB, mode="real-time", lag_records=7, lag_seconds=0.2, rss_bytes=500_000_000, cpu_seconds=25.0)
    place.usage[JOB] = used(last_finding_at=NOW)
    row = place.row(JOB)
    assert (row.standing, row.health, row.mode, row.pid) == (Severity.OK, "running", "real-time", pid)
    assert (row.lag_records, row.lag_seconds, row.rss_bytes) == (7, 0.2, 500_000_000)
    assert row.cores == pytest.approx(0.25)
    assert (row.today, row.last_finding_at) == (place.usage[JOB], NOW)
    assert row.today_at == pytest.approx(time.time(), abs=5)
    assert row.age_seconds is not None
    assert row.age_seconds < 5


def test_a_report_that_is_overdue_counts_with_its_age(place: Place) -> None:
    place.run(JOB)
    place.says(JOB, lag_seconds=2.0)
    beat = next((place.settings.state / "heartbeats").glob("detector__*"))
    os.utime(beat, (time.time() - 10, time.time() - 10))
    assert place.row(JOB).lag_seconds == pytest.approx(12.0, abs=1)


def test_the_first_page_has_the_figures_of_the_day(place: Place) -> None:
    place.usage[JOB] = used()
    place.page.prepare()
    (row,) = [row for row in place.page.jobs({}).rows if row.job == JOB]
    assert row.today == place.usage[JOB]


def test_what_a_job_took_yesterday_is_not_of_today(place: Place) -> None:
    place.usage[JOB] = used(1, last_finding_at=NOW)
    assert (place.row(JOB).today, place.row(JOB).last_finding_at) == (None, NOW)


def test_what_an_earlier_process_said_is_not_said_of_this_one(place: Place) -> None:
    place.run(JOB)
    place.says(JOB, pid=1, rss_bytes=5, lag_records=9)
    row = place.row(JOB)
    assert (row.standing, row.health, row.rss_bytes, row.lag_records) == (Severity.WARNING, "starting", 0, 0)


def test_memory_above_the_declared_is_marked(place: Place) -> None:
    place.declare("failed_logins", 'stage="live"', 'memory="700 MB", stage="live"')
    place.run(JOB)
    place.says(JOB, rss_bytes=812_000_000)
    row = place.row(JOB)
    assert (row.standing, row.over_memory, row.declared_bytes) == (Severity.WARNING, True, 700_000_000)
    place.says(JOB, rss_bytes=600_000_000)
    assert not place.row(JOB).over_memory


def test_a_job_that_eats_a_core_is_marked(place: Place) -> None:
    place.run(JOB)
    began = datetime.now(UTC)
    for seconds in (0, 40):
        place.says(JOB, at=began + timedelta(seconds=seconds), cpu_seconds=100.0 + seconds)
        row = place.row(JOB)
    assert (row.standing, row.busy) == (Severity.WARNING, True)


@pytest.mark.parametrize(
    ("counts", "severity"),
    [
        ({"bad_ratio": 0.05, "ignored_ratio": 0.99}, Severity.OK),
        ({"bad_ratio": 0.051}, Severity.WARNING),
        ({"ignored_ratio": 1.0}, Severity.WARNING),
    ],
)
def test_much_that_is_quarantined_or_ignored_is_a_warning(
    place: Place, counts: dict[str, float], severity: Severity
) -> None:
    place.run("ingest:logins")
    place.says("ingest:logins", reason="as it says", counts=counts)
    assert place.verdict("ingest:logins") == (severity, "running", "as it says")


def test_a_crash_loop_is_loud_and_first_also_between_two_tries(place: Place) -> None:
    looping = Past(condition=Condition.CRASH_LOOP, reason="4 failures within 30 min", expected=False)
    place.remembers(notifier=replace(looping, spec="v1"))
    assert place.verdict("notifier") == (Severity.PROBLEM, "crash loop", "4 failures within 30 min")
    assert place.jobs().rows[0].job == "notifier"
    place.run("notifier")
    place.says("notifier")
    assert place.verdict("notifier")[2] == "4 failures within 30 min. Retrying"


def test_a_version_that_is_to_take_over_is_told_and_one_that_cannot_is_loud(place: Place) -> None:
    old = place.run(JOB, "v0")
    place.says(JOB)
    new = place.run(JOB)
    assert place.verdict() == (Severity.OK, "running", "another version is starting beside it, to take over")
    beat(place.settings.state, JobReport(job=JOB, at=datetime.now(UTC), pid=new, state=JobState.READY), beside=True)
    row = place.row(JOB)
    assert (row.pid, row.reason) == (old, "another version is ready beside it, to take over")
    place.remembers(detector__failed_logins=Past(spec="v2", condition=Condition.MISCONFIGURED, reason="it runs on"))
    assert place.verdict() == (Severity.PROBLEM, "misconfigured", "it runs on"), "what runs is not what was tried"


def test_a_broken_file_is_told_by_its_name_and_cannot_be_restarted_into_nothing(place: Place) -> None:
    (place.settings.project / "detectors" / "worse.py").write_text("def detect(:")
    row = place.jobs().rows[0]
    assert (row.job, row.standing, row.health) == ("detector:worse", Severity.PROBLEM, "broken")
    assert row.reason.startswith("The job is not started. detectors/worse.py:1: ")
    assert not row.may_restart, "supervision leaves alone what it cannot read: it would stop and not come back"


@pytest.mark.parametrize("stage", ["draft", "retired"])
def test_a_stage_that_does_not_run_is_told_last_and_quietly(place: Place, stage: str) -> None:
    place.declare("a_first", 'stage="live"', f'stage="{stage}"')
    assert [row.job for row in place.jobs().rows] == [JOB, *PLATFORM, "detector:a_first"]
    row = place.row("detector:a_first", detector__a_first=False)
    assert (row.standing, row.health, row.may_switch, row.may_restart) == (Severity.OFF, stage, False, False)


def test_a_paused_detector_is_off_and_one_that_still_runs_stops(place: Place) -> None:
    place.run(JOB)
    place.says(JOB)
    row = place.row(JOB, **{DAG: True})
    assert (row.standing, row.health) == (Severity.WARNING, "stopping")
    assert (row.off, row.may_switch, row.may_restart) == (True, True, False)
    place.stop()
    row = place.row(JOB, **{DAG: True})
    assert (row.standing, row.health) == (Severity.OFF, "paused")


def test_the_switch_is_what_airflow_says_else_what_the_supervisor_read(place: Place) -> None:
    assert place.row(JOB).off is None
    assert not place.row(JOB).may_switch, "Airflow has not read the file yet"
    ask_switches(place.settings.state, ["detector__failed_logins"], lambda _: True)
    assert place.row(JOB).off
    row = place.row(JOB, **{DAG: False})
    assert (row.off, row.may_switch) == (False, True)


def test_the_last_restart_has_its_cause_and_the_tab_the_whole_story(place: Place) -> None:
    ended = JobEvent(
        at=10, what=EventKind.END, reason="was killed by signal 9", exit_code=-9, ran_seconds=5, failed=True
    )
    record(place.settings.state, [(JOB, ended), (JOB, JobEvent(at=12, what=EventKind.START, reason="restart 1"))])
    restart = place.row(JOB).last_restart
    assert restart is not None
    assert (restart.at, restart.cause) == (12, "was killed by signal 9")
    assert [one.exit_code for one in place.page.crashes(JOB)] == [-9]
    facts = place.page.declaration(JOB)
    assert facts["limits"] == "e-mail above 50, urgent above 100"
    assert facts["memory"] == "restarted above 2,012 MB (by the settings)"
    record(place.settings.state, [(JOB, JobEvent(at=20, what=EventKind.END, reason="again", failed=True))])
    assert [one.cause for one in place.page.crashes(JOB)] == ["again", "was killed by signal 9"]
    assert (place.page.crashes("notifier"), place.page.declaration("notifier")) == ([], {})


def test_a_dag_of_batches_names_the_jobs_that_it_works_on(place: Place) -> None:
    assert place.page.beside("backfill__failed_logins") == [JOB]
    assert place.page.beside("history__logins") == ["ingest:logins", JOB]
    assert place.page.beside(DAG) == place.page.beside("housekeeping") == []


def test_when_kafka_is_away_the_page_says_so_and_shows_what_it_knows(place: Place) -> None:
    assert place.jobs().notes == []
    place.run("indexer")
    place.says("indexer", JobState.WAITING, reason=(reason := "cannot reach Kafka at 127.0.0.1:9092: timed out"))
    board = place.jobs()
    assert [note.severity for note in board.notes] == [Severity.PROBLEM]
    assert board.notes[0].text.startswith(f"{reason}. Jobs wait for it")
    assert len(board.rows) == 6


def test_when_the_usage_cannot_be_read_the_page_says_so_and_keeps_what_it_knew(place: Place) -> None:
    place.usage[JOB] = used()
    assert place.row(JOB).today is not None
    place.usage_fault = "no such DB"
    place.page._usage._tried_at = float("-inf")
    board = place.jobs()
    assert "(no such DB); what is shown is older" in board.notes[0].text
    assert place.row(JOB).today is not None


def test_when_the_state_cannot_be_read_the_last_look_stays_with_its_time(place: Place) -> None:
    place.run(JOB)
    place.says(JOB, lag_records=7)
    before = place.jobs()
    place.settings.state.rename(place.settings.state.with_name("away"))
    after = place.jobs()
    place.settings.state.with_name("away").rename(place.settings.state)
    assert "cannot be read (FileNotFoundError" in after.notes[0].text
    assert after.looked_at == before.looked_at
    assert [row.lag_records for row in after.rows] == [row.lag_records for row in before.rows]
    assert place.jobs().notes == []


def test_before_the_first_look_there_is_nothing_but_the_reason(tmp_path: Path, place: Place) -> None:
    page = Installation(Settings(project=tmp_path, state=tmp_path / "nowhere"))
    board = page.jobs({})
    assert (board.rows, board.looked_at) == ([], None)
    assert "cannot be read" in board.notes[0].text
    assert (page.beside(DAG), page.dags(), page.declaration(JOB)) == ([], set(), {})
    page._usage.wait(patient(10))


def test_a_killed_job_of_the_platform_is_down_though_every_dag_is_paused_while_no_supervisor_looks(
    place: Place,
) -> None:
    """To pause the DAG of the platform switches no job."""
    place.remembers(indexer=Past(spec="v1", started_at=time.time() - 900, expected=True))
    note_look(place.settings.state, "jobs")
    assert place.jobs().notes == []
    path = place.settings.state / "heartbeats" / "supervisor__jobs.json"
    os.utime(path, (time.time() - 400, time.time() - 400))
    (note,) = place.jobs().notes
    assert "The supervisor has not looked at the jobs for 7 min" in note.text
    row = place.row("indexer", platform=True, supervisor=True)
    assert (row.standing, row.health, row.off) == (Severity.PROBLEM, "down", None)
    assert (row.may_switch, row.may_restart) == (False, True)


def test_fifty_detectors_are_looked_at_in_no_time(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(50):
        place.declare(f"one_{number:02}")
    looks: list[float] = []

    def counted(*how: Any) -> Snapshot:
        looks.append(time.monotonic())
        return look(*how)

    monkeypatch.setattr("tocsin.web.page_data.look", counted)
    assert len(place.jobs().rows) == 58
    began = time.process_time()
    place.page._looked_at = float("-inf")
    place.page.jobs({})
    assert time.process_time() - began < 0.5, "nothing that has not changed is read again"
    looks.clear()
    monkeypatch.setattr("tocsin.web.page_data._LOOK_SECONDS", 60.0)  # twenty pages may take long on a busy machine
    for _ in range(20):
        place.page.jobs({})
    assert looks == [], "all who look share one look"


def test_a_day_that_the_gate_refuses_is_a_note(place: Place) -> None:
    refuse(place.settings, date(2026, 2, 1))
    (note,) = place.jobs().notes
    assert note.severity is Severity.PROBLEM
    assert note.text.startswith("logins: the quality gate refuses 2026-02-01.")


# --- what jobs take ---------------------------------------------------------------------------------------------------


def report(seconds: float, cpu: float, pid: int = 1) -> JobReport:
    at = NOW + timedelta(seconds=seconds)
    return JobReport(job="notifier", at=at, started_at=NOW, pid=pid, state=JobState.RUNNING, cpu_seconds=cpu)


def test_the_load_is_what_the_last_minute_took_not_the_whole_life() -> None:
    loads = Loads()
    for second in range(0, 600, 5):
        loads.take(report(second, 500 if second < 300 else 500 + (second - 300) * 0.1))
    load = loads.of("notifier")
    assert load is not None
    assert load.cores == pytest.approx(0.1)
    assert 60 <= load.seconds <= 65


def test_a_single_sign_of_life_tells_the_average_since_the_start() -> None:
    loads = Loads()
    assert loads.of("notifier") is None
    loads.take(report(100, 25))
    loads.take(report(100, 25))
    assert loads.of("notifier") == Load(0.25, 100)


@pytest.mark.parametrize(
    ("last", "load"), [(report(110, 2, pid=2), Load(2 / 110, 110)), (report(110, 80), Load(0, 10))]
)
def test_another_process_begins_anew_and_a_child_that_ends_takes_no_time_back(last: JobReport, load: Load) -> None:
    loads = Loads()
    loads.take(report(100, 90))
    loads.take(last)
    assert loads.of("notifier") == load


@pytest.mark.parametrize(("cores", "seconds", "busy"), [(1.0, 60, True), (1.0, 10, False), (0.5, 60, False)])
def test_a_job_stands_out_when_it_eats_a_core_for_a_while(cores: float, seconds: float, busy: bool) -> None:
    assert Load(cores, seconds).busy is busy


# --- usage by the alerts DB -------------------------------------------------------------------------------------------


def test_today_is_told_and_the_last_finding_of_whatever_day(tmp_path: Path, migrated_file: Path) -> None:
    settings = Settings(state=tmp_path)
    assert read_usage(settings) == {}, "nothing has made the DB yet"
    shutil.copy(migrated_file, tmp_path / "alerts.db")
    now = datetime.now(UTC)
    days = [used(ago, job) for job, ago in ((JOB, 0), (JOB, 1), ("indexer", 0), ("detector:old", 1), ("a:older", 31))]
    with closing(Database(settings.alerts_database)) as database, database.write() as connection:
        recording.record(connection, [finding(60, detected_at=now)], RULES, now)
        columns = {"findings", "last_finding_at", "cores"}
        connection.execute(insert(job_usage), [day.model_dump(exclude=columns) for day in days])
    assert read_usage(settings) == {
        "detector:old": used(1, "detector:old"),
        JOB: used(findings=1, last_finding_at=now),
        "indexer": used(job="indexer"),
    }


def test_a_database_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    (tmp_path / "alerts.db").mkdir()
    with pytest.raises(TransientError, match="alerts DB"):
        read_usage(Settings(state=tmp_path))


# --- logs -------------------------------------------------------------------------------------------------------------


def test_a_short_log_is_shown_whole(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("one\r\n\ttwo\nthree", encoding="utf-8")
    told = tail_of(log)
    assert (told.lines, told.cut) == (["one", "    two", "three"], False)
    assert told.written_at == log.stat().st_mtime


def test_of_a_long_log_the_last_lines_and_no_torn_one(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("".join(f"{number:05} {'x' * 994}\n" for number in range(5000)), encoding="utf-8")
    told = tail_of(log)
    assert told.cut
    assert 100 < len(told.lines) <= LOG_LINES
    assert [int(line[:5]) for line in told.lines] == list(range(5000 - len(told.lines), 5000))


def test_a_line_without_end_is_cut(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("x" * 100_000, encoding="utf-8")
    (line,) = tail_of(log).lines
    assert len(line) < 2100
    assert line.endswith("… (98,000 more characters)")


def test_nothing_in_a_log_hides_or_moves(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"\x1b[2Jgone \xe2\x80\xae \xff <b>\n")
    assert tail_of(log).lines == ["\\x1b[2Jgone \\u202e \ufffd <b>"]


def test_no_log_is_no_error(tmp_path: Path) -> None:
    told = tail_of(tmp_path / "none.log")
    assert (told.lines, told.written_at) == ([], None)
    assert tail_of(tmp_path).lines == [], "nor is a folder"


def test_a_search_finds_the_last_lines_with_a_text_also_far_up(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text("".join(f"line {n} {'ERROR [x]' if n % 1000 == 0 else 'fine'}\n" for n in range(20_000)))
    found = tail_of(path, "error [X]")
    assert [found.lines[0], found.lines[-1], found.cut] == ["line 0 ERROR [x]", "line 19000 ERROR [x]", False]
    assert tail_of(path, "nowhere").lines == []


# --- values that are read in the background ---------------------------------------------------------------------------


def test_nobody_waits_for_a_value_and_the_next_one_is_told() -> None:
    go = threading.Event()

    def slow() -> int:
        assert go.wait(patient(10))
        return 7

    value = BackgroundValue(slow, 60)
    assert value.known() == Fetched()
    go.set()
    value.wait(patient(10))
    known = value.known()
    assert (known.value, known.error) == (7, "")
    assert known.at is not None


def test_who_has_patience_gets_the_first_value_and_a_fresh_one_for_a_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([1, 2])
    value = BackgroundValue(lambda: next(answers), 0.0)
    assert value.known(patient(10)).value == 1
    slow = BackgroundValue(lambda: threading.Event().wait(patient(10)), 60)
    assert slow.known(0.01) == Fetched(), "and waits no longer"
    now = time.time() + 1
    monkeypatch.setattr("tocsin.platform.background_value.time.time", lambda: now)
    assert value.known(patient(10)).value == 2


def test_a_value_is_got_once_for_all_who_ask_and_only_when_it_is_old() -> None:
    asked: list[int] = []
    value = BackgroundValue(lambda: asked.append(1), 60)
    for _ in range(5):
        value.known()
        value.wait(patient(10))
    assert asked == [1]
    eager = BackgroundValue(lambda: asked.append(1), 0)
    for _ in range(3):
        eager.known()
        eager.wait(patient(10))
    assert len(asked) == 4


def test_a_failure_to_get_it_is_told_beside_what_was_known() -> None:
    answers = iter([3])
    value: BackgroundValue[int] = BackgroundValue(lambda: next(answers), 0)
    value.known()
    value.wait(patient(10))
    value.known()
    value.wait(patient(10))
    known = value.known()
    value.wait(patient(10))
    assert (known.value, known.error) == (3, "StopIteration")


# --- stream and backfills ---------------------------------------------------------------------------------------------


DETECTOR, DAY = "failed_logins", NOON.date()
COMPARED = datetime(2026, 11, 20, 5, tzinfo=UTC)


def kept(state: Path, differences: list[Difference], day: date = DAY, *, at: float = 0.0, same: int = 3) -> Path:
    """A comparison of `day` that was made at `at`."""
    comparison = compare([streamed(60, 10 * number) for number in range(same)], [])
    report = ParityReport(
        detector=DETECTOR, day=day, run="r", version=V1, compared_at=COMPARED, **summed(comparison, differences)
    )
    keep(state, report.model_copy(update={"same": same}))
    file = state / "parity" / DETECTOR / f"{day}.json"
    os.utime(file, (at, at))
    return file


def differing(count: int) -> list[Difference]:
    """One that is late, and `count` without a reason, of which the stream has the first alone."""
    late, alone, *others = compare(
        [streamed(60, user="late"), streamed(70, 10, user="x\x1b[31m")],
        [found(80, user="late"), *(found(110, 10 * number) for number in range(2, count + 1))],
    ).differences
    return [
        late.because(DifferenceReason.LATE, "late"),
        *(one.because(DifferenceReason.UNEXPLAINED, "why") for one in (alone, *others)),
    ]


def test_nothing_was_compared_yet(tmp_path: Path) -> None:
    told = Comparisons(tmp_path).of(DETECTOR)
    assert (told.days, told.unexplained, told.fault, told.detector) == ({}, 0, "", DETECTOR)


def test_a_day_tells_how_many_agree_and_how_many_differ_for_which_reason(tmp_path: Path) -> None:
    kept(tmp_path, differing(2))
    told = Comparisons(tmp_path).of(DETECTOR)
    assert [one.why for one in told.differences] == ["why", "why"], "a reason that is known needs no look"
    assert (list(told.days), told.unexplained) == ([DAY], 2)
    (report,) = told.reports
    assert (report.same, report.compared_at, report.reasons) == (3, COMPARED, {"late": 1, "unexplained": 2})


def test_of_the_unexplained_ones_some_are_told_in_full(tmp_path: Path) -> None:
    kept(tmp_path, differing(FEW_DIFFERENCES + 3))
    told = Comparisons(tmp_path).of(DETECTOR)
    assert (len(told.differences), told.unexplained) == (FEW_DIFFERENCES, FEW_DIFFERENCES + 3)


def test_of_sixty_days_those_that_were_compared_last_are_told(tmp_path: Path) -> None:
    days = [DAY - timedelta(days=back) for back in range(60)]
    for back, day in enumerate(days):
        kept(tmp_path, differing(2), day, at=1_000 - back)
    kept(tmp_path, differing(4), days[50], at=2_000)
    told = Comparisons(tmp_path).of(DETECTOR)
    assert list(told.days) == [days[50], *days[: FEW_DAYS - 1]]
    assert told.earlier == 60 - FEW_DAYS
    assert told.unexplained == 4 + 2 * (FEW_DAYS - 1)


@pytest.mark.parametrize("what", ["{", "null", "folder"])
def test_a_broken_day_says_so_and_hides_no_other(tmp_path: Path, what: str) -> None:
    kept(tmp_path, differing(1), at=1)
    file = kept(tmp_path, [], DAY - timedelta(days=1), at=2)
    if what == "folder":
        file.unlink()
        file.mkdir()
    else:
        file.write_text(what)
    told = Comparisons(tmp_path).of(DETECTOR)
    assert isinstance(told.days[DAY - timedelta(days=1)], str)
    assert told.unexplained == 1


def test_what_cannot_be_read_at_all_is_told(tmp_path: Path) -> None:
    (tmp_path / "parity").mkdir()
    (tmp_path / "parity" / DETECTOR).write_text("no folder")
    told = Comparisons(tmp_path).of(DETECTOR)
    assert ("Not a directory" in told.fault, told.unexplained) == (True, 0)


def test_a_new_comparison_is_seen_and_nothing_is_read_twice(tmp_path: Path) -> None:
    kept(tmp_path, differing(1), at=1)
    comparisons = Comparisons(tmp_path)
    assert comparisons.of(DETECTOR).unexplained == 1
    assert comparisons.of(DETECTOR).days is comparisons.of(DETECTOR).days
    kept(tmp_path, differing(3), at=2)
    assert comparisons.of(DETECTOR).unexplained == 3


def test_a_row_tells_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_data, "read_usage", lambda settings: {})
    project = tmp_path / "project"
    copy_project(project)
    state = tmp_path / "state"
    kept(state, differing(2))
    page = Installation(Settings(project=project, state=state))
    unexplained = {row.job: row.unexplained for row in page.jobs({}).rows}
    assert {job: count for job, count in unexplained.items() if count} == {"detector:failed_logins": 2}
