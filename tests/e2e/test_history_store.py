"""History in a real object store, its catalogue in a real PostgreSQL: whole, or as before, if a connection breaks.

What Spark makes of it while nothing breaks is in `test_history.py` and `test_parity.py`.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from pyarrow.fs import FileSelector, FileType

from tests.rig.object_store import BUCKET, ObjectStoreServer
from tests.rig.samples.history import DAY
from tests.rig.samples.project import copy_project
from tests.rig.samples.sealed_days import LOGINS, events, landed, seal_day, sealed
from tests.rig.sink_servers import emptied, running
from tests.rig.waiting import patient
from tocsin.alerts.evidence.event_search import EventSearch, find_events
from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.declare.setting_blocks import HistorySettings
from tocsin.declare.settings import Settings
from tocsin.history.care import roll_back, verify
from tocsin.history.day_status import DayState, list_days, published_days
from tocsin.history.day_table import DayTable
from tocsin.history.day_versions import paths
from tocsin.history.history_retention import tidy
from tocsin.history.landing_ledger import landing_lock, read_ledger, sweep
from tocsin.history.places import Places, begin
from tocsin.platform.process_exit import ExitCode
from tocsin.setup.java import find_java
from tocsin.setup.paths import here
from tocsin.supervise.installed_jobs import job_environment


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with running("postgres") as one:
        yield one.address


@pytest.fixture
def settings(server: ObjectStoreServer, database: str, tmp_path: Path) -> Settings:
    file = tmp_path / "catalogue"
    file.write_text(emptied(database).replace("postgresql:", "postgresql+psycopg:"))
    return Settings(
        project=tmp_path,
        state=tmp_path / "state",
        instance="one",
        storage=server.history_settings(tmp_path.name),
        history=HistorySettings(catalog_file=file),
    )


def objects(server: ObjectStoreServer, settings: Settings, folder: str = "") -> list[str]:
    """All files of history in the store."""
    top = f"{BUCKET}/{settings.state.parent.name}/{folder}".rstrip("/")
    found = server.files().get_file_info(FileSelector(top, recursive=True, allow_not_found=True))
    return [one.path for one in found if one.type is FileType.File]


def cut_requests_at(server: ObjectStoreServer, size: int) -> None:
    """Let a request break that has more bytes."""
    server.wire.cut()  # so that the next request takes a connection of its own
    server.wire.mend()
    server.wire.most_bytes = size


def test_days_are_kept_listed_verified_taken_back_and_removed(server: ObjectStoreServer, settings: Settings) -> None:
    landed(settings, "r1", 5)
    sealed(settings, "v1", 5)
    landed(settings, "r2", 2, at=5)
    assert [one.state for one in list_days(settings, LOGINS)] == [DayState.OUTDATED]
    sealed(settings, "v2", 7)
    assert verify(settings, LOGINS, checksums=True) == []
    assert [(one.state, one.rows, one.landed) for one in list_days(settings, LOGINS)] == [(DayState.PUBLISHED, 7, 7)]
    assert published_days(settings, LOGINS)[DAY].version == "v2"
    wanted = EventSearch(start=begin(DAY), end=begin(DAY) + timedelta(hours=1), entity={"user_id": "u"}, most=3)
    assert (found := find_events(settings, LOGINS, wanted)).place == "history", found.note
    assert (found.count, len(found.events)) == (7, 3)
    assert roll_back(settings, LOGINS, DAY).version == "v1"

    places, newer = Places.of(settings, "logins"), DAY + timedelta(days=1)
    seal_day(settings, newer, events(1).to_pylist())  # the newest day stays, whatever the clock says
    with DayTable(settings, LOGINS) as table:
        (file,) = paths(places, DAY, published_days(settings, LOGINS)[DAY])
        assert table.files()[str(file)] == 5
        assert str(file).startswith(f"{settings.storage.history}/days/logins/dt={DAY}/v1/")
        gone = tidy(settings, LOGINS.model_copy(update={"history_days": 1}), table)
        assert (gone.days, [*table.published()], str(file) in table.files()) == ((DAY,), [newer], False)
    assert (len([*places.version_folders()]), [*places.landed_folders()]) == (1, [])
    (left,) = [name for name in objects(server, settings) if name.endswith(".parquet")]
    assert f"dt={newer}" in left
    assert not [*settings.state.rglob("*.parquet"), *settings.state.rglob("*.db")], "nothing of it was on the disk"


def test_landing_that_loses_its_connection_half_way_has_landed_nothing(
    server: ObjectStoreServer, settings: Settings
) -> None:
    landed(settings, "r1", 5)
    cut_requests_at(server, 60_000)
    try:
        with pytest.raises(TransientError, match="did not answer"):
            landed(settings, "r2", 80_000, at=5)
    finally:
        server.wire.mend()
    places = Places.of(settings, "logins")
    with landing_lock(settings, "logins"):
        sweep(places, ledger := read_ledger(places))
    assert [entry.run for entry in ledger.entries] == ["r1"]
    assert len(objects(server, settings, "landing")) == 1
    landed(settings, "r2", 80_000, at=5)
    assert verify(settings, LOGINS, checksums=True) == []
    assert sum(file.total for file in read_ledger(places).files(DAY)) == 80_005


@pytest.mark.long
def test_landing_takes_its_time_in_a_slow_store_and_lands_nothing_in_one_that_denies(
    server: ObjectStoreServer, settings: Settings
) -> None:
    landed(settings, "r1", 5)
    server.wire.slow_down(2)
    landed(settings, "r2", 5, at=5)
    server.wire.mend()
    server.deny()
    try:
        with pytest.raises(
            ConfigError, match=r"storage.history: the store (denies access|does not know the access key)"
        ):
            landed(settings, "r3", 5, at=10)
    finally:
        server.allow()
    assert [entry.run for entry in read_ledger(Places.of(settings, "logins")).entries] == ["r1", "r2"]
    assert len(objects(server, settings, "landing")) == 2


@pytest.mark.long
def test_a_version_whose_publication_is_cut_off_does_not_count(server: ObjectStoreServer, settings: Settings) -> None:
    """After each number of bytes, that is in each of its requests."""
    landed(settings, "r1", 5)
    sealed(settings, "v1", 5)
    version = published_days(settings, LOGINS)[DAY]
    files, broken = paths(Places.of(settings, "logins"), DAY, version), 0
    with DayTable(settings, LOGINS) as table:
        for size in (300, 1_500, 3_000, 6_000):
            cut_requests_at(server, size)
            try:
                table.publish(DAY, f"v{size}", files, {})
            except TransientError:
                broken += 1
                server.wire.mend()
                assert (table.published(), table.files()) == ({DAY: "v1"}, {str(files[0]): 5})
            finally:
                server.wire.mend()
        assert broken
        table.publish(DAY, "v1", files, {})
        assert (table.published(), table.files()) == ({DAY: "v1"}, {str(files[0]): 5})
    assert verify(settings, LOGINS, checksums=True) == []


def declare_logins(settings: Settings) -> None:
    """Write the project whose logins are history for long enough."""
    copy_project(settings.project, "sources")
    declared = settings.project / "sources" / "logins.toml"
    declared.write_text(f"history_days = {LOGINS.history_days}\n{declared.read_text()}")


def seal_with_spark(settings: Settings) -> tuple[int, str]:
    """Seal DAY in a process of its own; its exit code, and what it said."""
    done = subprocess.run(
        [sys.executable, here().root / "spark_jobs" / "seal.py", "logins", f"--day={DAY}"],
        env=job_environment(settings, find_java().home),
        capture_output=True,
        text=True,
        timeout=patient(240),
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.long
def test_a_seal_that_is_cut_off_publishes_nothing_and_the_next_one_finishes(
    server: ObjectStoreServer, settings: Settings
) -> None:
    """While a task uploads a file, and while the job moves the second of its files."""
    declare_logins(settings)
    landed(settings, "r1", events(6, users=3))
    sealed(settings, "v1", 6)
    landed(settings, "r2", events(30, users=3), at=6)
    places = Places.of(settings, "logins")
    broken = set[str]()
    for pattern, nth in ((rb"PUT \S+/attempt_\S+/part-", 1), (rb"copy-source: \S+/task_", 2)):
        server.wire.cut_at(pattern, nth)
        code, said = seal_with_spark(settings)
        assert server.wire.is_cut, said[-3000:]
        server.wire.mend()
        assert code == ExitCode.FAILED, said[-3000:]
        assert "did not answer" in said
        left = {name for _, name, _ in places.version_folders()} - {"v1"}
        assert len(left - broken) == 1, "what could not be removed is there"
        broken |= left
        assert published_days(settings, LOGINS)[DAY].version == "v1"
        assert [one.state for one in list_days(settings, LOGINS)] == [DayState.OUTDATED]
        assert verify(settings, LOGINS, checksums=True) == []
    server.wire.slow_down(2, rb"^PUT ")
    code, said = seal_with_spark(settings)
    server.wire.mend()
    assert code == ExitCode.FAILED, said[-3000:]  # only since no Kafka is there to read what is new
    assert "new events not read" in said
    version = published_days(settings, LOGINS)[DAY]
    assert version.facts.rows == 30
    assert verify(settings, LOGINS, checksums=True) == []
    assert {name for _, name, _ in places.version_folders()} == {"v1", version.version}
    assert not [name for name in objects(server, settings) if "_temporary" in name]


@pytest.mark.long
def test_a_seal_in_a_store_that_denies_or_hangs_says_so_and_publishes_nothing(
    server: ObjectStoreServer, settings: Settings
) -> None:
    """Both begin while a task writes."""
    declare_logins(settings)
    landed(settings, "r1", events(30, users=3))
    server.wire.slow_down(60, rb"PUT \S+/attempt_\S+/part-")
    code, said = seal_with_spark(settings)
    server.wire.mend()
    assert code == ExitCode.FAILED, said[-3000:]
    assert "the object store did not answer" in said
    server.wire.call_at(rb"PUT \S+/attempt_\S+/part-", server.deny)
    try:
        code, said = seal_with_spark(settings)
    finally:
        server.allow()
    assert code == ExitCode.MISCONFIGURED, said[-3000:]
    assert re.search("storage.history: the store (denies access|does not know the access key)", said), said[-3000:]
    assert published_days(settings, LOGINS) == {}
    assert verify(settings, LOGINS, checksums=True) == []


@pytest.mark.long
def test_a_store_that_is_away_or_denies_is_said(server: ObjectStoreServer, settings: Settings) -> None:
    landed(settings, "r1", 5)
    sealed(settings, "v1", 5)
    server.wire.cut()
    try:
        with pytest.raises(TransientError, match=r"s3a://.*did not answer"):
            list_days(settings, LOGINS)
    finally:
        server.wire.mend()
    server.deny()
    try:
        with pytest.raises(ConfigError, match=r"storage.history: .*(denies access|does not know the access key)"):
            list_days(settings, LOGINS)
    finally:
        server.allow()
    assert [one.state for one in list_days(settings, LOGINS)] == [DayState.PUBLISHED]


def test_a_second_installation_lands_nothing(settings: Settings, tmp_path: Path) -> None:
    with landing_lock(settings, "logins"):
        pass
    other = settings.model_copy(update={"instance": "other", "state": tmp_path / "other"})
    with pytest.raises(ConfigError, match=r"storage.history: belongs to installation 'one'"):
        landing_lock(other, "logins")


def test_a_catalogue_that_is_a_file_is_refused(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "catalogue").write_text(f"sqlite:///{tmp_path / 'catalog.db'}")
    with pytest.raises(ConfigError, match=r"history.catalog_file: must hold an address in PostgreSQL"):
        DayTable(settings, LOGINS)
