"""Run the demo beside its stack: send logins, and check that the announced findings, mails and refusals appear."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import psutil

from tocsin.alerts.finding_merging import StoredFinding
from tocsin.alerts.store.queries import FindingFilter, list_findings, open_store
from tocsin.cli.demo.companion import LOOK_SECONDS, Companion
from tocsin.cli.output import line
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.finding import entity_text, number
from tocsin.declare.model.sizes import printable
from tocsin.declare.settings import Settings
from tocsin.dev.generator import Burst, Traffic, wait_for_times
from tocsin.dev.servers.mail_sink import Mail, Mailbox
from tocsin.dev.state_folder import Running
from tocsin.ingest.producer import LineProducer
from tocsin.ingest.quarantine import Selection, list_quarantined
from tocsin.web.passwords import FIRST_USER, first_password_file

_SOURCE = "logins"
_RATE, _USERS = 20.0, 200
_LEAD = timedelta(seconds=3)
_MOST_SECONDS = 180.0
# An e-mail that must not come would come together with the one that must.
_EXTRA_SECONDS = 5.0


class DemoRun(Companion):
    """Sends logins, and checks what they lead to."""

    def demonstrate(self, settings: Settings, running: Running) -> None:
        """See `Companion`."""
        report = DemoReport(self.say, line, lambda: time.time() - psutil.Process().create_time())
        mailbox = Mailbox(running.mail_url)
        self.say(f"{_RATE:.0f} logins per second from {_USERS} users; one in twenty fails, as in real life")
        self.say(announcement(_LEAD.total_seconds()))
        sender = threading.Thread(target=self._send, args=(settings,), name="logins", daemon=True)
        sender.start()
        deadline = time.monotonic() + _MOST_SECONDS
        while not report.is_complete and self.waits_until(deadline):
            _look(settings, mailbox, report)
        deadline = time.monotonic() + _EXTRA_SECONDS
        while self.waits_until(deadline):
            _look(settings, mailbox, report)
        if not self.stop_asked.is_set():
            self.fail(report.faults())
        if not self.faults and not self.stop_asked.is_set():
            file = first_password_file(settings)
            login = f"{FIRST_USER}, {file.read_text(encoding='utf-8').strip()}" if file else "with your login"
            pages = settings.web.public_address
            self.say(closing_text(str(settings.state), running.mail_url, pages, login))
        while not self.exit_when_done and not self.stop_asked.wait(LOOK_SECONDS):
            _look(settings, mailbox, report)
        self.stop_asked.set()
        sender.join()

    def _send(self, settings: Settings) -> None:
        start = datetime.now(UTC)
        bursts = tuple(Burst(user=user, n=failures, at=_LEAD) for user, failures in BURSTS.items())
        good = Traffic(start=start, rate=_RATE, users=_USERS, bursts=bursts)
        bad = Traffic(start=start + _LEAD, seconds=1, rate=BAD_LINES, bad_share=1.0)
        lines = heapq.merge(good.lines(), bad.lines(), key=lambda login: login.at)
        try:
            with LineProducer(settings, read_catalog(settings.project).source(_SOURCE)) as producer:
                for login in wait_for_times(lines, self.stop_asked):
                    producer.send(login.value)
        except TransientError as error:
            if not self.stop_asked.is_set():
                self.fail([str(error)])


def _look(settings: Settings, mailbox: Mailbox, report: DemoReport) -> None:
    """Report what is new; if a server is away at the moment, the next look reports it."""
    source = read_catalog(settings.project).source(_SOURCE)
    try:
        with closing(open_store(settings)) as database:
            report.add_findings(list_findings(database, FindingFilter()))
        report.add_mails(mailbox.mails())
        records = list_quarantined(settings, source, Selection())
        # A job that was killed writes some records twice; their origin identifies them.
        report.count_quarantined(len({record.origin for record in records}))
    except TransientError:
        return


EMAIL_USER, URGENT_USER = "mallory", "trudy"
BURSTS = {EMAIL_USER: 60, URGENT_USER: 120}
BAD_LINES = 8
_MARGIN = " " * 10 + "|"


def announcement(seconds: float) -> str:
    """Announce what will happen `seconds` from now."""
    email, urgent = BURSTS[EMAIL_USER], BURSTS[URGENT_USER]
    return f"""in {seconds:.0f} seconds or a little more:
  {EMAIL_USER} fails {email} times within one window of ten seconds; above 50, so one e-mail once that has closed,
    and 30 seconds after the last message of the detector (what comes together leaves together)
  {URGENT_USER} fails {urgent} times; above 100, so one urgent message at once, and no e-mail after it
  {BAD_LINES} unusable lines arrive and go to quarantine"""


def closing_text(state: str, mails: str, pages: str, login: str) -> str:
    """Say that all has happened, and what to try next."""
    return f"""everything happened as announced: one e-mail, one urgent message, no duplicates
