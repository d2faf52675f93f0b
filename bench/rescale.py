"""Send records to a view while its readers become more and fewer, and count from the outputs what became of them."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import sqlite3
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from bench.figures import Goal, table
from bench.noted_reader import notes_path
from bench.processes import Program, await_that
from bench.rescale_figures import HandOut, ReaderChange, Rescaled, ShownRow, count_twice, steps_of
from bench.rig import Rig
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.names import view_job
from tocsin.declare.model.sizes import EVENT_BYTES
from tocsin.declare.setting_blocks import KafkaSettings
from tocsin.declare.settings import Settings
from tocsin.platform.heartbeat import read_beat
from tocsin.platform.kafka.record_writer import RecordWriter
from tocsin.platform.kafka.topics import ensure_topics
from tocsin.setup.java import find_java
from tocsin.setup.paths import here
from tocsin.supervise.installed_jobs import job_environment
from tocsin.views.row_store import RowStore, store_path
from tocsin.views.stored_row import ViewRow

_VIEW, _PARTITIONS = "rescale", 8
_SETTLE_SECONDS, _STILL_SECONDS = 60.0, 60.0
_LOOK_SECONDS = 0.01
_DECLARED = '''"""The records that were sent, by number."""
from tocsin import view
@view(source="rescale", key="number", window=None, owner="bench@example.com", stage="draft")
def view(events):
    return events
'''
_SOURCE = f"""title = "Records"
owner = "bench@example.com"
format = "json"
key = "number"
event_time = "at"
event_time_format = "iso8601"
partitions = {_PARTITIONS}

[schema]
at = "timestamp"
number = "string"
"""
# Rows are replaced when they are applied again, so the file alone would not tell that they were.
_COUNTERS = """
CREATE TABLE shown (identity TEXT);
CREATE TRIGGER inserted AFTER INSERT ON rows BEGIN INSERT INTO shown VALUES (NEW.identity); END;
CREATE TRIGGER updated AFTER UPDATE ON rows BEGIN INSERT INTO shown VALUES (NEW.identity); END;
"""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to try.

    Attributes:
        records: to send, the same share in each step, half of it at the least once the partitions have moved.
        jobs: readers in each step.
        rate: records to send per second.
        kills: whether readers are removed by SIGKILL, not SIGTERM.
    """

    records: int
    jobs: tuple[int, ...] = (1, 2, 1)
    rate: float = 5_000
    kills: bool = False


def measure(rig: Rig, records: int) -> dict[str, Rescaled]:
    """Add a second reader and remove it, once by SIGTERM and once by SIGKILL."""
    found = {}
    for way, kills in (("stopped", False), ("killed", True)):
        folder = rig.folder / "sites" / f"rescale-{way}"
        shutil.rmtree(folder, ignore_errors=True)
        with Rescale(declare(folder, rig.kafka, f"rescale-{way}."), Plan(records=records, kills=kills)) as run:
            found[way] = run.run()
    return found


def report(found: dict[str, Rescaled]) -> tuple[str, list[Goal]]:
    """The table of the steps, and the goals."""
    rows = [
        {
            "second reader": way, "readers": f"{step.jobs} ({step.action})", "records": step.records,
            "partitions moved": step.partitions_moved, "first again s": step.first_seconds,
            "last again s": step.last_seconds, "ms p50": _ms(step.p50_seconds), "p99": _ms(step.p99_seconds),
            "max": _ms(step.max_seconds), "processed twice in all": rescaled.processed_twice,
        }
        for way, rescaled in found.items() for step in rescaled.steps
    ]  # fmt: skip
    goals = [
        goal
        for way, rescaled in found.items()
        for goal in (
            Goal(f"records lost, second reader {way}", rescaled.lost, 0),
            Goal(f"records shown twice, second reader {way}", rescaled.shown_twice, 0),
        )
    ]
    return table(rows), goals


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(1000 * seconds)


def declare(folder: Path, kafka: KafkaSettings, prefix: str) -> Settings:
    """Declare the view in `folder`, with topics that begin with `prefix`, and let its file count what is shown."""
    for file, text in ((f"views/{_VIEW}.py", _DECLARED), (f"sources/{_VIEW}.toml", _SOURCE)):
        (folder / file).parent.mkdir(parents=True)
        (folder / file).write_text(text, encoding="utf-8")
    own = kafka.model_copy(update={"topic_prefix": prefix})
    settings = Settings(project=folder, state=folder / "state", kafka=own)
    ensure_topics(settings, read_catalog(folder))
    path = store_path(settings, _VIEW)
    RowStore(path).close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(_COUNTERS)
    return settings


