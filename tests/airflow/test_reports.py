"""Who is shown the reports of gates."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tocsin.provision.paths import here

INDEX = "/quality/index.html"
OF_SOURCE = "/quality/logins/2026-01-31/20260201T020000Z.html"
OF_FINDINGS = "/quality/findings.failed_logins/2026-01-31/20260201T020000Z.json"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    for path in (INDEX, OF_SOURCE, OF_FINDINGS):
        file = folder / path[1:]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
    (folder / "alerts.html").write_text("secret")
    return folder


def asked(state: Path, dags: list[str], *paths: str) -> dict[str, int]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "TOCSIN"))}
    program = str(Path(__file__).with_name("ask_reports.py"))
    command = [str(here().airflow_venv / "bin" / "python"), program, str(state), json.dumps(dags), *paths]
    environment = kept | {"AIRFLOW_HOME": str(state.parent / "airflow")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_who_may_not_see_a_dag_is_not_shown_what_its_gate_has_said(state: Path) -> None:
    some = asked(state, ["backfill__failed_logins"], INDEX, OF_SOURCE, OF_FINDINGS)
    assert some == {INDEX: 403, OF_SOURCE: 403, OF_FINDINGS: 200}, "the index tells of all"
    everything = asked(state, ["backfill__failed_logins", "history__logins"], INDEX, OF_SOURCE, OF_FINDINGS)
    assert set(everything.values()) == {200}


def test_no_name_leads_out_of_the_reports(state: Path) -> None:
    wrong = [
        "/quality/logins/2026-01-31/..%2f..%2f..%2falerts.html",
        "/quality/%2e%2e/2026-01-31/alerts.html",
        "/quality/..%2fquality%2flogins/2026-01-31/20260201T020000Z.html",
        "/quality/findings./2026-01-31/20260201T020000Z.json",
        "/quality/logins/2026-01-31/none.html",
        "/quality/logins/../20260201T020000Z.html",
    ]
    assert set(asked(state, ["history__logins", "history_", "backfill__"], *wrong).values()) <= {404, 422}
