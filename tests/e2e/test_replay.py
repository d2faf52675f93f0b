"""`tocsin replay` as it is run, on a real broker: every event once, in order, whatever it is stopped by."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

from tests.rig.broker import Broker
from tests.rig.waiting import await_that, patient
from tests.rig.web_receiver import HANGS, WebReceiver, web_receiver
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.sizes import RAW_BYTES
from tocsin.declare.model.source import tick_value
from tocsin.declare.settings import Settings
from tocsin.ingest.parsing_rules import BATCH_HEADER
from tocsin.platform.kafka.reader import TopicReader
from tocsin.platform.kafka.record_writer import RecordWriter
from tocsin.platform.kafka.topics import ensure_topics
from tocsin.setup.java import find_java
from tocsin.supervise.installed_jobs import job_environment

ROOT = Path(__file__).parents[2]
SECONDS = 60.0
START = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=50)
PARTITIONS = 4


class Router:
    """The source `router` with events that are written here, a source `staging` of the same form, and the command."""

    def __init__(self, folder: Path, broker: Broker) -> None:
        (folder / "sources").mkdir()
        for name in ("router", "staging"):
            shutil.copy(ROOT / "examples/routes/sources/router.toml", folder / "sources" / f"{name}.toml")
        kafka = broker.kafka.model_copy(update={"topic_prefix": f"{folder.name}."})
        self.settings = Settings(project=folder, state=folder / "state", kafka=kafka)
        ensure_topics(self.settings, read_catalog(folder))
        self._environment = job_environment(self.settings, find_java().home)
        self._running: list[subprocess.Popen[str]] = []

    def write(self, paths: list[str], *, every: float = 0.1, times: int = 1, **more: Any) -> None:
        """Write an event for each of `paths`, so many seconds apart from START on, over all partitions; then a tick."""
        names = self.settings.names
        with RecordWriter(self.settings, RAW_BYTES) as writer:
            for number, path in enumerate(paths):
                moment = (START + timedelta(seconds=every * number)).isoformat(timespec="microseconds")
                moment = moment.replace("+00:00", "Z")
                event = {
                    **{"raw_topic": names.raw("router"), "raw_partition": number % 3, "raw_offset": number // 3},
                    **{"event_time": moment, "ingested_at": moment, "source": "router", "schema_version": 1},
                    **{"syslog_time": moment, "at": "info", "path": path, "method": "GET", "status": 200, **more},
                }
                for _ in range(times):
                    writer.write(names.events("router"), json.dumps(event), path, partition=number % PARTITIONS)
            for partition in range(PARTITIONS):
                writer.write(names.events("router"), tick_value(datetime.now(UTC)), partition=partition)

    def start(self, *words: str) -> subprocess.Popen[str]:
        whole = (str(Path(sys.executable).parent / "tocsin"), "replay", "router", "--from", START.isoformat())
        command = [*whole, "--to", (START + timedelta(minutes=49)).isoformat(), "--json", *words]
        process = subprocess.Popen(
            command, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._running.append(process)
        return process

    def run(self, *words: str, code: int = 0) -> dict[str, Any]:
        """The report of a run that ends with `code`."""
        process = self.start(*words)
        out, err = process.communicate(timeout=patient(2 * SECONDS))
        assert process.returncode == code, err
        report: dict[str, Any] = json.loads(out)
        return report

    def stop(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def is_kept(self) -> bool:
        """Whether a replay that runs has written down that some events are settled."""
        (file,) = (self.settings.state / "replays").glob("*.json")
        return any(json.loads(file.read_text())["position"].values())

    def staged(self) -> tuple[dict[bytes, str], int]:
        """The path of each event in raw.staging by its identity, and how many records there are."""
        found: dict[bytes, str] = {}
        count = 0
        with TopicReader(self.settings, "test", self.settings.names.raw("staging")) as reader:
            for message in reader.read(*reader.bounds()):
                identity: Any = dict(message.headers() or [])[BATCH_HEADER]
                found[identity] = json.loads(message.value() or b"")["path"]
                count += 1
        return found, count

    def committed(self) -> dict[str, dict[int, int]]:
        """The offsets that each consumer group has committed in the events topic."""
        admin = AdminClient(self.settings.kafka.for_librdkafka())
        groups = [one.group_id for one in admin.list_consumer_groups().result(patient(30)).valid]
        topic = self.settings.names.events("router")
        found: dict[str, dict[int, int]] = {}
        for group in groups:
            (answer,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
            places = answer.result(patient(30)).topic_partitions or []
            offsets = {place.partition: place.offset for place in places if place.topic == topic}
            found |= {group: offsets} if offsets else {}
        return found


@pytest.fixture
def router(tmp_path: Path, broker: Broker) -> Iterator[Router]:
    one = Router(tmp_path, broker)
    try:
        yield one
    finally:
        one.stop()


@pytest.fixture
def server() -> Iterator[WebReceiver]:
    with web_receiver() as host:
        host.status = answer
        yield host


def answer(path: str) -> int:
    return 500 if "broken" in path else 200


def paths(count: int) -> list[str]:
    return [f"/{number}" for number in range(count)]


def test_a_killed_replay_to_a_topic_loses_nothing_and_other_readers_keep_their_place(router: Router) -> None:
    router.write(paths(3_000), times=2)
    staging = router.settings.names.raw("staging")
    with TopicReader(router.settings, "job", router.settings.names.events("router")) as job:
        job.commit({0: 7, 1: 3})
    before = router.committed()
    assert list(before.values()) == [{0: 7, 1: 3}]

    assert router.run("--to-topic", staging, "--dry-run")["planned"]["events"] == 3_000
    assert router.staged() == ({}, 0)
    # A run to its end first: what is known of it must not be taken for the place of the one that is killed.
    assert router.run("--to-topic", staging, "--speed", "0")["outcomes"] == {"written": 3_000}
    first = router.staged()
    assert first == ({**first[0]}, 3_000)
    assert Counter(first[0].values()) == Counter(paths(3_000))

    killed = router.start("--to-topic", staging, "--speed", "0", "--rate", "100")
    await_that(lambda: router.staged()[1] >= 3_200 and router.is_kept(), SECONDS)
    killed.kill()
    killed.wait()
    sent = router.staged()[1] - 3_000
    assert sent < 3_000, "it was not killed on its way"
    report = router.run("--to-topic", staging, "--speed", "0")
    assert report["done"]
    assert report["planned"]["events"] < 3_000
    assert report["outcomes"] == {"written": report["planned"]["events"]}
    found, records = router.staged()
    assert found == first[0]
    assert records == 3_000 + sent + report["planned"]["events"]
    assert router.committed() == before


@pytest.mark.long
def test_a_replay_that_is_killed_at_once_begins_at_its_beginning(router: Router) -> None:
    router.write(paths(200))
    staging = router.settings.names.raw("staging")
    router.run("--to-topic", staging, "--speed", "0")
    killed = router.start("--to-topic", staging, "--speed", "0", "--rate", "0.01")
    await_that(lambda: any((router.settings.state / "replays").glob("*.json")), SECONDS)
    killed.kill()
    killed.wait()
    assert router.run("--to-topic", staging, "--speed", "0")["planned"]["events"] >= 199


@pytest.mark.long
def test_while_kafka_is_away_a_replay_ends_and_the_next_call_sends_what_is_missing(
    router: Router, broker: Broker
) -> None:
    router.write(paths(1_500))
    staging = router.settings.names.raw("staging")
    running = router.start("--to-topic", staging, "--speed", "0", "--rate", "100")
    await_that(lambda: router.staged()[1] >= 100 and router.is_kept(), SECONDS)
    broker.stop()
    try:
        assert running.wait(patient(2 * SECONDS)) == 1
    finally:
        broker.start()
    report = router.run("--to-topic", staging, "--speed", "0")
    assert report["outcomes"] == {"written": report["planned"]["events"]}
    assert Counter(router.staged()[0].values()) == Counter(paths(1_500))


def test_events_keep_their_distance_at_the_speed_that_is_asked_for(router: Router, server: WebReceiver) -> None:
    router.write(paths(40), every=2.0)
    report = router.run("--to-url", server.url, "--speed", "40", "--connections", "1")
    assert report["planned"]["seconds"] == pytest.approx(78 / 40)
    assert server.paths == paths(40)
    moments = [taken.at for taken in server.taken]
    due = [2.0 * number / 40 for number in range(40)]
    # No event comes before its time; how much later depends on the machine.
    assert all(moment - moments[0] >= after - 0.25 for moment, after in zip(moments, due, strict=True))


@pytest.mark.long  # tests/unit has such a host, a test above a kill
def test_a_host_that_fails_and_hangs_is_reported_and_a_kill_sends_no_more_than_a_second_again(
    router: Router, server: WebReceiver
) -> None:
    wanted = [f"/broken/{n}" if n % 100 == 0 else f"/{n}" for n in range(1_000)]
    router.write(wanted)
    counted = router.run("--to-url", server.url, "--dry-run")["planned"]
    assert (counted["events"], server.taken) == (1_000, [])

    killed = router.start("--to-url", server.url, "--speed", "0", "--rate", "100")
    await_that(lambda: len(server.taken) > 200 and router.is_kept(), SECONDS)
    killed.kill()
    killed.wait()
    assert len(server.taken) < 1_000, "it was not killed on its way"

    server.status = lambda _: HANGS
    words = ("--to-url", server.url, "--speed", "0")
    hung = router.run(*words, "--timeout", "3s", code=1)
    assert not hung["done"]
    assert set(hung["outcomes"]) == {"no answer"}
    assert hung["outcomes"]["no answer"] >= 20
    server.status = answer
    server.released.set()

    report = router.run(*words, code=1)
    assert report["done"]
    assert report["planned"]["events"] == hung["planned"]["events"] - hung["outcomes"]["no answer"]
    broken = report["outcomes"]["500"]
    assert report["outcomes"] == {"200": report["planned"]["events"] - broken, "500": broken}
    asked = Counter(server.paths)
    assert set(asked) == set(wanted)
    assert max(asked.values()) <= 2
