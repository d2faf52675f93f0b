"""Kills -9 of what makes views, under load: after each the sinks hold what a recount of the events gives.

One view counts the words of windows and is kept in PostgreSQL, another counts all words and is kept in Redis. What is
killed are the jobs that compute them, those that apply them, the ingest, both sinks, and Kafka; `tocsin dev up` starts
all of it again.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from tests.rig.samples.words import declare_words
from tests.rig.stack import Stack
from tests.rig.waiting import awaited, repeated
from tocsin.declare.model.job_report import JobState
from tocsin.declare.model.names import compute_job, ingest_job, view_job
from tocsin.declare.model.sizes import RAW_BYTES
from tocsin.platform.heartbeat import read_beat
from tocsin.platform.kafka.record_writer import RecordWriter
from tocsin.setup.paths import here

WINDOWS, TOTALS = "word_counts", "word_totals"
PARTS = (
    compute_job(TOTALS), view_job(TOTALS), "redis", "kafka", compute_job(WINDOWS), view_job(WINDOWS), "postgres",
    ingest_job("words"),
)  # fmt: skip
_WORDS = ("ärger", "a", "日本", "it's", "x:y", "%")
_EACH_SECOND = 150
_BACK_SECONDS, _EQUAL_SECONDS = 120.0, 240.0
_EPOCH, _WINDOW = datetime(1970, 1, 1, tzinfo=UTC), timedelta(seconds=10)
_TOTALS_FILE = '''"""How often each word occurs."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import view


@view(source="words", key="word", window=None, sink="redis", owner="platform@example.com", stage="live")
def view(events: DataFrame) -> DataFrame:
    return events.groupBy("word").agg(F.count("*").alias("count"))
'''


@dataclass(frozen=True)
class Kill:
    """One kill.

    Attributes:
        part: that was killed.
        events: that were written until then.
        seconds: from the kill until both sinks held what a recount gives.
        fault: what is not as it should be; empty if nothing.
    """

    part: str
    events: int
    seconds: float
    fault: str

    def __str__(self) -> str:
        return f"{self.part} killed after {self.events:,} events: {self.fault or f'equal after {self.seconds:.1f} s'}"


class Rounds:
    """A stack with two views, and a load on it that stops only to be counted."""

    def __init__(self, stack: Stack, seed: int = 1) -> None:
        self._stack, self._chance = stack, random.Random(seed)
        self._topic = stack.settings.names.raw("words")
        self._writer = RecordWriter(stack.settings, RAW_BYTES, timeout_seconds=120.0)
        self._windows: Counter[tuple[str, datetime]] = Counter()
        self._totals: Counter[str] = Counter()

    def begin(self) -> None:
        """Wait until both views follow what is written."""
        with repeated(self._write, 1 / _EACH_SECOND):
            jobs = (compute_job(WINDOWS), compute_job(TOTALS), ingest_job("words"))
            assert awaited(lambda: all(map(self._runs, jobs)), _EQUAL_SECONDS), self._stack.said()
        assert (fault := self._compare()) == "", fault

    def killed(self, part: str) -> Kill:
        """Kill `part` under load, wait until it runs again, and compare the sinks with a recount."""
        with repeated(self._write, 1 / _EACH_SECOND):
            time.sleep(self._chance.uniform(1.0, 6.0))
            pid, began = self._stack.pid(part), time.monotonic()
            if pid is None:
                return Kill(part, 0, 0.0, "it did not run")
            os.kill(pid, signal.SIGKILL)
            if not awaited(lambda: self._stack.pid(part) not in (None, pid), _BACK_SECONDS):
                return Kill(part, 0, 0.0, f"not started again\n{self._stack.said()[-2000:]}")
            time.sleep(self._chance.uniform(0.0, 3.0))
        events = self._totals.total()
        fault = self._compare()
        return Kill(part, events, time.monotonic() - began, fault)

    def _write(self) -> None:
        word, moment = self._chance.choice(_WORDS), datetime.now(UTC)
        self._windows[word, moment - (moment - _EPOCH) % _WINDOW] += 1
        self._totals[word] += 1
        self._writer.write(self._topic, json.dumps({"at": moment.isoformat(), "word": word}), word)

    def _compare(self) -> str:
        """Wait until both sinks hold what was written; returns how they differ if they do not come to that."""
        self._writer.flush()
        if awaited(lambda: (self._in_postgres(), self._in_redis()) == (self._windows, self._totals), _EQUAL_SECONDS):
            return ""
        windows, totals = self._in_postgres().items() ^ self._windows.items(), self._in_redis().items()
        return f"windows that differ: {sorted(windows)[:9]}; totals {sorted(totals ^ self._totals.items())}"

    def _runs(self, job: str) -> bool:
        beat = read_beat(self._stack.state, job)
        return beat is not None and beat.report.state is JobState.RUNNING

    def _in_redis(self) -> Counter[str]:
        address = self._stack.settings.views.address("redis") or ""
        with contextlib.suppress(redis.RedisError), redis.Redis.from_url(address, decode_responses=True) as client:
            keys: Any = client.keys(f"{TOTALS}:*")
            counts: Any = {key: client.hget(key, "count") for key in keys}
            names = {word.replace("%", "%25").replace(":", "%3A"): word for word in _WORDS}
            return Counter({names[key.partition(":")[2]]: int(count) for key, count in counts.items()})
        return Counter()

    def _in_postgres(self) -> Counter[tuple[str, datetime]]:
        address = self._stack.settings.views.address("postgres") or ""
        with contextlib.suppress(psycopg.Error), psycopg.connect(address) as connection:
            rows = connection.execute("SELECT word, lower(time_window), count FROM windowed_counts").fetchall()
            return Counter({(word, start.astimezone(UTC)): count for word, start, count in rows})
        return Counter()


@contextmanager
def begun(folder: Path, seed: int = 1) -> Iterator[Rounds]:
    """A stack that is up, with the views."""
    stack = Stack(folder, sources=False)
    declare_words(stack.project)
    source = stack.project / "sources" / "words.toml"
    # While Kafka is away events wait for longer than the source allows; those that are late would not be counted.
    source.write_text(source.read_text().replace('lateness = "10 seconds"', 'lateness = "5 minutes"'))
    shutil.copy(here().root / "examples" / "words" / "views" / f"{WINDOWS}.py", stack.project / "views")
    (stack.project / "views" / f"{TOTALS}.py").write_text(_TOTALS_FILE, encoding="utf-8")
    try:
        stack.up("--free-ports")
        stack.ready()
        one = Rounds(stack, seed)
        one.begin()
        yield one
    finally:
        stack.end()


@pytest.mark.long
def test_sinks_hold_what_a_recount_gives_whatever_is_killed(tmp_path: Path, rounds: int) -> None:
    """Each part once, or as many kills as are asked for."""
    with begun(tmp_path) as views:
        killed = [views.killed(part) for part in islice(cycle(PARTS), rounds or len(PARTS))]
    assert [kill.fault for kill in killed if kill.fault] == []
