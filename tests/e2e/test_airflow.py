"""Airflow keeps the jobs running: one start of everything, then what may happen. The tests build on each other."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import stat
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.under_airflow import BACKFILL, BATCH_SECONDS, BY_EVENT, DETECTOR, JOBS, OWNER, PAST, SECONDS, Running
from tests.rig.airflow_api import Api
from tests.rig.stack import Stack
from tests.rig.waiting import await_that
from tocsin.model.job_report import JobState
from tocsin.runtime.detector_versions import version_in_force
from tocsin.supervision.job_states import memory_of
from tocsin.supervision.switches import read_switches

# Some run Spark for one day after the other, beside the jobs and all of Airflow.
pytestmark = pytest.mark.timeout(1200)
COMPONENTS = ["airflow-api-server", "airflow-dag-processor", "airflow-scheduler", "airflow-triggerer"]
DAG = "detector__failed_logins"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    stack = Stack(tmp_path_factory.mktemp("airflow"))
    try:
        stack.up("--free-ports", "--airflow")
        stack.ready()
        yield Running(stack)
    finally:
        stack.end()


def test_it_starts_all_jobs_and_each_detector_has_a_switch(running: Running) -> None:
    assert None not in running.pids().values()
    dag = running.admin.dag(DAG)
    assert dag is not None
    assert (dag["is_paused"], dag["owners"]) == (False, ["security@example.com"])


def test_it_comes_up_with_all_components(running: Running) -> None:
    said = running.stack.said()
    assert f"Airflow    {running.url} (users admin, operator, viewer; passwords in {running.passwords})" in said
    found = {one["name"]: one for one in json.loads(running.stack.tocsin("dev", "status", "--json").stdout)}
    assert sorted(found) == sorted([*COMPONENTS, "kafka", "mail", *JOBS])
    assert {one["state"] for one in found.values()} == {"running"}


def test_its_secrets_are_readable_for_this_user_alone(running: Running) -> None:
    secret = [*running.passwords.parent.glob("*.secret"), running.passwords]
    assert len(secret) == 4
    assert {stat.S_IMODE(path.stat().st_mode) for path in secret} == {0o600}


def test_airflow_listens_on_loopback_only(running: Running) -> None:
    listening = {(name, address) for name, address in running.stack.listening() if name in COMPONENTS}
    assert ("airflow-api-server", "127.0.0.1") in listening
    assert {address for _, address in listening} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}, listening


def test_jobs_belong_to_no_process_of_airflow(running: Running) -> None:
    for pid in running.pids().values():
        assert pid is not None
        assert os.getsid(pid) == pid


@pytest.mark.parametrize("job", ["notifier", DETECTOR])
def test_a_killed_job_comes_back_and_the_others_stay(running: Running, job: str) -> None:
    others, old = running.pids(job), running.stack.pid(job)
    assert old is not None
    os.kill(old, signal.SIGKILL)
    running.await_new(job, old, BY_EVENT)
    assert running.pids(job) == others


def test_a_restart_from_the_form_replaces_the_job_and_is_no_failure(running: Running) -> None:
    others, old = running.pids(DETECTOR), running.stack.pid(DETECTOR)
    run = running.admin.trigger(DAG, action="restart")
    running.await_new(DETECTOR, old)
    await_that(lambda: running.admin.runs(DAG)[run] == "success", SECONDS)
    assert running.pids(DETECTOR) == others
    assert running.condition(DETECTOR) in ("fine", "restarting"), "the kill before counts, the restart does not"
    assert len(json.loads(memory_of(running.stack.state, "jobs").read_text())["jobs"][DETECTOR]["failures"]) == 0


def test_the_status_is_in_the_log_of_the_task(running: Running) -> None:
    run = running.admin.trigger("platform", action="status", job="notifier")
    await_that(lambda: running.admin.runs("platform")[run] == "success", SECONDS)
    said = running.admin.log("platform", run, "act")
    assert str(running.stack.pid("notifier")) in said
    assert "started" in said, "the log of the job itself"


def test_all_of_airflow_killed_comes_back_and_adopts_the_jobs(running: Running) -> None:
    jobs, airflow = running.pids(), {name: running.stack.pid(name) for name in COMPONENTS}
    for pid in airflow.values():
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    await_that(lambda: all(running.stack.pid(name) not in (None, old) for name, old in airflow.items()), 120)
    killed_at = time.time()
    await_that(lambda: read_switches(running.stack.state).read_at > killed_at, BATCH_SECONDS)
    assert running.pids() == jobs
    leaders = Counter(process.labels.job for process in running.stack.processes() if process.leader)
    assert set(leaders.values()) == {1}, leaders


def test_housekeeping_removes_old_runs_and_keeps_young_ones(running: Running) -> None:
    old, young = (running.admin.trigger("platform", action="status", job="indexer") for _ in range(2))
    await_that(lambda: {running.admin.runs("platform")[run] for run in (old, young)} == {"success"}, 2 * SECONDS)
    with contextlib.closing(sqlite3.connect(running.stack.state / "airflow" / "airflow.db", timeout=30)) as db, db:
        aged = db.execute("UPDATE dag_run SET start_date = '2020-01-01 00:00:00.000000' WHERE run_id = ?", (old,))
        assert aged.rowcount == 1
    run = running.admin.trigger("housekeeping")
    running.await_end("housekeeping", run, "success")
    left = running.admin.runs("platform")
    assert old not in left
    assert young in left


def test_without_a_login_nothing_is_told(running: Running) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{running.url}/api/v2/dags", timeout=60)
    with refused.value as answer:
        assert answer.code == 401
    guessed = {"username": "viewer", "password": "guessed"}
    assert running.admin.refusal("POST", "/auth/token", guessed) == 401


def test_a_viewer_sees_and_cannot_act(running: Running) -> None:
    viewer = Api(running.url, running.passwords, "viewer")
    assert viewer.dag(DAG) is not None
    assert viewer.refusal("POST", f"/api/v2/dags/{DAG}/dagRuns", {"logical_date": None, "conf": {}}) == 403
    assert viewer.refusal("PATCH", f"/api/v2/dags/{DAG}", {"is_paused": True}) == 403
    operator = Api(running.url, running.passwords, "operator")
    assert operator.refusal("PATCH", f"/api/v2/dags/{DAG}", {"is_paused": False}) == 0


def test_the_night_runs_the_detectors_over_the_days_that_it_has_published(running: Running) -> None:
    running.bring_in_the_past()
    run = running.admin.trigger("history__logins")
    running.await_end("history__logins", run, "success")
    said = running.told_of_days()
    for day in PAST:
        assert (
            f"failed_logins {day}: published, 1 finding, verdict pass ({running.url}/tocsin/quality/findings." in said
        )
    secrets = [path.read_text() for path in (running.stack.state / "airflow").glob("*.secret")]
    assert len(secrets) == 3
    assert not [secret for secret in secrets if secret in said]

    run = running.admin.trigger(BACKFILL)
    running.await_end(BACKFILL, run, "success")
    states = running.admin.states(BACKFILL, run)
    assert states == {"due": "success", "run": "skipped", "parity": "success"}, "nothing is left to do"
    said = running.admin.log(BACKFILL, run, "parity")
    assert f"failed_logins {max(PAST)}: 0 findings agree, 1 differ: 1 data missing" in said, "no stream was there then"


def test_a_backfill_of_airflow_runs_each_day_from_the_first_to_the_last(running: Running) -> None:
    first, last = (f"{day}T00:00:00Z" for day in (min(PAST), max(PAST)))
    asked = {"dag_id": BACKFILL, "from_date": first, "to_date": last, "max_active_runs": 1}
    running.admin.call("POST", "/api/v2/backfills", asked)
    running.await_days(len(PAST))
    assert running.days() == [(str(day), "success") for day in sorted(PAST)]

    again = running.admin.call("POST", "/api/v2/backfills/dry_run", asked)
    assert again["backfills"] == [], "without reprocessing, days that have a run are not run again"
    all_runs = asked | {"from_date": last, "reprocess_behavior": "completed"}
    # Airflow takes the next Backfill once it has noted that the one before is over, up to half a minute later.
    await_that(lambda: running.admin.refusal("POST", "/api/v2/backfills", all_runs) == 0, SECONDS, every=1)
    running.await_days(len(PAST) + 1)
    assert running.days() == [(str(day), "success") for day in sorted([*PAST, max(PAST)])], "the last day has run again"


def test_a_day_that_a_gate_holds_is_a_failed_run_and_one_mail_to_its_owner_once_mail_leaves(running: Running) -> None:
    rule = {"type": "expect_table_row_count_to_be_between", "kwargs": {"max_value": 0}, "severity": "critical"}
    suite = running.stack.project / "expectations" / "logins.findings.json"
    suite.parent.mkdir()
    suite.write_text(
        json.dumps({"name": "logins.findings", "expectations": [rule | {"meta": {"name": "none_at_all"}}]})
    )
    day = max(PAST)
    with running.without_mail():
        run = running.admin.trigger(BACKFILL, day=str(day))
        running.await_end(BACKFILL, run, "failed")
        running.await_look(lambda: "failed" in running.admin.runs("mails").values(), 150)
    assert running.admin.tries(BACKFILL, run, "run") == 1, "what a gate holds is not tried again"
    assert f"failed_logins {day}: held: " in running.admin.log(BACKFILL, run, "run")

    running.await_look(lambda: [*running.admin.runs("mails").values()] == ["success"], 150)
    (mail,) = [one for one in running.mails_to("security@example.com") if "backfill" in one["subject"]]
    assert mail["subject"] == "[tocsin] backfill of failed_logins: 1 day not published"
    (address,) = re.findall(rf'"({running.url}/tocsin/quality/findings[^"]+)"', mail["html"])
    page = Api(running.url, running.passwords, "viewer").page(address.removeprefix(running.url))
    assert "none_at_all" in page
    assert running.admin.link(BACKFILL, run, "run", "Quality report") == address
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(address, timeout=60)
    with refused.value as answer:
        assert answer.code == 401
    suite.unlink()


def test_a_day_of_a_source_that_the_gate_refuses_is_one_mail_to_its_owner(running: Running) -> None:
    def mails() -> list[dict[str, Any]]:
        return [one for one in running.mails_to("platform@example.com") if "history" in one["subject"]]

    rule = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "rows", "max_value": 0}}
    rule |= {"severity": "critical", "meta": {"name": "nothing_comes"}}
    suite = running.stack.project / "expectations" / "logins.day.json"
    suite.parent.mkdir(exist_ok=True)
    suite.write_text(json.dumps({"name": "logins.day", "expectations": [rule]}))
    day = min(PAST) - timedelta(days=1)
    running.bring_in_the_past([day])
    run = running.admin.trigger("history__logins")
    running.await_end("history__logins", run, "failed")
    suite.unlink()
    assert running.admin.states("history__logins", run)["seal"] == "failed"
    assert running.admin.tries("history__logins", run, "seal") == 1, "what the gate refuses is not tried again"
    running.await_look(lambda: len(mails()) > 0, 150)
    (mail,) = mails()
    assert mail["subject"] == "[tocsin] history of logins: 1 day not published"
    assert "nothing_comes: rows is 60, allowed is " in mail["html"]
    assert "spark-submit" not in mail["html"]
    (address,) = re.findall(rf'"({running.url}/tocsin/quality/logins/{day}/[^"]+)"', mail["html"])
    assert "nothing_comes" in Api(running.url, running.passwords, "viewer").page(address.removeprefix(running.url))
    assert running.admin.link("history__logins", run, "seal", "Quality report") == address


def test_a_run_whose_task_is_killed_is_a_mail_all_the_same(running: Running) -> None:
    """Airflow tells of a failed task in the task's own process, which is gone."""
    run = running.kill_task(BACKFILL, "due")
    running.await_end(BACKFILL, run, "failed")
    subject = f"[tocsin] {BACKFILL}: a run failed"
    running.await_look(lambda: subject in running.subjects_to("security@example.com"), 150)


