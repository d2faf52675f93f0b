"""The list of the detectors, and what it counts."""

import json
import shutil
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.rig.command_line import call
from tests.rig.samples.project import copy_project
from tests.unit.alerts.scene import RULES, SECOND, finding
from tocsin.alerts import actions
from tocsin.alerts.actions import Actor
from tocsin.alerts.alert_states import Verdict
from tocsin.alerts.recording import record
from tocsin.alerts.store.database import Database
from tocsin.cli.json_shapes import DetectorShape
from tocsin.declare.settings import Settings


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy_project(tmp_path)
    monkeypatch.setenv("TOCSIN_PROJECT", str(tmp_path))
    monkeypatch.setenv("TOCSIN_STATE", str(tmp_path / "state"))
    return tmp_path


def raise_alerts(project: Path, migrated_file: Path) -> None:
    """Three alerts of this week, one of them urgent, and one that is older; of three people said what they were."""
    (project / "state").mkdir()
    shutil.copy(migrated_file, project / "state" / "alerts.db")
    now = datetime.now(UTC)
    with closing(Database(Settings(project=project, state=project / "state").alerts_database)) as database:
        for score, user, days in ((60, "a", 1), (60, "b", 1), (130, "c", 1), (60, "d", 8)):
            at = now - timedelta(days=days)
            with database.write() as connection:
                record(connection, [finding(score, user=user, at=at)], RULES, at + 8 * SECOND)
        with database.write() as connection:
            for alert, verdict in ((1, "true"), (2, "false"), (4, "expected")):
                actions.resolve(connection, [alert], Actor("ann", now), Verdict(verdict))


def test_detectors_are_listed_with_what_became_of_their_alerts(project: Path, migrated_file: Path) -> None:
    raise_alerts(project, migrated_file)
    code, written = call("detectors", "--json")
    (shown,) = json.loads(written)
    assert (code, shown.keys()) == (0, DetectorShape.model_fields.keys())
    assert (shown["name"], shown["window_seconds"], shown["email"], shown["urgent"]) == (
        "failed_logins", 10.0, 50.0, 100.0,
    )  # fmt: skip
    counts = {"email": 2, "urgent": 1, "active": 1, "true": 1, "expected": 1, "false": 1, "precision": 1 / 3}
    assert shown["alerts"] == counts
    code, written = call("detectors")
    row = next(line for line in written.splitlines() if line.startswith("failed_logins"))
    figures = "failed_logins live logins 50 100 0.286 0.143 33 % true of 3 account-takeover, credential-stuffing "
    assert (code, " ".join(row.split()).startswith(figures + "security@example.com")) == (0, True)


def test_broken_detectors_are_not_hidden_and_without_a_database_nothing_is_counted(project: Path) -> None:
    text = (project / "detectors" / "failed_logins.py").read_text()
    (project / "detectors" / "others.py").write_text(text.replace('"credential-stuffing"', '"T1110"'))
    (project / "detectors" / "broken.py").write_text("def detect(: pass")
    code, written = call("detectors")
    assert code == 1
    assert "tags: T1110 1, account-takeover 2, credential-stuffing 1" in written
    assert "run: tocsin check" in written
    assert "no verdicts yet" in written
