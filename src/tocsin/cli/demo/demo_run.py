"""Run the demo beside its stack: send logins, and check that the announced findings, mails and refusals appear."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta

import psutil

from tocsin.alerts.store.queries import FindingFilter, list_findings, open_store
from tocsin.cli.demo import demo_report
from tocsin.cli.demo.demo_report import DemoReport
from tocsin.cli.output import line
from tocsin.dev.generator import Burst, Traffic, wait_for_times
from tocsin.dev.running_stack import Running, read_running
from tocsin.dev.servers.mailbox import Mailbox
from tocsin.dev.startup_progress import Part, StartupProgress
from tocsin.ingest.producer import LineProducer
from tocsin.ingest.quarantine import Selection, list_quarantined
from tocsin.model.errors import TransientError
from tocsin.model.printable import printable
from tocsin.project.catalog import read_catalog
from tocsin.project.settings import Settings, load_settings

_SOURCE = "logins"
_RATE, _USERS = 20.0, 200
_LEAD = timedelta(seconds=3)
_LOOK_SECONDS = 0.4
_MOST_SECONDS = 180.0
# An e-mail that must not come would come together with the one that must.
_EXTRA_SECONDS = 5.0


class DemoRun(threading.Thread):
    """A thread that demonstrates, while the main thread keeps the stack running.

    It also passes on the progress of the stack, from which it learns when all is ready.

    Attributes:
        faults: what did not happen as announced; empty if all did, or before the end.
    """

    def __init__(self, progress: StartupProgress, stop: threading.Event, *, exit_when_done: bool) -> None:
        super().__init__(name="demo")
        self.faults: list[str] = []
        self._progress, self._stop_asked, self._exit_when_done = progress, stop, exit_when_done
        self._ready = threading.Event()
        self._parts: Sequence[Part] = ()
        self._settled = False

    # --- progress of the stack ----------------------------------------------------------------------------------------

    def show(self, parts: Sequence[Part]) -> None:
        """See `StartupProgress.show`; once all is ready, show failures only."""
        self._parts = parts
        if not self._ready.is_set() or self._failing():
            self._progress.show(parts)

    def say(self, text: str) -> None:
        """See `StartupProgress.say`. With the first sentence after all has settled, the stack says that it is ready."""
        self._progress.say(text)
        if self._settled:
            self._ready.set()

    def settle(self) -> None:
        """See `StartupProgress.settle`."""
        self._progress.settle()
        self._settled = bool(self._parts) and all(part.ready or part.failing for part in self._parts)

    def _failing(self) -> list[str]:
        return [f"{part.name}: {part.text}" for part in self._parts if part.failing]

    # --- demonstration ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Wait for the stack, demonstrate, then run until `stop`, or exit when done if asked to."""
        while not self._ready.wait(_LOOK_SECONDS):
            if self._stop_asked.is_set():
                return
        try:
            settings = load_settings()
            running = read_running(settings.state)
            if running is None or self._failing():
                self._fail(self._failing() or ["the stack has stopped"])
            else:
                self._demonstrate(settings, running)
        except Exception as error:
            # The main thread decides the exit code; a thread that dies must not look like a success.
            self._fail([f"{type(error).__name__}: {error}"])
        if self._exit_when_done:
            self._stop_asked.set()

    def _demonstrate(self, settings: Settings, running: Running) -> None:
        report = DemoReport(self.say, line, lambda: time.time() - psutil.Process().create_time())
        mailbox = Mailbox(running.mail_url)
        self.say(f"{_RATE:.0f} logins per second from {_USERS} users; one in twenty fails, as in real life")
        self.say(demo_report.announcement(_LEAD.total_seconds()))
        sender = threading.Thread(target=self._send, args=(settings,), name="logins", daemon=True)
        sender.start()
        deadline = time.monotonic() + _MOST_SECONDS
        while not report.is_complete and self._waits_until(deadline):
            _look(settings, mailbox, report)
        deadline = time.monotonic() + _EXTRA_SECONDS
        while self._waits_until(deadline):
            _look(settings, mailbox, report)
        if not self._stop_asked.is_set():
            self._fail(report.faults())
        if not self.faults and not self._stop_asked.is_set():
            self.say(demo_report.closing_text(str(settings.state), running.mail_url))
        while not self._exit_when_done and not self._stop_asked.wait(_LOOK_SECONDS):
            _look(settings, mailbox, report)
        self._stop_asked.set()
        sender.join()

    def _waits_until(self, deadline: float) -> bool:
        """Wait for the next look; false at the deadline or when the demo is to stop."""
        return time.monotonic() < deadline and not self._stop_asked.wait(_LOOK_SECONDS)

    def _send(self, settings: Settings) -> None:
        """Send normal logins, bursts and broken lines in real time, until `stop`."""
        start = datetime.now(UTC)
        bursts = tuple(Burst(user=user, n=failures, at=_LEAD) for user, failures in demo_report.BURSTS.items())
        good = Traffic(start=start, rate=_RATE, users=_USERS, bursts=bursts)
        bad = Traffic(start=start + _LEAD, seconds=1, rate=demo_report.BAD_LINES, bad_share=1.0)
        lines = heapq.merge(good.lines(), bad.lines(), key=lambda login: login.at)
        try:
            with LineProducer(settings, read_catalog(settings.project).source(_SOURCE)) as producer:
                for login in wait_for_times(lines, self._stop_asked):
                    producer.send(login.value)
        except TransientError as error:
            if not self._stop_asked.is_set():
                self._fail([str(error)])

    def _fail(self, faults: list[str]) -> None:
        for fault in faults:
            self.say(f"not as announced: {printable(fault)}")
        if faults and not self.faults:
            self.say("to find out why: tocsin status, tocsin dev logs <job>")
        self.faults.extend(faults)


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
