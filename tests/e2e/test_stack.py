"""The embedded stack with all its parts: one start, then what may happen to it. The tests build on each other."""

import json
import os
import shutil
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from prometheus_client.parser import text_string_to_metric_families

from bench.drain_sender import BatchSender
from tests.rig.certificates import write_certificate
from tests.rig.served import Served
from tests.rig.stack import Stack
from tests.rig.waiting import await_that, patient
from tocsin.declare.model.finding import Finding
from tocsin.declare.model.job_report import JobState
from tocsin.platform.kafka.reader import TopicReader

JOBS = ["detector:failed_logins", "drain", "engine:live-1", "exporter", "indexer", "ingest:logins", "notifier", "web"]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    one = Stack(tmp_path_factory.mktemp("stack"))
    certificate, key = write_certificate(one.project)
    passwords = one.project / "passwords"
    passwords.write_text("logins:secret\n")
    passwords.chmod(0o600)
    (one.project / "tocsin.toml").write_text(
        f'[drain]\ncredentials_file = "{passwords.name}"\n[web]\nplain_http = true\n'
        f'[tls]\ncertificate_file = "{certificate.name}"\nkey_file = "{key.name}"\n'
        "[metrics]\nenabled = true\nplain_http = true\n"
    )
    try:
        one.up("--free-ports")
        one.ready()
        yield one
    finally:
        one.end()


def test_it_comes_up_with_all_jobs_and_says_where_it_is(stack: Stack) -> None:
    said = stack.said()
    assert "waiting for port" in said
    assert f"mails      http://127.0.0.1:{_mail_port(stack)}" in said
    found = {one["job"]: one for one in json.loads(stack.tocsin("status", "--json").stdout)}
    assert sorted(found) == sorted([*JOBS, "kafka", "mail"])
    assert {one["state"] for one in found.values()} == {"running"}
    assert found["engine:live-1"]["rss_bytes"] > 200 * 2**20, "the JVM counts"


def test_prometheus_is_told_that_all_jobs_run(stack: Stack) -> None:
    served = _served(stack)
    assert served.by("tocsin_job_info", "job") == dict.fromkeys(JOBS, 1)
    assert {served.get("tocsin_job_standing", job=job, standing="ok") for job in JOBS} == {1}
    assert served.by("tocsin_job_lag_records", "job") == dict.fromkeys(JOBS, 0)
    assert served.by("tocsin_job_resident_memory_bytes", "job")["engine:live-1"] > 200 * 2**20, "its JVM too"
    assert set(served.by("tocsin_scrape_errors_total", "what").values()) == {0}
    assert served.get("tocsin_findings_total", detector="failed_logins") == 0


