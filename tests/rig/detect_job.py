"""A detect job as a real process on a real broker, fed with event records that the test itself writes."""

import contextlib
import json
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from tests.rig.broker import Broker
from tests.rig.checkpoints import Logs
from tests.rig.installation import frozen, jvms_of
from tests.rig.observed import read_all
from tests.rig.samples.project import copy_project
from tests.rig.waiting import await_that, awaited, patient, repeated
from tocsin.declare.blocks.spark_settings import EngineSettings, SparkSettings
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.finding import Finding
from tocsin.declare.model.job_report import JobReport, JobState
from tocsin.declare.model.sizes import EVENT_BYTES, shortened
from tocsin.declare.model.source import Source, tick_value
from tocsin.declare.setting_blocks import StorageSettings
from tocsin.declare.settings import Settings
from tocsin.platform.kafka.reader import TopicReader
from tocsin.platform.kafka.reporter import read_reports
from tocsin.platform.kafka.topic_set import partition_of
from tocsin.platform.kafka.topics import ensure_topics
from tocsin.platform.storage.job_folders import stored_folder
from tocsin.platform.storage.stored_path import StoredPath
from tocsin.setup.java import find_java
from tocsin.setup.paths import here
from tocsin.spark.query.checkpoint import read_committed
from tocsin.supervise.installed_jobs import job_environment

JOB, DETECTOR, SOURCE = "detector:failed_logins", "failed_logins", "logins"
WINDOW = timedelta(seconds=10)
READY_SECONDS = 150.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass
class Truth:
    """What was written: failed logins by user and start of the window."""

    failed: Counter[tuple[str, datetime]] = field(default_factory=Counter)

    def add(self, user: str, moment: datetime) -> None:
        start = moment - (moment - _EPOCH) % WINDOW
        self.failed[shortened(user), start] += 1

    def expected(self) -> dict[tuple[str, datetime], int]:
        """The windows above a limit, with their counts."""
        return {window: count for window, count in self.failed.items() if count > 50}

    def check(self, findings: dict[str, Finding]) -> None:
        """Every window above a limit is found with its level and score, and nothing else is."""
        found, expected = _windows(findings), self.expected()
        assert found.keys() == expected.keys(), f"missing: {expected.keys() - found}; more: {found.keys() - expected}"
        for window, count in expected.items():
            one = found[window]
            assert one.level == ("urgent" if count > 100 else "email"), (window, count, one)
            if one.at_least:
                assert 100 < one.score <= count < max(one.score + 1, one.score * 1.1) + 1, (window, count, one)
            else:
                assert one.score == count, (window, count, one)


class Topic:
    """Writes event records as ingest does: each with its identity, event time and the append time of its raw record."""

    def __init__(self, settings: Settings, source: str = SOURCE) -> None:
        self.truth = Truth()
        self._name = settings.names.events(source)
        self._producer = Producer(settings.kafka.for_librdkafka() | {"linger.ms": 5, "message.max.bytes": EVENT_BYTES})
        self._offsets: Counter[int] = Counter()

    def event(self, user: str, moment: datetime, ingested: datetime, partition: int, **columns: Any) -> bytes:
        """Write one login of `user`; returns the record, so that it can be written again."""
        raw_partition, action = columns.get("raw_partition", partition), columns.get("action", "login failed")
        value = {
            "raw_topic": f"raw.{SOURCE}", "raw_partition": raw_partition, "raw_offset": self._offsets[raw_partition],
            "event_time": text(moment), "ingested_at": text(ingested), "source": SOURCE, "schema_version": 1,
            "user_id": user, "timestamp": text(moment), "ip_address": "192.0.2.1", "action": action,
        }  # fmt: skip
        self._offsets[raw_partition] += 1
        if action == "login failed" and user is not None:
            self.truth.add(user, moment)
        record = json.dumps(value, separators=(",", ":")).encode()
        self.write(record, partition)
        return record

    def write(self, record: bytes, partition: int) -> None:
        while True:
            try:
                self._producer.produce(self._name, record, partition=partition)
                return
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as error:
                if error.args[0].code() != KafkaError._UNKNOWN_PARTITION:
                    raise
                self._producer.list_topics(self._name, timeout=60)  # it has been added

    def tick(self, moment: datetime, partitions: int = 2) -> None:
        for partition in range(partitions):
            self.write(tick_value(moment), partition)

    def burst(self, user: str, count: int, partition: int = 0, moment: datetime | None = None) -> None:
        """`count` failed logins at once, all in one window."""
        at = moment or datetime.now(UTC)
        for _ in range(count):
            self.event(user, at, at, partition)
        self.flush()

    def flush(self) -> None:
        assert self._producer.flush(30) == 0

    def backlog(self, *, spans: tuple[float, float], events: tuple[int, int], seed: int = 1) -> None:
        """An uneven backlog that ends now: partition `p` holds `events[p]` events over the last `spans[p]` seconds.

        Keys are uneven, events are up to 9 seconds late and out of order, partition 0 is idle for a fifth of its span,
        every hundredth event is written twice, and sizes lie around the limits.
        """
        chance, now = random.Random(seed), datetime.now(UTC)
        for partition, (span, count) in enumerate(zip(spans, events, strict=True)):
            moments = sorted(chance.random() for _ in range(count))
            for share in moments:
                idle = not partition and 0.4 < share < 0.6
                ingested = now - timedelta(seconds=span * (1 - (0.4 if idle else share)))
                moment = ingested - timedelta(seconds=9 * chance.random() ** 4)
                user = f"p{partition}-user{min(30, int(chance.expovariate(0.35)))}"
                action = "login failed" if chance.random() < 0.8 else "login succeeded"
                record = self.event(user, moment, ingested, partition, action=action)
                if chance.random() < 0.01:
                    self.write(record, partition)
        self.flush()


