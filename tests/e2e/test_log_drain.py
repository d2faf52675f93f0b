"""The log drain as it is run, on a real broker: each line once, whatever happens to it, to its senders and to Kafka."""

import base64
import gzip
import http.client
import json
import shutil
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from bench.drain_sender import BatchSender
from tests.rig.broker import Broker
from tests.rig.waiting import await_that, patient
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.job_report import JobState
from tocsin.declare.model.names import DRAIN
from tocsin.declare.setting_blocks import DrainSettings
from tocsin.declare.settings import Settings
from tocsin.dev.servers.ports import free_ports
from tocsin.ingest.parsing_rules import BATCH_HEADER
from tocsin.platform.heartbeat import read_beat
from tocsin.platform.kafka.reader import TopicReader
from tocsin.platform.kafka.topics import ensure_topics
from tocsin.platform.process_exit import ExitCode
from tocsin.supervise.installed_jobs import job_environment

ROOT = Path(__file__).parents[2]
REQUEST = b'at=info method=GET path="/%d" connect=1ms service=%dms status=200'
SECONDS = 60.0


class Drain:
    """A drain for the source `router`, as a process of its own."""

    def __init__(self, folder: Path, broker: Broker) -> None:
        (folder / "sources").mkdir()
        shutil.copy(ROOT / "examples/routes/sources/router.toml", folder / "sources")
        passwords = folder / "passwords"
        passwords.write_text("router:secret\n")
        passwords.chmod(0o600)
        (self.port,) = free_ports(1)
        self.settings = Settings(
            project=folder,
            state=folder / "state",
            kafka=broker.kafka.model_copy(update={"topic_prefix": f"{folder.name}."}),
            drain=DrainSettings(credentials_file=Path("passwords"), port=self.port),
        )
        ensure_topics(self.settings, read_catalog(folder))
        self.url = f"http://127.0.0.1:{self.port}/logs"
        self.process: subprocess.Popen[bytes] | None = None

    def run(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tocsin.job", "drain"]
        return subprocess.Popen(command, env=job_environment(self.settings, Path()), stdout=subprocess.DEVNULL)

    def start(self) -> None:
        self.process = self.run()
        await_that(lambda: self.state() is JobState.RUNNING, SECONDS)

    def state(self) -> JobState | None:
        """What the process says of itself; None before it has said anything."""
        beat = read_beat(self.settings.state, DRAIN)
        mine = beat is not None and self.process is not None and beat.report.pid == self.process.pid
        return beat.report.state if beat is not None and mine else None

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(patient(SECONDS))

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def sender(self, repeat: float = 0.0) -> BatchSender:
        return BatchSender(self.url, "router", "secret", repeat=repeat, patience=patient(SECONDS))

    def ask(self, path: str, body: bytes, **headers: str) -> tuple[int, str | None, bytes]:
        """Status, Retry-After and body of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=patient(30))
        login = base64.b64encode(b"router:secret").decode()
        known = {"Authorization": f"Basic {login}"} | {name.replace("_", "-"): text for name, text in headers.items()}
        try:
            connection.request("POST", path, body, {name.lower(): text for name, text in known.items()})
            answer = connection.getresponse()
            return answer.status, answer.getheader("Retry-After"), answer.read()
        finally:
            connection.close()

    def events(self) -> tuple[Counter[bytes], int]:
        """How often each line of the raw topic is an event, and how many records there are."""
        with TopicReader(self.settings, "test", self.settings.names.raw("router")) as reader:
            messages = list(reader.read(*reader.bounds()))
        once: dict[object, bytes] = {}
        for message in messages:
            identity = dict(message.headers() or []).get(BATCH_HEADER) or (message.partition(), message.offset())
            once[identity] = (message.value() or b"").partition(b" - ")[2]
        return Counter(once.values()), len(messages)


@pytest.fixture
def drain(tmp_path: Path, broker: Broker) -> Iterator[Drain]:
    one = Drain(tmp_path, broker)
    one.start()
    try:
        yield one
    finally:
        if one.process is not None and one.process.poll() is None:
            one.kill()


def lines(count: int) -> list[bytes]:
    return [REQUEST % (number % 97, number) for number in range(count)]


@contextmanager
def in_background(sender: BatchSender, sent: list[bytes]) -> Iterator[threading.Thread]:
    """`sender` at work; at the end everything was taken."""
    faults: list[Exception] = []

    def run() -> None:
        try:
            sender.send(sent)
        except Exception as error:
            faults.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(patient(2 * SECONDS))
    assert (thread.is_alive(), faults) == (False, [])


def test_repeats_are_the_same_events_and_the_drain_stops_in_order(drain: Drain) -> None:
    sent = lines(5_000)
    drain.sender(repeat=0.5).send(sent)
    drain.sender(repeat=1.0).send(sent[:2_000])
    found, records = drain.events()
    assert found == Counter(sent) + Counter(sent[:2_000])
    assert records >= 5_000 + 2 * 2_000
    second = drain.run()
    assert second.wait(patient(SECONDS)) == ExitCode.LOCKED
    assert drain.stop() == ExitCode.OK


@pytest.mark.long
def test_while_kafka_is_away_senders_are_put_off_and_then_all_arrives(drain: Drain, broker: Broker) -> None:
    sent = lines(4_000)
    broker.stop()
    try:
        assert drain.ask("/logs", b"3 k=v", logplex_frame_id="f")[:2] == (503, "2")
        await_that(lambda: drain.state() is JobState.WAITING, SECONDS)
        with in_background(drain.sender(repeat=0.2), sent):
            broker.start()
    finally:
        if not broker_runs(broker):
            broker.start()
    found, _ = drain.events()
    assert found - Counter([b""]) == Counter(sent)
    await_that(lambda: drain.state() is JobState.RUNNING, SECONDS)


def broker_runs(broker: Broker) -> bool:
    try:
        return broker.process.pid > 0
    except ValueError:
        return False


def test_a_killed_drain_loses_nothing_and_doubles_nothing(drain: Drain) -> None:
    sent = lines(60_000)
    with in_background(drain.sender(), sent) as thread:
        for _ in range(3):
            await_that(lambda: drain.events()[1] > 0, SECONDS)
            drain.kill()
            drain.start()
        assert thread.is_alive(), "too few lines: they were all sent before the last kill"
    assert drain.events()[0] == Counter(sent)


@pytest.mark.long
def test_other_ways_in_and_clients_that_do_harm(drain: Drain) -> None:
    assert drain.ask("/events/router", b"a=1\nb=2\n", Idempotency_Key="1")[0] == 204
    assert drain.ask("/logs", gzip.compress(b"3 c=3"), content_encoding="gzip")[0] == 204
    otlp = json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": {"stringValue": "d=4"}}]}]}]})
    assert drain.ask("/v1/logs", otlp.encode(), content_type="application/json") == (200, None, b"{}")
    assert sum(drain.events()[0].values()) == 4
    assert drain.ask("/logs", b"3 k=v", authorization="Basic eDp5")[0] == 401
    assert drain.ask("/events/ruter", b"k=v")[0] == 404
    assert drain.ask("/logs", gzip.compress(bytes(21_000_000)), content_encoding="gzip")[0] == 413
    for request in (b"POST /logs HTTP/1.1\r\nX-Slow: ", b"POST /logs HTTP/1.1\r\nX: " + b"x" * 200_000):
        with socket.create_connection(("127.0.0.1", drain.port), timeout=patient(30)) as client:
            client.sendall(request)
            with suppress(ConnectionResetError):
                assert client.recv(100) == b""
    assert drain.ask("/logs", b"3 k=v")[0] == 204
