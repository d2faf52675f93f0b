"""What becomes of conditions: from the files of an installation to a real mail server."""

import os
import re
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from tests.rig.mail_server import MailServer
from tests.rig.samples.history import day_rows, refuse
from tests.rig.samples.project import copy_project
from tocsin.alerts.notify.notices import list_overdue, send_overdue
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.job_report import JobReport, JobState
from tocsin.declare.setting_blocks import AlertSettings, SmtpSettings
from tocsin.declare.settings import Settings
from tocsin.platform.heartbeat import beat
from tocsin.setup.paths import here
from tocsin.supervise.incidents.conditions import Incident
from tocsin.supervise.incidents.watch import RUNBOOKS, Watch, commands, notice_of, source_of
from tocsin.supervise.job_states import Condition, History, Past, memory_of, write_history
from tocsin.supervise.runners.local import LocalRunner

DETECTOR = "detector:failed_logins"


class Installation:
    """Our sources and detectors, looked at by a new process each time."""

    def __init__(self, folder: Path) -> None:
        copy_project(folder)
        self.server, self.project = MailServer(), folder
        smtp, alerts = SmtpSettings(port=self.server.port), AlertSettings(urgent_recipients=("ops@example.com",))
        self.settings = Settings(project=folder, state=folder / "state", smtp=smtp, alerts=alerts)

    def remember(self, **pasts: Past) -> None:
        known = {name.replace("__", ":"): past for name, past in pasts.items()}
        write_history(memory_of(self.settings.state, "jobs"), History(jobs=known))

    def look(self) -> list[str]:
        """The names of the incidents of which people have been told."""
        runner = LocalRunner("tests", self.settings.log)
        return [one.name for one in Watch(self.settings, "jobs", runner).look(read_catalog(self.project))]

    def mails(self) -> list[tuple[str, str]]:
        """To whom and of what mails have left, after those that wait were sent."""
        send_overdue(self.settings, patience=0)
        return [(mail["To"], mail["Subject"]) for mail in self.server.mails]

    def page(self) -> str:
        part = self.server.mails[-1].get_body(("html",))
        assert part is not None
        return str(part.get_content()).replace("\r\n", "\n")


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Installation]:
    made = Installation(tmp_path)
    made.server.start()
    yield made
    made.server.stop()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    return lambda seconds: monkeypatch.setattr("tocsin.supervise.incidents.watch.time.time", lambda: seconds)


def test_a_crash_loop_is_one_mail_once_the_server_takes_it(one: Installation) -> None:
    one.remember(detector__failed_logins=Past(condition=Condition.CRASH_LOOP, reason="4 failures <b>"))
    log = one.settings.log(DETECTOR)
    log.parent.mkdir(parents=True)
    log.write_text("first\n" + "x" * 1000 + "\nlast words\n")
    one.server.stop()
    (name,) = one.look()
    assert one.mails() == []
    one.server.start()
    assert one.look() == [name]
    assert one.mails() == one.mails() == [("security@example.com", f"[tocsin] {DETECTOR}: crash loop")]
    (mail,) = one.server.mails
    assert (mail["Message-ID"], mail["Auto-Submitted"]) == (f"<{name}-0@localhost.localdomain>", "auto-generated")
    page = one.page()
    assert "4 failures &lt;b&gt;" in page
    assert "tocsin dev logs detector:failed_logins" in page
    assert "last words" in page
    assert "x" * 401 not in page


def test_an_end_between_any_two_steps_writes_no_mail_twice(one: Installation) -> None:
    one.remember(notifier=Past(condition=Condition.NO_ROOM))
    one.look()
    memory = one.settings.state / "supervision" / "incidents.json"
    memory.write_text(memory.read_text().replace('"written": true', '"written": false'))
    assert len(one.mails()) == 1
    one.look()
    assert one.mails() == [("ops@example.com", "[tocsin] notifier: no room")]


def test_a_broken_file_is_a_mail_to_the_owner_of_the_last_readable_version(
    one: Installation, clock: Callable[[float], None]
) -> None:
    clock(1000.0)
    one.look()
    (one.project / "detectors" / "failed_logins.py").write_text("def detect(:")
    (one.project / "detectors" / "never_read.py").write_text("def detect(:")
    one.look()
    clock(1061.0)
    assert len(one.look()) == 2
    assert sorted(one.mails()) == [
        ("ops@example.com", "[tocsin] detector:never_read: broken file"),
        ("security@example.com", "[tocsin] detector:failed_logins: broken file"),
    ]
    assert "is not Python" in one.page()
    assert "tocsin check" in one.page()


def test_a_job_that_is_silent_says_nothing_of_now(one: Installation, clock: Callable[[float], None]) -> None:
    def says(ratio: float) -> None:
        report = JobReport(
            job="ingest:logins", at=datetime.now(UTC), state=JobState.RUNNING, counts={"bad_ratio": ratio}
        )
        beat(one.settings.state, report)

    one.remember(ingest__logins=Past())
    says(0.31)
    file = one.settings.state / "heartbeats" / "ingest__logins.json"
    os.utime(file, (file.stat().st_mtime - 60,) * 2)
    assert one.look() == []
    says(0.31)
    assert len(one.look()) == 1
    assert one.mails() == [("platform@example.com", "[tocsin] ingest:logins: much goes to quarantine")]
    assert all(f"tocsin quarantine {what}--source logins" in one.page() for what in ("", "--replay --all "))


