"""From a real Kafka through landing, sealing and publishing to a backfill: the findings are those that were planted."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.rig.broker import Broker
from tests.rig.detect_job import DETECTOR, WINDOW, DetectJob, Topic, detect_job, text
from tests.rig.landing import land
from tests.rig.object_store import object_store
from tests.rig.sink_servers import emptied, running
from tests.rig.waiting import patient
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.source import Source
from tocsin.declare.setting_blocks import HistorySettings
from tocsin.history.backfill.backfill_ledger import Backfills
from tocsin.history.care import verify
from tocsin.history.day_status import DayState, known, statuses
from tocsin.history.day_table import DayTable
from tocsin.history.places import begin
from tocsin.platform.storage.s3_store import VARIABLES, prepare_s3a
from tocsin.platform.storage.stored_path import find_all, open_stored
from tocsin.setup.paths import here
from tocsin.spark.batch_session import shared_session

JOBS, RUN_PROGRAMS = here().root / "spark_jobs", here().root / "tests" / "rig" / "run_programs.py"
NOW = datetime.now(UTC)
DAY = NOW.date() - timedelta(days=1)
START = begin(DAY)


@pytest.fixture(params=["disk", pytest.param("object store", marks=pytest.mark.long)])
def job(request: pytest.FixtureRequest, broker: Broker, tmp_path: Path) -> Iterator[DetectJob]:
    """A job whose history is in a folder, or in an object store with its catalogue in PostgreSQL."""
    with ExitStack() as stack:
        job, grace = stack.enter_context(detect_job(tmp_path, broker)), timedelta(seconds=1)
        changed: dict[str, Any] = {"history": HistorySettings(grace=grace)}
        if request.param == "object store":
            database = emptied(stack.enter_context(running("postgres")).address)
            (file := tmp_path / "catalogue").write_text(database.replace("postgresql:", "postgresql+psycopg:"))
            store = stack.enter_context(object_store(tmp_path)).history_settings("team/history")
            changed = {
                "history": HistorySettings(grace=grace, catalog_file=file),
                "storage": store,
                "instance": "stored",
            }
        job.settings = job.settings.model_copy(update=changed)
        stack.enter_context(shared_session())
        yield job


def s3a_environment(job: DetectJob) -> dict[str, str]:
    """The variables that Airflow's task gives to spark-submit."""
    storage = job.settings.storage
    with pytest.MonkeyPatch.context() as patched:
        for name in VARIABLES:
            patched.setenv(name, "")
        prepare_s3a(storage, storage.remote_uri, Path())
        return {name: value for name in VARIABLES if (value := os.environ[name])}


