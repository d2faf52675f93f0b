"""A flow as it is run, on a real broker: lines in, words out, also when it is killed in the middle."""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.rig.broker import Broker
from tests.rig.ingest_topics import assert_ticks_are_true
from tests.rig.installation import Installation
from tests.rig.waiting import await_that
from tocsin.ingest.producer import LineProducer
from tocsin.model.job_report import JobState
from tocsin.model.names import flow_job, ingest_job
from tocsin.project.catalog import read_catalog
from tocsin.sparkjob.query.work import REAL_TIME

EXAMPLE = Path(__file__).parents[2] / "examples" / "words"
INGEST, WORDS = ingest_job("lines"), flow_job("words")
VOCABULARY = ["to", "be", "Not", "é", "Straße", "Ελλάδα", "2026", "東京", "snake_case"]


class Lines:
    """Sends lines of its own chance, and knows how often each word must come out."""

    def __init__(self, installation: Installation) -> None:
        self._installation, self._chance = installation, random.Random(7)
        self.words: Counter[str] = Counter()
        self.events = installation.settings.names.events("words")

    def send(self, count: int) -> None:
        source = self._installation.catalog.source("lines")
        with LineProducer(self._installation.settings, source) as producer:
            for _ in range(count):
                text = self._chance.choice(", ;-").join(self._chance.choices(VOCABULARY, k=self._chance.randint(1, 9)))
                at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
                producer.send(f"{at} writer-{self._chance.randint(1, 20)} {text}".encode())
                self.words.update(word for word in re.split(r"\W+", text.lower()) if word)
        assert producer.failed == 0

    def written(self) -> list[dict[str, Any]]:
        return [value for value in self._installation.values(self.events) if "tick" not in value]

    def counted(self) -> Counter[str]:
        """Count the words that came out, each identity once."""
        by_identity = {(e["raw_topic"], e["raw_partition"], e["raw_offset"]): e["word"] for e in self.written()}
        return Counter(by_identity.values())

    def repeated(self) -> int:
        """How many words came out once more."""
        written = self.written()
        return len(written) - len({(e["raw_topic"], e["raw_partition"], e["raw_offset"]) for e in written})

    @contextlib.contextmanager
    def endless(self) -> Iterator[None]:
        """Lines keep coming inside the block, so that each batch has some."""
        enough = threading.Event()

        def keep_sending() -> None:
            while not enough.wait(0.05):
                self.send(30)

        sending = threading.Thread(target=keep_sending)
        sending.start()
        try:
            yield
        finally:
            enough.set()
            sending.join()

    def await_all(self) -> None:
        await_that(lambda: self.counted().total() >= self.words.total(), 90, lambda: f"{self.counted()} {self.words}")
        assert self.counted() == self.words


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, broker: Broker) -> Iterator[Installation]:
    with Installation(tmp_path_factory.mktemp("flows"), broker) as one:
        for kind in ("sources", "flows"):
            shutil.copytree(EXAMPLE / kind, one.settings.project / kind, dirs_exist_ok=True)
        one.catalog = read_catalog(one.settings.project)
        one.make_topics()
        one.start(INGEST, WORDS)
        one.await_ready(INGEST, WORDS)
        yield one


def test_words_are_counted_once_though_the_flow_is_killed_under_load(running: Installation) -> None:
    lines = Lines(running)
    lines.send(500)
    lines.await_all()
    for what in ("all", "jvm"):
        repeated = lines.repeated()
        with lines.endless():
            running.kill_between_flush_and_commit(WORDS, what)
            running.await_end(WORDS)
        running.start(WORDS)
        running.await_ready(WORDS)
        lines.await_all()
        assert lines.repeated() > repeated, "the batch is run again"
    sources = {(e["source"], e["raw_topic"].rpartition(":")[2]) for e in lines.written()}
    assert sources == {("words", running.settings.names.raw("lines"))}


def test_ticks_are_passed_on_and_true(running: Installation) -> None:
    def ticks() -> Counter[int]:
        messages = running.read(running.settings.names.events("words"))
        return Counter(m.partition() or 0 for m in messages if (m.value() or b"").startswith(b'{"tick"'))

    before = ticks()
    await_that(lambda: all(ticks()[partition] >= before[partition] + 5 for partition in (0, 1)), 60)
    assert_ticks_are_true(running.read(running.settings.names.events("words")))


def test_its_report_says_what_it_does_and_up_to_when_all_is_there(running: Installation) -> None:
    report = running.report(WORDS)
    assert report is not None
    assert (report.state, report.mode) == (JobState.RUNNING, REAL_TIME)
    assert report.version == running.catalog.flow("words").version
    moment = datetime.now(UTC)

    def has_passed() -> bool:
        latest = running.report(WORDS)
        return latest is not None and latest.complete_through is not None and latest.complete_through > moment

    await_that(has_passed, 30)
    assert running.stop(WORDS) == 0
