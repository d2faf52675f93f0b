"""A replay: events of a range in order, each once, at their pace, to a server or a topic, and on after a stop."""

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.rig.played_kafka import played_kafka, written
from tests.rig.web_receiver import HANGS, WebReceiver, web_receiver
from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.declare.model.source import Format, Source, tick_value
from tocsin.declare.settings import Settings
from tocsin.ingest.parsing_rules import BATCH_HEADER
from tocsin.ingest.replay.pace import ReplayPace
from tocsin.ingest.replay.recorded import RecordedEvent
from tocsin.ingest.replay.replay_run import Counted, HttpTarget, Progress, Replay, Requests, TopicTarget
from tocsin.platform.kafka.reader import TopicReader
from tocsin.platform.kafka.record_writer import PROMPT, RecordWriter

START = datetime(2026, 1, 31, 14, tzinfo=UTC)
FAST = ReplayPace(speed=0)
PLANNED = Counted(events=0, left_out={}, first=None, last=None, seconds=0)
ROUTER = Source(
    name="router",
    title="t",
    owner="a@b",
    formats=(Format.LOGFMT,),
    key="path",
    event_time="at",
    columns={"at": "timestamp", "path": "string", "method": "string"},
)
HOUR = (START - timedelta(minutes=30), START + timedelta(minutes=30))


def event(offset: int, second: float = 0.0, **more: Any) -> bytes:
    moment = (START + timedelta(seconds=second)).isoformat().replace("+00:00", "Z")
    origin = {"raw_topic": "raw.router", "raw_partition": 0, "raw_offset": offset, "event_time": moment}
    return json.dumps(origin | {"at": moment, "path": f"/{offset}", "method": "GET"} | more).encode()


@pytest.fixture
def server() -> Iterator[WebReceiver]:
    with web_receiver() as host:
        host.status = answer
        yield host


def answer(path: str) -> int:
    return 500 if "broken" in path else 200


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    with played_kafka("events.router", "raw.staging") as kafka:
        yield Settings(project=tmp_path, state=tmp_path, kafka=kafka)


def fill(settings: Settings, *records: tuple[int, bytes]) -> None:
    with RecordWriter(settings, 4_000_000, config=PROMPT) as writer:
        for partition, value in records:
            writer.write("events.router", value, partition=partition)


