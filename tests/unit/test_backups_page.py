"""The scripts of docs/run/backups.md bring an installation back, or refuse: on a Kafka that librdkafka plays."""

import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import insert, select

from tests.rig.backups_page import backup_with, restore_with
from tests.rig.played_kafka import played_kafka
from tests.rig.samples.project import copy_project
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.schema import detectors
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.names import COMPUTE, INDEXER, landing_job
from tocsin.declare.setting_blocks import KafkaSettings
from tocsin.declare.settings import Settings
from tocsin.platform import private
from tocsin.platform.kafka.reader import TopicReader
from tocsin.platform.kafka.topic_set import place_of
from tocsin.platform.lock import hold
from tocsin.spark.query.checkpoint import begin_at, read_committed, whole_since

INDEXED = {0: 7, 1: 0, 2: 3, 3: 0}
REACHED = datetime(2026, 11, 21, 12, tzinfo=UTC)
INGEST, DETECTOR, VIEW = "ingest__logins", "detector__failed_logins", f"{COMPUTE}__totals"


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaSettings]:
    with played_kafka("findings") as kafka:
        yield kafka


@pytest.fixture
def settings(tmp_path: Path, kafka: KafkaSettings, migrated_file: Path) -> Settings:
    """An installation that has run for a while."""
    project, state = tmp_path / "project", tmp_path / "state"
    copy_project(project)
    settings = Settings(project=project, state=state, kafka=kafka)
    private.begin(state)
    for name in (INGEST, f"{DETECTOR}/f1", f"{VIEW}/b1"):
        spark_checkpoint(state / "checkpoints" / name / "query")
    begin_at(state / "checkpoints" / DETECTOR, "f1", {place_of("events.logins", 0): 5}, REACHED - timedelta(days=1))
    for name, text in {
        f"checkpoints/{DETECTOR}/gaps.json": "[]",
        f"checkpoints/{DETECTOR}/lock": "1\n",
        f"checkpoints/{DETECTOR}/f1/query/state/0/0/1.zip": "state",
        "models/learnt/ab12.pickle": "model",
        f"checkpoints/{landing_job('logins')}/lock": "1\n",
        "supervision/desired.json": '{"off": {"detector__failed_logins": true}}',
        "supervision/jobs.lock": "",
        "history/ledger/logins/20261121T120000000Z.json": "{}",
        "history/landed files/a b.parquet": "rows",
        "kafka/data/meta.properties": "not ours",
        "logs/indexer.log": "long",
        "web.token": "secret",
    }.items():
        (state / name).parent.mkdir(parents=True, exist_ok=True)
        (state / name).write_text(text)
    with closing(sqlite3.connect(state / "history" / "catalog.db")) as catalog:
        catalog.execute("PRAGMA journal_mode=WAL")
        catalog.execute("CREATE TABLE days (day TEXT)")
        catalog.execute("INSERT INTO days VALUES ('2026-11-21')")
        catalog.commit()
    shutil.copy(migrated_file, state / "alerts.db")
    with closing(Database(settings.alerts_database)) as database, database.write() as connection:
        connection.execute(insert(detectors).values(name="failed_logins", facts={"since": "before"}))
    commit(settings, INDEXED)
    return settings


def spark_checkpoint(query: Path) -> None:
    """Three batches, of which two are committed; the watermark of the last of them is REACHED."""
    for batch, offset in ((0, 10), (1, 20), (2, 30)):
        watermark = {"batchWatermarkMs": round(REACHED.timestamp() * 1000)}
        lines = ["v1", json.dumps(watermark), json.dumps({"events.logins": {"0": offset}})]
        (query / "offsets").mkdir(parents=True, exist_ok=True)
        (query / "offsets" / str(batch)).write_text("\n".join(lines))
        if batch < 2:
            (query / "commits").mkdir(exist_ok=True)
            (query / "commits" / str(batch)).write_text("v1\n{}")
    (query / "metadata").write_text('{"id": "1"}')


def commit(settings: Settings, offsets: dict[int, int]) -> None:
    with TopicReader(settings, INDEXER, "findings") as topic:
        topic.commit(offsets)