def test_an_edited_detector_is_replaced_alone_and_rolled_back_with_one_action(running: Running) -> None:
    def runs(version: str) -> bool:
        return running.stack.report(DETECTOR).version == version

    others, old = running.pids(DETECTOR), running.stack.pid(DETECTOR)
    first = version_in_force(running.stack.settings, "failed_logins")
    await_that(lambda: runs(first), SECONDS)
    path = running.stack.project / "detectors" / "failed_logins.py"
    path.write_text(path.read_text().replace("urgent=100", "urgent=110"))
    second = version_in_force(running.stack.settings, "failed_logins")
    await_that(lambda: runs(second), 2 * SECONDS)
    assert running.stack.report(DETECTOR).pid != old

    running.admin.trigger(DAG, action="roll back")
    await_that(lambda: runs(first), 2 * SECONDS)
    assert running.pids(DETECTOR) == others
    running.admin.trigger(DAG, action="roll forward")
    await_that(lambda: runs(second), 2 * SECONDS)


def test_a_change_that_cannot_run_stops_nothing_is_told_and_can_be_taken_back(running: Running) -> None:
    leads = running.stack.report(DETECTOR).pid
    await_that(lambda: running.stack.pid(DETECTOR) == leads, SECONDS)
    before = running.pids()
    path = running.stack.project / "detectors" / "failed_logins.py"
    text = path.read_text()
    path.write_text(text.replace("action = 'login failed'", "no_such_column = 1"))
    running.await_look(lambda: running.condition(DETECTOR) == "misconfigured", 120)
    owner = "security@example.com"
    subject = f"[tocsin] {DETECTOR}: misconfigured"
    running.await_look(lambda: subject in running.subjects_to(owner), 2 * SECONDS)
    (mail,) = [mail for mail in running.mails_to(owner) if mail["subject"] == subject]
    assert "the version before keeps running" in mail["html"]

    running.admin.trigger(DAG, action="roll back")
    running.await_look(lambda: running.condition(DETECTOR) == "fine", 2 * SECONDS)
    path.write_text(text)
    assert running.pids() == before, "the process that ran before the change still runs"