def opened(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Replay:
    # The played Kafka finds no offsets by time.
    monkeypatch.setattr(TopicReader, "since", lambda self, moment: self.bounds()[moment > START])
    return Replay(settings, ROUTER, "test", HOUR)


def replay(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, url: str, pace: ReplayPace = FAST, **requests: Any
) -> Progress:
    progress = Progress()
    target = HttpTarget(url, Requests(**{"connections": 1} | requests), progress)
    with opened(settings, monkeypatch) as run:
        assert run.run(target, pace, progress, threading.Event())
    return progress


def test_each_event_is_sent_once_in_the_order_of_time(
    settings: Settings, server: WebReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(
        settings,
        *((0, event(n, n)) for n in (0, 2)),
        *((0, event(n, n)) for n in (0, 2, 4)),  # written again after a crash of the ingest
        *((1, event(n, n)) for n in (1, 3)),
        (0, event(3, 5, raw_topic="batch:b")),  # a batch lies in two partitions of raw.router, so its order is lost
        (0, event(0, 6, raw_topic="batch:b")),
        (0, event(0, 6, raw_topic="batch:b")),
        (0, tick_value(START)),
        (2, b"no event"),
        (2, event(9, 3600)),
    )
    progress = replay(settings, monkeypatch, server.url + "/base")
    assert server.paths == [f"/base/{n}" for n in (0, 1, 2, 3, 4, 3, 0)]
    report = progress.report(PLANNED, is_done=True)
    assert (report.outcomes, report.has_failed) == ({"200": 7}, False)
    assert report.latency is not None
    assert 0 < report.latency["p50"] <= report.latency["max"]


def test_what_is_no_request_or_not_allowed_is_counted_and_left_out(
    settings: Settings, server: WebReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    others: list[dict[str, Any]] = [
        {"method": "POST"},
        {"method": "DELETE"},
        {"path": None},
        {"path": "evil.example.com/x"},
    ]
    fill(settings, *((0, event(n, n, **other)) for n, other in enumerate([*others, {"path": "/a b\r\nX: y?é=1"}])))
    with opened(settings, monkeypatch) as run:
        counted = run.count(HttpTarget(server.url, Requests(), Progress()), ReplayPace(rate=0.5))
    assert (counted.events, counted.seconds) == (1, 2.0)
    assert counted.left_out == {"method POST": 1, "method DELETE": 1, "without a path": 2}
    assert server.taken == []
    progress = replay(settings, monkeypatch, server.url, allowed=frozenset({"GET", "POST"}))
    assert [(taken.method, taken.path) for taken in server.taken] == [
        ("POST", "/0"),
        ("GET", "/a%20b%0D%0AX:%20y?%C3%A9=1"),
    ]
    assert progress.left_out == {"method DELETE": 1, "without a path": 2}


def test_events_keep_their_distance_and_the_rate_its_cap(
    settings: Settings, server: WebReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(settings, *((0, event(n, second)) for n, second in enumerate((0, 0.8, 0.8, 0.8))))
    replay(settings, monkeypatch, server.url, ReplayPace(speed=2, rate=10))
    moments = [taken.at for taken in server.taken]
    assert moments[1] - moments[0] > 0.2, "0.4, unless a busy machine has held up the first"
    server.taken.clear()
    replay(settings, monkeypatch, server.url, ReplayPace(speed=0, rate=10))
    assert server.taken[3].at - server.taken[0].at > 0.15, "0.3, unless the first was held up"


def test_a_replay_that_was_broken_off_goes_on(
    settings: Settings, server: WebReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(settings, *((n % 2, event(n, n)) for n in range(10)))
    stop = threading.Event()

    class Stopping(HttpTarget):
        def send(self, event: RecordedEvent, ticket: Any) -> None:
            super().send(event, ticket)
            if event.values["raw_offset"] == 5:
                stop.set()

    progress = Progress()
    with opened(settings, monkeypatch) as run:
        assert not run.run(Stopping(server.url, Requests(), progress), FAST, progress, stop)
    fill(settings, (0, event(99, 99)))  # came later, and belongs to the range of a new replay alone
    with opened(settings, monkeypatch) as run:
        assert run.resumed
    replay(settings, monkeypatch, server.url)
    assert sorted(server.paths) == sorted(f"/{n}" for n in range(10))
    with opened(settings, monkeypatch) as run:
        assert not run.resumed


def test_a_server_that_hangs_or_fails_is_told_and_many_times_in_a_row_ends_it(
    settings: Settings, server: WebReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(settings, (0, event(0, path="/broken")), *((0, event(n, n)) for n in range(1, 60)))
    server.status = lambda _: HANGS
    progress = Progress()
    target = HttpTarget(server.url, Requests(connections=20, timeout_seconds=0.2), progress)
    with opened(settings, monkeypatch) as run, pytest.raises(TransientError, match="20 requests in a row"):
        run.run(target, FAST, progress, threading.Event())
    report = progress.report(PLANNED, is_done=False)
    assert 20 <= report.outcomes["no answer"] < 60
    assert "timed out" in report.failure
    server.status = answer
    server.released.set()
    server.taken.clear()
    rest = replay(settings, monkeypatch, server.url)
    assert rest.outcomes == {"200": 60 - report.outcomes["no answer"]}
    assert replay(settings, monkeypatch, server.url).report(PLANNED, is_done=True).has_failed


@pytest.mark.parametrize(
    "url", ["staging", "ftp://staging", "http://", "http://staging?x=1", "http://u:p@staging", "http://staging:99999"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is no address of a server"):
        HttpTarget(url, Requests(), Progress())


def test_events_are_written_to_a_topic_with_the_identity_that_a_repeat_keeps(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(settings, *((0, event(n, n)) for n in range(3)), (0, event(3, 3, path="x" * 3_000_000)))
    identities = []
    for _ in range(2):
        progress = Progress()
        with opened(settings, monkeypatch) as run:
            target = TopicTarget(settings, ROUTER, ("raw.staging", "test"), frozenset(), progress)
            assert run.run(target, FAST, progress, threading.Event())
        assert progress.outcomes == {"written": 3, "refused": 1}
        assert progress.report(PLANNED, is_done=True).has_failed
    with TopicReader(settings, "test", "raw.staging") as reader:
        for message in reader.read(*reader.bounds()):
            identities.append(dict(message.headers() or [])[BATCH_HEADER])
    assert len(identities) == 6
    assert len(set(identities)) == 3
    values = [json.loads(value or b"") for p in range(4) for _, value in written(settings, "raw.staging", p)]
    assert all(set(value) == {"at", "path", "method"} for value in values)


@pytest.mark.parametrize(("topic", "what"), [("events.router", "a topic of this installation"), ("none", "not exist")])
def test_a_topic_that_holds_something_else_or_is_not_there_is_refused(
    settings: Settings, topic: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RecordWriter, "has_topic", lambda self, topic: topic != "none")
    with pytest.raises(ConfigError, match=what):
        TopicTarget(settings, ROUTER, (topic, "test"), frozenset({"events.router"}), Progress())