def submit(job: DetectJob, *programs: Sequence[str]) -> tuple[int, str]:
    """Exit code of batch programs with their words, one after another until one fails, and what they said."""
    jars = ",".join(map(str, sorted(here().jars("spark").glob("*.jar"))))
    given = json.dumps([[str(JOBS / program), *words] for program, *words in programs])
    done = subprocess.run(
        [JOBS / "submit.sh", "--master", "local[2]", "--jars", jars, RUN_PROGRAMS, given],
        env=job.environment | s3a_environment(job),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def backfilled(job: DetectJob) -> dict[tuple[str, datetime], tuple[str, float, bool]]:
    """Level and score of each finding of DAY by user and window, and whether the score is a lower bound."""
    backfills = Backfills(job.settings, DETECTOR)
    found = backfills.findings(DAY, backfills.read().published[DAY])
    return {(one.entity["user_id"], one.moment): (one.level, one.score, one.at_least) for one in found}


def write(topic: Topic) -> dict[tuple[str, datetime], tuple[str, float, bool]]:
    """Bursts over the whole of DAY, duplicates, events around midnight, and ticks past its end; what is to be found."""
    expected = {}
    for hour in range(20):
        for user, count in (("many", 60 + 5 * hour), ("few", 50), (f"once-{hour}", 101)):
            for number in range(count):
                topic.event(user, START + timedelta(hours=hour, milliseconds=20 * number), NOW, number % 2)
            if count > 50:
                level = "urgent" if count > 100 else "email"
                expected[user, START + timedelta(hours=hour)] = (level, float(count), False)
    for number in range(60):  # the last window reaches to the end of the day, not beyond it
        topic.event("last", START + timedelta(days=1, milliseconds=-1), NOW, number % 2)
        topic.event("behind", START + timedelta(days=1), NOW, number % 2)
    expected["last", START + timedelta(days=1) - WINDOW] = ("email", 60.0, False)
    record = topic.event("twice", START + timedelta(hours=1), NOW, 0)
    for _ in range(80):
        topic.write(record, 1)
    topic.tick(NOW)
    topic.flush()
    return expected


def declare_words(job: DetectJob) -> Source:
    """The source that the flow of the example writes."""
    for file in ("sources/lines.toml", "sources/words.toml", "flows/words.py"):
        (job.settings.project / file).parent.mkdir(exist_ok=True)
        shutil.copy(here().root / "examples" / "words" / file, job.settings.project / file)
    return read_catalog(job.settings.project).source("words")


def write_words(job: DetectJob) -> dict[tuple[str, int, int], str]:
    """What a flow writes that is killed now and then: several events of one line, and repeats; each word once."""
    topic, planted = Topic(job.settings, "words"), {}
    for offset in range(200):
        for position in range(offset % 4):
            identity = (f"flow:words/{position}:raw.lines", offset % 2, offset)
            planted[identity] = f"word{position}"
            value = dict(zip(("raw_topic", "raw_partition", "raw_offset"), identity, strict=True))
            times = {"event_time": text(START + timedelta(minutes=offset)), "ingested_at": text(NOW)}
            further = {"source": "words", "schema_version": 1, "word": planted[identity], "writer": "w"}
            for _ in range(1 + (offset % 3 == 0)):
                topic.write(json.dumps(value | times | further).encode(), position % 2)
    topic.tick(NOW)
    topic.flush()
    return planted


def sealed(job: DetectJob, source: Source) -> list[tuple[tuple[str, int, int], str]]:
    """Identity and word of each row of history."""
    with DayTable(job.settings, source) as table:
        rows = []
        for path in (find_all(folder, "*.parquet") for _, _, folder in table.places.version_folders()):
            for one in path:
                with open_stored(one) as file:
                    rows += pq.read_table(file).to_pylist()
    return [((row["raw_topic"], row["raw_partition"], row["raw_offset"]), row["word"]) for row in rows]


def logins(job: DetectJob) -> Source:
    return read_catalog(job.settings.project).source("logins")


def states(job: DetectJob, source: Source | None = None) -> dict[date, DayState]:
    settings, source = job.settings, source or logins(job)
    with DayTable(settings, source) as table:
        return {one.day: one.state for one in statuses(source.name, known(settings, source, table))}


def test_seal_and_backfill_find_exactly_what_was_planted_when_kafka_holds_it_no_more(job: DetectJob) -> None:
    words = declare_words(job)
    topic, source = job.make_topics(), logins(job)
    planted, expected = write_words(job), write(topic)
    assert land(job.settings, words).events > len(planted), "repeats land"
    entry = land(job.settings, source)
    assert entry.events == sum(topic.truth.failed.values()) + 80
    again = land(job.settings, source)
    assert (again.events, again.files) == (0, ())
    assert states(job) == {DAY: DayState.READY, NOW.date(): DayState.WAITING}

    events = job.settings.names.events("logins")
    client = AdminClient(job.settings.kafka.for_librdkafka())
    ends = [TopicPartition(events, partition, -1) for partition in (0, 1)]
    for future in client.delete_records(ends).values():
        future.result(patient(30))
    code, said = submit(job, ("seal.py", "words"), ("seal.py", "logins"), ("backfill.py", DETECTOR, f"--day={DAY}"))
    assert code == 0, said[-3000:]
    # Spark tells where its servers are bound, before its level is set.
    assert "Server created on 127.0.0.1:" in said
    assert states(job)[DAY] is DayState.PUBLISHED
    assert verify(job.settings, source, checksums=True) == []
    assert backfilled(job) == expected
    assert states(job, words)[DAY] is DayState.PUBLISHED
    assert verify(job.settings, words, checksums=True) == []
    assert sorted(sealed(job, words)) == sorted(planted.items()), "what a flow has written is sealed once"

    for number in range(61):
        topic.event("late", START + timedelta(hours=3, milliseconds=number), NOW, number % 2)
    topic.flush()
    assert land(job.settings, source).events == 61
    assert states(job)[DAY] is DayState.OUTDATED
    assert verify(job.settings, source) == []
