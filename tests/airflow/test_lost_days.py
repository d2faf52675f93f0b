"""The mails of days that are not published, made by the callbacks of tasks and DAGs. Each step is a process."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.interpreter import Interpreter
from tests.rig.mail_server import OK, MailServer
from tests.rig.samples.backfills import published
from tests.rig.samples.history import day_rows, refuse, version
from tests.rig.samples.project import copy_project
from tocsin.alerts.notify.notices import NoticeFiles
from tocsin.declare.settings import Settings
from tocsin.history.backfill.backfill_ledger import Attempt, Backfills, End, Made
from tocsin.history.day_rows import DayRows
from tocsin.history.seal_outcomes import refusal
from tocsin.quality.verdict import Check, CheckStage, Severity, Verdict
from tocsin.quality.verdict_files import Records, VerdictRecord

DAY = date(2026, 1, 31)
ANN, BOB = "ann@example.com", "bob@example.com"
OWNERS = {"bursts": ANN, "quiet": BOB, "travel": ANN}


class Mails:
    """An installation in which a run has failed."""

    def __init__(self, folder: Path, interpreter: Interpreter) -> None:
        self.folder, self._interpreter = folder, interpreter
        self.settings = Settings(project=folder, state=folder / "state")
        self.server = MailServer()

    @property
    def waiting(self) -> int:
        return len(NoticeFiles(self.settings.state).waiting())

    def lose(self, detector: str, end: End, why: str, run_id: str = "mine") -> None:
        report = f"quality/findings.{detector}/{DAY}/1.html" if end is End.HELD else None
        attempt = Attempt(end=end, why=why, run_id=run_id, made=None, at=datetime.now(UTC), report=report)
        Backfills(self.settings, detector).note(DAY, attempt)

    def refuse(self, day: date, *broken: Check, run_id: str = "mine") -> None:
        """What a seal leaves of a day that the gate has refused."""
        at, records = datetime.now(UTC), Records(self.settings.state)
        report = records.place("logins", day, "v1")
        verdict = Verdict(subject="logins", day=day, run_id="v1", judged_at=at, checks=broken, report=report)
        records.write(VerdictRecord(verdict=verdict), "page")
        summary = verdict.model_copy(update={"report": None}).text
        own = {"sealed_at": at, "report": str(report), "run_id": run_id, "summary": summary}
        made = version("v1", severity=verdict.severity.value, published=None).model_copy(update=own)
        day_rows(self.settings).write(day, made)

    def fail(self, run_id: str = "mine") -> None:
        self._run("catch_up", run_id, json.dumps(OWNERS))

    def fail_to_seal(self, run_id: str = "mine", to: str = ANN) -> None:
        self._run("seal", run_id, json.dumps({"logins": to}))

    def declare(self) -> None:
        copy_project(self.folder, "detectors", "sources")

    def kill(self, run_id: str) -> None:
        self._run("lose", run_id)

    def pass_over(self, run_id: str) -> Any:
        """What the tasks say of a run that has no day to seal."""
        return json.loads(self._run("pass_over", run_id).splitlines()[-1])

    def differ(self, stdout: str, stderr: str) -> None:
        """The comparison of a published day by a `tocsin` that says this and fails."""
        self.declare()
        Backfills(self.settings, "failed_logins").publish(DAY, [], published(Made(version="v", inputs={DAY: "v1"})))
        fake = self.folder / "other" / "bin" / "tocsin"
        fake.parent.mkdir(parents=True)
        fake.write_text(f"#!/bin/sh\necho \"$@\"\ncat <<'.'\n{stdout}\n.\ncat >&2 <<'.'\n{stderr}\n.\nexit 1\n")
        fake.chmod(0o755)
        self._run("parity", str(fake.parents[1]))

    def send(self) -> list[EmailMessage]:
        """What has left, then and before."""
        self._run("send")
        return self.server.mails

    def _run(self, *words: str) -> str:
        own = {
            "AIRFLOW_HOME": str(self.folder / "airflow"),
            "AIRFLOW__API__BASE_URL": "http://airflow",
            "TOCSIN_PROJECT": str(self.folder),
            "TOCSIN_STATE": str(self.settings.state),
            "TOCSIN_SMTP__PORT": str(self.server.port),
        }
        return self._interpreter.run("mail_lost_days.py", *words, **own)


@pytest.fixture
def mails(tmp_path: Path, interpreter: Interpreter) -> Iterator[Mails]:
    mails = Mails(tmp_path, interpreter)
    mails.server.start()
    yield mails
    mails.server.stop()


def html(mail: EmailMessage) -> str:
    """The page, without its styles."""
    part = mail.get_body(("html",))
    assert part is not None
    return re.sub("<style>.*</style>", "", str(part.get_content()).replace("\r\n", "\n"), flags=re.DOTALL)


def test_each_owner_gets_one_mail_of_the_own_detectors_only(mails: Mails) -> None:
    mails.lose("bursts", End.HELD, "1 check failed: <not_too_many>")
    mails.lose("travel", End.FAILED, "no room")
    mails.lose("quiet", End.FAILED, "of the night before", run_id="other")
    mails.fail()
    (mail,) = mails.send()
    assert mail["To"] == ANN
    assert mail["Subject"] == "[tocsin] backfill of bursts, travel: 2 days not published"
    page = html(mail)
    assert "held: 1 check failed: &lt;not_too_many&gt;" in page
    assert '"http://airflow/tocsin/quality/findings.bursts/2026-01-31/1.html"' in page
    assert "no room" in page
    assert "quiet" not in page
    assert '"http://airflow/run"' in page
    assert mails.waiting == 0


def test_while_the_server_is_away_mails_wait_and_each_leaves_once(mails: Mails) -> None:
    mails.server.stop()
    mails.fail()
    assert mails.send() == []
    assert mails.waiting == 2
    mails.server.start()
    mails.server.answer_recipient = lambda to: "451 later" if to == ANN else OK
    assert [mail["To"] for mail in mails.send()] == [BOB], "one that cannot leave keeps no other back"
    mails.server.answer_recipient = lambda to: OK
    assert [mail["To"] for mail in mails.send()] == [BOB, ANN]
    assert {mail["Subject"] for mail in mails.server.mails} == {"[tocsin] history__logins: catch_up failed"}
    assert "Error code is: &lt;2&gt;" in html(mails.server.mails[0])
    assert len(mails.send()) == 2, "nothing leaves twice"
    mails.fail("the next night")
    assert len(mails.send()) == 4


def test_a_failure_that_is_told_again_before_its_mail_has_left_is_one_mail(mails: Mails) -> None:
    mails.fail()
    mails.fail()
    assert len(mails.send()) == 2


def test_a_mail_that_cannot_be_kept_leaves_at_once(mails: Mails) -> None:
    mails.lose("quiet", End.FAILED, "the disk is full")
    mails.settings.state.joinpath("supervision").write_text("stands in the way of any folder")
    mails.fail()
    assert [mail["To"] for mail in mails.server.mails] == [BOB]


def test_a_night_names_the_days_that_it_lost_the_rules_that_broke_and_their_reports(mails: Mails) -> None:
    day_rows(mails.settings).note(DAY - timedelta(days=1), "a landed file is <broken>", "mine")
    rule = {"stage": CheckStage.DAY, "severity": Severity.CRITICAL, "passed": False}
    arrived = Check(name="events_arrived", about="rows", observed="0", limit="at least 1", **rule)
    lost = Check(name="nothing_lost", about="missing_offsets", observed="7", limit="<= 0", **rule)
    mails.refuse(DAY, arrived, lost)
    mails.fail_to_seal()
    (mail,) = mails.send()
    assert mail["To"] == ANN
    assert mail["Subject"] == "[tocsin] history of logins: 2 days not published"
    page = html(mail)
    assert "2026-01-30</b>" in page
    assert "failed: a landed file is &lt;broken&gt;" in page
    assert "refused: logins on 2026-01-31 is not published: 2 of 2 checks failed." in page
    assert "events_arrived: rows is 0, allowed is at least 1." in page
    assert "nothing_lost: missing_offsets is 7, allowed is &lt;= 0." in page
    assert page.count('"http://airflow/tocsin/quality/logins/2026-01-31/v1.html"') == 1
    assert ">tocsin history publish logins --day 2026-01-31 --by NAME --reason TEXT</p>" in page
    assert ">tocsin history seal --source logins --day 2026-01-31</p>" in page
    assert '"http://airflow/run"' in page


def test_a_night_that_has_come_to_no_day_says_why_and_nothing_of_the_night_before(mails: Mails) -> None:
    mails.refuse(DAY, run_id="the night before")
    mails.fail_to_seal(to=f"{ANN}, {BOB}")
    mail, other = mails.send()
    assert {mail["To"], other["To"]} == {ANN, BOB}, "as of a job that is nobody's"
    assert mail["Subject"] == "[tocsin] history__logins: seal failed"
    assert "Error code is: &lt;2&gt;" in html(mail)
    assert "2026-01-31" not in html(mail)


def test_a_difference_between_stream_and_backfill_is_told_without_what_java_says_each_time(mails: Mails) -> None:
    late = "\n".join(["mallory  differs  late"] * 1000)
    mails.differ(f"<trudy>  differs  unexplained\n{late}", "WARNING: Using incubator modules: a.b\nthe end")
    (mail,) = mails.send()
    assert mail["To"] == "security@example.com"
    assert mail["Subject"] == "[tocsin] backfill__failed_logins: stream and backfill differ, or could not be compared"
    page = html(mail)
    assert ">parity --detector failed_logins --day 2026-01-31\n&lt;trudy&gt;  differs  unexplained\nmallory" in page
    assert "late\n\nthe end\n</pre>" in page
    assert len(page) < 9000
    assert ">tocsin parity --detector failed_logins --day 2026-01-31</p>" in page
    assert '"http://airflow/run"' in page


def test_a_run_whose_task_was_killed_is_a_mail_and_one_that_a_task_has_told_of_no_second(mails: Mails) -> None:
    mails.differ("trudy differs", "the end")
    mails.kill("mine")
    assert len(mails.send()) == 1
    mails.kill("mine")
    mails.kill("killed")
    mails.kill("killed")
    _, mail = mails.send()
    assert (mail["To"], mail["Subject"]) == ("security@example.com", "[tocsin] backfill__failed_logins: a run failed")
    assert "Run: killed" in html(mail)


def test_a_run_that_leaves_a_refused_day_out_fails_without_a_mail_until_the_day_is_good(mails: Mails) -> None:
    mails.declare()
    assert mails.pass_over("first") == {}
    refuse(mails.settings, DAY)
    said = mails.pass_over("second")
    assert list(said) == ["all_well"]
    assert set(said.values()) == {refusal("logins", DayRows(mails.settings, "logins").refused())}
    assert mails.send() == [], "the run that refused it has mailed"
    day_rows(mails.settings).write(DAY, version("v99"))
    assert mails.pass_over("third") == {}
