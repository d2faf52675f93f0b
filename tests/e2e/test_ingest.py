"""One ingest job as it is run, on a real broker: what goes in comes out, whatever happens meanwhile.

The tests share the job and run in this order: each goes on from what the one before it left.
"""

import contextlib
import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # as in ingest.topics
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)

from tests.rig.broker import Broker, recreate
from tests.rig.ingest_topics import COMMENT, WAIT, Identity, Topics, place
from tests.rig.installation import READY_SECONDS, STOP_SECONDS, Installation, jvms_of
from tests.rig.observed import INGEST
from tests.rig.samples.networks import known_of, write_networks
from tests.rig.samples.project import copy_project
from tests.rig.waiting import await_that
from tocsin.declare.model.job_report import JobState
from tocsin.declare.model.names import detector_job
from tocsin.declare.model.sizes import EVENT_BYTES, RAW_BYTES
from tocsin.declare.model.source import Source
from tocsin.declare.source_file import read_source
from tocsin.dev.generator import Line, Traffic
from tocsin.ingest.parsing_rules import reason_class
from tocsin.ingest.quarantine import Selection, find_quarantined, list_quarantined, replay
from tocsin.ingest.quarantined_record import QuarantinedRecord
from tocsin.platform.heartbeat import read_beat
from tocsin.platform.kafka.reporter import EVERY_SECONDS, Reporter, read_reports
from tocsin.spark.query.gaps import read_gaps
from tocsin.spark.query.work import REAL_TIME

COUNTRIES = {"0.0.0.0/1": "DE", "172.16.0.0/12": "FR", "192.0.2.0/28": "FR"}
NETWORKS = [(ip_network(one), country) for one, country in COUNTRIES.items()]
HOPELESS = b"\xff" * 300_000
KEY = b"k" * 1_300_000  # as base64, with payload and headers, longer than a record in quarantine may be
QUOTED = r"""
format = "regex"
pattern = '(?<timestamp>[^ ]+) (?<ip_address>[^ ]+) "(?<user_id>[^"]*)" "(?<action>(?:[^"\\]|\\.)*+)"'
"""


class LiveIngest:
    """The job, its topics, and all lines that were sent to it."""

    def __init__(self, installation: Installation) -> None:
        self.installation, self.topics = installation, Topics(installation)
        self.settings = installation.settings
        self.source = read_source(self.settings.project / "sources/logins.toml")
        self.sent: list[Line] = []

    def start(self) -> None:
        self.installation.start(INGEST)
        self.installation.await_ready(INGEST)

    def send(self, lines: Iterable[Line]) -> list[Line]:
        self.sent += (sent := self.topics.send(lines))
        return sent

    def send_to(self, partition: int, lines: Iterable[Line]) -> None:
        self.sent += self.topics.send_to(partition, lines)

    def check(self) -> None:
        """Wait until every line has come out: a good one as its event, with the same text each time."""
        self.topics.await_all()
        assert users(self.topics.events()) == expected(self.sent)
        values: dict[Identity, str] = {}
        for event in self.topics.events():
            assert values.setdefault(place(event), json.dumps(event)) == json.dumps(event), "a repeat differs"

    def quarantined(self, reason: str) -> list[QuarantinedRecord]:
        return list_quarantined(self.settings, self.source, Selection(reason=reason, limit=1_000))

    def counts(self) -> dict[str, float]:
        report = self.installation.report(INGEST)
        return {} if report is None else report.counts

    def reason(self) -> str:
        report = self.installation.report(INGEST)
        return "" if report is None else report.reason

    def await_counts(self, **wanted: float) -> None:
        def counts() -> dict[str, float]:
            return {name: self.counts().get(name, 0) for name in wanted}

        await_that(lambda: counts() == wanted, WAIT, lambda: f"{counts()}\n{self.state()}")

    def state(self) -> str:
        return f"{self.installation.report(INGEST)}\n{self.installation.log(INGEST)[-3_000:]}"

    def configure(self, topic: str, **settings: str) -> None:
        entries = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        admin = AdminClient(self.settings.kafka.for_librdkafka())  # it must live until it has answered
        admin.incremental_alter_configs([resource])[resource].result()


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, broker: Broker) -> Iterator[LiveIngest]:
    with Installation(tmp_path_factory.mktemp("ingest"), broker) as one:
        copy_project(one.settings.project, "expectations")
        path = one.settings.project / "sources/logins.toml"
        looked_up = '[enrich]\ncountry = { by = "ip_address", file = "sources/networks.csv" }\n'
        path.write_text(f'ignore = "^{COMMENT.decode()}"\n{path.read_text()}\n{looked_up}')
        write_networks(path.with_name("networks.csv"), NETWORKS)
        one.make_topics()
        leave_a_first_batch_that_was_killed(one)
        shared = LiveIngest(one)
        shared.start()
        yield shared


