"""Who is shown the reports of gates."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.airflow.interpreter import Interpreter

INDEX = "/quality/index.html"
OF_SOURCE = "/quality/logins/2026-01-31/20260201T020000Z.html"
OF_FINDINGS = "/quality/findings.failed_logins/2026-01-31/20260201T020000Z.json"
Asked = Callable[..., dict[str, int]]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    for path in (INDEX, OF_SOURCE, OF_FINDINGS):
        file = folder / path[1:]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
    (folder / "alerts.html").write_text("secret")
    return folder


@pytest.fixture
def asked(interpreter: Interpreter, state: Path) -> Asked:
    """Asks for pages as somebody who may see these DAGs; the status of each."""
    home = str(state.parent / "airflow")
    return lambda dags, *paths: interpreter.ask(
        "ask_reports.py", str(state), json.dumps(dags), *paths, AIRFLOW_HOME=home
    )


def test_who_may_not_see_a_dag_is_not_shown_what_its_gate_has_said(asked: Asked) -> None:
    some = asked(["backfill__failed_logins"], INDEX, OF_SOURCE, OF_FINDINGS)
    assert some == {INDEX: 403, OF_SOURCE: 403, OF_FINDINGS: 200}, "the index tells of all"
    everything = asked(["backfill__failed_logins", "history__logins"], INDEX, OF_SOURCE, OF_FINDINGS)
    assert set(everything.values()) == {200}


def test_no_name_leads_out_of_the_reports(asked: Asked) -> None:
    wrong = [
        "/quality/logins/2026-01-31/..%2f..%2f..%2falerts.html",
        "/quality/%2e%2e/2026-01-31/alerts.html",
        "/quality/..%2fquality%2flogins/2026-01-31/20260201T020000Z.html",
        "/quality/findings./2026-01-31/20260201T020000Z.json",
        "/quality/logins/2026-01-31/none.html",
        "/quality/logins/../20260201T020000Z.html",
    ]
    assert set(asked(["history__logins", "history_", "backfill__"], *wrong).values()) <= {404, 422}


def test_a_link_in_a_mail_leads_to_the_login_and_a_frame_of_airflow_does_not(
    interpreter: Interpreter, tmp_path: Path
) -> None:
    found = interpreter.ask("ask_logged_out.py", str(tmp_path), AIRFLOW_HOME=str(tmp_path / "airflow"))
    login = "/api/v2/auth/login?next=/tocsin/alerts/1%3Fa%3Db%26c%3Dd"
    assert found == {"document": [303, login], "iframe": [401, ""], "empty": [401, ""], "is_safe": True}