def test_lines_that_are_sent_twice_are_found_once(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through drain, ingest and detector, over TLS."""
    monkeypatch.setenv("SSL_CERT_FILE", str(stack.project / "test-certificate.pem"))
    settings, sent = stack.settings, 57
    moment = datetime.now(UTC).isoformat()
    line = f"user_id: drained | timestamp: {moment} | ip_address: 192.0.2.1 | action: login failed | message: m"

    def send(count: int, repeat: float) -> None:
        url = f"https://127.0.0.1:{settings.drain.port}/logs"
        sender = BatchSender(url, "logins", "secret", repeat=repeat, patience=patient(60))
        sender.send([line.encode()] * count)
        assert (sender.sent.lines, sender.sent.repeats) == (count, int(repeat))

    def scores() -> list[float]:
        with TopicReader(settings, "test", settings.names.findings) as reader:
            found = [Finding.from_record(m.value() or b"", "f", 0, 0) for m in reader.read(*reader.bounds())]
        return [one.score for one in found if one.entity == {"user_id": "drained"}]

    for _ in range(3):
        send(sent // 3, repeat=1.0)
    await_that(lambda: sent in scores(), 60)
    send(1, repeat=0.0)  # its key is that of the others, so it comes behind all repeats
    await_that(lambda: sent + 1 in scores(), 60)
    assert max(scores()) == sent + 1
    with TopicReader(settings, "test", settings.names.raw("logins")) as reader:
        assert sum(b"drained" in (m.value() or b"") for m in reader.read(*reader.bounds())) == 2 * sent + 1


def test_everything_listens_on_loopback_only(stack: Stack) -> None:
    listening = stack.listening()
    assert {"kafka", "mail", "ingest:logins", "engine:live-1"} <= {job for job, _ in listening}
    open_to_all = {job for job, ip in listening if ip not in {"127.0.0.1", "::1", "::ffff:127.0.0.1"}}
    # Spark's real-time shuffle between the stages of a stateful query gives its server no address (ARCHITECTURE.md).
    assert open_to_all <= {"engine:live-1"}, listening


def test_a_second_stack_on_the_same_state_is_refused(stack: Stack) -> None:
    refused = stack.tocsin("dev", "up", "--free-ports")
    assert refused.returncode == 1
    assert stack.launcher is not None
    assert f"(process {stack.launcher.pid})" in refused.stderr


def test_a_port_in_use_names_its_owner(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = Stack(tmp_path_factory.mktemp("other"), sources=False)
    port = stack.settings.kafka.bootstrap_servers.split(":")[1]
    try:
        other.up(TOCSIN_KAFKA__BOOTSTRAP_SERVERS=f"127.0.0.1:{port}")
        await_that(other.ended, 30)
        assert other.launcher is not None
        assert other.launcher.returncode == 2
        assert f"port {port} is in use by process {stack.pid('kafka')}" in other.said()
    finally:
        other.end()


def test_prometheus_is_told_of_the_finding_and_its_mail(stack: Stack) -> None:
    """Those of the lines that were sent twice; the mail leaves when the window has closed."""
    await_that(lambda: _served(stack).get("tocsin_notifications_total", kind="email", result="sent") == 1, 60)
    served = _served(stack)
    assert served.get("tocsin_findings_total", detector="failed_logins") == 1
    assert served.get("tocsin_alerts_open", detector="failed_logins", level="email") == 1
    assert served.get("tocsin_event_to_finding_seconds_count", detector="failed_logins") == 1
    assert served.get("tocsin_crossing_to_mail_seconds_count", kind="email") == 1
    assert 5 < (served.get("tocsin_crossing_to_mail_seconds_sum", kind="email") or 0) < patient(60)
    # A batch counts when it has ended, which may be after the mail.
    await_that(lambda: _served(stack).by("tocsin_job_records_in_total", "job")["ingest:logins"] > 57, 60)


def test_a_killed_kafka_comes_back_and_the_jobs_go_on(stack: Stack) -> None:
    before, cluster = {job: stack.pid(job) for job in JOBS}, _cluster(stack)
    kafka = stack.pid("kafka")
    assert kafka is not None
    os.kill(kafka, signal.SIGKILL)
    await_that(lambda: stack.pid("kafka") not in (None, kafka), 30)
    _await_event(stack, "after-the-crash")
    assert {job: stack.pid(job) for job in JOBS} == before
    assert _cluster(stack) == cluster
    _await_users(stack, "drained")  # what was written before the crash is there


def test_a_killed_job_comes_back_and_the_others_stay(stack: Stack) -> None:
    before = {job: stack.pid(job) for job in JOBS}
    notifier = before.pop("notifier")
    assert notifier is not None
    os.kill(notifier, signal.SIGKILL)
    await_that(lambda: stack.pid("notifier") not in (None, notifier), 15)
    assert {job: stack.pid(job) for job in before} == before


@pytest.mark.long  # test_hand_over.py has such a version, and tests/unit/supervise the mail
def test_a_detector_that_cannot_start_touches_no_other_job(stack: Stack) -> None:
    before = {job: stack.pid(job) for job in JOBS}
    folder = stack.project / "detectors"
    text = (folder / "failed_logins.py").read_text()
    (folder / "broken.py").write_text(text.replace("action = 'login failed'", "no_such_column = 1"))

    await_that(lambda: _mails(stack) == [("security@example.com", "[tocsin] detector:broken: misconfigured")], 150)
    found = {one["job"]: one["condition"] for one in json.loads(stack.tocsin("status", "--json").stdout)}
    assert found["detector:broken"] != "fine"
    assert {job: stack.pid(job) for job in JOBS} == before
    assert "no_such_column" in stack.tocsin("dev", "logs", "detector:broken", "-n", "100").stdout
    (folder / "broken.py").unlink()
    await_that(lambda: stack.pid("detector:broken") is None, 60)


def test_what_each_job_takes_is_counted_through_the_restart_of_the_notifier_that_counts_it(stack: Stack) -> None:
    def counted() -> bool:
        found = {one["job"]: one for one in json.loads(stack.tocsin("status", "--usage", "1", "--json").stdout)}
        complete = set(JOBS) <= found.keys() and found["notifier"]["restarts"] > 0
        return complete and all(found[job]["cpu_seconds"] > 0 and found[job]["rss_bytes"] > 2**20 for job in JOBS)

    await_that(counted, 60)


@pytest.mark.long
def test_jobs_and_history_run_beside_servers_that_others_have_started(
    stack: Stack, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """As in a container. Without a Spark job, which the container would have in the same way."""
    other = Stack(tmp_path_factory.mktemp("unattended"), sources=False)
    kafka = {"BOOTSTRAP_SERVERS": stack.settings.kafka.bootstrap_servers, "TOPIC_PREFIX": "other."}
    try:
        other.unattended(**{f"TOCSIN_KAFKA__{name}": value for name, value in kafka.items()})
        told = ("indexer: running", "notifier: running")
        await_that(lambda: other.ended() or all(text in other.said() for text in told), 60, other.said)
        assert "topics: ready" in other.said()
        assert other.report("indexer").state is JobState.RUNNING
        again = Stack(tmp_path_factory.mktemp("again"), sources=False)
        again.state = other.state
        again.unattended()
        await_that(again.ended, 30)
        assert again.launcher is not None and again.launcher.returncode == 1
        assert "a stack already runs" in again.said()
        assert other.send(signal.SIGTERM) == 0
        assert other.processes() == []
    finally:
        other.end()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the next start sweeps")
def test_killing_the_launcher_leaves_nothing_not_even_a_jvm(stack: Stack) -> None:
    assert len(stack.processes()) >= 6
    assert stack.send(signal.SIGKILL) == -signal.SIGKILL
    await_that(lambda: not stack.processes(), 5)


def test_it_comes_up_again_where_it_was_and_goes_down_from_another_terminal(stack: Stack) -> None:
    """Without sources, so that no Spark job is started: what Kafka holds shows it."""
    for folder in ("detectors", "sources"):
        shutil.rmtree(stack.project / folder)
    (stack.project / "tocsin.toml").unlink()  # its drain has a login for a source
    stack.up("--free-ports")
    stack.ready()
    _await_users(stack, "drained", "after-the-crash")
    stopped = stack.tocsin("dev", "down")
    assert (stopped.returncode, stopped.stdout) == (0, "stopped\n")
    assert stack.launcher is not None
    assert stack.launcher.wait(patient(5)) == 0
    assert stack.processes() == []
    assert stack.said().splitlines()[-1].endswith("stopped")
    assert not (stack.state / "running.toml").exists()
    assert _order(stack, "stop") == ["jobs", "kafka", "mail"]


def _mails(stack: Stack) -> list[tuple[str, str]]:
    """To whom and of what mails about jobs have left."""
    with urllib.request.urlopen(f"http://127.0.0.1:{_mail_port(stack)}/mails.json", timeout=60) as answer:
        mails = [(one["to"][0]["address"], one["subject"]) for one in json.load(answer)]
    return [mail for mail in mails if mail[1].startswith("[tocsin] detector:broken")]


def _served(stack: Stack) -> Served:
    """What the exporter answers now."""
    url = f"http://127.0.0.1:{stack.settings.metrics.port}/metrics"
    with urllib.request.urlopen(url, timeout=60) as answer:
        return Served(text_string_to_metric_families(answer.read().decode()))


def _mail_port(stack: Stack) -> int:
    return int(json.loads((stack.state / "stack.json").read_text())["mail_url"].rsplit(":", 1)[1])


def _cluster(stack: Stack) -> str:
    """Kafka's id of its cluster, which clients remember."""
    client = AdminClient(stack.settings.kafka.for_librdkafka() | {"log_level": 0})
    return str(client.list_topics(timeout=60).cluster_id)


def _await_event(stack: Stack, user: str) -> None:
    """Send one login and wait until the ingest job has made an event of it."""
    producer = Producer(stack.settings.kafka.for_librdkafka() | {"log_level": 0})
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    line = f"user_id: {user} | timestamp: {when} | ip_address: 10.0.0.1 | action: login succeeded | message: m"
    producer.produce("raw.logins", line.encode())
    assert producer.flush(30) == 0
    _await_users(stack, user)


def _await_users(stack: Stack, *users: str) -> None:
    """Wait until events of `users` are in the topic, which is read from its beginning."""
    kafka, wanted = stack.settings.kafka.for_librdkafka() | {"log_level": 0}, {user.encode() for user in users}
    consumer = Consumer({**kafka, "group.id": "test", "enable.auto.commit": False})
    try:
        known = consumer.list_topics("events.logins", timeout=30).topics["events.logins"].partitions
        consumer.assign([TopicPartition("events.logins", p, OFFSET_BEGINNING) for p in known])

        def arrived() -> bool:
            for message in consumer.consume(5000, timeout=0.5):
                wanted.difference_update({user for user in wanted if user in (message.value() or b"")})
            return not wanted

        await_that(arrived, 60)
    finally:
        consumer.close()


def _order(stack: Stack, event: str) -> list[str]:
    """In which order the launcher's log tells of an event: the jobs as one, each server, without repetition."""
    order: list[str] = []
    for line in stack.settings.log("launcher").read_text().splitlines():
        if f"event={event} " in line and "reason=shutdown" in line:
            name = line.split(" of=")[1].split(" ")[0]
            name = name if name in ("kafka", "mail") else "jobs"
            order += [] if name in order else [name]
    return order
