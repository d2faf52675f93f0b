"""Landing and sealing that are killed, and a full disk: nothing is half landed, nothing half published."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pyarrow.parquet as pq
import pytest

from tests.rig.detect_job import DetectJob, Topic
from tests.rig.waiting import await_that
from tocsin.history.care import verify
from tocsin.history.day_rows import DayRows
from tocsin.history.day_table import DayTable
from tocsin.history.landing_ledger import read_ledger
from tocsin.history.places import Places, begin
from tocsin.setup.java import find_java
from tocsin.setup.paths import here
from tocsin.supervise.installed_jobs import job_environment

NOW = datetime.now(UTC)
DAY = NOW.date() - timedelta(days=1)
LAND = [sys.executable, str(here().root / "spark_jobs" / "seal.py"), "logins"]
SEAL = [*LAND, f"--day={DAY}"]


def send(topic: Topic, count: int, day_offset: int = 0) -> None:
    for number in range(count):
        moment = begin(DAY) + timedelta(days=day_offset, milliseconds=number)
        topic.event(f"user-{number % 50}", moment, NOW, number % 2)
    topic.flush()


def run(job: DetectJob, command: list[str], kill_when: Callable[[], bool] = lambda: False) -> tuple[int, float]:
    """Exit code and seconds; killed as a crash does, with all its children, once `kill_when` is true."""
    environment = job_environment(job.settings, find_java().home)
    began = time.monotonic()
    with job.log.open("ab") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        await_that(lambda: process.poll() is not None or kill_when(), 240, every=0.01)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode, time.monotonic() - began


def after(seconds: float) -> Callable[[], bool]:
    """A condition that comes true so many seconds from now."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


def identities(job: DetectJob) -> list[tuple[int, int]]:
    """Of every landed event, as the ledger knows them."""
    places = Places.of(job.settings, "logins")
    found: list[tuple[int, int]] = []
    for entry in read_ledger(places).entries:
        for file in entry.files:
            rows = pq.read_table(places.root / file.path, columns=["raw_partition", "raw_offset"], partitioning=None)
            found += [(row["raw_partition"], row["raw_offset"]) for row in rows.to_pylist()]
    return sorted(found)


@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=pytest.mark.long)])
def test_landing_that_is_killed_anywhere_lands_each_event_once(job: DetectJob, rounds: int) -> None:
    """First while files are written that have not landed yet, then at random."""
    topic, chance, sent, killed, usual = job.make_topics(), random.Random(1), 0, 0, 5.0
    reading = Places.of(job.settings, "logins").landing / "reading"
    for number in range(rounds):
        send(topic, 5_000, day_offset=1)  # what is of today is not sealed yet
        sent += 5_000
        random_moment = after(chance.uniform(0.3, 1.0) * usual)
        code, took = run(job, LAND, random_moment if number else reading.exists)
        killed += code != 0
        usual = took if code == 0 else usual
        assert verify(job.settings, job.source) == []
        found = identities(job)
        assert len(found) == len(set(found))
    assert killed > rounds // 2, "most rounds are to be killed"
    assert run(job, LAND)[0] == 0, job.log.read_text()[-2000:]
    assert identities(job) == sorted((p, offset) for p in (0, 1) for offset in range(sent // 2))
    known = {file.path for entry in read_ledger(Places.of(job.settings, "logins")).entries for file in entry.files}
    root = job.settings.history_folder
    assert {path.relative_to(root) for path in (root / "landing").rglob("*.parquet")} == known, "nothing is left behind"
    assert verify(job.settings, job.source, checksums=True) == []


def published(job: DetectJob) -> tuple[str | None, int]:
    """The version that counts, and the events of its files as the table holds them."""
    with DayTable(job.settings, job.source) as table:
        name, rows = table.published().get(DAY), sum(table.files().values())
    if name is not None:
        assert DayRows(job.settings, "logins").version(DAY, name).facts.rows == rows
    return name, rows


def versions(job: DetectJob) -> int:
    """How many versions of the day are written, published or not."""
    # Not below: what Spark writes there is gone while it is listed.
    return sum(len(versions) for versions in DayRows(job.settings, "logins").versions().values())


@pytest.mark.long
def test_a_seal_that_is_killed_anywhere_publishes_nothing_or_all(job: DetectJob) -> None:
    """First when its version is written and not yet published, then four times at random."""
    topic, chance, source = job.make_topics(), random.Random(2), job.source
    send(topic, 2_000)
    code, usual = run(job, SEAL)
    assert code in (0, 10), job.log.read_text()[-3000:]
    before, total, written = published(job), 2_000, versions(job)
    for number in range(5):
        send(topic, 1_000)
        total += 1_000
        random_moment = after(chance.uniform(0.3, 1.0) * usual)
        run(job, SEAL, random_moment if number else lambda: versions(job) > written)
        now = published(job)
        assert now == before or (number and now[1] == total), (before, now, total)
        assert verify(job.settings, source) == []
        before = now
    code, _ = run(job, SEAL)
    assert code in (0, 10), job.log.read_text()[-3000:]
    name, rows = published(job)
    assert rows == total
    kept = [folder for day, folder, _ in Places.of(job.settings, "logins").version_folders() if day == DAY]
    assert name in kept
    assert verify(job.settings, source, checksums=True) == []
    with DayTable(job.settings, source) as table:
        assert table.audits() == set(), "what killed seals have staged is dropped"
