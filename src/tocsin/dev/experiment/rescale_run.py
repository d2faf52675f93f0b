"""Send records while readers of a view are added and removed, and count from the outputs what became of them."""

from __future__ import annotations

import contextlib
import math
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from tocsin.declare.model.errors import TocsinError, TransientError
from tocsin.declare.model.names import view_job
from tocsin.declare.model.sizes import EVENT_BYTES
from tocsin.declare.settings import Settings
from tocsin.dev.experiment.noted_reader import read_notes
from tocsin.dev.experiment.rehearsal import PARTITIONS, VIEW
from tocsin.dev.experiment.rescale_figures import HandOut, ReaderChange, RescaleReport, ShownRow, count_twice, steps_of
from tocsin.platform import child_process
from tocsin.platform.heartbeat import read_beat
from tocsin.platform.kafka.record_writer import RecordWriter
from tocsin.setup.java import find_java
from tocsin.supervise.runners.job_command import job_environment
from tocsin.views.row_store import store_path
from tocsin.views.view_row import ViewRow

_SETTLE_SECONDS, _STOP_SECONDS, _STILL_SECONDS = 60.0, 20.0, 60.0
_LOOK_SECONDS = 0.01

Say = Callable[[str], None]
"""Tells people what happens."""


@dataclass(frozen=True, kw_only=True)
class RescalePlan:
    """What to try.

    Attributes:
        records: to send, the same share in each step, half of it at the least once the partitions have moved.
        jobs: readers in each step.
        rate: records to send per second.
        kills: whether readers are removed by SIGKILL, not SIGTERM.
    """

    records: int
    jobs: tuple[int, ...]
    rate: float
    kills: bool


class Interrupted(TocsinError):
    """Somebody wants the experiment to end."""


