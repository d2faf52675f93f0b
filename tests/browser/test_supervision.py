"""Airflow keeps the jobs running, whatever happens. The tests build on each other; the last takes the stack down."""

import json
import os
import re
import signal
import time
import urllib.error
import urllib.request
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.rig.under_airflow import (
    BACKFILL,
    BATCH_SECONDS,
    BY_EVENT,
    COMPONENTS,
    DETECTOR,
    GOOD,
    HELD,
    HISTORY,
    OWNER,
    REFUSED,
    SECONDS,
    Running,
)
from tests.rig.waiting import await_that
from tocsin.supervise.job_states import memory_of
from tocsin.supervise.switches import read_switches

# Some run Spark for one day after the other, beside the jobs and all of Airflow.
pytestmark = pytest.mark.timeout(1200)
DAG = "detector__failed_logins"


def test_a_killed_job_comes_back_and_the_others_stay(running: Running) -> None:
    others, old = running.pids("notifier"), running.stack.pid("notifier")
    assert old is not None
    os.kill(old, signal.SIGKILL)
    running.await_new("notifier", old, BY_EVENT)
    assert running.pids("notifier") == others


def test_a_restart_from_the_form_replaces_the_job_and_is_no_failure(running: Running) -> None:
    others, old = running.pids("notifier"), running.stack.pid("notifier")
    run = running.admin.trigger("platform", action="restart", job="notifier")
    running.await_new("notifier", old)
    await_that(lambda: running.admin.runs("platform")[run] == "success", SECONDS)
    assert running.pids("notifier") == others
    assert running.condition("notifier") in ("fine", "restarting"), "the kill before counts, the restart does not"
    assert len(json.loads(memory_of(running.stack.state, "jobs").read_text())["jobs"]["notifier"]["failures"]) == 0


def test_the_status_is_in_the_log_of_the_task(running: Running) -> None:
    run = running.admin.trigger("platform", action="status", job="notifier")
    await_that(lambda: running.admin.runs("platform")[run] == "success", SECONDS)
    said = running.admin.log("platform", run, "act")
    assert str(running.stack.pid("notifier")) in said
    assert "started" in said, "the log of the job itself"


def test_housekeeping_removes_old_runs_and_keeps_young_ones(running: Running) -> None:
    young, *_, old = running.admin.runs("platform")
    age = "UPDATE dag_run SET start_date = '2020-01-01 00:00:00+00' WHERE run_id = %s RETURNING 1"
    assert running.ask_metadata(age, old) == (1,)
    run = running.admin.trigger("housekeeping")
    running.await_end("housekeeping", run, "success")
    left = running.admin.runs("platform")
    assert young in left
    assert old not in left


def test_without_a_login_nothing_is_told(running: Running) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{running.url}/api/v2/dags", timeout=60)
    with refused.value as answer:
        assert answer.code == 401
    guessed = {"username": "viewer", "password": "guessed"}
    assert running.admin.refusal("POST", "/auth/token", guessed) == 401


