"""The first start of a stack with Airflow, with its metadata in PostgreSQL, as anything that is kept should have it."""

import json
import os
import stat

import psutil

from tests.browser.visiting import Metrics
from tests.rig.under_airflow import BY_EVENT, COMPONENTS, DETECTOR, JOBS, Running
from tests.rig.waiting import await_that
from tocsin.supervise.switches import read_switches

DAG = "detector__failed_logins"


def test_a_new_metadata_db_starts_nothing_that_was_paused_and_to_unpause_is_to_start(running: Running) -> None:
    others = running.pids(DETECTOR)
    assert None not in others.values()
    dag = running.admin.dag(DAG)
    assert dag is not None
    assert (dag["is_paused"], dag["owners"]) == (True, ["security@example.com"])
    looked = read_switches(running.stack.state).read_at
    running.await_look(lambda: read_switches(running.stack.state).read_at > looked, 90)
    assert running.stack.pid(DETECTOR) is None
    running.admin.pause(DAG, False)
    running.await_new(DETECTOR, None, BY_EVENT)
    assert running.pids(DETECTOR) == others


def test_its_metrics_go_where_the_settings_say(running: Running) -> None:
    wanted = {b"airflow.scheduler_heartbeat", b"airflow.dag_processing.import_errors", b"airflow.triggers.running"}
    await_that(lambda: wanted <= Metrics.names, 90, lambda: str(Metrics.names))


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
        parent = psutil.Process(pid).parent()
        assert parent is not None
        assert parent.cmdline()[1:] == ["-m", "tocsin.spark.engine.job_server"]


def test_its_metadata_may_be_in_postgres(running: Running) -> None:
    await_that(lambda: running.ask_metadata("SELECT 1 FROM dag_run WHERE state = 'success'"), 60)
    assert not (running.stack.state / "airflow" / "airflow.db").exists()


def test_it_comes_up_with_all_components(running: Running) -> None:
    said = running.stack.said()
    assert f"Airflow    {running.url} (users admin, operator, viewer; passwords in {running.passwords})" in said
    running.await_running()
    found = {one["job"]: one for one in json.loads(running.stack.tocsin("status", "--json").stdout)}
    assert not found.pop("detector:worse")["runs"]
    assert sorted(found) == sorted([*COMPONENTS, "kafka", "mail", *JOBS])
    assert {one["state"] for one in found.values()} == {"running"}