def test_to_pause_is_to_stop_and_to_unpause_is_to_start(running: Running) -> None:
    others = running.pids(DETECTOR)
    running.admin.pause(DAG, True)
    await_that(lambda: running.stack.pid(DETECTOR) is None, SECONDS)
    kept = json.loads((running.stack.state / "supervision" / "desired.json").read_text())
    assert kept["off"] == {"failed_logins": True}
    running.admin.pause(DAG, False)
    running.await_new(DETECTOR, None, BY_EVENT)
    assert running.pids(DETECTOR) == others


def test_a_drain_reads_all_there_is_and_stops_and_a_restart_goes_on_from_there(running: Running) -> None:
    others, old = running.pids(DETECTOR), running.stack.pid(DETECTOR)
    await_that(lambda: running.stack.report(DETECTOR).state is JobState.RUNNING, BATCH_SECONDS)
    running.burst("before")
    ends = running.ends()
    run = running.admin.trigger(DAG, action="drain")
    await_that(lambda: running.stack.pid(DETECTOR) is None, BATCH_SECONDS)
    assert running.admin.runs(DAG)[run] == "success"
    assert running.stack.report(DETECTOR).pid == old, "it was never another process that drained"
    committed = running.committed(ends)
    assert all(committed[partition] >= end for partition, end in ends.items()), (committed, ends)
    await_that(lambda: running.has_found("before"), SECONDS)
    running.burst("after")
    looked = read_switches(running.stack.state).read_at
    running.await_look(lambda: read_switches(running.stack.state).read_at > looked + 1, 2 * 60)
    assert running.stack.pid(DETECTOR) is None, "the supervisor has looked, and left it so"
    assert not running.has_found("after")
    running.admin.trigger(DAG, action="restart")
    running.await_new(DETECTOR, None)
    await_that(lambda: running.has_found("after"), BATCH_SECONDS)
    assert running.condition(DETECTOR) == "fine"
    assert running.pids(DETECTOR) == others


