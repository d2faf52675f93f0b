"""Reading a topic, against a consumer that behaves as librdkafka's does. There is no Kafka here."""

from datetime import UTC, datetime
from itertools import islice

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition

from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.job_report import JobReport, JobState
from tocsin.declare.settings import Settings
from tocsin.platform.kafka.reader import TopicReader
from tocsin.platform.kafka.reporter import ReportReader

JOB = "detector:bursts"
FIRST_APPEND = 1_767_225_600_000


class Broker:
    """A topic of partitions that each hold values by offset, and the consumer that reads it.

    Attributes:
        assigned: the place of each partition that the client goes on asking for.
        fails: what it says of the next record.
    """

    def __init__(self, *partitions: dict[int, bytes]) -> None:
        self.held = dict(enumerate(partitions))
        self.ends = {p: max(values, default=-1) + 1 for p, values in self.held.items()}
        self.assigned: dict[int, int] = {}
        self.fails: KafkaError | None = None

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int]:
        end = self.ends[place.partition]
        return min(self.held[place.partition], default=end), end

    def assign(self, places: list[TopicPartition]) -> None:
        self.assigned = {place.partition: place.offset for place in places}

    def unassign(self) -> None:
        self.assigned = {}

    def incremental_unassign(self, places: list[TopicPartition]) -> None:
        for place in places:
            del self.assigned[place.partition]

    def position(self, places: list[TopicPartition]) -> list[TopicPartition]:
        return [TopicPartition(place.topic, place.partition, self.assigned[place.partition]) for place in places]

    def poll(self, timeout: float) -> Message | None:
        if self.fails is not None:
            return Message(error=self.fails)
        return next(iter(self.consume(1, timeout)), None)

    def consume(self, count: int, timeout: float) -> list[Message]:
        found: list[Message] = []
        for partition, position in self.assigned.items():
            if len(found) == count:
                break
            ahead = sorted(offset for offset in self.held[partition] if offset >= position)[: count - len(found)]
            found += [
                Message("t", partition, at, None, self.held[partition][at], timestamp=(2, FIRST_APPEND + 1000 * at))
                for at in ahead
            ]
            self.assigned[partition] = ahead[-1] + 1 if ahead else self.ends[partition]
        return found


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker({at: b"%d" % at for at in range(5)}, {3: b"three", 7: b"seven"})
    monkeypatch.setattr("tocsin.platform.kafka.reader.Consumer", lambda _: broker)
    return broker


@pytest.fixture
def reader(settings: Settings, broker: Broker) -> TopicReader:
    return TopicReader(settings, "test", "t", timeout_seconds=0.05)


def test_reading_ends_at_the_ends_that_were_asked_for(reader: TopicReader, broker: Broker) -> None:
    found = [(m.partition(), m.offset()) for m in reader.read({0: 1, 1: 3}, {0: 4, 1: 7})]
    assert found == [(0, 1), (0, 2), (0, 3), (1, 3)], "the record at 7 is beyond, and offsets 4 to 6 hold nothing"
    assert broker.assigned == {}, "or the client goes on asking"


def test_offsets_up_to_the_end_that_hold_nothing_are_passed(reader: TopicReader, broker: Broker) -> None:
    broker.ends[1] = 12
    assert [m.value() for m in reader.records(1, 0, 12)] == [b"three", b"seven"]


def test_who_wants_the_first_record_alone_leaves_the_rest(reader: TopicReader, broker: Broker) -> None:
    assert reader.appended_at(1, 0, 8) == datetime(2026, 1, 1, 0, 0, 3, tzinfo=UTC)
    assert broker.assigned == {}
    assert reader.appended_at(1, 4, 4) is None


def test_a_topic_that_gives_no_more_before_its_end_fails(reader: TopicReader, broker: Broker) -> None:
    with pytest.raises(TransientError, match="returns no more records of t"):
        list(reader.records(0, 0, 9))
    assert broker.assigned == {}


def test_an_error_names_the_brokers_and_the_topic(reader: TopicReader, broker: Broker) -> None:
    broker.fails = KafkaError(KafkaError._ALL_BROKERS_DOWN)
    with pytest.raises(TransientError, match=r"cannot reach Kafka at 127\.0\.0\.1:\d+ for t: "):
        list(reader.records(0, 0, 5))


def test_backwards_all_partitions_come_together_by_time(
    reader: TopicReader, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tocsin.platform.kafka.reader._BACKWARDS", 2)
    monkeypatch.setattr(reader, "partitions", lambda: [0, 1])
    assert [m.value() for m in islice(reader.newest_first(), 4)] == [b"seven", b"4", b"3", b"three"]
    assert len(list(reader.newest_first())) == 7


def test_one_record_by_its_place(reader: TopicReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "partitions", lambda: [0, 1])
    found = reader.record(1, 3)
    assert found is not None
    assert found.value() == b"three"
    assert [reader.record(*place) for place in [(0, 5), (1, 0), (1, 4), (2, 0)]] == [None] * 4


def report(settings: Settings, number: int) -> bytes:
    own = settings.installation_id
    one = JobReport(job=JOB, at=datetime.now(UTC), instance=own, pid=number, state=JobState.RUNNING)
    return one.model_dump_json().encode()


def test_reports_are_read_once_and_asked_for_only_during_a_look(settings: Settings, broker: Broker) -> None:
    broker.held[0], broker.ends[0] = {0: report(settings, 1), 1: report(settings, 2)}, 2
    taken: list[JobReport] = []
    reader = ReportReader(settings, taken.append)
    assert (reader.latest()[JOB].pid, broker.assigned) == (2, {})
    broker.held[0][2], broker.ends[0] = report(settings, 3), 3
    assert (reader.latest()[JOB].pid, broker.assigned) == (3, {})
    assert [one.pid for one in taken] == [1, 2, 3]
    broker.held[0], broker.ends[0] = {0: report(settings, 4)}, 1
    assert reader.latest()[JOB].pid == 4, "the topic was made anew"