def leave_a_first_batch_that_was_killed(installation: Installation) -> None:
    """What a kill leaves while Spark writes the offsets of its first batch; Spark itself refuses to start over it."""
    query = installation.settings.checkpoint(INGEST) / "query"
    (query / "offsets").mkdir(parents=True)
    (query / "offsets/.0.66e9130c-f0c7-4a20-ac97-ee8d6cd89ab1.tmp").touch()
    (query / "metadata").write_text('{"id":"1abc2638-82f5-4a05-9d2a-385d61baeda8"}')


def traffic(seconds: float = 10, **more: Any) -> list[Line]:
    """Lines of the last seconds."""
    return list(Traffic(start=datetime.now(UTC) - timedelta(seconds=seconds), seconds=seconds, **more).lines())


def login(user: str, action: str = "login failed", address: str = "192.0.2.1") -> Line:
    at = datetime.now(UTC)
    text = f"user_id: {user} | timestamp: {_text(at)} | ip_address: {address} | action: {action}"
    return Line(at, text.encode(), user)


def users(events: Iterable[dict[str, Any]]) -> Counter[tuple[str, str]]:
    """What happened to whom, each event once."""
    once = {place(event): event for event in events}
    return Counter((event["user_id"], event["timestamp"]) for event in once.values())


def expected(lines: Iterable[Line]) -> Counter[tuple[str, str]]:
    return Counter((line.user, _text(line.at)) for line in lines if line.user is not None)


def test_routes_counts_and_ticks(live: LiveIngest) -> None:
    topics, settings, source = live.topics, live.settings, live.source
    await_that(lambda: len(topics.ticks()) == 2, WAIT, lambda: "an empty topic does not tick")

    lines = live.send(traffic(bad_share=0.1, rate=60))
    topics.send(Line(datetime.now(UTC), COMMENT + b"no login at all", None) for _ in range(3))
    bad = [line for line in lines if line.reason is not None]
    live.check()
    assert {event["raw_partition"] for event in topics.events()} == {0, 1}
    countries = [(event.get("country"), known_of(NETWORKS, event["ip_address"])) for event in topics.events()]
    assert all(found == known for found, known in countries)
    assert {found for found, _ in countries} == {"DE", "FR"}

    waiting = list_quarantined(settings, source, Selection(limit=1_000))
    assert sorted(record.payload_sha256 or "" for record in waiting) == sorted(_sha256(line.value) for line in bad)
    assert {record.payload or b"" for record in waiting} == {line.value for line in bad}
    assert all(a.quarantined_at >= b.quarantined_at for a, b in pairwise(waiting))
    by_hash = {_sha256(line.value): line.reason for line in bad}
    assert all(str(by_hash[r.payload_sha256 or ""]) in map(reason_class, r.reasons) for r in waiting)
    assert find_quarantined(settings, source, waiting[3].id) == waiting[3]
    assert list_quarantined(settings, source, Selection(limit=2)) == waiting[:2]
    assert live.quarantined("time_ahead") == [record for record in waiting if record.reasons == ("time_ahead",)]
    not_utf8 = sum(line.reason == "not_utf8" for line in bad)
    live.await_counts(records=len(lines) + 3, ignored=3, quarantined=len(bad), not_utf8=not_utf8)
    await_that(lambda: live.reason().endswith("; 3 records were ignored"), WAIT, live.state)
    before = topics.ticks()
    await_that(
        lambda: all(topics.ticks()[p] > n for p, n in before.items()), WAIT, lambda: "it does not tick when idle"
    )


