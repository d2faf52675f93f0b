import json
from pathlib import Path

import pytest

from tests.rig.command_line import call, invoke
from tests.rig.samples.project import source_file
from tocsin.cli.json_shapes import FaultShape
from tocsin.declare.model.errors import ConfigError
from tocsin.spark.query import gaps

GOOD_SOURCE = source_file()
GOOD_DETECTOR = '''"""Bursts."""
from tocsin import Case, Levels, at, detector, email


@detector(source="logins", entity="user_id", window="10 seconds", levels=Levels(email=50, urgent=100),
          owner="a@example.com", runbook="docs/x.md", stage="live")
def detect(events):
    return events


CASES = [
    Case("fires", events=at("12:00:00").repeat(51), expect=[email(user_id="a")]),
    Case("is silent", events=at("12:00:00"), expect=[]),
]
'''


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in (("sources/logins.toml", GOOD_SOURCE), ("detectors/bursts.py", GOOD_DETECTOR)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "x.md").write_text("# x\n")
    monkeypatch.setenv("TOCSIN_PROJECT", str(tmp_path))
    return tmp_path


def test_a_good_project(project: Path) -> None:
    assert call("check") == (0, "1 source and 1 detector well declared\n")
    assert call("check", "--json") == (0, "[]\n")


def test_a_detector_in_shadow_is_listed_with_the_edit_that_lets_it_notify(project: Path) -> None:
    file = project / "detectors" / "bursts.py"
    file.write_text(GOOD_DETECTOR.replace('stage="live"', 'stage="shadow"'))
    code, written = call("check")
    said = f'{file}: stage "shadow": notifies nobody until you write stage="live" there'
    assert (code, " ".join(written.split("\n"))) == (0, f"{said} 1 source and 1 detector well declared ")


def test_files_that_are_named_must_be_there(project: Path) -> None:
    (project / "docs" / "x.md").unlink()
    (project / "tables").mkdir()
    table = 'title = "T"\nowner = "a@example.com"\nfile = "tables/rows.csv"\nkey = "k"\n[schema]\nk = "string"\n'
    (project / "tables" / "rows.toml").write_text(table)
    code, text = call("check")
    assert code == 1
    assert f"detectors/bursts.py: runbook: there is no file docs/x.md in the project {project}" in text
    assert f"tables/rows.toml: file: there is no file tables/rows.csv in the project {project}" in text
    (project / "tables" / "rows.csv").write_text("k\na\n")
    (project / "docs" / "x.md").write_text("# x\n")
    assert call("check")[0] == 0


def test_a_detector_that_runs_needs_a_case_that_fires_and_one_that_is_silent(project: Path) -> None:
    file = project / "detectors" / "bursts.py"
    file.write_text(GOOD_DETECTOR.replace("expect=[]", 'expect=[email(user_id="b")]'))
    code, told = call("check")
    assert (code, f"{file}: CASES: needs at least one that stays silent, expect=[]; docs/write/testing.md" in told) == (
        1,
        True,
    )
    file.write_text(GOOD_DETECTOR[: GOOD_DETECTOR.index("CASES")].replace("live", "draft"))
    assert call("check")[0] == 0


def test_findings_are_kept_no_shorter_than_the_days_of_their_source(project: Path) -> None:
    source = project / "sources" / "logins.toml"
    source.write_text("history_days = 500\n" + source.read_text())
    code, told = call("check")
    assert code == 1
    assert f"{project / 'tocsin.toml'}: alerts.history_days: must be at least 500, the history_days of source" in told
    (project / "tocsin.toml").write_text("[alerts]\nhistory_days = 500\n")
    assert call("check")[0] == 0


def test_receivers_that_the_settings_do_not_know_are_faults(project: Path) -> None:
    settings = "[receivers.webhook.siem]\nurl = 'https://siem.example.com'\nsecret_file = 's'\n"
    (project / "tocsin.toml").write_text(
        f"{settings}[alerts]\nurgent_recipients = ['webhook:siem', 'pagerduty:ops']\n"
        "heartbeat = 'webhook:seim'\n[drain]\nonly = {login = 'app/web'}"
    )
    source = project / "sources" / "logins.toml"
    source.write_text(source.read_text().replace("a@example.com", "webhook:siam"))
    (project / "routes.toml").write_text("[[route]]\nto = ['webhook:siem', 'apprise:chat']")
    code, told = call("check")
    assert code == 1
    assert f"{project}/tocsin.toml: alerts.urgent_recipients: 'pagerduty:ops' has no block" in told
    assert f"{project}/tocsin.toml: alerts.heartbeat: 'webhook:seim' has no block" in told
    assert f"{project}/tocsin.toml: drain.only: 'login' is no source, so no line is left out by it" in told
    assert f"{source}: owner: 'webhook:siam' has no block" in told
    assert "did you mean 'webhook:siem'?" in told
    assert f"{project}/routes.toml:2: route 1, to: 'apprise:chat' has no block [receivers.apprise.chat]" in told
    (project / "tocsin.toml").write_text(f"{settings}[receivers.apprise.chat]\nurl_file = 'u'")
    (project / "routes.toml").write_text("[[route]]\nto = ['apprise:chat', 'urgent_recipients']")
    assert "names `urgent_recipients`, but the setting alerts.urgent_recipients is empty" in call("check")[1]


def test_a_backlog_is_skipped_by_a_request_beside_the_checkpoint(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOCSIN_STATE", str(tmp_path / "state"))
    folder = tmp_path / "state" / "checkpoints" / "detector__bursts"
    assert not gaps.is_asked_to_skip(folder)
    told = "detector:bursts will skip its backlog: within seconds if it runs, else at its next start\n"
    assert call("skip-backlog", "bursts") == (0, told)
    assert gaps.is_asked_to_skip(folder)
    with pytest.raises(ConfigError, match="did you mean 'bursts'"):
        invoke(["skip-backlog", "burst"], catch_exceptions=False)


def test_all_faults_of_all_files_are_told_at_once(project: Path) -> None:
    (project / "sources" / "orders.toml").write_text(GOOD_SOURCE.replace("owner", "ownr").replace('"json"', '"jsn"'))
    (project / "detectors" / "bursts.py").write_text(
        GOOD_DETECTOR.replace("levels=", "level=").replace("live", "alive")
    )
    code, written = call("check", "--json")
    faults = json.loads(written)
    assert code == 1
    assert {fault["key"] for fault in faults} >= {"ownr", "owner", "level", "levels", "stage"}
    assert all(fault.keys() == FaultShape.model_fields.keys() for fault in faults)
    code, written = call("check")
    assert code == 1
    assert "did you mean 'owner'?" in written
    assert f"{len(faults)} faults in 2 files; 1 source and 0 detectors well declared" in written