def test_a_source_of_which_much_goes_to_quarantine_is_one_mail_to_its_owner(running: Running) -> None:
    before = running.pids()
    file = running.stack.state / "changed.log"
    file.write_text("user: mallory, did: login failed\n" * 1500)
    done = running.stack.tocsin("send", str(file))
    assert done.returncode == 0, done.stderr
    subject = "[tocsin] ingest:logins: much goes to quarantine"
    running.await_look(lambda: subject in running.subjects_to("platform@example.com"), 180)
    (mail,) = [mail for mail in running.mails_to("platform@example.com") if mail["subject"] == subject]
    assert re.search(r"[\d.]+% of the latest records went to quarantine", mail["html"])
    assert "tocsin quarantine list --source logins" in mail["html"]
    assert running.pids() == before, "nothing is stopped for it"


def test_a_broken_file_hides_no_dag_and_stops_no_job(running: Running) -> None:
    before = running.pids()
    (running.stack.project / "detectors" / "worse.py").write_text("def detect(:")

    def shown() -> bool:
        dag = running.admin.dag("detector__worse")
        return dag is not None and "broken" in {tag["name"] for tag in dag["tags"]}

    await_that(shown, 90)
    running.await_look(lambda: [*running.admin.runs("detector__worse").values()] == ["failed"], 150)
    (run,) = running.admin.runs("detector__worse")
    assert "is not Python" in running.admin.log("detector__worse", run, "act")
    subject = "[tocsin] detector:worse: broken file"
    running.await_look(lambda: subject in running.subjects_to("platform@example.com"), 150)
    assert running.admin.dag(DAG) is not None
    assert running.admin.call("GET", "/api/v2/importErrors")["total_entries"] == 0
    assert running.pids() == before
    (running.stack.project / "detectors" / "worse.py").unlink()