the mails are on {mails}
answer the alerts on {pages} ({login}), or by the buttons in the mails
in another terminal, after export TOCSIN_STATE={state}, try:
  tocsin status
  tocsin alerts
  tocsin send --burst user=eve,n=75
Ctrl-C stops everything"""


@dataclass
class DemoReport:
    """The events of the demo so far; each is written once."""

    say: Callable[[str], None]
    show: Callable[[str], None]
    seconds: Callable[[], float]
    mails: list[Mail] = field(default_factory=list)
    quarantined: int = 0
    _levels: dict[str, str] = field(default_factory=dict)

    def add_findings(self, findings: Sequence[StoredFinding]) -> None:
        """Write each finding when it appears and when it reaches a higher level; `findings` has the newest first."""
        for stored in reversed(findings):
            finding = stored.finding
            before = self._levels.get(finding.finding_id)
            if before == finding.level:
                continue
            self._levels[finding.finding_id] = finding.level
            subject = "a finding" if before is None else "the finding was updated"
            score = f"{number(finding.score)} is above {number(finding.limit)}"
            self.say(f"{subject}: {printable(entity_text(finding.entity))}, {score}, so its level is {finding.level}")

    def count_quarantined(self, count: int) -> None:
        """Write how many lines are in quarantine if they have become more."""
        if count > self.quarantined:
            self.say(f"{count} of the {BAD_LINES} broken lines are in quarantine, with their reasons")
        self.quarantined = count

    def add_mails(self, mails: Sequence[Mail]) -> None:
        """Write each new mail as its reader sees it."""
        for mail in mails[len(self.mails) :]:
            if not self.mails:
                self.say(f"the first mail, {self.seconds():.0f} seconds after the start")
            self.mails.append(mail)
            self.say(f"a mail for {printable(mail.to)}; with its chart on {mail.page}")
            self.show("\n".join(_mail_lines(mail)))

    @property
    def is_complete(self) -> bool:
        """True once all that was announced is there; more than that may still come."""
        return self.quarantined >= BAD_LINES and all(self._mails_about(user) for user in BURSTS)

    def faults(self) -> list[str]:
        """List what did not happen as announced; mails about other users do not count."""
        faults = []
        for user, kind in ((EMAIL_USER, "e-mail"), (URGENT_USER, "urgent message")):
            about = self._mails_about(user)
            if len(about) != 1:
                faults.append(f"{len(about)} mails about {user} instead of one {kind}")
            elif about[0].subject.startswith("[URGENT]") is not (user == URGENT_USER):
                faults.append(f"the mail about {user} is not an {kind}: {about[0].subject}")
        if self.quarantined != BAD_LINES:
            faults.append(f"{self.quarantined} lines in quarantine instead of {BAD_LINES}")
        return faults

    def _mails_about(self, user: str) -> list[Mail]:
        return [mail for mail in self.mails if user in mail.subject]


def _mail_lines(mail: Mail) -> Iterator[str]:
    yield f"{_MARGIN} Subject: {printable(mail.subject)}"
    yield _MARGIN
    for text in mail.text.splitlines():
        yield f"{_MARGIN} {printable(text)}".rstrip()
