"""A notifier whose clock, reports and mail server a test moves."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.rig.mail_server import MailServer
from tests.unit.alerts.scene import FACTS, NOON, RULES, SECOND, burst, show
from tocsin.alerts.evidence.alert_evidence import AlertEvidence
from tocsin.alerts.notify.grouping import WAIT
from tocsin.alerts.notify.notifier import Notifier
from tocsin.alerts.recording import Rules, record
from tocsin.alerts.store import queries
from tocsin.alerts.store.alert_rows import AlertDetails, Notification
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.queries import AlertFilter
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.job_report import JobReport, JobState
from tocsin.declare.receivers import RECEIVERS
from tocsin.declare.setting_blocks import SmtpSettings
from tocsin.declare.settings import Settings

OWNER, PAGED = FACTS.owner, "oncall@example.com"


class Scene:
    """A notifier with a clock, reports and a mail server that the test moves."""

    def __init__(self, database: Database, server: MailServer, installed: Path | Settings) -> None:
        """`installed`: the project, for settings of no file; or the settings."""
        self.database, self.server = database, server
        smtp = SmtpSettings(port=server.port, sender="tocsin@tocsin.example.com")
        self.settings = (
            installed if isinstance(installed, Settings) else Settings(project=installed, state=installed, smtp=smtp)
        )
        self.now = NOON + 8 * SECOND
        self.enriched: list[str] = []
        self.reports: dict[str, JobReport] | TransientError = {}
        self.notifier = self.new_notifier()

    def new_notifier(self) -> Notifier:
        return Notifier(self.settings, self.database, self.read_reports, lambda: self.now, self.enrich)

    def enrich(self, details: AlertDetails) -> AlertDetails:
        self.enriched.append(details.alert.entity["user_id"])
        note = AlertEvidence(finding_id=details.highest.finding.finding_id, note="Kafka is not part of this scene")
        return details.model_copy(update={"evidence": note})

    def read_reports(self) -> dict[str, JobReport]:
        if isinstance(self.reports, TransientError):
            raise self.reports
        return self.reports

    def index(self, score: int, *, user: str = "mallory", at: datetime = NOON, rules: Rules = RULES) -> None:
        with self.database.write() as connection:
            record(connection, burst(score, user=user, at=at), rules, self.now)

    def close_windows(self, until: datetime, mark: str = "watermark") -> None:
        """The job's `mark` passes `until`, and the indexer has all that was found before."""
        passed = JobReport(job="detector:failed_logins", at=self.now, state=JobState.RUNNING, **{mark: until})
        level = JobReport(job="indexer", at=self.now, state=JobState.RUNNING, watermark=self.now)
        self.reports = {passed.job: passed, level.job: level}

    def send(self) -> None:
        self.notifier.release_closed()
        self.send_due()

    def send_due(self) -> None:
        """Send, and wait for every outcome: on a busy machine the server takes its time."""
        self.notifier.send_due(threading.Event(), patience=60.0)

    def send_later(self, later: timedelta = WAIT) -> None:
        """Send what had to gather, or what was to be tried again."""
        self.now += later
        self.send()

    @property
    def subjects(self) -> list[tuple[str, str]]:
        return [(mail["To"], mail["Subject"]) for mail in self.server.mails]

    @property
    def notifications(self) -> list[Notification]:
        alerts = queries.list_alerts(self.database, AlertFilter())
        return [sent for alert in alerts for sent in show(self.database, alert.id).notifications]


def let_a_program_read_mails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let addresses of SMTP hear of answers too, as programs do."""
    monkeypatch.setitem(RECEIVERS, "smtp", replace(RECEIVERS["smtp"], takes_updates=True))


class _Killed(BaseException):
    """The process ends here; no handler of the program sees it."""


@contextmanager
def killed_at(owner: object, name: str) -> Iterator[None]:
    """Let the process end in the block, where it calls this function of `owner`."""

    def die(*_: object, **__: object) -> None:
        raise _Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(_Killed):
        patch.setattr(owner, name, die)
        yield
