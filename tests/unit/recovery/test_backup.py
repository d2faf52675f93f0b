"""A backup brings an installation back, or is refused: on a Kafka that librdkafka plays."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import insert, select

from tests.rig.played_kafka import played_kafka
from tests.rig.samples.project import copy_project
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.schema import detectors
from tocsin.kafka.reader import TopicReader
from tocsin.kafka.topic_set import place_of
from tocsin.model.errors import ConfigError, TocsinError, TransientError
from tocsin.model.names import COMPUTE, INDEXER, landing_job
from tocsin.project.blocks.storage_settings import StorageSettings
from tocsin.project.catalog import Catalog, read_catalog
from tocsin.project.settings import Settings
from tocsin.recovery import state_parts
from tocsin.recovery.backup import make_backup
from tocsin.recovery.manifest import MANIFEST
from tocsin.recovery.restore import restore
from tocsin.runtime import private
from tocsin.runtime.lock import hold
from tocsin.sparkjob.query.checkpoint import begin_at, read_committed, save_place

INDEXED = {0: 7, 1: 0, 2: 3, 3: 0}
REACHED = datetime(2026, 11, 21, 12, tzinfo=UTC)
INGEST, DETECTOR, VIEW = "ingest__logins", "detector__failed_logins", f"{COMPUTE}__totals"


@pytest.fixture(scope="module")
def kafka() -> Iterator[object]:
    with played_kafka("findings") as kafka:
        yield kafka


@pytest.fixture
def settings(tmp_path: Path, kafka: object, migrated_file: Path) -> Settings:
    """An installation that has run for a while."""
    project, state = tmp_path / "project", tmp_path / "state"
    copy_project(project)
    settings = Settings(project=project, state=state, kafka=kafka)
    for name in (INGEST, f"{DETECTOR}/f1", f"{VIEW}/b1"):
        spark_checkpoint(state / "checkpoints" / name / "query")
    begin_at(state / "checkpoints" / DETECTOR, "f1", {place_of("events.logins", 0): 5}, REACHED - timedelta(days=1))
    begin_at(state / "checkpoints" / VIEW, "b1", {place_of("events.logins", 0): 5}, REACHED)
    for name, text in {
        f"checkpoints/{DETECTOR}/gaps.json": "[]",
        f"checkpoints/{DETECTOR}/lock": "1\n",
        f"checkpoints/{DETECTOR}/f1/query/state/0/0/1.zip": "state",
        f"checkpoints/{DETECTOR}/versions/v1/failed_logins.py": "detect = 1\n",
        "supervision/desired.json": '{"off": {"detector__failed_logins": true}}',
        "supervision/jobs.lock": "",
        "history/ledger/logins/20261121T120000000Z.json": "{}",
        "kafka/data/meta.properties": "not ours",
        "logs/indexer.log": "long",
        "web.token": "secret",
    }.items():
        (state / name).parent.mkdir(parents=True, exist_ok=True)
        (state / name).write_text(text)
    with sqlite3.connect(state / "history" / "catalog.db") as catalog:
        catalog.execute("PRAGMA journal_mode=WAL")
        catalog.execute("CREATE TABLE days (day TEXT)")
        catalog.execute("INSERT INTO days VALUES ('2026-11-21')")
    catalog.close()
    shutil.copy(migrated_file, state / "alerts.db")
    database = Database(settings.alerts_database)
    with database.write() as connection:
        connection.execute(insert(detectors).values(name="failed_logins", facts={"since": "before"}))
    database.close()
    commit(settings, INDEXED)
    return settings


@pytest.fixture
def catalog(settings: Settings) -> Catalog:
    return read_catalog(settings.project)


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
    (query / "sources" / "0").mkdir(parents=True)
    (query / "sources" / "0" / "0").write_text("v1")


def commit(settings: Settings, offsets: dict[int, int]) -> None:
    with TopicReader(settings, INDEXER, "findings") as topic:
        topic.commit(offsets)


def committed(settings: Settings) -> dict[int, int]:
    with TopicReader(settings, INDEXER, "findings") as topic:
        return topic.committed(INDEXED)


def known(settings: Settings) -> dict[str, object]:
    database = Database(settings.alerts_database)
    with database.read() as connection:
        rows = {name: facts for name, facts in connection.execute(select(detectors))}
    database.close()
    return rows


def all_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def backup(settings: Settings, catalog: Catalog, tmp_path: Path) -> Path:
    """A backup of an installation that is gone meanwhile."""
    folder = tmp_path / "backup"
    make_backup(settings, catalog, folder)
    shutil.rmtree(settings.state)
    return folder


def test_everything_that_counts_is_there_again(settings: Settings, backup: Path) -> None:
    commit(settings, dict.fromkeys(INDEXED, 100))
    restore(settings, backup)
    checkpoints = settings.state / "checkpoints"
    assert read_committed(checkpoints / INGEST / "query") == {"events.logins/0": 20}
    assert not (checkpoints / DETECTOR / "f1").exists(), "its state is made anew"
    place = json.loads((checkpoints / DETECTOR / "restored" / "start.json").read_text())
    assert (place["offsets"], place["publish_from"]) == ({"events.logins/0": 20}, "2026-11-21T12:00:00Z")
    assert (checkpoints / DETECTOR / "versions" / "v1" / "failed_logins.py").exists()
    assert (checkpoints / DETECTOR / "gaps.json").exists()
    assert not (checkpoints / VIEW).exists(), "a view is computed anew"
    assert json.loads((settings.state / "supervision" / "desired.json").read_text())["off"]
    assert (settings.state / "history" / "ledger" / "logins" / "20261121T120000000Z.json").exists()
    with sqlite3.connect(settings.state / "history" / "catalog.db") as connection:
        assert connection.execute("SELECT * FROM days").fetchall() == [("2026-11-21",)]
    connection.close()
    assert not {"kafka", "logs", private.RESTORING} & {path.name for path in settings.state.iterdir()}
    assert known(settings) == {"failed_logins": {"since": "before"}}
    assert committed(settings) == INDEXED
    assert settings.state.stat().st_mode & 0o077 == 0


def test_a_backup_moves_checkpoints_elsewhere_and_is_made_from_there(
    settings: Settings, catalog: Catalog, backup: Path, tmp_path: Path
) -> None:
    elsewhere = StorageSettings(checkpoints=f"file:{tmp_path}/shared")
    moved = settings.model_copy(update={"instance": "moved", "storage": elsewhere})
    restore(moved, backup)
    shared, local = tmp_path / "shared", settings.state / "checkpoints"
    assert read_committed(shared / INGEST / "query") == {"events.logins/0": 20}
    assert {path.name for path in (shared / DETECTOR).iterdir()} == {"gaps.json", "restored"}
    assert [str(path.relative_to(local)) for path in local.rglob("*.*")] == [f"{DETECTOR}/versions/v1/failed_logins.py"]
    make_backup(moved, catalog, tmp_path / "again")
    again, before = (all_in(folder / "checkpoints") for folder in (tmp_path / "again", backup))
    assert again == before
    shutil.rmtree(settings.state)
    with pytest.raises(ConfigError, match=f"{shared / DETECTOR}: is in the way"):
        restore(moved, backup)


def test_a_place_that_was_restored_can_be_backed_up_again(settings: Settings, backup: Path, tmp_path: Path) -> None:
    restore(settings, backup)
    save_place(settings.state / "checkpoints" / DETECTOR, tmp_path / "again")
    again, before = (folder / "restored" / "start.json" for folder in
                     (tmp_path / "again", settings.state / "checkpoints" / DETECTOR))  # fmt: skip
    assert again.read_text() == before.read_text()


def test_a_view_begins_a_new_build(settings: Settings, catalog: Catalog, tmp_path: Path) -> None:
    (settings.project / "views").mkdir(exist_ok=True)
    catalog.views["totals"] = None  # type: ignore[assignment]  # its name is enough
    make_backup(settings, catalog, tmp_path / "backup")
    assert json.loads((tmp_path / "backup" / "views" / "totals.rebuild.json").read_text())["id"]


def in_manifest(key: str, value: object) -> Callable[[Path, Settings], Settings]:
    def change(backup: Path, settings: Settings) -> Settings:
        manifest = json.loads((backup / MANIFEST).read_text())
        assert key in manifest["origin"]
        manifest["origin"][key] = value
        (backup / MANIFEST).write_text(json.dumps(manifest))
        return settings

    return change


def without(name: str) -> Callable[[Path, Settings], Settings]:
    def remove(backup: Path, settings: Settings) -> Settings:
        (backup / name).unlink()
        return settings

    return remove


def with_file(name: str, text: str = "other") -> Callable[[Path, Settings], Settings]:
    def write(backup: Path, settings: Settings) -> Settings:
        (backup / name).write_text(text)
        return settings

    return write


def with_rows(_: Path, settings: Settings) -> Settings:
    elsewhere = settings.state.parent / "elsewhere.db"
    database = Database(f"sqlite:///{elsewhere}")
    database.migrate()
    with database.write() as connection:
        connection.execute(insert(detectors).values(name="another", facts={}))
    database.close()
    alerts = settings.alerts.model_copy(update={"database": f"sqlite:///{elsewhere}"})
    return settings.model_copy(update={"alerts": alerts})


def used(_: Path, settings: Settings) -> Settings:
    (settings.state / "checkpoints" / INGEST).mkdir(parents=True)
    return settings


def with_prefix(_: Path, settings: Settings) -> Settings:
    kafka = settings.kafka.model_copy(update={"topic_prefix": "shop."})
    return settings.model_copy(update={"kafka": kafka})


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (without(MANIFEST), "is no whole backup"),
        (without("web.token"), "web.token: is missing"),
        (with_file("web.token"), "web.token: was changed"),
        (with_file("checkpoints/extra"), "extra: is no part of this backup"),
        (with_file(MANIFEST, "{"), "cannot be read: it was changed, or made by another Tocsin"),
        (in_manifest("format", 2), "has form 2, this Tocsin knows 1"),
        (in_manifest("tocsin", "0.0.1"), "was made by Tocsin 0.0.1, this is "),
        (in_manifest("alerts_schema", "9999"), "has alerts DB schema 9999"),
        (in_manifest("state", "/elsewhere"), "is of the state folder /elsewhere"),
        (in_manifest("cluster", "another"), "offsets of Kafka cluster another"),
        (with_prefix, "is of topics that begin with '', not 'shop.'"),
        (used, "checkpoints: is in the way"),
        (with_rows, "elsewhere.db: holds rows"),
    ],
)
def test_what_is_not_whole_or_not_ours_is_refused_and_nothing_changes(
    spoil: Callable[[Path, Settings], Settings], said: str, settings: Settings, backup: Path
) -> None:
    settings = spoil(backup, settings)
    before = all_in(settings.state) if settings.state.exists() else {}
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        restore(settings, backup)
    assert (all_in(settings.state) if settings.state.exists() else {}) == before
    assert committed(settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"topic_prefix": ""})}))


def test_jobs_that_run_are_named(settings: Settings, backup: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Row:
        class labels:
            job = "indexer"

    monkeypatch.setattr("tocsin.supervision.runners.local.LocalRunner.list", lambda _: [Row])
    with pytest.raises(TransientError, match=r"indexer run on .*; stop all jobs, then restore"):
        restore(settings, backup)
    assert not settings.state.exists()


@pytest.mark.parametrize("at", ["copy_folder", "copy_file"])
def test_a_restore_that_broke_off_lets_nothing_start_until_it_is_done_again(
    at: str, settings: Settings, backup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(state_parts, at, full_disk)
        with pytest.raises(OSError, match="No space"):
            restore(settings, backup)
    with pytest.raises(
        ConfigError, match="a restore has not finished; run `tocsin restore` with the same backup again"
    ):
        private.protect(settings.state)
    other = backup.with_name("other")
    shutil.copytree(backup, other)
    manifest = json.loads((other / MANIFEST).read_text()) | {"made_at": "2026-01-01T00:00:00Z"}
    (other / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ConfigError, match="another backup was being restored here"):
        restore(settings, other)
    restore(settings, backup)
    private.protect(settings.state)
    assert known(settings) == {"failed_logins": {"since": "before"}}


def test_a_backup_that_fails_leaves_nothing(
    settings: Settings, catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name for path in tmp_path.iterdir()}
    monkeypatch.setattr(state_parts, "copy_folder", full_disk)
    with pytest.raises(OSError, match="No space"):
        make_backup(settings, catalog, tmp_path / "backup")
    assert {path.name for path in tmp_path.iterdir()} == before


def test_a_batch_that_runs_is_waited_for_and_named(settings: Settings, catalog: Catalog, tmp_path: Path) -> None:
    job = landing_job("logins")
    with hold(settings.checkpoint(job) / "lock"):
        refuse_backup(settings, catalog, tmp_path, r"land:logins, .* or another backup runs: .* held by process \d+;")
    make_backup(settings, catalog, tmp_path / "backup")


def refuse_backup(settings: Settings, catalog: Catalog, tmp_path: Path, what: str) -> None:
    with pytest.raises(TransientError, match=what):
        make_backup(settings, catalog, tmp_path / "backup", lock_seconds=0)


@pytest.mark.parametrize(
    ("folder", "said"), [("project", "exists; name a folder that does not"), ("state/backup", "lies in the state")]
)
def test_a_folder_that_is_no_place_for_a_backup_is_refused(
    folder: str, said: str, settings: Settings, catalog: Catalog, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        make_backup(settings, catalog, tmp_path / folder)


def test_an_installation_that_never_ran_has_nothing_to_back_up(
    settings: Settings, catalog: Catalog, tmp_path: Path
) -> None:
    shutil.rmtree(settings.state)
    with pytest.raises(ConfigError, match="holds no installation"):
        make_backup(settings, catalog, tmp_path / "backup")


def test_an_alerts_db_of_another_schema_is_not_backed_up(settings: Settings, catalog: Catalog, tmp_path: Path) -> None:
    with sqlite3.connect(settings.state / "alerts.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0001'")
    connection.close()
    with pytest.raises(TocsinError, match="has not the schema of this Tocsin"):
        make_backup(settings, catalog, tmp_path / "backup")


def full_disk(*_: object) -> None:
    raise OSError(28, "No space left on device")
