"""Flows as they are run, on a real broker: lines in, words out, also when one is killed or changed in the middle.

All tests share the jobs: each goes on with what the one before it left running.
"""

import contextlib
import random
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.rig.broker import Broker
from tests.rig.ingest_topics import assert_ticks_are_true
from tests.rig.installation import Installation
from tests.rig.waiting import await_that, repeated
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.finding import Finding
from tocsin.declare.model.job_report import JobState
from tocsin.declare.model.names import compute_job, detector_job, flow_job, ingest_job
from tocsin.ingest.producer import LineProducer
from tocsin.platform.code_versions import kept_versions
from tocsin.platform.heartbeat import read_beat
from tocsin.spark.query.work import REAL_TIME
from tocsin.supervise.job_kinds import desired_jobs
from tocsin.supervise.job_states import UNREADABLE, Condition
from tocsin.supervise.supervisor import JobGroup, Supervisor
from tocsin.views.stored_row import ViewRow, canonical_key

EXAMPLE = Path(__file__).parents[2] / "examples" / "words"
INGEST, WORDS, LONG = ingest_job("lines"), flow_job("words"), flow_job("long_words")
COUNTS, FREQUENT = compute_job("long_counts"), detector_job("frequent")
EPOCH, WINDOW = datetime(1970, 1, 1, tzinfo=UTC), timedelta(seconds=10)
EMAIL, URGENT = 5, 100
LONG_WORDS = '''"""Words of three letters and more, and lines that begin with "to"."""

from pyspark.sql import DataFrame

from tocsin import Sources, flow


@flow(source=["words", "lines"], to="long_words", owner="a@example.com", stage="live")
def flow(events: Sources) -> DataFrame:
    words, lines = events["words"].where("length(word) > 2"), events["lines"].where("line LIKE 'to%'")
    return lines.selectExpr("*", "concat('line ', line) AS word").select(words.columns).unionByName(words)
'''
FREQUENT_WORDS = f'''"""Words that are frequent."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import Levels, detector


@detector(source="long_words", entity="word", window="10 seconds", levels=Levels(email={EMAIL}, urgent={URGENT}),
          owner="a@example.com", runbook="docs/runbooks/frequent.md", stage="live")
def detect(events: DataFrame) -> DataFrame:
    return events.groupBy("window", "word").agg(F.count("*").alias("score"))
'''
VOCABULARY = ["to", "be", "Not", "é", "Straße", "Ελλάδα", "2026", "東京", "snake_case"]


class Lines:
    """Sends lines of its own chance, and knows how often each word must come out."""

    def __init__(self, installation: Installation) -> None:
        self._installation, self._chance = installation, random.Random(7)
        self.words: Counter[str] = Counter()
        self.windows: Counter[tuple[str, datetime]] = Counter()
        self.events = installation.settings.names.events("words")

    def send(self, count: int) -> None:
        source = self._installation.catalog.source("lines")
        with LineProducer(self._installation.settings, source) as producer:
            for _ in range(count):
                text = self._chance.choice(", ;-").join(self._chance.choices(VOCABULARY, k=self._chance.randint(1, 9)))
                at = datetime.now(UTC)
                line = f"{at:%Y-%m-%dT%H:%M:%S.%fZ} writer-{self._chance.randint(1, 20)} {text}"
                producer.send(line.encode())
                words = [word for _, word in words_of(text)]
                self.words.update(words)
                long = [f"line {text}"] if text.startswith("to") else []
                self.windows.update((word, at - (at - EPOCH) % WINDOW) for word in [*words, *long])
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

    def endless(self, count: int = 30) -> contextlib.AbstractContextManager[None]:
        """Lines keep coming inside the block, so that each batch has some."""
        return repeated(partial(self.send, count), 0.05)

    def await_all(self) -> None:
        await_that(lambda: self.counted().total() >= self.words.total(), 90, lambda: f"{self.counted()} {self.words}")
        assert self.counted() == self.words


def words_of(text: str) -> list[tuple[int, str]]:
    """What the flow of the example makes of a line: words and their positions."""
    return [(position, word) for position, word in enumerate(re.split(r"\W+", text.lower())) if word]