def test_a_night_publishes_what_passes_and_of_the_rest_each_owner_gets_one_mail_once_mail_leaves(
    running: Running,
) -> None:
    running.judge("logins.day", "few_come", column="rows", max_value=150)
    running.judge("logins.findings", "one_at_most", max_value=1)
    running.land_the_past({REFUSED: ["mallory"] * 3, GOOD: ["mallory"], HELD: ["mallory", "eve"]})
    running.find_in_the_stream("mallory", GOOD)
    with running.without_mail():
        night = running.night()
        running.await_look(lambda: running.notices_in_outbox() > 0, 150)
    states = running.admin.states(HISTORY, night)
    assert {task: states[task] for task in ("seal", "catch_up")} == {"seal": "failed", "catch_up": "failed"}
    tries = [running.admin.tries(HISTORY, night, task) for task in ("seal", "catch_up")]
    assert tries == [1, 1], "what a gate holds is not tried again"
    said = running.admin.log(HISTORY, night, "catch_up")
    findings = f"{running.url}/tocsin/quality/findings."
    assert f"failed_logins {GOOD}: published, 1 finding, verdict pass ({findings}" in said
    assert f"failed_logins {HELD}: held: " in said
    assert str(REFUSED) not in said
    secrets = [path.read_text() for path in (running.stack.state / "airflow").glob("*.secret")]
    assert len(secrets) == 3
    assert not [secret for secret in secrets if secret in said]

    await_that(lambda: any("backfill" in subject for subject in running.subjects_to("security@example.com")), 150)
    await_that(lambda: any("history" in subject for subject in running.subjects_to("platform@example.com")), 150)
    await_that(lambda: running.notices_in_outbox() == 0, 150)
    (mail,) = [one for one in running.mails_to("security@example.com") if "backfill" in one["subject"]]
    assert mail["subject"] == "[tocsin] backfill of failed_logins: 1 day not published"
    address = running.reported(mail, "findings.failed_logins", HELD, "one_at_most")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(address, timeout=60)
    with refused.value as answer:
        assert answer.code == 401
    (mail,) = [one for one in running.mails_to("platform@example.com") if "history" in one["subject"]]
    assert mail["subject"] == "[tocsin] history of logins: 1 day not published"
    assert "few_come: rows is 180, allowed is " in mail["html"]
    assert "spark-submit" not in mail["html"]
    running.reported(mail, "logins", REFUSED, "few_come")


@pytest.mark.long  # tests/airflow has that a run without work is skipped, tests/spark the comparison
def test_what_the_night_has_run_is_not_run_again_and_is_compared_with_the_stream(running: Running) -> None:
    run = running.admin.trigger(BACKFILL)
    running.await_end(BACKFILL, run, "success")
    states = running.admin.states(BACKFILL, run)
    announced = {"announce__failed_logins": "skipped"}
    assert states == {"due": "success", "run": "skipped", "parity": "success"} | announced, "nothing is left to do"
    said = running.admin.log(BACKFILL, run, "parity")
    assert f"failed_logins {GOOD}: 1 findings agree; stream and backfill agree" in said


@pytest.mark.long  # two tasks more of Spark; tests/airflow has which days a range stands for, the night has one run
def test_a_backfill_of_airflow_takes_a_range_of_days(running: Running) -> None:
    def listed(first: date, last: date, **more: str) -> list[str]:
        found = running.admin.call("POST", "/api/v2/backfills/dry_run", asked(first, last) | more)["backfills"]
        return [one["partition_key"] for one in found]

    def asked(first: date, last: date) -> dict[str, Any]:
        return {"dag_id": BACKFILL, "from_date": f"{first}T00:00:00Z", "to_date": f"{last}T00:00:00Z"}

    assert listed(REFUSED, HELD) == [str(REFUSED), str(GOOD), str(HELD)]
    running.admin.call("POST", "/api/v2/backfills", asked(GOOD, GOOD))
    (run,) = running.backfilled(1)
    running.await_end(BACKFILL, run, "success")
    assert running.backfilled(1)[run] == str(GOOD)
    assert f"failed_logins {GOOD}: published, 1 finding" in running.admin.log(BACKFILL, run, "run")
    link = running.admin.link(BACKFILL, run, "run", "Quality report")
    assert str(link).startswith(f"{running.url}/tocsin/quality/findings.failed_logins/{GOOD}/")
    assert listed(GOOD, GOOD) == [], "without reprocessing, days that have a run are not run again"
    assert listed(GOOD, GOOD, reprocess_behavior="completed") == [str(GOOD)]


@pytest.mark.long
def test_a_run_whose_task_is_killed_is_a_mail_all_the_same(running: Running) -> None:
    """Airflow tells of a failed task in the task's own process, which is gone."""
    run = running.kill_task(BACKFILL, "due")
    running.await_end(BACKFILL, run, "failed")
    subject = f"[tocsin] {BACKFILL}: a run failed"
    running.await_look(lambda: subject in running.subjects_to("security@example.com"), 150)