def test_critical_rules_refuse_and_others_warn(live: LiveIngest) -> None:
    before = live.counts()
    long = login("x" * 257)
    live.send([login("ann"), login("bob", "password reset"), login("eve", address="-"), login("v" * 256)])
    live.topics.send([long])
    live.check()
    (refused,) = live.quarantined("rule")
    assert (refused.reasons, refused.payload) == (("rule:user_id_length",), long.value)
    more = {"records": 5, "quarantined": 1, "rule": 1, "warned_known_action": 1, "warned_ip_address_form": 1}
    live.await_counts(**{name: before.get(name, 0) + count for name, count in more.items()})
    report = live.installation.report(INGEST)
    assert report is not None
    assert report.mode == REAL_TIME


@pytest.mark.long
def test_added_partitions_are_read(live: LiveIngest) -> None:
    topics = live.topics
    admin = AdminClient(live.settings.kafka.for_librdkafka())
    admin.create_partitions([NewPartitions(topics.raw, 5)])[topics.raw].result()
    for seed in (0, 10):
        for partition in range(5):
            live.send_to(partition, traffic(2, seed=seed + partition))
        live.check()
    assert {partition for partition, _ in topics.processed()} == set(range(5))
    assert "has grown from 2 to 5 partitions" in live.installation.log(INGEST)


@pytest.mark.long
@pytest.mark.parametrize("away", [True, False])
def test_a_raw_topic_that_was_recreated_beyond_its_former_length_is_read_from_its_start(
    tmp_path: Path, broker: Broker, *, away: bool
) -> None:
    with Installation(tmp_path, broker) as one:
        one.make_topics()
        live = LiveIngest(one)
        live.start()
        live.send_to(0, traffic(2, seed=1))
        live.check()
        live.await_counts(records=len(live.sent))
        if away:
            one.stop(INGEST)
        recreate(live.settings.kafka, live.topics.raw, 2)
        later = [login(f"later{number}") for number in range(2 * len(live.sent))]
        live.topics.send_to(0, later)
        if away:
            one.start(INGEST)
        wanted = {line.user for line in later}
        await_that(lambda: wanted <= {event["user_id"] for event in live.topics.events()}, READY_SECONDS, live.state)
        live.await_counts(topics_recreated=1)
        assert "was deleted and created again" in live.reason()
        before = live.topics.ticks()
        await_that(lambda: all(live.topics.ticks()[p] > n for p, n in before.items()), WAIT, live.state)


@pytest.mark.long
def test_a_record_that_ends_the_query_is_set_aside(live: LiveIngest) -> None:
    """An events topic that takes less than it should refuses one record: only that one is missing."""
    live.configure(live.topics.events_topic, max_message_bytes="50000")
    poison = login("eve", "x" * 100_000)
    live.send_to(1, traffic(2, seed=20))
    live.topics.send_to(1, [poison])
    live.send_to(1, traffic(2, seed=21))
    live.check()
    live.configure(live.topics.events_topic, max_message_bytes=str(EVENT_BYTES))
    (record,) = live.quarantined("set_aside")
    assert (record.payload, record.origin.partition) == (poison.value, 1)
    assert "RecordTooLargeException" in record.error
    live.await_counts(set_aside=1)
    assert f"1 record was set aside, the last is {record.origin}" in live.reason()


def kill_between_flush_and_commit(installation: Installation) -> None:
    """Kill the JVM alone: Python ends because of it."""
    installation.kill_between_flush_and_commit(INGEST, "jvm")


def kill_within_a_batch(installation: Installation) -> None:
    """Kill Python alone: its JVM is left behind."""
    installation.kill(INGEST, "python")


@pytest.mark.parametrize(
    "kill", [kill_between_flush_and_commit, pytest.param(kill_within_a_batch, marks=pytest.mark.long)]
)
def test_kill_9_under_load_loses_nothing(live: LiveIngest, kill: Callable[[Installation], None]) -> None:
    start, aside = len(live.topics.processed()), len(live.quarantined("set_aside"))
    endless = Traffic(start=datetime.now(UTC), rate=200, bad_share=0.05, seed=len(live.sent)).lines()
    load = islice(endless, 400)
    live.send(islice(load, 200))
    await_that(lambda: len(live.topics.processed()) > start, WAIT, lambda: "nothing comes out")
    live.send(load)
    kill(live.installation)
    live.installation.await_end(INGEST)
    live.start()
    live.check()
    live.topics.assert_ticks_are_true()
    live.await_counts(set_aside=aside)
    assert len(live.quarantined("set_aside")) == aside, "it is not searched for again"