class Rescale:
    """One run. Use it in a `with` statement, which ends the readers."""

    def __init__(self, settings: Settings, plan: Plan) -> None:
        """Describe the run in the installation of `settings`; see `declare`."""
        self._settings, self._plan = settings, plan
        self._changes: list[ReaderChange] = []
        # The code of the readers is beside that of the jobs.
        self._environment = job_environment(settings, find_java().home) | {"PYTHONPATH": str(here().root)}
        self._readers: list[tuple[str, Program]] = []
        self._names: list[str] = []
        self._sent = 0
        self._seen: list[tuple[float, int]] = []
        self._watched = threading.Event()

    def __enter__(self) -> Rescale:
        """Return it."""
        return self

    def __exit__(self, *exception: object) -> None:
        """End all readers."""
        self._watched.set()
        for _, program in self._readers:
            program.stop()

    def run(self) -> Rescaled:
        """Send, add and remove, and count.

        Raises:
            RuntimeError: a reader ended by itself.
            TimeoutError: the readers do not share the partitions.
            TransientError: Kafka went away.
        """
        watching = threading.Thread(target=self._watch, name="watch", daemon=True)
        watching.start()
        with RecordWriter(self._settings, EVENT_BYTES, config={"linger.ms": 5}) as writer:
            for number, jobs in enumerate(self._plan.jobs):
                self._change(jobs)
                if number == 0:
                    await_that(self._has_settled, _SETTLE_SECONDS, "the first reader", *self._programs)
                    self._changes[0] = ReaderChange(time.time(), "start", jobs)
                self._send(writer, self._plan.records * (number + 1) // len(self._plan.jobs))
            writer.flush()  # or what is acknowledged last would be missing among the records
            delivered = writer.delivered
        self._await_applied(delivered)
        self._watched.set()
        watching.join()
        return self._count(delivered)

    @property
    def _programs(self) -> list[Program]:
        return [program for _, program in self._readers]

    def _change(self, jobs: int) -> None:
        action = "add" if jobs > len(self._readers) else "kill" if self._plan.kills else "remove"
        self._changes.append(ReaderChange(time.time(), action, jobs))
        for _ in range(len(self._readers) - jobs):
            _, program = self._readers.pop()
            if self._plan.kills:
                os.kill(program.pid, signal.SIGKILL)
            program.stop()
        while len(self._readers) < jobs:
            name = f"{_VIEW}.{len(self._names) + 1}"
            command = [sys.executable, "-m", "bench.noted_reader", name]
            self._names.append(name)
            self._readers.append((name, Program(command, self._settings.log(view_job(name)), self._environment)))

    def _send(self, writer: RecordWriter, until: int) -> None:
        """Send up to so many records in all, the second half of them once the readers have settled."""
        topic, begun, half = self._settings.names.view(_VIEW), time.monotonic(), (self._sent + until) // 2
        due, looked_at, has_settled = float(self._sent), begun, False
        while self._sent < until:
            now = time.monotonic()
            has_settled = has_settled or self._has_settled()
            if not has_settled and now - begun > _SETTLE_SECONDS:
                raise TimeoutError(f"the readers do not share the partitions after {now - begun:.0f} s")
            due = min(due + (now - looked_at) * self._plan.rate, until if has_settled else half)
            looked_at = now
            for number in range(self._sent, math.ceil(due)):
                row = ViewRow(key={"number": f"n{number:09}"}, values={"number": number}, build="bench")
                writer.write(topic, row.model_dump_json(), row.identity)
            self._sent = math.ceil(due)
            writer.poll()
            self._check()
            time.sleep(_LOOK_SECONDS)

    def _has_settled(self) -> bool:
        """Return whether the readers share all partitions about evenly."""
        beats = [read_beat(self._settings.state, view_job(name)) for name, _ in self._readers]
        have = [0 if beat is None else int(beat.report.counts.get("partitions", 0)) for beat in beats]
        return sum(have) == _PARTITIONS and min(have) >= _PARTITIONS // len(have)

    def _await_applied(self, records: int) -> None:
        """Wait until all is applied, or nothing more comes: then the rest is lost."""
        applied, since = -1, time.monotonic()
        while applied < records and time.monotonic() - since < _STILL_SECONDS:
            ((now,),) = self._ask("SELECT coalesce(sum(next), 0) FROM offsets")
            if now > applied:
                applied, since = now, time.monotonic()
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

    def _count(self, delivered: int) -> Rescaled:
        notes = [note for name in self._names for note in self._notes(name)]
        rows, seen = [], iter(self._seen)
        at, reached = next(seen, (time.time(), 0))
        for appended, change in self._ask("SELECT appended_at, change FROM rows ORDER BY change"):
            while reached < change:
                at, reached = next(seen, (time.time(), change))
            rows.append(ShownRow(appended / 1000, at))
        ((times, distinct),) = self._ask("SELECT count(*), count(DISTINCT identity) FROM shown")
        return Rescaled(
            records=delivered,
            lost=delivered - len(rows),
            processed_twice=count_twice(notes),
            shown_twice=times - distinct,
            steps=steps_of(self._changes, notes, rows),
        )

    def _notes(self, reader: str) -> list[HandOut]:
        """Read what `reader` noted; nothing if it was given nothing."""
        path = notes_path(self._settings, reader)
        lines = [text.split() for text in path.read_text(encoding="ascii").splitlines()] if path.exists() else []
        return [HandOut(reader, float(at), int(p), int(first), int(last)) for at, p, first, last in lines]

    def _ask(self, query: str) -> list[tuple[int, ...]]:
        with contextlib.closing(self._open()) as connection:
            return connection.execute(query).fetchall()

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{store_path(self._settings, _VIEW)}?mode=ro", uri=True, timeout=30)

    def _check(self) -> None:
        for program in self._programs:
            program.check()
