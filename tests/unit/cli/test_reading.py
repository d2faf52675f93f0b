"""`findings`, `alerts` and `status` over an alerts DB that the real recording filled."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from tests.rig.command_line import call, invoke
from tests.rig.samples import findings as findings_of
from tests.rig.samples.backfills import DAY, NEXT, SPEC, published
from tests.rig.samples.backfills import finding as backfilled
from tests.rig.samples.project import copy_project
from tocsin.alerts.alert_policy import DetectorFacts
from tocsin.alerts.evidence.alert_evidence import AlertEvidence, SourceEvidence, store_evidence
from tocsin.alerts.finding_feed import FindingRecord
from tocsin.alerts.finding_merging import StoredFinding
from tocsin.alerts.indexer import Indexer
from tocsin.alerts.notify.notifier_job import UsageTally
from tocsin.alerts.recording import Rules, record
from tocsin.alerts.store.alert_rows import Alert, AlertDetails, JobUsage
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.schema import findings, notifications
from tocsin.declare.model.finding import Finding
from tocsin.declare.model.job_report import JobReport, JobState
from tocsin.declare.settings import Settings, load_settings
from tocsin.history.backfill.backfill_ledger import Backfills, Made

HOSTILE = "trudy\x1b[2J[bold]\r\nBcc: x"
NOW = datetime.now(UTC).replace(microsecond=0)
START = NOW - timedelta(minutes=5)


def finding(user: str, score: int, start: datetime = START) -> Finding:
    seen = {"event_time_max": start + timedelta(seconds=4), "detected_at": start + timedelta(seconds=5)}
    return findings_of.finding(score, user=user, at=start, version="0123456789ab", at_least=score > 100, **seen)


_SILENCE = ("alerts", "silence", "--for", "1h", "--why", "load test")
FACTS = DetectorFacts(
    name="failed_logins",
    version="0123456789ab",
    title="Bursts of failed logins",
    owner="security@example.com",
    runbook="docs/runbooks/failed_logins.md",
    live=True,
    dedup_period=timedelta(hours=1),
    page_within=timedelta(minutes=15),
    email_limit=50,
    urgent_limit=100,
)


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOCSIN_PROJECT", str(tmp_path))
    monkeypatch.setenv("TOCSIN_STATE", str(tmp_path / "state"))
    return tmp_path


@pytest.fixture
def stored() -> None:
    database = Database(load_settings().alerts_database)
    database.migrate()
    batch = [finding("mallory", 51), finding(HOSTILE, 101), finding("mallory", 60, START + timedelta(seconds=10))]
    with database.write() as connection:
        record(connection, batch, Rules(facts={"failed_logins": FACTS}), START + timedelta(seconds=6))
    database.close()


def test_before_anything_was_found_lists_are_empty_and_all_is_well() -> None:
    assert call("findings") == (0, "no findings\n")
    assert call("findings", "--json") == (0, "[]\n")
    assert call("alerts") == (0, "no alerts\n")
    assert call("alerts", "1")[0] == 1
    assert call("alerts", "1", "--state", "open")[0] == 2, "options of the list would be ignored"
    assert "no usage of nobody" in call("status", "nobody", "--usage", "2")[1]


@pytest.mark.usefixtures("stored")
def test_findings_are_listed_with_the_newest_window_first() -> None:
    code, written = call("findings")
    rows = written.splitlines()[1:]
    assert code == 0
    assert len(rows) == 3
    assert "mallory" in rows[0]
    assert " 60 " in rows[0]
    assert "at least 101" in written


@pytest.mark.usefixtures("stored")
def test_hostile_names_neither_act_on_the_terminal_nor_break_the_table() -> None:
    for words in (("findings",), ("alerts"), ("alerts", "1"), ("alerts", "2")):
        written = call(*words)[1]
        assert not any(character in written for character in "\x1b\r"), words
    assert "trudy\\x1b[2J[bold]\\r\\nBcc: x" in call("findings")[1]


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize(
    ("options", "users"),
    [
        ((), {"mallory", HOSTILE}),
        (("--entity", "mallory"), {"mallory"}),
        (("--level", "urgent"), {HOSTILE}),
        (("--detector", "other"), set()),
        (("--since", "1h"), {"mallory", HOSTILE}),
        (("--since", "1m"), set()),
        (("--since", "2020-01-01"), {"mallory", HOSTILE}),
        (("--limit", "1"), {"mallory"}),
    ],
)
def test_findings_can_be_chosen(options: tuple[str, ...], users: set[str]) -> None:
    code, written = call("findings", "--json", *options)
    found = [StoredFinding.model_validate(one) for one in json.loads(written)]
    assert code == 0
    assert {one.finding.entity["user_id"] for one in found} == users


@pytest.mark.usefixtures("stored")
def test_superseded_findings_are_left_out_unless_asked_for() -> None:
    gone = update(findings).where(findings.c.score == 101).values(superseded_at=NOW, superseded_by="nightly")
    database = Database(load_settings().alerts_database)
    with database.write() as connection:
        connection.execute(gone)
    database.close()
    assert "trudy" not in call("findings")[1]
    written = call("findings", "--superseded")[1]
    (row,) = [row for row in written.splitlines() if "trudy" in row]
    assert "stream, superseded" in row
    assert written.count("superseded") == 1
    (one,) = json.loads(call("findings", "--superseded", "--entity", HOSTILE, "--json")[1])
    assert one["superseded_by"] == "nightly"


def test_rejected_findings_are_listed_with_their_place_and_reasons() -> None:
    assert call("findings", "--rejected") == (0, "no rejected findings\n")
    settings = load_settings()
    database = Database(settings.alerts_database)
    database.migrate()
    bad = b'{"finding_id": 1}'
    Indexer(settings, database).store(
        [FindingRecord(topic="findings", partition=2, offset=7, appended_at=NOW, value=bad)]
    )
    database.close()
    code, written = call("findings", "--rejected", "--exit-code")
    assert (code, "findings" in written, "finding_id" in written) == (1, True, True)
    (one,) = json.loads(call("findings", "--rejected", "--json")[1])
    assert (one["topic"], one["partition"], one["offset"], one["size"]) == ("findings", 2, 7, len(bad))


@pytest.mark.usefixtures("stored")
def test_findings_as_json_lose_nothing() -> None:
    code, written = call("findings", "--json", "--entity", HOSTILE)
    (one,) = (StoredFinding.model_validate(found) for found in json.loads(written))
    assert code == 0
    assert one.finding == finding(HOSTILE, 101)
    assert written.isascii()


@pytest.mark.usefixtures("stored")
def test_the_exit_code_tells_on_request_whether_there_is_anything() -> None:
    assert call("findings", "--exit-code")[0] == 1
    assert call("findings", "--exit-code", "--detector", "other")[0] == 0
    assert call("alerts", "--exit-code")[0] == 1
    assert call("alerts", "--exit-code", "--state", "resolved")[0] == 0
    summed = ("alerts", "--exit-code", "--by-detector", "--since", "2020-01-01")
    assert (call(*summed)[0], call(*summed, "--state", "resolved")[0]) == (1, 0)


@pytest.mark.parametrize(
    "words", [("1", "--exit-code"), ("--by-detector", "--limit", "5"), ("silences", "--by", "ann")]
)
def test_an_option_that_would_be_ignored_is_refused(words: tuple[str, ...]) -> None:
    assert call("alerts", *words)[0] == 2


@pytest.mark.usefixtures("stored")
def test_alerts_are_listed_and_shown() -> None:
    code, written = call("alerts", "--json")
    found = {one.entity["user_id"]: one for one in map(Alert.model_validate, json.loads(written))}
    assert code == 0
    assert (found["mallory"].level, found["mallory"].findings, found["mallory"].score) == ("email", 2, 60)
    assert (found[HOSTILE].level, found[HOSTILE].state) == ("urgent", "open")
    code, written = call("alerts", str(found["mallory"].id), "--json")
    details = AlertDetails.model_validate(json.loads(written))
    assert code == 0
    assert details.alert == found["mallory"]
    assert {one.recipient for one in details.notifications} == {"security@example.com"}


@pytest.mark.usefixtures("stored")
def test_an_alert_is_shown_with_whom_it_told() -> None:
    number = next(a["id"] for a in json.loads(call("alerts", "--json")[1]) if a["level"] == "email")
    code, written = call("alerts", str(number))
    assert code == 0
    assert "Bursts of failed logins" in written
    assert "e-mail above 50, urgent above 100" in written
    assert "leaves when the window that ends" in written
    assert "security@example.com  email  waiting" in written


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("alerts", "--limit", "1"), "at most 1 are listed; --limit lists more"),
        (("findings", "--limit", "3"), "at most 3 are listed"),
        (
            ("findings", "--detector", "failed_logns"),
            "no declared detector has the detector 'failed_logns'; did you mean",
        ),
        (("alerts", "--detector", "failed_logns"), "did you mean 'failed_logins'?"),
        (("alerts", "route", "--detector", "failed_logins", "--entity", "user=x"), "--entity never matches"),
        ((*_SILENCE, "--detector", "failed_logns"), "silence 1 never matches"),
        (
            (*_SILENCE, "--detector", "failed_*", "--entity", "user=mallory"),
            "has the entity column 'user'; did you mean",
        ),
        ((*_SILENCE, "--owner", "security@*"), ""),
        ((*_SILENCE, "--entity", "user_id="), ""),
        (("findings", "--detector", "failed_logins"), ""),
    ],
)
def test_what_is_cut_or_can_match_nothing_is_said(project: Path, words: tuple[str, ...], said: str) -> None:
    copy_project(project, "sources", "detectors")
    done = invoke(words)
    assert (done.exit_code, said in done.stderr, bool(done.stderr)) == (0, True, bool(said))


@pytest.mark.usefixtures("stored")
def test_alerts_are_answered_and_silenced_from_the_command_line() -> None:
    assert call("alerts", "ack", "1", "--by", "ann", "--for", "2h", "--why", HOSTILE)[0] == 0
    assert "acknowledged by ann until" in call("alerts", "1")[1]
    assert call("alerts", "resolve", "1", "2", "--verdict", "false", "--by", "ann")[0] == 0
    code, written = call("alerts", "ack", "2", "3", "--json")
    assert (code, [one["refused"][:20] for one in json.loads(written)]) == (
        1,
        ["it is resolved by an", "there is no such ale"],
    )
    assert "\x1b" not in (history := call("alerts", "1")[1])
    assert [word in history for word in ("opened", "acknowledged", "resolved by ann: false")] == [True] * 3
    (summed,) = json.loads(call("alerts", "--by-detector", "--since", "2020-01-01", "--json")[1])
    assert {name: summed[name] for name in ("alerts", "urgent", "open", "acknowledged", "false")} == {
        "alerts": 2, "urgent": 1, "open": 0, "acknowledged": 0, "false": 2,
    }  # fmt: skip
    assert "\x1b" not in (shown := call("alerts", "--by-detector", "--since", "2020-01-01")[1])
    assert "mallory (1)" in shown
    assert call("alerts", "--by-detector", "--owner", "nobody@example.com")[1] == "no alerts\n"
    words = ("alerts", "silence", "--for", "1h", "--why", "load test", "--by", "ann")
    assert call(*words)[0] == 2, "it would mute everything"
    assert call(*words, "--entity", "user_id")[0] == 2, "no value"
    made = json.loads(call(*words, "--detector", "failed_*", "--entity", "user_id=mallory", "--json")[1])
    assert made[0]["matcher"] == {
        "detector": ["failed_*"],
        "entity": {"user_id": ["mallory"]},
        "level": [],
        "owner": [],
        "tags": [],
    }
    assert "detector failed_*, user_id mallory" in call("alerts", "silences")[1]
    assert call("alerts", "silences", "--end", "1")[0] == 0
    assert call("alerts", "silences")[1] == "no silences\n"
    assert call("alerts", "silences", "--end", "7")[0] == 2
    assert call(*words, "--everything")[0] == 0
    assert "every alert is silenced until" in invoke(("alerts",)).stderr


@pytest.mark.usefixtures("stored")
def test_what_was_refused_is_sent_again_on_request() -> None:
    assert call("alerts", "resend", "1")[0] == 1, "nothing was refused"
    assert call("alerts", "resend")[0] == 2
    database = Database(load_settings().alerts_database)
    with database.write() as connection:
        refused = {"state": "failed", "error": "550 no such user", "next_attempt_at": NOW}
        connection.execute(update(notifications).values(refused))
    database.close()
    assert call("alerts", "resend", "--to", "nobody@example.com")[0] == 1
    assert call("alerts", "resend", "--refused") == (0, "2 notifications will be sent again\n")
    assert json.loads(call("alerts", "resend", "1", "--json")[1]) == {"notifications": 0}
    assert "leaving" in call("alerts", "1")[1]


@pytest.mark.usefixtures("stored")
def test_an_alert_is_shown_with_its_evidence() -> None:
    database = Database(load_settings().alerts_database)
    source = SourceEvidence(source="logins", count=1, events=[{"event_time": "2026-01-01T00:00:05Z", "user": HOSTILE}])
    with database.write() as connection:
        store_evidence(connection, 1, AlertEvidence(finding_id="x", sources=[source]), NOW)
    database.close()
    code, written = call("alerts", "1")
    assert (code, "Latest 1 event of logins" in written, "00:00:05" in written) == (0, True, True)
    assert "\x1b" not in written


def test_usage_is_listed_and_a_core_that_is_kept_busy_stands_out() -> None:
    assert call("status", "--usage", "1") == (0, "no usage recorded on these days; the notifier records it\n")
    usage, database = UsageTally(), Database(load_settings().alerts_database)
    for job, day, cpu in (("notifier", NOW, 1), ("detector:busy", NOW, 98), ("indexer", NOW - timedelta(days=1), 5)):
        began = day - timedelta(seconds=100)
        usage.take(JobReport(job=job, at=day, started_at=began, pid=1, state=JobState.RUNNING, cpu_seconds=cpu))
    database.migrate()
    with database.write() as connection:
        usage.write(connection)
    database.close()
    code, written = call("status", "--usage", "1")
    rows = written.splitlines()
    assert code == 0
    assert [row.split()[1] for row in rows[1:]] == ["detector:busy", "notifier"]
    assert ["keeps a core busy" in row for row in rows[1:]] == [True, False]
    listed = [JobUsage.model_validate(one) for one in json.loads(call("status", "--usage", "2", "--json")[1])]
    assert [one.job for one in listed] == ["detector:busy", "notifier", "indexer"]
    assert listed[0].cores == 0.98


def test_a_database_that_is_none_leaves_with_an_error(project: Path) -> None:
    (project / "state").mkdir()
    (project / "state" / "alerts.db").write_text("no database at all, and long enough to be looked at" * 20)
    done = invoke(["findings"])
    assert done.exit_code != 0
    assert "is no alerts DB" in str(done.exception)


@pytest.fixture
def backfills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backfills:
    monkeypatch.setenv("TOCSIN_STATE", str(tmp_path / "state"))
    made = Backfills(Settings(state=tmp_path / "state"), SPEC.name)
    for day, users in ((DAY, ("ann", "bob")), (NEXT, ("ann",))):
        found = [backfilled(user, day, second=10 * number) for number, user in enumerate(users)]
        made.publish(day, found, published(Made(version=SPEC.version, inputs={}), made.next_run(day)))
    return made


def listed(*words: str) -> list[Any]:
    return [(one["finding"]["entity"]["user_id"], one["finding"]["origin"], one["alert"])
            for one in json.loads(invoke(["findings", "--json", *words]).stdout)]  # fmt: skip


def test_findings_of_a_backfill_are_listed_before_any_stack_runs(backfills: Backfills) -> None:
    assert listed() == [("ann", "backfill", None), ("bob", "backfill", None), ("ann", "backfill", None)]
    assert listed("--limit", "1") == [("ann", "backfill", None)]
    assert len(listed("--entity", "bob", "--detector", SPEC.name)) == 1
    assert listed("--since", "2026-11-20T00:00:00Z") == [("ann", "backfill", None)]
    assert listed("--level", "urgent") == listed("--detector", "other") == []
    done = invoke(["findings", "--exit-code"])
    assert done.exit_code == 1
    assert "3 findings of backfills without alerts yet" in done.stderr


def test_a_day_that_cannot_be_read_hides_no_other(backfills: Backfills) -> None:
    next(backfills.folder.glob(f"dt={DAY}/*")).write_bytes(b"broken")
    assert listed() == [("ann", "backfill", None)]
