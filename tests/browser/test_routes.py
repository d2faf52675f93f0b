"""Every route of the pages' application: who may ask, and what it answers to whom asks for too much."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from email.message import Message
from pathlib import Path

import pytest

from tests.browser.visiting import DAY, DETECTOR, RUN
from tests.rig.airflow_api import Api
from tests.rig.under_airflow import Running
from tocsin.setup.paths import here

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
DAG = "detector__failed_logins"
REPORT = f"findings.{DETECTOR}/{DAY}/{RUN}"
# Each route with what it takes to be answered, and the type of the answer.
HTML, JSON = "text/html; charset=utf-8", "application/json"
ROUTES = {
    "/tocsin/alerts": ("/tocsin/alerts", HTML),
    "/tocsin/detectors": ("/tocsin/detectors", HTML),
    "/tocsin/silences": ("/tocsin/silences", HTML),
    "/tocsin/jobs": ("/tocsin/jobs", HTML),
    "/tocsin/job": (f"/tocsin/job?dag_id={DAG}", HTML),
    "/tocsin/quality/index.html": ("/tocsin/quality/index.html", HTML),
    "/tocsin/quality/{subject}/{day}/{name}": (f"/tocsin/quality/{REPORT}.json", JSON),
}
# Of an alert or a file of the project, without end, or for everybody: see the tests of the application.
OTHERS = {
    "/tocsin/",
    "/tocsin/alerts/events",
    "/tocsin/alerts/{alert_id:row}",
    "/tocsin/answer/{token}",
    "/tocsin/runbooks/{detector}",
    "/tocsin/static/{name}",
}
ACTIONS = {
    "/tocsin/alerts": "/tocsin/alerts",
    "/tocsin/alerts/{alert_id:row}": "/tocsin/alerts/1",
    "/tocsin/silences": "/tocsin/silences",
    "/tocsin/silences/{silence_id:row}/end": "/tocsin/silences/1/end",
}
UNKNOWN = ["/tocsin/nothing", "/tocsin/api/jobs", "/tocsin/openapi.json", "/tocsin/docs"]
ASKED = [path for path, _ in ROUTES.values()]


class Asked:
    """The answer to a request, whatever it is."""

    def __init__(self, running: Running, method: str, path: str, **headers: str) -> None:
        request = urllib.request.Request(running.url + path, method=method, headers=headers)
        self.headers: Message
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                self.status, self.headers, self.body = answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                self.status, self.headers, self.body = error.code, error.headers, error.read()


def token(running: Running, user: str) -> str:
    given: str = Api(running.url, running.passwords, user)._token
    return given


@pytest.fixture(scope="module")
def bearer(running: Running) -> dict[str, str]:
    return {user: f"Bearer {token(running, user)}" for user in ("viewer", "operator")}


def test_no_route_is_missing_in_this_file(tmp_path: Path) -> None:
    program = str(Path(__file__).with_name("list_routes.py"))
    environment = {"PATH": "/usr/bin:/bin", "AIRFLOW_HOME": str(tmp_path)}
    command = [str(here().airflow_venv / "bin" / "python"), program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    by_method = {method: {path for path, methods in found if method in methods} for method in METHODS}
    assert by_method.pop("GET") == {*ROUTES, *OTHERS}
    assert by_method.pop("POST") == {*ACTIONS, "/tocsin/answer/{token}", "/tocsin/receivers/pagerduty"}
    assert not any(by_method.values())


@pytest.mark.parametrize("path", [*ASKED, *UNKNOWN])
def test_nobody_in_particular_is_told_nothing(running: Running, path: str) -> None:
    for method in METHODS:
        answer = Asked(running, method, path)
        assert (method, answer.status) == (method, 401)
        assert answer.body in (b"", b'{"detail":"Not authenticated"}')
        assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("given", ["Bearer guessed", "Bearer ", "Basic dmlld2VyOnZpZXdlcg==", "guessed"])
def test_who_makes_up_a_token_is_nobody(running: Running, given: str) -> None:
    for headers in ({"Authorization": given}, {"Cookie": f"_token={given.removeprefix('Bearer ')}"}):
        assert {Asked(running, "GET", path, **headers).status for path in ASKED} == {401}


@pytest.mark.parametrize(("path", "kind"), ROUTES.values())
def test_a_viewer_is_answered_with_the_right_type_and_no_page_may_load_from_elsewhere(
    running: Running, bearer: dict[str, str], path: str, kind: str
) -> None:
    for user in ("viewer", "operator"):
        answer = Asked(running, "GET", path, Authorization=bearer[user])
        assert (answer.status, answer.headers["Content-Type"]) == (200, kind)
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy.replace("style-src 'unsafe-inline'", ""), "reports carry their style"
        assert "script-src 'unsafe" not in policy
        assert "://" not in policy


def test_the_cookie_of_the_browser_is_enough_to_read(running: Running) -> None:
    cookie = f"_token={token(running, 'viewer')}"
    assert Asked(running, "GET", "/tocsin/jobs", Cookie=cookie).status == 200


@pytest.mark.parametrize("path", sorted({*ASKED, *ACTIONS.values()}))
def test_a_forged_request_does_nothing(running: Running, path: str) -> None:
    cookie = f"_token={token(running, 'operator')}"
    for method in METHODS:
        if method != "GET":
            expected = 403 if method == "POST" and path in ACTIONS.values() else 405
            assert (method, Asked(running, method, path, Cookie=cookie).status) == (method, expected)


@pytest.mark.parametrize("path", UNKNOWN)
def test_what_does_not_exist_is_not_found(running: Running, bearer: dict[str, str], path: str) -> None:
    assert Asked(running, "GET", path, Authorization=bearer["operator"]).status in (404, 307)


@pytest.mark.parametrize(
    "path",
    [
        "/tocsin/static/app.py",
        "/tocsin/static/..%2fapp.py",
        "/tocsin/static/%2e%2e/app.py",
        "/tocsin/static/..%2f..%2f..%2fsettings.py",
        "/tocsin/static//etc/passwd",
        f"/tocsin/quality/findings.{DETECTOR}/{DAY}/none.html",
        f"/tocsin/quality/findings.{DETECTOR}/{DAY}/..%2f..%2f..%2falerts.db",
        f"/tocsin/quality/%2e%2e/{DAY}/{RUN}.html",
        f"/tocsin/quality/..%2fquality%2ffindings.{DETECTOR}/{DAY}/{RUN}.html",
        f"/tocsin/quality/findings./{DAY}/{RUN}.html",
        f"/tocsin/job?dag_id={DAG}&job=..%2f..%2falerts.db",
        f"/tocsin/job?dag_id={DAG}&job=detector:none",
        f"/tocsin/job?dag_id={DAG}&job=airflow-api-server",
        f"/tocsin/job?dag_id={DAG}&job=indexer",
        "/tocsin/job?dag_id=housekeeping&job=detector:failed_logins",
        "/tocsin/job?dag_id=..%2f..&job=detector:failed_logins",
    ],
)
def test_only_our_files_and_the_logs_of_declared_jobs_are_given(
    running: Running, bearer: dict[str, str], path: str
) -> None:
    answer = Asked(running, "GET", path, Authorization=bearer["operator"])
    assert answer.status == 404
    assert b"root:" not in answer.body


def test_a_dag_without_jobs_has_none(running: Running, bearer: dict[str, str]) -> None:
    for dag in ("housekeeping", "none", "<script>"):
        path = f"/tocsin/job?dag_id={urllib.parse.quote(dag)}"
        page = Asked(running, "GET", path, Authorization=bearer["viewer"]).body
        assert b"No job belongs to this DAG" in page
        assert b"<script>" not in page