def test_a_jvm_that_hangs_stops_the_heartbeat_until_it_goes_on_and_can_be_stopped(live: LiveIngest) -> None:
    def silent_seconds() -> float:
        beat = read_beat(live.settings.state, INGEST)
        assert beat is not None
        return beat.age_seconds

    leader = live.installation.leader(INGEST)
    jvm = jvms_of(leader)[0]
    jvm.suspend()
    await_that(lambda: silent_seconds() > 2 * EVERY_SECONDS, 60)
    reported = read_reports(live.settings)[INGEST]
    assert (datetime.now(UTC) - reported.at).total_seconds() > 2 * EVERY_SECONDS, "though ticks ask for the time"
    jvm.resume()
    await_that(lambda: silent_seconds() < EVERY_SECONDS, 60)
    assert leader.is_running()

    jvm.suspend()
    assert live.installation.stop(INGEST) == 0
    await_that(lambda: not jvm.is_running(), STOP_SECONDS)


@pytest.mark.long
def test_after_an_outage_it_reads_what_is_kept_and_what_was_mended(live: LiveIngest) -> None:
    """Retention that was shorter than the outage costs the records that it removed, and no others."""
    installation, topics = live.installation, live.topics
    installation.stop(INGEST)
    live.start()
    at, refused = send_what_is_refused(live)
    assert installation.stop(INGEST) == 0
    stopped = datetime.now(UTC)
    read, ignored = topics.processed(), topics.ignored()
    removed = send_and_remove_the_oldest(live) - read - ignored
    source = replay_with_milder_rules(live, refused)
    with contextlib.closing(Reporter(live.settings, detector_job("failed_logins"))) as detector:
        detector.update(state=JobState.RUNNING, delay_seconds=12.0)
        time.sleep(live.source.lateness.total_seconds() + 1)  # the backlog has to become older than that
        installation.start(INGEST)
        await_that(lambda: "waiting until detector:failed_logins" in live.reason(), WAIT, live.state)
        report = installation.reports(INGEST)[-1]
        assert (report.state, report.lag_seconds > 10) == (JobState.DRAINING, True)
        assert topics.processed() == read
        detector.update(state=JobState.DRAINING, delay_seconds=report.lag_seconds + 60)
        topics.await_all()
        await_that(lambda: installation.state(INGEST) is JobState.RUNNING, WAIT, live.state)
    live.await_counts(removed_unread=len(removed))
    (gap,) = read_gaps(live.settings.checkpoint(INGEST))
    assert gap.records == len(removed)
    assert gap.since is not None
    assert stopped - timedelta(seconds=90) < gap.since < stopped < gap.until < datetime.now(UTC)
    check_what_was_replayed(live, source, at, refused)
    topics.send_to(0, traffic(2, seed=9))
    topics.await_all()
    await_that(lambda: installation.reports(INGEST)[-1].mode == REAL_TIME, WAIT, live.state)
    assert not removed & topics.processed()
    assert installation.stop(INGEST) == 0


def send_what_is_refused(live: LiveIngest) -> tuple[str, list[QuarantinedRecord]]:
    """Send too long a name, records without an address, and one that is too long in each part.

    Returns their time, and of those without an address and of the last what is kept.
    """
    topics, at = live.topics, _text(datetime.now(UTC))
    curable = [f"user_id: u{n} | timestamp: {at} | action: login failed".encode() for n in range(3)]
    topics.send([login("x" * 257), *(Line(datetime.now(UTC), value) for value in curable)])
    producer = Producer(live.settings.kafka.for_librdkafka() | {"message.max.bytes": RAW_BYTES})
    producer.produce(topics.raw, HOPELESS, KEY, 1, headers=[("many", b"\xff" * 300_000)])
    assert producer.flush(30) == 0
    topics.await_all()
    hashes = {_sha256(value) for value in (*curable, HOPELESS)}
    kept = list_quarantined(live.settings, live.source, Selection(limit=1_000))
    return at, [record for record in kept if record.payload_sha256 in hashes]


