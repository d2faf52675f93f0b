"""A detector over a past range, through spark-submit as Airflow starts it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.broker import Broker
from tests.e2e.detecting import DETECTOR, WINDOW, DetectJob, Topic, detect_job
from tests.waiting import patient
from tocsin.finding import Finding, Origin
from tocsin.provision.java import find_java
from tocsin.provision.paths import here
from tocsin.supervision.jobs import job_environment

JOBS = here().root / "spark_jobs"
NOW = datetime.now(UTC)
START = datetime.fromtimestamp(NOW.timestamp() // 10 * 10 - 600, UTC)
END = START + 6 * WINDOW


@pytest.fixture
def job(broker: Broker, tmp_path: Path) -> Iterator[DetectJob]:
    with detect_job(tmp_path, broker) as one:
        yield one


def batch(job: DetectJob, start: datetime = START, end: datetime = END, run: str = "a") -> tuple[int, str]:
    """Exit code and what it said."""
    jars = ",".join(map(str, sorted(here().jars("spark").glob("*.jar"))))
    words = [f"--start={start.isoformat()}", f"--end={end.isoformat()}", f"--run-id={run}"]
    done = subprocess.run(
        [JOBS / "submit.sh", "--master", "local[2]", "--jars", jars, JOBS / "batch.py", DETECTOR, *words],
        env=job_environment(job.settings, find_java().home),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    # Spark tells where its servers are bound, before its level is set.
    assert done.returncode or "Server created on 127.0.0.1:" in done.stderr + done.stdout
    return done.returncode, done.stdout + done.stderr  # spark-submit passes all that its driver says on to stdout


def told(findings: dict[str, Finding]) -> dict[tuple[str, datetime], tuple[str, float, bool, str, str]]:
    return {
        (one.entity["user_id"], one.window_start): (one.level, one.score, one.at_least, one.origin, one.run_id)
        for one in findings.values()
        if one.window_start is not None
    }


def write(topic: Topic) -> dict[tuple[str, datetime], int]:
    """Bursts around the limits and around the edges of the range; returns the counts above the limit within it."""
    counts = {50: "fifty", 51: "fifty-one", 100: "hundred", 101: "hundred-one", 150: "many"}
    for number, (count, user) in enumerate(counts.items()):
        for at in range(count):
            topic.event(user, START + timedelta(milliseconds=30 * at), NOW, number % 2)
    for edge, user in ((START - timedelta(milliseconds=1), "before"), (END, "behind")):
        for _ in range(60):
            topic.event(user, edge, NOW, 1)
    for _ in range(60):  # the last window reaches to the end of the range, not beyond it
        topic.event("last", END - timedelta(milliseconds=1), NOW, 0)
    record = topic.event("twice", START, NOW, 0)
    for _ in range(60):
        topic.write(record, 0)
    for _ in range(60):
        topic.event("fine", START, NOW, 0, action="login succeeded")
    topic.flush()
    expected = {(user, START): count for count, user in counts.items() if count > 50}
    return expected | {("last", END - WINDOW): 60}


def test_the_findings_of_a_range_are_whole_and_its_edges_exact(job: DetectJob) -> None:
    expected = write(job.make_topics())
    code, said = batch(job)
    assert code == 0, said[-3000:]
    assert told(job.findings()) == {
        window: ("urgent" if count > 100 else "email", float(count), False, Origin.BACKFILL, "a")
        for window, count in expected.items()
    }
    ids = job.findings().keys()
    assert batch(job, run="b")[0] == 0
    assert job.findings().keys() == ids, "a second run finds the same"


def test_a_range_that_cannot_be_computed_whole_is_refused_and_writes_nothing(job: DetectJob) -> None:
    write(job.make_topics())
    code, said = batch(job, end=datetime.now(UTC) + timedelta(minutes=1))
    assert code == 2
    assert "range of failed_logins: end: its last window can still change; ask again after" in said
    code, said = batch(job, start=END, end=START)
    assert code == 2
    assert "is not before" in said
    events = job.settings.names.events("logins")
    client = AdminClient(job.settings.kafka.for_librdkafka())
    client.delete_records([TopicPartition(events, 0, 20)])[TopicPartition(events, 0)].result(patient(30))
    code, said = batch(job)
    assert code == 2
    assert f"{events} holds no longer all records from before" in said
    assert job.findings() == {}


def test_nothing_of_airflow_reaches_a_batch(tmp_path: Path) -> None:
    script = tmp_path / "spark_jobs" / "submit.sh"
    script.parent.mkdir()
    script.write_bytes((JOBS / "submit.sh").read_bytes())
    program = tmp_path / ".venv" / "bin" / "spark-submit"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\necho "$@"\nenv\n')
    for path in (script, program):
        path.chmod(0o755)
    secrets = {"AIRFLOW__CORE__FERNET_KEY": "s", "AIRFLOW_CONN_X": "s", "_AIRFLOW_Y": "s", "PYTHONPATH": "s"}
    kept = {"PATH": "/usr/bin:/bin", "TOCSIN_STATE": "/state", "AIR": "a\nAIRFLOW_IN_TEXT=b"}
    done = subprocess.run([script, "a", "b c"], env=secrets | kept, capture_output=True, text=True, check=True)
    words, *variables = done.stdout.splitlines()
    assert words == "a b c"
    assert {"TOCSIN_STATE=/state", "AIR=a"} <= set(variables)
    assert not [line for line in variables if line.split("=")[0] in secrets]
