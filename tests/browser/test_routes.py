"""The pages' application inside Airflow: who may ask, and with what. Its routes are those that tests/unit/web asks."""

import urllib.error
import urllib.parse
import urllib.request
from email.message import Message

import pytest

from tests.browser.visiting import DAY, DETECTOR, RUN
from tests.rig.airflow_api import Api
from tests.rig.under_airflow import Running

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
DAG = "detector__failed_logins"
HTML, JSON = "text/html; charset=utf-8", "application/json"
ROUTES = {
    "/tocsin/alerts": HTML,
    f"/tocsin/job?dag_id={DAG}": HTML,
    f"/tocsin/quality/findings.{DETECTOR}/{DAY}/{RUN}.json": JSON,
}
UNKNOWN = "/tocsin/api/jobs"


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


def test_nobody_in_particular_is_told_nothing(running: Running) -> None:
    for path in (*ROUTES, UNKNOWN):
        for method in METHODS:
            answer = Asked(running, method, path)
            assert (path, method, answer.status) == (path, method, 401)
            assert answer.body in (b"", b'{"detail":"Not authenticated"}')
            assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("given", ["Bearer guessed", "Bearer ", "Basic dmlld2VyOnZpZXdlcg==", "guessed"])
def test_who_makes_up_a_token_is_nobody(running: Running, given: str) -> None:
    for headers in ({"Authorization": given}, {"Cookie": f"_token={given.removeprefix('Bearer ')}"}):
        assert {Asked(running, "GET", path, **headers).status for path in ROUTES} == {401}


def test_a_viewer_is_answered_with_the_right_type_and_no_page_may_load_from_elsewhere(
    running: Running, bearer: dict[str, str]
) -> None:
    for path, kind in ROUTES.items():
        answer = Asked(running, "GET", path, Authorization=bearer["viewer"])
        assert (answer.status, answer.headers["Content-Type"]) == (200, kind)
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy.replace("style-src 'unsafe-inline'", ""), "reports carry their style"
        assert "://" not in policy
    assert Asked(running, "GET", UNKNOWN, Authorization=bearer["operator"]).status in (404, 307)


def test_the_cookie_of_the_browser_is_enough_to_read_and_a_forged_request_does_nothing(running: Running) -> None:
    cookie = f"_token={token(running, 'operator')}"
    for path in ("/tocsin/alerts", "/tocsin/alerts/1", "/tocsin/silences"):
        assert Asked(running, "POST", path, Cookie=cookie).status == 403
    for path in ROUTES:
        found = {method: Asked(running, method, path, Cookie=cookie).status for method in METHODS}
        assert (found.pop("GET"), found.pop("HEAD")) == (200, 200)
        assert {*found.values()} <= {403, 405}


def test_only_the_logs_of_declared_jobs_are_given(running: Running, bearer: dict[str, str]) -> None:
    wrong = (
        f"dag_id={DAG}&job=..%2f..%2falerts.db",
        f"dag_id={DAG}&job=airflow-api-server",
        f"dag_id={DAG}&job=indexer",
    )
    for words in (*wrong, "dag_id=..%2f..&job=detector:failed_logins"):
        assert Asked(running, "GET", f"/tocsin/job?{words}", Authorization=bearer["operator"]).status == 404


def test_a_dag_without_jobs_has_none(running: Running, bearer: dict[str, str]) -> None:
    for dag in ("housekeeping", "none", "<script>"):
        path = f"/tocsin/job?dag_id={urllib.parse.quote(dag)}"
        page = Asked(running, "GET", path, Authorization=bearer["viewer"]).body
        assert b"No job belongs to this DAG" in page
        assert b"<script>" not in page