def declare(project: Path) -> None:
    """The example, and behind its words another flow, a view and a detector."""
    for kind in ("sources", "flows", "views"):
        shutil.copytree(EXAMPLE / kind, project / kind, dirs_exist_ok=True)
    shutil.copy(project / "sources" / "words.toml", project / "sources" / "long_words.toml")
    (project / "flows" / "long_words.py").write_text(LONG_WORDS)
    (project / "detectors" / "frequent.py").write_text(FREQUENT_WORDS)
    view = (project / "views" / "word_counts.py").read_text()
    text, count = re.subn(
        'source="words"(.*)sink="postgres", table="[^"]+"', r'source="long_words"\1sink="sqlite"', view
    )
    assert count == 1
    (project / "views" / "long_counts.py").write_text(text)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, broker: Broker) -> Iterator[Installation]:
    with Installation(tmp_path_factory.mktemp("flows"), broker) as one:
        declare(one.settings.project)
        one.catalog = read_catalog(one.settings.project)
        assert not one.catalog.broken
        one.make_topics()
        one.start(INGEST, WORDS)
        one.await_ready(INGEST, WORDS)
        yield one


@pytest.fixture(scope="module")
def lines(running: Installation) -> Lines:
    return Lines(running)


def kill_under_load(running: Installation, lines: Lines, job: str, what: str) -> None:
    """Kill `job` while lines come, when what it has written is not committed, and start it again."""
    before = lines.counted().total()
    with lines.endless():
        await_that(lambda: lines.counted().total() > before, 60)  # a batch that has none of them repeats nothing
        running.kill_between_flush_and_commit(job, what)
        running.await_end(job)
    running.start(job)
    running.await_ready(job)


def test_words_are_counted_once_though_the_flow_is_killed_under_load(running: Installation, lines: Lines) -> None:
    lines.send(500)
    lines.await_all()
    for _ in range(3):  # on a busy machine a batch may have read none of the lines
        if not lines.repeated():
            kill_under_load(running, lines, WORDS, "all")
            lines.await_all()
    assert lines.repeated() > 0, "the batch is run again"
    sources = {(e["source"], e["raw_topic"].rpartition(":")[2]) for e in lines.written()}
    assert sources == {("words", running.settings.names.raw("lines"))}


def test_ticks_are_passed_on_and_true(running: Installation) -> None:
    def ticks() -> Counter[int]:
        messages = running.read(running.settings.names.events("words"))
        return Counter(m.partition() or 0 for m in messages if (m.value() or b"").startswith(b'{"tick"'))

    before = ticks()
    await_that(lambda: all(ticks()[partition] >= before[partition] + 2 for partition in (0, 1)), 60)
    assert_ticks_are_true(running.read(running.settings.names.events("words")))


def test_its_report_says_what_it_does_and_up_to_when_all_is_there(running: Installation) -> None:
    await_that(lambda: running.state(WORDS) is JobState.RUNNING, 30)  # until then it may drain what it was killed in
    report = running.report(WORDS)
    assert report is not None
    assert report.mode == REAL_TIME
    assert report.version == running.catalog.flow("words").version
    moment = datetime.now(UTC)

    def has_passed() -> bool:
        latest = running.report(WORDS)
        return latest is not None and latest.complete_through is not None and latest.complete_through > moment

    await_that(has_passed, 30)


@pytest.mark.long
def test_a_view_and_a_detector_behind_two_flows_equal_a_recount_though_both_are_killed(
    running: Installation, lines: Lines
) -> None:
    names = running.settings.names
    behind = (LONG, COUNTS, FREQUENT)
    running.start(*behind)
    running.await_ready(*behind)
    for job in (LONG, WORDS):
        kill_under_load(running, lines, job, "all")

    def truth() -> dict[tuple[str, datetime], int]:
        return {key: count for key, count in lines.windows.items() if len(key[0]) > 2}

    def rows() -> dict[str, int]:
        values = [message.value() or b"" for message in running.read(names.view("long_counts"))]
        found = [ViewRow.from_record(value, "views", 0, 0) for value in values]
        return {row.identity: row.values["count"] for row in found}

    def levels() -> dict[tuple[str, datetime | None], str]:
        found = [
            Finding.from_record(message.value() or b"", "findings", 0, 0) for message in running.read(names.findings)
        ]
        best = sorted(found, key=lambda one: one.rank)
        return {(one.entity["word"], one.window_start): one.level for one in best if one.detector == "frequent"}

    expected = {key: "urgent" if count > URGENT else "email" for key, count in truth().items() if count > EMAIL}
    counted = {canonical_key({"word": word}, (at - EPOCH) // timedelta(microseconds=1)): count
               for (word, at), count in truth().items()}  # fmt: skip
    await_that(lambda: rows() == counted, 120, lambda: different(rows(), counted))
    await_that(lambda: levels() == expected, 60, lambda: different(levels(), expected))
    for job in behind:
        assert running.stop(job) == 0


def different(found: Mapping[Any, Any], expected: Mapping[Any, Any]) -> str:
    keys = [key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key)]
    return f"{len(keys)} differ, such as {[(key, found.get(key), expected.get(key)) for key in keys[:5]]}"