class RescaleRun:
    """One run. Use it in a `with` statement, which ends the readers.

    Attributes:
        changes: of the number of readers so far.
        rows: that the view shows, once `run` has returned.
    """

    def __init__(self, settings: Settings, plan: RescalePlan, stop: threading.Event, say: Say) -> None:
        """Describe the run in the installation of `settings`; `stop` ends it early, `say` is told what happens."""
        self.changes: list[ReaderChange] = []
        self.rows: list[ShownRow] = []
        self._settings, self._plan, self._stop, self._say = settings, plan, stop, say
        self._environment = job_environment(settings, find_java().home)
        self._readers: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._names: list[str] = []
        self._sent = 0
        self._seen: list[tuple[float, int]] = []
        self._watched = threading.Event()

    def __enter__(self) -> RescaleRun:
        """Return it."""
        return self

    def __exit__(self, *how: object) -> None:
        """End all readers."""
        self._watched.set()
        for _, reader in self._readers:
            reader.kill()
            reader.wait()

    def run(self) -> RescaleReport:
        """Send, add and remove, and count.

        Raises:
            Interrupted: `stop` was set.
            TransientError: Kafka went away, or a reader ended by itself.
        """
        watching = threading.Thread(target=self._watch, name="watch", daemon=True)
        watching.start()
        plan, count = self._plan, len(self._plan.jobs)
        with RecordWriter(self._settings, EVENT_BYTES, config={"linger.ms": 5}) as writer:
            for number, jobs in enumerate(plan.jobs):
                self._change(jobs)
                if number == 0:
                    self._await_settled()
                    self.changes[0] = ReaderChange(time.time(), "start", jobs)
                self._say(f"{self.changes[-1].action}: {jobs} from now on, {self._sent:,} records sent")
                self._send(writer, plan.records * (number + 1) // count)
            writer.flush()  # or what is acknowledged last would be missing among the records
            delivered = writer.delivered
        self._await_applied(delivered)
        self._watched.set()
        watching.join()
        return self._report(delivered)

    def _change(self, jobs: int) -> None:
        action = "add" if jobs > len(self._readers) else "kill" if self._plan.kills else "remove"
        self.changes.append(ReaderChange(time.time(), action, jobs))
        removed = [self._readers.pop() for _ in range(len(self._readers) - jobs)]
        for _, process in removed:
            (process.kill if self._plan.kills else process.terminate)()
        while len(self._readers) < jobs:
            self._start(f"{VIEW}.{len(self._names) + 1}")
        for reader, process in removed:
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise TransientError(f"reader {reader} does not stop") from None

    def _start(self, name: str) -> None:
        program = [sys.executable, "-m", "tocsin.dev.experiment.noted_reader", name]
        log = self._settings.log(view_job(name))
        log.parent.mkdir(exist_ok=True)
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*child_process.prefix(), *program],
                env=self._environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the command alone
            )
        self._names.append(name)
        self._readers.append((name, process))

    def _send(self, writer: RecordWriter, until: int) -> None:
        """Send up to so many records in all, the second half of them once the readers have settled."""
        topic, begun, half = self._settings.names.view(VIEW), time.monotonic(), (self._sent + until) // 2
        due, looked_at, has_settled = float(self._sent), begun, False
        while self._sent < until:
            now = time.monotonic()
            has_settled = has_settled or self._has_settled(now - begun)
            due = min(due + (now - looked_at) * self._plan.rate, until if has_settled else half)
            looked_at = now
            for number in range(self._sent, math.ceil(due)):
                row = ViewRow(key={"number": f"n{number:09}"}, values={"number": number}, build="experiment")
                writer.write(topic, row.model_dump_json(), row.identity)
            self._sent = math.ceil(due)
            writer.poll()
            self._check()
            time.sleep(_LOOK_SECONDS)

    def _await_settled(self) -> None:
        begun = time.monotonic()
        while not self._has_settled(time.monotonic() - begun):
            self._check()
            time.sleep(0.1)

    def _has_settled(self, seconds: float) -> bool:
        """Return whether the readers share all partitions about evenly, so many seconds after they were changed."""
        beats = [read_beat(self._settings.state, view_job(name)) for name, _ in self._readers]
        have = [0 if beat is None else int(beat.report.counts.get("partitions", 0)) for beat in beats]
        has_settled = sum(have) == PARTITIONS and min(have) >= PARTITIONS // len(have)
        if not has_settled and seconds > _SETTLE_SECONDS:
            raise TransientError(f"the readers have {have} of {PARTITIONS} partitions after {seconds:.0f} s")
        return has_settled

    def _await_applied(self, records: int) -> None:
        """Wait until all is applied, or nothing more comes: then the rest is lost."""
        shown, since = -1, time.monotonic()
        while shown < records and time.monotonic() - since < _STILL_SECONDS:
            ((now,),) = self._ask("SELECT coalesce(sum(next), 0) FROM offsets")
            if now > shown:
                shown, since = now, time.monotonic()
            self._check()
            time.sleep(0.1)
        time.sleep(0.2)  # the watcher sees the last change

    def _watch(self) -> None:
        """Note when each change of the view can be seen first."""
        last = 0
        with contextlib.closing(self._open()) as connection:
            while not self._watched.wait(_LOOK_SECONDS):
                found = connection.execute("SELECT value FROM facts WHERE name = 'change'").fetchall()
                if found and int(found[0][0]) > last:
                    last = int(found[0][0])
                    self._seen.append((time.time(), last))

    def _report(self, delivered: int) -> RescaleReport:
        notes: list[HandOut] = [note for name in self._names for note in read_notes(self._settings, name)]
        seen = iter(self._seen)
        at, reached = next(seen, (time.time(), 0))
        for appended, change in self._ask("SELECT appended_at, change FROM rows ORDER BY change"):
            while reached < change:
                at, reached = next(seen, (time.time(), change))
            self.rows.append(ShownRow(appended / 1000, at))
        ((times, distinct),) = self._ask("SELECT count(*), count(DISTINCT identity) FROM shown")
        begun = min((row.appended_at for row in self.rows), default=0.0)
        return RescaleReport(
            records=delivered,
            lost=delivered - len(self.rows),
            processed_twice=count_twice(notes),
            shown_twice=times - distinct,
            seconds=round(max((row.seen_at for row in self.rows), default=0.0) - begun, 3),
            steps=steps_of(self.changes, notes, self.rows),
        )

    def _ask(self, query: str) -> list[tuple[int, ...]]:
        with contextlib.closing(self._open()) as connection:
            return connection.execute(query).fetchall()

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{store_path(self._settings, VIEW)}?mode=ro", uri=True, timeout=30)

    def _check(self) -> None:
        if self._stop.is_set():
            raise Interrupted("interrupted")
        for name, process in self._readers:
            if process.poll() is not None:
                last = self._settings.log(view_job(name)).read_text(errors="replace").splitlines()[-5:]
                raise TransientError(f"reader {name} ended with {process.returncode}: " + "\n".join(last))
