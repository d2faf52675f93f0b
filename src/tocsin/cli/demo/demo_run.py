"""The demo as it runs: waits for the stack, sends, and watches what comes of it."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import psutil

from tocsin.alerts.store.queries import FindingFilter, list_findings, open_store
from tocsin.cli.demo import demo_story
from tocsin.cli.demo.demo_story import Story
from tocsin.cli.output import line
from tocsin.dev.generator import Burst, Traffic
from tocsin.dev.pacing import in_time
from tocsin.dev.running_stack import read_running
from tocsin.dev.servers.mailbox import Mailbox
from tocsin.dev.startup_progress import Line, Progress
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
_PATIENCE_SECONDS = 180.0
# An e-mail that must not come would come together with the one that must.
_SURPRISE_SECONDS = 5.0


class Performance(threading.Thread):
    """Tells the story from a thread of its own, while the main thread keeps the stack running.

    It is also what the stack shows its progress to, which is how it learns that all is ready.

    Attributes:
        faults: what did not happen as announced; empty when all did, or before the end.
    """

    def __init__(self, progress: Progress, stop: threading.Event, *, exit_when_done: bool) -> None:
        super().__init__(name="demo")
        self.faults: list[str] = []
        self._progress, self._ending, self._exit_when_done = progress, stop, exit_when_done
        self._ready = threading.Event()
        self._lines: Sequence[Line] = ()
        self._settled = False

    # --- what the stack says ------------------------------------------------------------------------------------------

    def show(self, lines: Sequence[Line]) -> None:
        """See `Progress.show`; once all is ready, only what fails is worth a line."""
        self._lines = lines
        if not self._ready.is_set() or self._failing():
            self._progress.show(lines)

    def say(self, text: str) -> None:
        """See `Progress.say`. The first sentence after all has settled is where the stack says that it is ready."""
        self._progress.say(text)
        if self._settled:
            self._ready.set()

    def settle(self) -> None:
        """See `Progress.settle`."""
        self._progress.settle()
        self._settled = bool(self._lines) and all(one.ready or one.failing for one in self._lines)

    def _failing(self) -> list[str]:
        return [f"{one.name}: {one.text}" for one in self._lines if one.failing]

    # --- what the demo does -------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Wait for the stack, then play until all was told, and beyond until `stop`."""
        while not self._ready.wait(_LOOK_SECONDS):
            if self._ending.is_set():
                return
        try:
            self._play(load_settings())
        except Exception as error:
            # The main thread decides the exit code; a thread that dies must not look like a success.
            self._blame([f"{type(error).__name__}: {error}"])
        if self._exit_when_done:
            self._ending.set()

    def _play(self, settings: Settings) -> None:
        running = read_running(settings.state)
        if running is None or self._failing():
            self._blame(self._failing() or ["the stack has ended"])
            return
        eyes = _Eyes(settings, Mailbox(running.mail_url), Story(self.say, line, _seconds_since_start))
        self.say(f"{_RATE:.0f} logins per second from now on, of {_USERS} users; one in twenty fails, as in real life")
        self.say(demo_story.plan(_LEAD.total_seconds()))
        sender = threading.Thread(target=self._send, args=(settings,), name="logins", daemon=True)
        sender.start()
        self._watch(eyes)
        if not self.faults and not self._ending.is_set():
            self.say(demo_story.ending(str(settings.state), running.mail_url))
        while not self._exit_when_done and not self._ending.wait(_LOOK_SECONDS):
            eyes.look()
        self._ending.set()
        sender.join()

    def _watch(self, eyes: _Eyes) -> None:
        """Look until all was told, or patience ends, and a moment longer for what should not come."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not eyes.story.is_complete and time.monotonic() < deadline and not self._ending.wait(_LOOK_SECONDS):
            eyes.look()
        deadline = time.monotonic() + _SURPRISE_SECONDS
        while time.monotonic() < deadline and not self._ending.wait(_LOOK_SECONDS):
            eyes.look()
        if not self._ending.is_set():
            self._blame(eyes.story.faults())

    def _send(self, settings: Settings) -> None:
        """Send the background, the bursts and the bad lines in real time, until `stop`."""
        start = datetime.now(UTC)
        bursts = tuple(Burst(user=user, n=failures, at=_LEAD) for user, failures in demo_story.BURSTS.items())
        good = Traffic(start=start, rate=_RATE, users=_USERS, bursts=bursts)
        bad = Traffic(start=start + _LEAD, seconds=1, rate=demo_story.BAD_LINES, bad_share=1.0)
        lines = heapq.merge(good.lines(), bad.lines(), key=lambda one: one.at)
        try:
            with LineProducer(settings, read_catalog(settings.project).source(_SOURCE)) as producer:
                for one in in_time(lines, self._ending):
                    producer.send(one.value)
        except TransientError as error:
            if not self._ending.is_set():
                self._blame([str(error)])

    def _blame(self, faults: list[str]) -> None:
        for fault in faults:
            self.say(f"not as announced: {printable(fault)}")
        if faults and not self.faults:
            self.say("what to look at: tocsin status, tocsin dev logs <job>")
        self.faults.extend(faults)


class _Eyes:
    """Looks at everything that a story is told of."""

    def __init__(self, settings: Settings, mailbox: Mailbox, story: Story) -> None:
        self.story = story
        self._settings, self._mailbox = settings, mailbox
        self._source = read_catalog(settings.project).source(_SOURCE)

    def look(self) -> None:
        """Look once; a server that is away at the moment shows more at the next look."""
        database = open_store(self._settings)
        try:
            self.story.tell_findings(list_findings(database, FindingFilter()))
            self.story.tell_mails(self._mailbox.mails())
            records = list_quarantined(self._settings, self._source, Selection())
            # A job that was killed writes some of them twice; where they came from tells them apart.
            self.story.tell_quarantined(len({record.origin for record in records}))
        except TransientError:
            return
        finally:
            database.close()


def _seconds_since_start() -> float:
    return time.time() - psutil.Process().create_time()