def test_a_detector_that_cannot_work_is_told_once_to_its_owner_when_mail_can_leave_again(running: Running) -> None:
    """The process that ended belongs to a supervisor's run that is over; its exit code is known all the same."""
    before = running.pids()
    with running.without_mail():
        running.declare("wrong", "action = 'login failed'", "no_such_column = 1")
        running.await_look(lambda: running.condition("detector:wrong") == "misconfigured", 120)
        running.await_look(lambda: len(running.admin.runs("detector__wrong")) == 1, 90)
        running.await_look(lambda: "failed" in running.admin.runs("mails").values(), 150)
    running.await_look(lambda: len(running.mails_to(OWNER)) == 1, 150)
    (mail,) = running.mails_to(OWNER)
    assert mail["subject"] == "[tocsin] detector:wrong: misconfigured"
    assert "no_such_column" in mail["html"], "the end of its log"
    await_that(lambda: [*running.admin.runs("detector__wrong").values()] == ["failed"], SECONDS)
    assert running.pids() == before


def test_a_crash_loop_is_one_mail(running: Running) -> None:
    others = running.pids()
    running.declare("wrong")
    killed: set[int] = set()

    def looping() -> bool:
        pid = running.stack.pid("detector:wrong")
        if pid is not None and pid not in killed:
            killed.add(pid)
            os.kill(pid, signal.SIGKILL)
        return running.condition("detector:wrong") == "crash loop"

    await_that(looping, 200)
    subject = "[tocsin] detector:wrong: crash loop"
    running.await_look(lambda: subject in running.subjects_to(OWNER), 2 * SECONDS)
    running.await_new("detector:wrong", None, 90)  # another try, and more looks on the way
    assert [mail["subject"] for mail in running.mails_to(OWNER)].count(subject) == 1
    assert running.pids() == others


def test_a_deleted_detector_is_retired(running: Running) -> None:
    others = running.pids()
    (running.stack.project / "detectors" / "wrong.py").unlink()
    await_that(lambda: running.stack.pid("detector:wrong") is None, SECONDS)
    assert running.pids() == others


def test_a_new_metadata_db_starts_nothing_that_was_paused(running: Running) -> None:
    running.admin.pause(DAG, True)
    await_that(lambda: running.stack.pid(DETECTOR) is None, SECONDS)
    stack = running.stack
    assert stack.send(signal.SIGTERM) == 0
    for file in ("airflow.db", "airflow.db-wal", "airflow.db-shm", "prepared"):
        (stack.state / "airflow" / file).unlink(missing_ok=True)
    stack.up("--free-ports", "--airflow")
    stack.ready()
    again = Running(stack)
    await_that(lambda: again.admin.dag(DAG) is not None, SECONDS)
    dag = again.admin.dag(DAG)
    assert dag is not None
    assert dag["is_paused"]
    looked = read_switches(stack.state).read_at
    again.await_look(lambda: read_switches(stack.state).read_at > looked, 90)
    assert stack.pid(DETECTOR) is None
    again.admin.pause(DAG, False)
    again.await_new(DETECTOR, None, BY_EVENT)


def test_it_goes_down_and_leaves_nothing(running: Running) -> None:
    stack = running.stack
    assert stack.send(signal.SIGTERM) == 0
    assert stack.processes() == []
    assert [process for process in psutil.process_iter() if _belongs(process, running.passwords.parent)] == []


def _belongs(process: psutil.Process, home: Path) -> bool:
    try:
        return process.environ().get("AIRFLOW_HOME") == str(home)
    except psutil.Error:
        return False