class DetectJob:
    """One project, its topics with a prefix of their own, and processes of the job that reads its events."""

    program, job = "detect.py", JOB

    def __init__(self, folder: Path, broker: Broker, storage: StorageSettings | None = None, **spark: Any) -> None:
        self.settings = Settings(
            project=folder / "project",
            state=folder / "a home of Zoë",  # as the home of somebody may be called
            instance="local" if storage is None else "tests",
            storage=storage or StorageSettings(),
            kafka=broker.kafka.model_copy(update={"topic_prefix": f"{uuid.uuid4().hex[:8]}."}),
            spark=SparkSettings(**{"trigger_seconds": 5, "ingest_trigger_seconds": 5, **spark}),
            engine=EngineSettings(enabled=False),
        )
        copy_project(folder / "project")
        self._log = (folder / "job.log").open("ab")
        self._processes: list[subprocess.Popen[bytes]] = []
        self.log = folder / "job.log"

    @property
    def environment(self) -> dict[str, str]:
        return job_environment(self.settings, find_java().home)

    @property
    def source(self) -> Source:
        return read_catalog(self.settings.project).source("logins")

    def make_topics(self) -> Topic:
        ensure_topics(self.settings, read_catalog(self.settings.project))
        return Topic(self.settings)

    def start(self, name: str = DETECTOR, *further: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(here().root / "spark_jobs" / self.program), name, *further, "--label", "job=x"]
        process = subprocess.Popen(command, env=self.environment, stdout=self._log, stderr=self._log)
        self._processes.append(process)
        return process

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        self._log.close()

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill it as a crash does; its JVM ends by itself."""
        process.send_signal(signal.SIGKILL)
        process.wait()

    def kill_before_commit(self, process: subprocess.Popen[bytes]) -> None:
        """Kill it and its JVM between flush and commit of a batch: all that the batch has found is written."""
        logs, leader = Logs.of(self.settings.checkpoint(JOB)), psutil.Process(process.pid)
        assert logs is not None
        for _ in range(10):
            with frozen(leader, logs.await_flushed):
                if logs.is_pending():
                    for jvm in jvms_of(leader):
                        jvm.kill()
                    self.kill(process)
                    return
        raise AssertionError("it never stood between flush and commit")

    def report(self) -> JobReport | None:
        with contextlib.suppress(TransientError):
            return read_reports(self.settings).get(self.job)
        return None

    def await_report(self, wanted: Callable[[JobReport], bool], seconds: float = READY_SECONDS) -> JobReport:
        """The first report that is `wanted`."""
        seen: list[JobReport] = []

        def came() -> bool:
            report = self.report()
            seen[:] = [report] if report is not None else []
            return report is not None and wanted(report)

        assert awaited(came, seconds), f"{seen}\n{self.log.read_text()[-4000:]}"
        return seen[0]

    def await_truth(self, truth: Truth, seconds: float = READY_SECONDS) -> None:
        """Wait until all findings that must come have come, then check them all."""
        await_that(lambda: len(self.findings()) >= len(truth.expected()) or not self.alive(), seconds)
        with contextlib.suppress(AssertionError):
            await_that(lambda: _agrees(truth, self.findings()), 20)
        found = self.findings()
        try:
            truth.check(found)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._traces(truth, found)}") from None

    def alive(self) -> bool:
        return any(process.poll() is None for process in self._processes)

    def findings(self) -> dict[str, Finding]:
        """The best version of each finding on the topic."""
        best: dict[str, Finding] = {}
        for record in read_all(self.settings, self.settings.names.findings):
            finding = Finding.from_record(record.value() or b"", "findings", 0, 0)
            kept = best.get(finding.finding_id)
            if kept is None or (finding.rank, not finding.at_least) > (kept.rank, not kept.at_least):
                best[finding.finding_id] = finding
        return best

    def committed_batches(self) -> int:
        """How many batches the newest checkpoint has committed."""
        folders: list[StoredPath] = [*stored_folder(self.settings, self.job).glob("*/query*/commits")]
        return max((len([one for one in folder.iterdir() if one.name.isdigit()]) for folder in folders), default=0)

    def position(self) -> dict[int, int]:
        (query,) = stored_folder(self.settings, JOB).glob("*/query*")
        return {partition_of(place)[1]: offset for place, offset in (read_committed(query) or {}).items()}

    def await_committed(self) -> None:
        """Wait until it has committed all that its topic holds now."""
        with TopicReader(self.settings, "test", self.settings.names.events(self.source.name)) as topic:
            ends = topic.bounds()[1]
        await_that(lambda: self.position() == ends, READY_SECONDS)

    def grow_to(self, partitions: int) -> None:
        """Add partitions to the topic that it reads."""
        name = self.settings.names.events(self.source.name)
        admin = AdminClient(self.settings.kafka.for_librdkafka())  # it must live until it has answered
        admin.create_partitions([NewPartitions(name, partitions)])[name].result(patient(10))

    def remove_records(self, partition: int, *, keep: int = 0) -> int:
        """Remove all events of `partition` but the last `keep`, as retention does; the first offset that is left."""
        name = self.settings.names.events(self.source.name)
        with TopicReader(self.settings, "test", name) as watched:
            place = TopicPartition(name, partition, watched.bounds()[1][partition] - keep)
        admin = AdminClient(self.settings.kafka.for_librdkafka())  # it must live until it has answered
        (done,) = admin.delete_records([place]).values()
        return int(done.result(patient(10)).low_watermark)

    def _traces(self, truth: Truth, findings: dict[str, Finding]) -> str:
        """What the topics hold of users whose windows differ, and the end of the log: it may never fail again."""
        differ = _windows(findings).keys() ^ truth.expected().keys()
        told = [f"{user}, {start}: {truth.failed[user, start]} were written" for user, start in differ]
        for topic in (self.settings.names.events(self.source.name), self.settings.names.findings):
            for record in read_all(self.settings, topic):
                value = (record.value() or b"").decode()
                if any(f'"{user}"' in value for user, _ in differ):
                    told.append(f"{topic} {record.partition()}/{record.offset()} at {record.timestamp()[1]}: {value}")
        return "\n".join([*told[:500], self.log.read_text()[-8000:]])


class LiveJob:
    """A detect job that the tests of a file share: each has its own users, and one topic knows what was written."""

    def __init__(self, job: DetectJob) -> None:
        self.job, self.topic = job, job.make_topics()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The one that was started last."""
        assert self._process is not None
        return self._process

    def start(self) -> subprocess.Popen[bytes]:
        self._process = self.job.start()
        return self._process

    def await_live(self) -> None:
        """Wait until it runs in real time; start it first if it does not run."""
        if self._process is None or self._process.poll() is not None:
            self.start()
        self.job.await_report(lambda r: (r.pid, r.mode, r.state) == (self.process.pid, "real-time", JobState.RUNNING))

    def stop(self) -> None:
        """Ask it to stop and wait until it has; within 15 seconds, and as a success."""
        asked = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(patient(20)) == 0
        assert time.monotonic() - asked < patient(15)