class Changes:
    """Edits the flow, and supervises it as the stack does."""

    def __init__(self, running: Installation) -> None:
        self._running, self.settings = running, running.settings
        self.file = self.settings.project / "flows" / "words.py"
        self.supervisor = Supervisor(
            JobGroup(name="jobs", state=self.settings.state, launch=running.launch), running.runner
        )  # fmt: skip

    def edit(self, old: str, new: str) -> None:
        text = self.file.read_text()
        assert old in text
        self.file.write_text(text.replace(old, new))

    def look(self) -> list[int]:
        """Look once, as a supervisor does; the processes of the flow, the oldest first."""
        wanted = desired_jobs(read_catalog(self.settings.project), self.settings)[WORDS]
        self.supervisor.tick({INGEST: UNREADABLE, WORDS: wanted})
        live = [p for p in self._running.runner.list() if p.leader and p.labels.job == WORDS]
        return [process.pid for process in sorted(live, key=lambda p: p.started_at)]

    def await_other(self, *, kill: bool = False) -> None:
        """Wait until another process has taken over; with `kill` the one before it is killed as soon as it can."""
        before = self._running.leader(WORDS).pid

        def has_taken_over() -> bool:
            beside = read_beat(self.settings.state, WORDS, beside=True)
            if kill and beside is not None and beside.report.state is JobState.READY:
                with contextlib.suppress(ProcessLookupError):
                    self._running.kill(WORDS)
            now = self.look()
            return len(now) == 1 and now != [before]

        await_that(has_taken_over, 120, lambda: self._running.log(WORDS)[-4000:], every=0.2)
        self._running.follow(WORDS)
        self._running.await_ready(WORDS)


@pytest.mark.long
def test_a_changed_flow_hands_over_and_goes_back_and_each_line_is_made_by_one_version(
    running: Installation, lines: Lines
) -> None:
    changes, settings = Changes(running), running.settings
    first = changes.file.read_text()
    with lines.endless(5):
        changes.edit("F.posexplode(words)", 'F.posexplode(F.concat(F.array(F.lit("changed")), words))')
        changes.await_other()
        old, new = (one.version for one in kept_versions(settings, WORDS))
        changes.file.write_text(first)
        changes.await_other(kill=True)
        await_that(lambda: (report := running.report(WORDS)) is not None and report.version == old, 30)
        changes.edit("word != ''", "wort != ''")
        pid = running.leader(WORDS).pid
        await_that(lambda: changes.look() == [pid] and failing(changes.supervisor), 90, every=0.2)
        assert [one.version for one in kept_versions(settings, WORDS)] == [old, new], "what cannot run never ran"
        changes.file.write_text(first)
    assert set(versions_of(running, lines)) == {"first", "changed"}


def failing(supervisor: Supervisor) -> bool:
    past = supervisor.pasts()[WORDS]
    assert past.condition in (Condition.FINE, Condition.MISCONFIGURED)
    return past.condition is Condition.MISCONFIGURED and past.reason.endswith("; the version before keeps running")


def versions_of(running: Installation, lines: Lines) -> Iterator[str]:
    """Which version has made what there is of each line; fails if it is not whole, or not of one version."""

    def texts() -> dict[tuple[int, int], str]:
        raw = running.read(running.settings.names.raw("lines"))
        return {(m.partition() or 0, m.offset() or 0): (m.value() or b"").decode().split(" ", 2)[2] for m in raw}

    def made() -> dict[tuple[int, int], set[tuple[int, str]]]:
        found: dict[tuple[int, int], set[tuple[int, str]]] = defaultdict(set)
        for event in lines.written():
            position = int(event["raw_topic"].partition("/")[2].partition(":")[0])
            found[event["raw_partition"], event["raw_offset"]].add((position, event["word"]))
        return found

    sent = texts()
    await_that(lambda: made().keys() >= sent.keys(), 60)
    for line, found in made().items():
        words = set(words_of(sent[line]))
        changed = {(0, "changed"), *((position + 1, word) for position, word in words)}
        assert found in (words, changed), (line, sent[line], found)
        yield "first" if found == words else "changed"
