"""Run the demo beside its stack: send logins, and check that the announced findings, mails and refusals appear."""

from __future__ import annotations

import heapq
import threading
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta

import psutil

from tocsin.alerts.store.queries import FindingFilter, list_findings, open_store
from tocsin.cli.demo import demo_report
from tocsin.cli.demo.companion import LOOK_SECONDS, Companion
from tocsin.cli.demo.demo_report import DemoReport
from tocsin.cli.output import line
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import TransientError
from tocsin.declare.settings import Settings
from tocsin.dev.generator import Burst, Traffic, wait_for_times
from tocsin.dev.running_stack import Running
from tocsin.dev.servers.mail_sink import Mailbox
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
        self.say(demo_report.announcement(_LEAD.total_seconds()))
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
            self.say(demo_report.closing_text(str(settings.state), running.mail_url, pages, login))
        while not self.exit_when_done and not self.stop_asked.wait(LOOK_SECONDS):
            _look(settings, mailbox, report)
        self.stop_asked.set()
        sender.join()

    def _send(self, settings: Settings) -> None:
        """Send normal logins, bursts and broken lines in real time, until `stop`."""
        start = datetime.now(UTC)
        bursts = tuple(Burst(user=user, n=failures, at=_LEAD) for user, failures in demo_report.BURSTS.items())
        good = Traffic(start=start, rate=_RATE, users=_USERS, bursts=bursts)
        bad = Traffic(start=start + _LEAD, seconds=1, rate=demo_report.BAD_LINES, bad_share=1.0)
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