def test_jobs_that_wait_for_the_same_thing_are_one_mail_also_when_one_of_them_is_later(one: Installation) -> None:
    def waits(job: str, seconds: float) -> None:
        reason = "cannot reach Kafka: Local: Broker transport failure"
        beat(
            one.settings.state,
            JobReport(job=job, at=datetime.now(UTC), state=JobState.WAITING, reason=reason, waiting_seconds=seconds),
        )

    one.remember(ingest__logins=Past(), detector__failed_logins=Past(), indexer=Past())
    waits("ingest:logins", 600)
    waits(DETECTOR, 590)
    waits("indexer", 0)
    assert len(one.look()) == 2
    expected = [(to, "[tocsin] 2 jobs wait for Kafka") for to in ("platform@example.com", "security@example.com")]
    assert sorted(one.mails()) == expected
    assert "These jobs wait: ingest:logins, detector:failed_logins." in one.page()
    assert "ingest:logins: has waited for 10 min: cannot reach Kafka" in one.page()
    waits("indexer", 600)
    assert len(one.look()) == 3
    expected.append(("ops@example.com", "[tocsin] indexer: waits"))
    assert sorted(one.mails()) == sorted(expected), "who has not heard of it yet"
    one.remember(ingest__logins=Past(), detector__failed_logins=Past(), indexer=Past(), notifier=Past())
    waits("notifier", 600)
    assert len(one.look()) == 4
    assert len(one.mails()) == 3


def test_a_mail_that_is_refused_for_good_keeps_no_other_back_and_is_given_up(one: Installation) -> None:
    one.remember(notifier=Past(condition=Condition.NO_ROOM), ingest__logins=Past(condition=Condition.MISCONFIGURED))
    one.server.answer_recipient = lambda to: "550 no such user" if to == "ops@example.com" else "250 OK"
    one.look()
    assert one.mails() == [("platform@example.com", "[tocsin] ingest:logins: misconfigured")]
    assert list_overdue(one.settings, patience=0) == []


def test_a_source_says_how_long_it_may_be_quiet(one: Installation) -> None:
    file = one.project / "sources" / "logins.toml"
    file.write_text('silent_after = "20 minutes"\n' + file.read_text())
    bounds = Watch(one.settings, "jobs", LocalRunner("tests", one.settings.log))._bounds(read_catalog(one.project))
    assert bounds.patience == {"ingest:logins": 1200.0}


def _refuse(one: Installation, *days: int) -> None:
    rows = day_rows(one.settings)
    for day, version in rows.refused().items():
        rows.remove(day, version.version)
    refuse(one.settings, *(date(2026, 1, day) for day in days), summary="rows is <0>")


def test_days_that_a_gate_refuses_are_a_mail_until_they_are_good(one: Installation) -> None:
    _refuse(one, 30, 31)
    one.look()
    one.look()
    subject = "[tocsin] history of logins: {} refused"
    assert one.mails() == [("platform@example.com", subject.format("2026-01-30 to 2026-01-31 (2 days)"))]
    page = one.page()
    assert "rows is &lt;0&gt;" in page
    assert ">tocsin history seal --source logins --day 2026-01-31</p>" in page
    assert ">tocsin history publish logins --day 2026-01-31 --by NAME --reason TEXT</p>" in page
    assert "docs/run/runbooks.md#refused-day" in page
    _refuse(one, 29, 30)
    one.look()
    assert [what for _, what in one.mails()[1:]] == [subject.format("2026-01-29")]
    _refuse(one)
    one.look()
    _refuse(one, 30)
    one.look()
    assert [what for _, what in one.mails()[2:]] == [subject.format("2026-01-30")], "it was good meanwhile"


def test_a_source_whose_days_are_no_longer_sealed_is_a_mail_and_one_that_never_was_is_none(
    one: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tocsin.supervise.incidents.conditions._HOLD", {})
    one.look()
    assert one.mails() == []
    day_rows(one.settings).note(datetime.now(UTC).date() - timedelta(days=1), "Kafka is away")
    one.look()
    assert one.mails() == [], "it was tried, which another mail says"
    day_rows(one.settings).note(datetime.now(UTC).date() - timedelta(days=1), None)
    day_rows(one.settings).note(date(2026, 1, 30), "Kafka is away")
    one.look()
    one.look()
    assert one.mails() == [("platform@example.com", "[tocsin] ingest:logins: history behind")]
    assert "Its history ends with 2026-01-30" in one.page()
    job = "flow:text_transformer"  # writes the source `shouted`
    behind = Incident(job=job, condition=Condition.BEHIND, reason="why", at=1.0, last_at=1.0)
    source = source_of(job, read_catalog(here().root / "examples" / "words"))
    assert commands(behind, source)[0] == "tocsin history list --source shouted"


def test_with_airflow_the_run_that_refused_a_day_mails(one: Installation) -> None:
    _refuse(one, 31)
    Watch(one.settings, "jobs", LocalRunner("tests", one.settings.log)).look(read_catalog(one.project), days=False)
    assert one.mails() == []


TEXT = (here().root / RUNBOOKS).read_text(encoding="utf-8")
SILENT = {Condition.FINE, Condition.RESTARTING}
"""Nobody gets a mail about these."""


@pytest.mark.parametrize("condition", sorted(set(Condition) - SILENT))
def test_the_mail_of_each_condition_names_its_runbook(condition: Condition) -> None:
    incident = Incident(job="detector:x", condition=condition, reason="why", at=1.0, last_at=1.0)
    (named,) = re.findall(
        r"Runbook: docs/run/runbooks\.md#(.+)", "\n".join(notice_of(incident, "x.log", [], "x").paragraphs)
    )
    sections = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, re.M | re.S))
    section = sections[named.replace("-", " ")]
    assert all(f"**{part}:**" in section for part in ("Means", "Look", "Do"))
