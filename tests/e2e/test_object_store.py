"""Files and folders on a disk and in a real object store behave alike, as checkpoints use them; refusals say why."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.rig.object_store import ObjectStoreServer
from tests.rig.samples.segments import segments
from tests.rig.waiting import patient
from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.declare.setting_blocks import StorageSettings
from tocsin.declare.settings import Settings
from tocsin.platform import state_file
from tocsin.platform.kafka.topic_set import place_of
from tocsin.platform.storage.job_folders import JobFolders, checkpoint_root, claim, stored_folder
from tocsin.platform.storage.stored_path import StoredPath, modified_at, remove_tree
from tocsin.spark.query.checkpoint import begin_at, whole_since
from tocsin.spark.query.gaps import Cause, Gap, read_gaps, record
from tocsin.spark.query.leadership import remove_other_checkpoints
from tocsin.spark.query.progress import batches_in
from tocsin.spark.tables.dated_versions import DatedVersions
from tocsin.spark.tables.published_table import TableFolder, arrow_schema, read_rows_of

JOB = "detector:bursts"
MOMENT = datetime(2026, 11, 1, 12, tzinfo=UTC)


@pytest.fixture(params=["disk", "object store"])
def folders(request: pytest.FixtureRequest, server: ObjectStoreServer, tmp_path: Path) -> JobFolders:
    """The folders of a job whose checkpoint lies on a disk, or in the store."""
    disk = StorageSettings(checkpoints=f"file:{tmp_path}/shared")
    storage = disk if request.param == "disk" else server.settings(tmp_path.name)
    return JobFolders.of(settings_in(tmp_path, storage), JOB)


@pytest.fixture
def folder(folders: JobFolders) -> StoredPath:
    return folders.stored


def settings_in(tmp_path: Path, storage: StorageSettings, instance: str = "one") -> Settings:
    return Settings(project=tmp_path, state=tmp_path / "state", instance=instance, storage=storage)


def test_a_note_is_replaced_whole_found_listed_and_removed(folder: StoredPath) -> None:
    note = folder / "f1" / "note.json"
    assert not note.exists()
    assert state_file.read(note, str, "none") == "none"
    with pytest.raises(FileNotFoundError):
        note.read_bytes()
    for text in ("first", "second, and longer"):
        state_file.write(note, str, text)
        assert state_file.load(note, str) == text
    assert (note.exists(), note.is_file(), note.is_dir()) == (True, True, False)
    assert (note.parent.exists(), note.parent.is_file(), note.parent.is_dir()) == (True, False, True)
    assert (note.name, note.parent.name, str(note)) == ("note.json", "f1", f"{folder}/f1/note.json")
    assert abs(modified_at(note) - time.time()) < patient(60)
    assert [str(one) for one in folder.iterdir()] == [f"{folder}/f1"]
    note.unlink()
    note.unlink(missing_ok=True)
    assert not note.exists()
    with pytest.raises(FileNotFoundError):
        note.unlink()
    with pytest.raises(FileNotFoundError):
        modified_at(note)


def test_patterns_find_what_checkpoints_look_for(folder: StoredPath) -> None:
    for name in (
        "f1/start.json",
        "f1/query/commits/0",
        "f1/query/commits/11",
        "f1/query/commits/.2.tmp",
        "f2/start.json",
    ):
        place = folder
        for part in name.split("/"):
            place = place / part
        state_file.write(place, int, 1)
    assert {one.parent.name for one in folder.glob("*/start.json")} == {"f1", "f2"}
    assert [one.name for one in folder.glob("f1/query*/commits")] == ["commits"]
    assert batches_in(folder / "f1" / "query" / "commits") == {0, 11}
    assert batches_in(folder / "f3" / "commits") == set()
    assert [*(folder / "f3").glob("*")] == []


def test_a_tree_is_removed_and_its_neighbour_stays(folder: StoredPath) -> None:
    for name in ("query", "query-2"):
        state_file.write(folder / name / "offsets" / "0", int, 1)
    remove_tree(folder / "query")
    remove_tree(folder / "query")
    assert not (folder / "query").exists()
    assert (folder / "query-2" / "offsets" / "0").exists()


def test_checkpoints_and_gaps_work_the_same(folders: JobFolders, tmp_path: Path) -> None:
    base = folders.stored
    begin_at(base, "f1", {place_of("events.logins", 0): 5}, MOMENT)
    begin_at(base, "f2", {place_of("events.logins", 0): 9}, MOMENT + timedelta(hours=1))
    assert whole_since(base, "f2") == MOMENT + timedelta(hours=1)
    remove_other_checkpoints(settings_in(tmp_path, StorageSettings()), folders, {"f2"})
    assert {one.parent.name for one in base.glob("*/start.json")} == {"f2"}
    gap = Gap(topic="t", cause=Cause.SKIPPED, found_at=MOMENT, since=None, until=MOMENT, partitions={})
    record(base, gap)
    record(base, gap)
    assert read_gaps(base) == [gap]


@pytest.mark.parametrize("place", ["disk", "object store"])
def test_rows_of_tables_are_published_kept_for_readers_and_removed(
    place: str, server: ObjectStoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tocsin.spark.tables.published_table._READERS_SECONDS", -60.0)
    storage = StorageSettings(checkpoints=f"file:{tmp_path}/shared")
    storage = storage if place == "disk" else server.settings(tmp_path.name)
    both = storage.model_copy(update={"history": f"{storage.checkpoints}/past"})
    settings, spec = settings_in(tmp_path, storage).model_copy(update={"storage": both}), segments()
    folder, versions, rows = (
        TableFolder(settings, spec),
        DatedVersions(settings, spec),
        arrow_schema(spec).empty_table(),
    )
    assert folder.current() is None
    first, before, second = (folder.publish([], MOMENT, maker) for maker in ("", "", "somebody"))
    assert (folder.current(), second.number) == (second, first.number + 2)
    assert [folder.place(one).exists() for one in (first, before, second)] == [False, True, True]
    assert read_rows_of(folder.place(second)) == rows
    days = [MOMENT.date() + timedelta(days=number) for number in range(3)]
    for day in days:
        versions.add(day, rows, [day], MOMENT)
    assert [one.day for one in DatedVersions(settings, spec).read()] == [one.day for one in versions.read()] == days
    versions.forget(days[1])
    assert [one.day for one in versions.read()] == days[1:]
    assert not settings.state.exists(), "nothing of it was on this machine"


@pytest.mark.parametrize("place", ["disk", "object store"])
def test_a_second_installation_is_refused(place: str, server: ObjectStoreServer, tmp_path: Path) -> None:
    storage = StorageSettings(checkpoints=f"file:{tmp_path}/shared") if place == "disk" else server.settings("claimed")
    mine, theirs = (settings_in(tmp_path, storage, name) for name in ("mine", "theirs"))
    claim(mine)
    claim(mine)
    with pytest.raises(ConfigError, match=r"belongs to installation 'mine' .*another prefix, or remove .*mine.json"):
        claim(theirs)
    (checkpoint_root(mine) / "owners" / "mine.json").unlink()
    claim(theirs)


def test_a_bucket_that_is_missing_is_named(server: ObjectStoreServer, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"s3a://not-there/.*storage.checkpoints: the bucket does not exist"):
        claim(settings_in(tmp_path, server.settings("x", bucket="not-there")))


def test_a_denied_access_names_the_credentials(server: ObjectStoreServer, tmp_path: Path) -> None:
    place = stored_folder(settings_in(tmp_path, server.settings("denied")), JOB)
    server.deny()
    try:
        for use in (
            lambda: state_file.write(place / "a", int, 1),
            lambda: [*place.iterdir()],
            (place / "a").exists,
        ):
            with pytest.raises(ConfigError, match=r"denies access|does not know the access key"):
                use()
    finally:
        server.allow()


def test_a_store_that_is_away_is_to_be_tried_again(server: ObjectStoreServer, tmp_path: Path) -> None:
    note = stored_folder(settings_in(tmp_path, server.settings("away")), JOB) / "note.json"
    state_file.write(note, int, 1)
    server.wire.cut()
    try:
        for use in (lambda: state_file.load(note, int), lambda: state_file.write(note, int, 2), note.exists):
            with pytest.raises(TransientError, match=r"did not answer"):
                use()
    finally:
        server.wire.mend()
    assert state_file.load(note, int) == 1


def test_a_slow_store_answers_late(server: ObjectStoreServer, tmp_path: Path) -> None:
    note = stored_folder(settings_in(tmp_path, server.settings("slow")), JOB) / "note.json"
    server.wire.slow_down(0.3)
    try:
        state_file.write(note, int, 1)
        assert state_file.load(note, int) == 1
    finally:
        server.wire.mend()


def test_a_write_that_loses_its_connection_half_way_changes_nothing(server: ObjectStoreServer, tmp_path: Path) -> None:
    note = stored_folder(settings_in(tmp_path, server.settings("half")), JOB) / "note.json"
    state_file.write(note, str, "before")
    server.wire.cut()  # so that the next request takes a connection of its own
    server.wire.mend()
    server.wire.most_bytes = 400_000
    try:
        with pytest.raises(TransientError):
            state_file.write(note, str, "x" * 2_000_000)
    finally:
        server.wire.mend()
    assert state_file.load(note, str) == "before"
