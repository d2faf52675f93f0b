"""Airflow as part of the embedded stack: it comes up, is closed to others, comes back, and goes down. In this order."""

from __future__ import annotations

import json
import os
import signal
import stat
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import sqlalchemy

from tests.broker import await_that
from tests.postgres import running_postgres
from tests.stack import Stack

COMPONENTS = ["airflow-api-server", "airflow-dag-processor", "airflow-scheduler", "airflow-triggerer"]
LIGHT_JOBS = ["indexer", "notifier"]
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    one = Stack(tmp_path_factory.mktemp("airflow"), sources=False)
    try:
        one.up("--airflow", "--free-ports")
        one.ready()
        yield one
    finally:
        one.end()


def url(stack: Stack) -> str:
    return str(json.loads((stack.state / "stack.json").read_text())["airflow_url"])


def call(stack: Stack, path: str, token: str | None = None, body: object = None) -> Any:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url(stack) + path, data, headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def token_of(stack: Stack, user: str, password: str | None = None) -> str:
    known = json.loads((stack.state / "airflow" / "passwords.json").read_text())
    body = {"username": user, "password": password or known[user]}
    return str(call(stack, "/auth/token", body=body)["access_token"])


def refused(code: int, stack: Stack, path: str, **given: Any) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        call(stack, path, **given)
    with caught.value as answer:
        assert answer.code == code


def test_it_comes_up_with_all_components_and_keeps_the_jobs_running(stack: Stack) -> None:
    assert f"Airflow    {url(stack)} (users admin, operator, viewer; passwords in " in stack.said()
    found = {one["name"]: one for one in json.loads(stack.tocsin("dev", "status", "--json").stdout)}
    assert sorted(found) == sorted([*COMPONENTS, "kafka", "mail", *LIGHT_JOBS])
    assert {one["state"] for one in found.values()} == {"running"}
    for job in LIGHT_JOBS:
        parents = {parent.pid for parent in psutil.Process(found[job]["pid"]).parents()}
        assert not parents & {found[name]["pid"] for name in COMPONENTS}, "jobs outlive Airflow"


def test_secrets_are_readable_for_this_user_alone(stack: Stack) -> None:
    folder = stack.state / "airflow"
    secret = [*folder.glob("*.secret"), folder / "passwords.json"]
    assert len(secret) == 4
    assert {stat.S_IMODE(path.stat().st_mode) for path in secret} == {0o600}


def test_everything_listens_on_loopback_only(stack: Stack) -> None:
    listening = {
        (process.labels.job, socket.laddr.ip)
        for process in stack.processes()
        for one in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for socket in one.net_connections(kind="tcp")
        if socket.status == psutil.CONN_LISTEN
    }
    assert ("airflow-api-server", "127.0.0.1") in listening
    assert {address for _, address in listening} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}, listening


def test_who_may_do_what(stack: Stack) -> None:
    refused(401, stack, "/api/v2/dags")
    refused(401, stack, "/auth/token", body={"username": "viewer", "password": "guessed"})
    assert "dags" in call(stack, "/api/v2/dags", token_of(stack, "viewer"))
    run = {"logical_date": None}
    refused(403, stack, "/api/v2/dags/supervisor/dagRuns", token=token_of(stack, "viewer"), body=run)


def test_a_killed_component_comes_back_and_the_jobs_stay(stack: Stack) -> None:
    jobs = {job: stack.pid(job) for job in LIGHT_JOBS}
    scheduler = stack.pid("airflow-scheduler")
    assert scheduler is not None
    os.kill(scheduler, signal.SIGKILL)
    await_that(lambda: stack.pid("airflow-scheduler") not in (None, scheduler), 60)
    others = [process.pid for process in stack.processes() if process.labels.job == "airflow-scheduler"]
    assert scheduler not in others
    assert {job: stack.pid(job) for job in LIGHT_JOBS} == jobs


def test_it_goes_down_and_leaves_nothing(stack: Stack) -> None:
    assert stack.send(signal.SIGTERM) == 0
    assert stack.processes() == []
    left = [process for process in psutil.process_iter() if _belongs(process, stack.state)]
    assert left == []


def test_its_metadata_may_be_in_postgres(tmp_path: Path) -> None:
    with running_postgres() as address:
        admin = sqlalchemy.create_engine(address.format(name="postgres"), isolation_level="AUTOCOMMIT")
        with admin.connect() as connection:
            connection.execute(sqlalchemy.text("CREATE DATABASE airflow"))
        admin.dispose()
        (tmp_path / "address").write_text(
            address.format(name="airflow").replace("postgresql://", "postgresql+psycopg2://")
        )
        stack = Stack(tmp_path, sources=False)
        try:
            stack.up("--airflow", "--free-ports", TOCSIN_AIRFLOW__DATABASE_FILE=str(tmp_path / "address"))
            stack.ready()
            assert not (stack.state / "airflow" / "airflow.db").exists()
            assert stack.send(signal.SIGTERM) == 0
        finally:
            stack.end()
        kept = sqlalchemy.create_engine(address.format(name="airflow"))
        with kept.connect() as connection:
            runs = connection.execute(sqlalchemy.text("SELECT count(*) FROM dag_run WHERE state = 'success'")).scalar()
        kept.dispose()
        assert runs


def _belongs(process: psutil.Process, state: Path) -> bool:
    try:
        return process.environ().get("AIRFLOW_HOME", "").startswith(str(state))
    except psutil.Error:
        return False