def send_and_remove_the_oldest(live: LiveIngest) -> set[Identity]:
    """Send more and let retention remove all of partition 0 but 30 records; returns what it removed."""
    topics = live.topics
    for partition in (0, 1):
        topics.send_to(partition, traffic(5, seed=partition))
    end = Counter(partition for partition, _ in topics.appended())[0]
    cut = TopicPartition(topics.raw, 0, end - 30)
    admin = AdminClient(live.settings.kafka.for_librdkafka())  # it must live until it has answered
    (future,) = admin.delete_records([cut]).values()
    assert future.result().low_watermark == end - 30
    return {(0, offset) for offset in range(end - 30)}


def replay_with_milder_rules(live: LiveIngest, refused: list[QuarantinedRecord]) -> Source:
    """Replay `refused` twice, and who had too long a name, each with its rule changed; returns the changed source."""
    path, suite = (live.settings.project / name for name in ("sources/logins.toml", "expectations/logins.rows.json"))
    text = path.read_text().replace('ip_address = "string"\n', "", 1)
    path.write_text(text.replace("[optional]\n", '[optional]\nip_address = "string"\n'))
    source = read_source(path)
    for _ in range(2):
        result = replay(live.settings, source, refused)
        assert (len(result.replayed), result.skipped, result.changed) == (4, {}, {"schema"})
    suite.write_text(suite.read_text().replace('"max_value": 256', '"max_value": 300'))
    assert replay(live.settings, live.source, live.quarantined("rule")).changed == {"expectations"}
    return source


def check_what_was_replayed(live: LiveIngest, source: Source, at: str, refused: list[QuarantinedRecord]) -> None:
    """Each keeps its time and identity, and what is still refused says how often it was replayed."""
    origins = {(r.origin.partition, r.origin.offset): r.origin.timestamp for r in refused if not r.truncated}

    def cured() -> list[dict[str, Any]]:
        return [event for event in live.topics.events() if place(event) in origins]

    await_that(lambda: len(cured()) == 6, WAIT, cured)
    assert {place(event): datetime.fromisoformat(event["ingested_at"]) for event in cured()} == origins
    assert users(cured()) == Counter({(f"u{n}", at): 1 for n in range(3)})
    await_that(lambda: "x" * 257 in {event["user_id"] for event in live.topics.events()}, WAIT, live.state)

    def hopeless() -> list[QuarantinedRecord]:
        return [r for r in live.quarantined("too_long") if r.payload_sha256 == _sha256(HOPELESS)]

    await_that(lambda: len(hopeless()) == 3, WAIT, lambda: "the hopeless one is gone")
    assert [(r.replays, r.reasons) for r in hopeless()] == [(n, ("too_long",)) for n in (1, 1, 0)]
    assert {r.cut for r in hopeless()} == {("payload", "key", "headers")}
    assert {r.raw_key_sha256 for r in hopeless()} == {_sha256(KEY)}
    assert {r.origin for r in hopeless()} == {r.origin for r in refused if r.truncated}
    assert replay(live.settings, source, hopeless()[:1]).changed == set()


@pytest.mark.long  # tests/spark has the pattern and the rules; here they meet real-time mode
def test_a_possessive_pattern_takes_any_line_and_broken_rules_end_the_job(live: LiveIngest) -> None:
    installation, project = live.installation, live.settings.project
    path, rules = project / "sources/logins.toml", project / "expectations/logins.rows.json"
    rules.write_text("{")
    installation.start(INGEST)
    await_that(lambda: installation.runner.exit_code(INGEST) is not None, READY_SECONDS)
    installation.await_end(INGEST)
    assert installation.runner.exit_code(INGEST) == 2
    assert "logins.rows.json" in installation.log(INGEST)

    rules.unlink()
    path.write_text(path.read_text().replace('format = ["key-value", "json"]', QUOTED))
    live.start()
    at, longest = datetime.now(UTC), live.source.max_bytes
    head = f'{_text(at)} 192.0.2.1 "quoted" '
    lengths = [5, 2_000, 50_000, longest - len(head) - 2]
    lines = [Line(at, f'{head}"{chr(97) * length}"'.encode()) for length in (*lengths, longest)]
    live.topics.send(lines)
    live.topics.await_all()
    found = [event["action"] for event in live.topics.events() if event["user_id"] == "quoted"]
    assert sorted(map(len, found)) == lengths
    assert live.quarantined("too_long")[0].payload_sha256 == _sha256(lines[-1].value)
    report = installation.report(INGEST)
    assert report is not None
    assert report.mode == REAL_TIME


def _text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _sha256(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()