def environment(settings: Settings) -> dict[str, str]:
    kafka = settings.kafka.bootstrap_servers
    return os.environ | {"TOCSIN_STATE": str(settings.state), "TOCSIN_KAFKA__BOOTSTRAP_SERVERS": kafka}


@pytest.fixture
def backup(settings: Settings, tmp_path: Path) -> Path:
    """A backup of an installation that is gone meanwhile."""
    made = backup_with(settings, environment(settings), tmp_path / "backup")
    assert (made.returncode, made.stderr) == (0, "")
    shutil.rmtree(settings.state)
    return tmp_path / "backup"


def test_everything_that_counts_is_there_again(settings: Settings, backup: Path) -> None:
    commit(settings, dict.fromkeys(INDEXED, 100))
    restored = restore_with(settings, environment(settings), backup)
    assert (restored.returncode, restored.stderr) == (0, "")
    state, checkpoints = settings.state, settings.state / "checkpoints"
    assert read_committed(checkpoints / INGEST / "query") == {"events.logins/0": 20}
    places = checkpoints / DETECTOR / "f1.restored"
    assert read_committed(places / "query") == {"events.logins/0": 20}
    assert whole_since(checkpoints / DETECTOR, "f1.restored") == REACHED - timedelta(days=1)
    assert [*(places / "query" / "state").iterdir()] == [], "its state is computed again"
    assert not (checkpoints / DETECTOR / "f1").exists()
    assert (checkpoints / DETECTOR / "gaps.json").exists()
    assert not (checkpoints / VIEW).exists(), "a view is computed anew"
    assert json.loads((state / "supervision" / "desired.json").read_text())["off"]
    assert (state / "history" / "ledger" / "logins" / "20261121T120000000Z.json").exists()
    assert (state / "history" / "landed files" / "a b.parquet").read_text() == "rows"
    with closing(sqlite3.connect(state / "history" / "catalog.db")) as connection:
        assert connection.execute("SELECT * FROM days").fetchall() == [("2026-11-21",)]
    assert (state / "models" / "learnt" / "ab12.pickle").read_text() == "model"
    assert (state / "web.token").read_text() == "secret"
    assert not {"kafka", "logs", private.RESTORING} & {path.name for path in state.iterdir()}
    assert not list(state.rglob("*lock"))
    with closing(Database(settings.alerts_database)) as database, database.read() as connection:
        assert dict(connection.execute(select(detectors)).all()) == {"failed_logins": {"since": "before"}}
    with TopicReader(settings, INDEXER, "findings") as topic:
        assert topic.committed(INDEXED)[0] == INDEXED
    assert state.stat().st_mode & 0o077 == 0
    private.begin(state)


def test_a_batch_that_runs_is_waited_for_and_leaves_no_half_backup(settings: Settings, tmp_path: Path) -> None:
    impatient = environment(settings) | {"BASH_ENV": str(tmp_path / "impatient")}
    (tmp_path / "impatient").write_text('flock() { command flock --wait 0.1 "$3"; }')
    with hold(settings.checkpoint(landing_job("logins")) / "lock"):
        assert backup_with(settings, impatient, tmp_path / "backup").returncode == 1
    assert not (tmp_path / "backup").exists()


def test_what_is_not_whole_or_not_empty_is_refused_and_a_restore_that_broke_off_starts_nothing(
    settings: Settings, backup: Path
) -> None:
    settings.state.mkdir()
    (settings.state / "web.token").write_text("another")
    used = restore_with(settings, environment(settings), backup)
    assert (used.returncode, used.stderr) == (1, f"{settings.state} is not empty: move it away\n")
    (settings.state / "web.token").unlink()
    broken = environment(settings) | {"TOCSIN_KAFKA__TOPIC_PREFIX": "?"}
    assert restore_with(settings, broken, backup).returncode == 1
    with pytest.raises(ConfigError, match=r"restore.unfinished: a restore broke off; move the state folder away"):
        private.begin(settings.state)
    (backup / "databases" / "alerts.db").write_text("other")
    spoilt = restore_with(settings, environment(settings), backup)
    assert spoilt.returncode == 1
    assert "./databases/alerts.db: FAILED" in spoilt.stdout