@contextlib.contextmanager
def detect_job(
    folder: Path, broker: Broker, storage: StorageSettings | None = None, **spark: Any
) -> Iterator[DetectJob]:
    job = DetectJob(folder, broker, storage, **spark)
    try:
        yield job
    finally:
        job.close()


@pytest.fixture
def job(tmp_path: Path, broker: Broker) -> Iterator[DetectJob]:
    """A job of one test: its watermark has not moved yet."""
    with detect_job(tmp_path, broker) as own:
        yield own


def ticking(topic: Topic) -> contextlib.AbstractContextManager[None]:
    """Ticks each second, as an ingest that keeps up writes them."""

    def tick() -> None:
        topic.tick(datetime.now(UTC))
        topic.flush()

    return repeated(tick, 1)


def next_window() -> datetime:
    """A moment in the first window that has not begun."""
    now = datetime.now(UTC)
    return now - (now - _EPOCH) % WINDOW + WINDOW + timedelta(seconds=1)


def _windows(findings: dict[str, Finding]) -> dict[tuple[str, datetime], Finding]:
    return {(one.entity["user_id"], one.window_start): one for one in findings.values() if one.window_start}


def _agrees(truth: Truth, findings: dict[str, Finding]) -> bool:
    try:
        truth.check(findings)
    except AssertionError:
        return False
    return True