def test_all_of_airflow_killed_comes_back_and_adopts_the_jobs(running: Running) -> None:
    jobs, airflow = running.pids(), {name: running.stack.pid(name) for name in COMPONENTS}
    for pid in airflow.values():
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    await_that(lambda: all(running.stack.pid(name) not in (None, old) for name, old in airflow.items()), 120)
    killed_at = time.time()
    await_that(running.answers, BATCH_SECONDS)
    running.await_look(lambda: read_switches(running.stack.state).read_at > killed_at, BATCH_SECONDS)
    assert running.pids() == jobs
    leaders = Counter(process.labels.job for process in running.stack.processes() if process.leader)
    assert set(leaders.values()) == {1}, leaders


@pytest.mark.long
def test_an_edited_detector_is_replaced_alone(running: Running) -> None:
    others, old = running.pids(DETECTOR), running.stack.report(DETECTOR)
    path = running.stack.project / "detectors" / "failed_logins.py"
    path.write_text(path.read_text().replace("urgent=100", "urgent=110"))
    second = running.declared_version()
    assert second != old.version
    running.await_version(second)
    await_that(lambda: running.stack.pid(DETECTOR) == running.stack.report(DETECTOR).pid, SECONDS)
    assert running.stack.pid(DETECTOR) != old.pid
    assert running.pids(DETECTOR) == others


@pytest.mark.long
def test_a_change_that_cannot_run_stops_nothing_is_told_once_mail_leaves_and_can_be_taken_back(
    running: Running,
) -> None:
    """The process that ended belongs to a supervisor's run that is over; its exit code is known all the same."""
    before = running.pids()
    path = running.stack.project / "detectors" / "failed_logins.py"
    text = path.read_text()
    with running.without_mail():
        path.write_text(text + "import no_such_module\n")
        running.await_look(lambda: running.condition(DETECTOR) == "misconfigured", 120)
        path.write_text(text)
        running.await_look(lambda: running.condition(DETECTOR) == "fine", 2 * SECONDS)
        running.await_look(lambda: running.notices_in_outbox() > 0, 150)
    await_that(lambda: [*running.admin.runs(DAG).values()].count("failed") == 1, SECONDS)  # it shows the condition
    owner = "security@example.com"
    subject = f"[tocsin] {DETECTOR}: misconfigured"
    running.await_look(lambda: subject in running.subjects_to(owner), 150)
    (mail,) = [mail for mail in running.mails_to(owner) if mail["subject"] == subject]
    assert "no_such_module" in mail["html"]
    assert "the version before keeps running" in mail["html"]
    assert running.pids() == before, "the process that ran before the change still runs"


@pytest.mark.long
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
    assert "tocsin quarantine --source logins" in mail["html"]
    assert running.pids() == before, "nothing is stopped for it"


def test_a_broken_file_hides_no_dag_and_is_told(running: Running) -> None:
    dag = running.admin.dag("detector__worse")
    assert dag is not None
    assert "broken" in {tag["name"] for tag in dag["tags"]}
    running.await_look(lambda: [*running.admin.runs("detector__worse").values()] == ["failed"], 150)
    (run,) = running.admin.runs("detector__worse")
    assert "is not Python" in running.admin.log("detector__worse", run, "act")
    assert running.subjects_to("platform@example.com").count("[tocsin] detector:worse: broken file") == 1
    assert running.admin.call("GET", "/api/v2/importErrors")["total_entries"] == 0


@pytest.mark.long
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
    looked = read_switches(running.stack.state).read_at
    running.await_look(lambda: read_switches(running.stack.state).read_at > looked, 2 * SECONDS)
    assert running.subjects_to(OWNER) == [subject]
    assert running.pids() == others
    (running.stack.project / "detectors" / "wrong.py").unlink()


def test_the_end_of_a_detector_touches_no_other_job(running: Running) -> None:
    gone = (DETECTOR, "engine:live-1")  # an engine without jobs ends, too
    others = running.pids(*gone)
    (running.stack.project / "detectors" / "failed_logins.py").unlink()
    await_that(lambda: running.stack.pid(DETECTOR) is None, SECONDS)
    assert running.pids(*gone) == others


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
