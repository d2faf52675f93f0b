"""What runs beside the stack of a demo: send lines once it is ready, and check that what was announced happens."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import psutil

from tocsin.cli.output import line
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.sizes import printable
from tocsin.declare.settings import Settings, load_settings
from tocsin.dev.generator import Burst, Traffic, wait_for_times
from tocsin.dev.servers.mail_sink import Mail, Mailbox
from tocsin.dev.servers.sink_servers import KINDS
from tocsin.dev.startup_progress import Part, StartupProgress
from tocsin.dev.state_folder import Running, read_running
from tocsin.ingest.producer import LineProducer
from tocsin.ingest.quarantine import Selection, list_quarantined
from tocsin.views.row_query import ViewReader
from tocsin.views.row_store import store_path
from tocsin.web.passwords import FIRST_USER, first_password_file
from tocsin.web.server import page_address

EMAIL_USER, URGENT_USER = "mallory", "trudy"
BURSTS = {EMAIL_USER: 60, URGENT_USER: 120}
BAD_LINES = 8
# Who sends a burst of their own waits for the mail; by default it leaves half an hour after the one before.
GATHER_SECONDS = 5
EXAMPLES = {
    "words": ("lines", "word_counts"),
    "routes": ("router", "route_metrics"),
    "inventory": ("stock_movements", "inventory"),
    "instances": ("counters", "instance_totals"),
}
"""The source and the view of each project in examples/ that is shown; its lines are `sample.txt`, with TIME in them."""
_SOURCE, _RATE, _USERS = "logins", 20.0, 200
_LEAD = timedelta(seconds=3)
_LOOK_SECONDS, _MOST_SECONDS = 0.4, 180.0
# An e-mail that must not come would come together with the one that must.
_EXTRA_SECONDS = 5.0
_MARGIN = " " * 10 + "|"


class Demonstration(threading.Thread, ABC):
    """A thread that demonstrates, while the main thread keeps the stack running and shows its progress through it."""

    def __init__(self, progress: StartupProgress, stop: threading.Event, *, exit_when_done: bool) -> None:
        super().__init__(name="demo")
        self.faults: list[str] = []
        self.stop_asked, self.exit_when_done = stop, exit_when_done
        self.say = progress.say
        self._progress = progress
        self._ready = threading.Event()
        self._parts: Sequence[Part] = ()

    @abstractmethod
    def demonstrate(self, settings: Settings, running: Running) -> None:
        """Show what there is to show, and check it."""

    @abstractmethod
    def send(self, settings: Settings) -> None:
        """Send lines until `stop_asked`; TransientError if Kafka takes none."""

    def show(self, parts: Sequence[Part]) -> None:
        """See `StartupProgress.show`; once all is ready, show failures only."""
        self._parts = parts
        if not self._ready.is_set() or self._failing():
            self._progress.show(parts)

    def settle(self) -> None:
        """See `StartupProgress.settle`."""
        self._progress.settle()
        if self._parts and all(part.ready or part.failing for part in self._parts):
            self._ready.set()

    def run(self) -> None:
        """Wait for the stack, demonstrate, then send until `stop_asked`, or exit when done if asked to."""
        while not self._ready.wait(_LOOK_SECONDS):
            if self.stop_asked.is_set():
                return
        try:
            self._demonstrate()
        except Exception as error:
            # The main thread decides the exit code; a thread that dies must not look like a success.
            self.fail([f"{type(error).__name__}: {error}"])
        if self.exit_when_done:
            self.stop_asked.set()

    def waits_until(self, deadline: float) -> bool:
        """Wait for the next look; false at the deadline or when the demo is to stop."""
        return time.monotonic() < deadline and not self.stop_asked.wait(_LOOK_SECONDS)

    def fail(self, faults: list[str]) -> None:
        """Say and remember what did not happen as announced."""
        for fault in faults:
            self.say(f"not as announced: {printable(fault)}")
        if faults and not self.faults:
            self.say("to find out why: tocsin status, tocsin dev logs <job>")
        self.faults.extend(faults)

    def _demonstrate(self) -> None:
        settings = load_settings()
        running = read_running(settings.state)
        if running is None or self._failing():
            self.fail(self._failing() or ["the stack has stopped"])
            return
        threading.Thread(target=self._send, args=(settings,), name="lines", daemon=True).start()
        self.demonstrate(settings, running)

    def _send(self, settings: Settings) -> None:
        try:
            self.send(settings)
        except TransientError as error:
            if not self.stop_asked.is_set():
                self.fail([str(error)])

    def _failing(self) -> list[str]:
        """Name what fails and is needed: without its sink a view is still kept in SQLite, and shown."""
        sinks = {how.server.name for how in KINDS.values()}
        return [f"{part.name}: {part.text}" for part in self._parts if part.failing and part.name not in sinks]


class LoginDemo(Demonstration):
    """Sends logins with two bursts of failures, and checks the mails and refusals that they lead to."""

    def demonstrate(self, settings: Settings, running: Running) -> None:
        """See `Demonstration`."""
        report = DemoReport(self.say, line, lambda: time.time() - psutil.Process().create_time())
        mailbox = Mailbox(running.mail_url)
        self.say(f"{_RATE:.0f} logins per second from {_USERS} users; one in twenty fails, as in real life")
        self.say(_announcement(_LEAD.total_seconds()))
        deadline = time.monotonic() + _MOST_SECONDS
        while not report.is_complete and self.waits_until(deadline):
            _look(settings, mailbox, report)
        deadline = time.monotonic() + _EXTRA_SECONDS
        while self.waits_until(deadline):
            _look(settings, mailbox, report)
        if self.stop_asked.is_set():
            return
        self.fail(report.faults())
        if not self.faults:
            self.say(_closing_text(settings, running))
        while not self.exit_when_done and not self.stop_asked.wait(_LOOK_SECONDS):
            _look(settings, mailbox, report)

    def send(self, settings: Settings) -> None:
        """See `Demonstration`."""
        start = datetime.now(UTC)
        bursts = tuple(Burst(user=user, n=failures, at=_LEAD) for user, failures in BURSTS.items())
        good = Traffic(start=start, rate=_RATE, users=_USERS, bursts=bursts)
        bad = Traffic(start=start + _LEAD, seconds=1, rate=BAD_LINES, bad_share=1.0)
        lines = heapq.merge(good.lines(), bad.lines(), key=lambda login: login.at)
        with LineProducer(settings, read_catalog(settings.project).source(_SOURCE)) as producer:
            for login in wait_for_times(lines, self.stop_asked):
                producer.send(login.value)


class ExampleDemo(Demonstration):
    """Sends the lines of one example again and again, with the present time, and checks that its view fills."""

    def __init__(self, name: str, progress: StartupProgress, stop: threading.Event, *, exit_when_done: bool) -> None:
        super().__init__(progress, stop, exit_when_done=exit_when_done)
        self._source, self._view = EXAMPLES[name]

    def demonstrate(self, settings: Settings, running: Running) -> None:
        """See `Demonstration`."""
        self.say(f"{_RATE:.0f} lines per second go to the source {self._source}; {self._view} shows the result")
        self.say(f"its page, with the numbers moving: {page_address(settings)}")
        deadline = time.monotonic() + _MOST_SECONDS
        while not self._has_rows(settings):
            if not self.waits_until(deadline):
                self.fail([] if self.stop_asked.is_set() else [f"{self._view} has no rows"])
                break
        view = read_catalog(settings.project).view(self._view)
        if not self.faults and not self.stop_asked.is_set():
            self.say(
                f"{view.name} has rows; in another terminal, after export TOCSIN_PROJECT={settings.project} "
                f"TOCSIN_STATE={settings.state}, try:\n  tocsin view {view.name}\n"
                + (f"  address of its {view.sink}: {running.sinks[view.sink]}\n" if view.sink in running.sinks else "")
                + f"  the file to change: {view.path}\nCtrl-C stops everything"
            )
        while not self.exit_when_done and not self.stop_asked.wait(_LOOK_SECONDS):
            pass

    def send(self, settings: Settings) -> None:
        """See `Demonstration`."""
        lines = (settings.project / "sample.txt").read_bytes().splitlines()
        with LineProducer(settings, read_catalog(settings.project).source(self._source)) as producer:
            for text in itertools.cycle(lines):
                if self.stop_asked.wait(1 / _RATE):
                    return
                producer.send(text.replace(b"TIME", f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}Z".encode()))

    def _has_rows(self, settings: Settings) -> bool:
        try:
            with contextlib.closing(ViewReader(store_path(settings, self._view))) as reader:
                return bool(reader.page(limit=1).rows)
        except (TransientError, FileNotFoundError):
            return False


@dataclass
class DemoReport:
    """The mails and refusals of the demo so far; each is written once."""

    say: Callable[[str], None]
    show: Callable[[str], None]
    seconds: Callable[[], float]
    mails: list[Mail] = field(default_factory=list)
    quarantined: int = 0

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


def _look(settings: Settings, mailbox: Mailbox, report: DemoReport) -> None:
    # If a server is away at the moment, the next look reports what is new.
    with contextlib.suppress(TransientError):
        report.add_mails(mailbox.mails())
        records = list_quarantined(settings, read_catalog(settings.project).source(_SOURCE), Selection())
        # A job that was killed writes some records twice; their origin identifies them.
        report.count_quarantined(len({record.origin for record in records}))


def _announcement(seconds: float) -> str:
    email, urgent = BURSTS[EMAIL_USER], BURSTS[URGENT_USER]
    return f"""in {seconds:.0f} seconds or a little more:
  {EMAIL_USER} fails {email} times within one window of ten seconds; above 50, so one e-mail once that has closed,
    and {GATHER_SECONDS} seconds after the last message of the detector (what comes together leaves together)
  {URGENT_USER} fails {urgent} times; above 100, so one urgent message at once, and no e-mail after it
  {BAD_LINES} unusable lines arrive and go to quarantine"""


def _closing_text(settings: Settings, running: Running) -> str:
    file = first_password_file(settings)
    login = f"{FIRST_USER}, {file.read_text(encoding='utf-8').strip()}" if file else "with your login"
    return f"""everything happened as announced: one e-mail, one urgent message, no duplicates
the mails are on {running.mail_url}
answer the alerts on {settings.local_web_address} ({login}), or by the buttons in the mails
in another terminal, after export TOCSIN_STATE={settings.state}, try:
  tocsin status
  tocsin alerts
  tocsin send --burst user=eve,n=75
Ctrl-C stops everything"""


def _mail_lines(mail: Mail) -> Iterator[str]:
    yield f"{_MARGIN} Subject: {printable(mail.subject)}"
    yield _MARGIN
    for text in mail.text.splitlines():
        yield f"{_MARGIN} {printable(text)}".rstrip()
