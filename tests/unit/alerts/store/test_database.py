import sqlite3
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import DateTime, MetaData, create_engine, event, text

from tests.rig.kept_release import RELEASES
from tests.rig.sink_servers import emptied
from tests.unit.alerts import scene
from tests.unit.alerts.scene import NOON, burst, finding
from tocsin.alerts.store import queries
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.queries import AlertFilter, FindingFilter
from tocsin.alerts.store.schema import metadata
from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.supervise.job_states import Timing

Open = Callable[..., Database]


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database: each test with it runs on both kinds."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'state' / 'alerts.db'}"
    return emptied(request.getfixturevalue("postgres"))


@pytest.fixture
def database(address: str, opened: Open) -> Database:
    """A database that has just been migrated."""
    one = opened(address)
    one.migrate()
    return one


def index(database: Database, *users: str) -> None:
    scene.index(database, [one for user in users or ("mallory",) for one in burst(60, user=user)])


def as_of_release_0_1_0(archive: Path, database: Database, folder: Path) -> None:
    """Make the alerts DB of that release in the empty `database`, with four times the notification that it holds."""
    with tarfile.open(archive) as release:
        release.extract("state/alerts.db", folder, filter="data")
    kept, old = create_engine(f"sqlite:///{folder / 'state' / 'alerts.db'}"), MetaData()

    @event.listens_for(old, "column_reflect")
    def portable(_: object, __: object, column: dict[str, Any]) -> None:
        kind = column["type"].as_generic()
        column["type"] = DateTime(timezone=True) if isinstance(kind, DateTime) else kind

    old.reflect(kept)
    with kept.connect() as before, database.write() as connection:
        old.create_all(connection)
        for table in old.sorted_tables:
            rows = [dict(row) for row in before.execute(table.select()).mappings()]
            if table.name == "notifications":
                (row,) = rows
                tries: list[dict[str, Any]] = [{"attempts": 1}, {"claimed_until": NOON}, {}, {"state": "waiting"}]
                rows = [
                    row | {"id": number, "revision": number, "state": "pending", "kind": "email"} | done
                    for number, done in enumerate(tries, start=1)
                ]
            if rows:
                connection.execute(table.insert(), rows)
    kept.dispose()


def test_a_db_of_the_last_release_is_brought_up_with_all_that_it_holds(
    address: str, opened: Open, tmp_path: Path
) -> None:
    """What an older Tocsin has tried to send stays the same message: a receiver may have it."""
    database = opened(address)
    (tmp_path / "state").mkdir()
    as_of_release_0_1_0(RELEASES / "0.1.0.tar.gz", database, tmp_path / "release")
    assert not database.is_ready()
    database.migrate()
    (alert,) = queries.list_alerts(database, AlertFilter())
    assert (alert.detector, alert.guide["email_limit"]) == ("failed_logins", 50)
    assert len(queries.list_findings(database, FindingFilter())) == 1
    with database.read() as connection:
        rows = connection.execute(text("SELECT state, detector FROM notifications ORDER BY id")).all()
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
    assert [row.state for row in rows] == ["leaving", "leaving", "pending", "waiting"]
    assert {row.detector for row in rows} == {"failed_logins"}


def test_a_transaction_that_reads_sees_one_state_and_does_not_disturb_a_writer(
    database: Database, address: str, opened: Open
) -> None:
    """Or a reader could see half of a backfilled day: it asks what is staged first, then for the findings."""
    index(database)
    count = text("SELECT count(*) FROM findings")
    for number, reader in enumerate((database, opened(address, read_only=True)), start=1):
        with reader.read() as connection:
            assert connection.execute(count).scalar() == number
            index(database, f"user-{number}")
            assert connection.execute(count).scalar() == number
    with reader.read() as connection:
        assert connection.execute(count).scalar() == 3


def test_two_programs_may_start_together(address: str, opened: Open) -> None:
    databases, errors = [opened(address) for _ in range(4)], []
    begin = threading.Barrier(len(databases))

    def migrate(database: Database) -> None:
        begin.wait()
        try:
            database.migrate()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=migrate, args=[database]) for database in databases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert all(database.is_ready() for database in databases)


@pytest.mark.parametrize(
    ("schema", "fault"),
    [("9999", "9999, which is newer than this Tocsin knows"), ("0006", "0006, from before release 0.1.0; start that")],
)
def test_a_schema_that_no_migration_knows_is_a_config_error(database: Database, schema: str, fault: str) -> None:
    with database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :schema"), {"schema": schema})
    for use in (database.migrate, database.is_ready):
        with pytest.raises(ConfigError, match=fault):
            use()


def test_before_the_first_start_there_is_nothing_to_read_and_nothing_is_made(address: str, opened: Open) -> None:
    reader = opened(address, read_only=True)
    assert queries.list_findings(reader, FindingFilter()) == []
    assert queries.list_alerts(reader, AlertFilter()) == []
    assert queries.show_alert(reader, 1) is None
    assert queries.list_invalid(reader) == []
    assert queries.list_usage(reader, NOON.date()) == []
    assert not reader.is_ready()


def test_the_file_is_readable_after_all_writers_have_gone(sqlite: Database, opened: Open) -> None:
    index(sqlite)
    sqlite.close()
    reader = opened(str(sqlite.url), read_only=True)
    assert len(queries.list_findings(reader, FindingFilter())) == 1
    with pytest.raises(TransientError, match="readonly"):
        index(reader, "trent")


def test_a_locked_database_is_transient_and_works_again_when_the_lock_is_gone(sqlite: Database) -> None:
    other = sqlite3.connect(str(sqlite.url.database), isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(TransientError, match=r"database is locked \(another process has locked it"):
        index(sqlite)
    other.execute("ROLLBACK")
    other.close()
    index(sqlite)
    assert len(queries.list_findings(sqlite, FindingFilter())) == 1


@pytest.mark.parametrize(
    ("pragma", "back", "reason"),
    [
        ("PRAGMA query_only=ON", "PRAGMA query_only=OFF", "make the file and its folder writable"),
        ("PRAGMA max_page_count=1", "PRAGMA max_page_count=100000", "make room on the disk"),
    ],
)
def test_a_read_only_or_full_database_is_transient_with_advice(
    sqlite: Database, pragma: str, back: str, reason: str
) -> None:
    """The pragmas make SQLite give the very errors of a read-only file system and of a full disk."""
    now = pragma
    sqlite.close()

    @event.listens_for(sqlite.engine, "connect")
    def restrict(connection: sqlite3.Connection, _: object) -> None:
        connection.execute(now)

    def index_large() -> None:
        scene.index(sqlite, [finding(60, context={"note": "x" * 1_000_000})])

    with pytest.raises(TransientError, match=reason):
        index_large()
    now = back
    index_large()
    assert len(queries.list_findings(sqlite, FindingFilter())) == 1


def test_an_unreachable_server_is_transient_and_its_password_is_not_shown(opened: Open) -> None:
    away = opened("postgresql://tocsin:secret@127.0.0.1:1/alerts", busy_seconds=1)
    with pytest.raises(TransientError, match="refused") as caught:
        away.migrate()
    assert "secret" not in str(caught.value)


def test_a_server_that_vanishes_is_noticed_by_tcp_long_before_its_client_is_taken_for_hung(
    postgres: str, opened: Open
) -> None:
    with opened(emptied(postgres)).read() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        said = {name: int(value) for name, value in driver.info.get_parameters().items() if value.isdigit()}
    silent = said["keepalives_idle"] + said["keepalives_interval"] * said["keepalives_count"]
    assert silent < Timing().stale_after
    assert said["tcp_user_timeout"] == silent * 1000


def test_a_locked_postgres_is_transient(postgres: str, opened: Open) -> None:
    address = emptied(postgres)
    database, other = opened(address, busy_seconds=0.2), opened(address)
    database.migrate()
    with other.write() as connection:
        connection.execute(text("LOCK TABLE findings IN ACCESS EXCLUSIVE MODE"))
        with pytest.raises(TransientError, match="lock timeout"):
            index(database)
    index(database)


@pytest.mark.parametrize("address", ["mysql://host/alerts", "not an address", "postgres"])
def test_another_kind_of_address_is_a_config_error(address: str) -> None:
    with pytest.raises(ConfigError, match="database"):
        Database(address)


def test_a_file_that_is_no_database_is_a_config_error(tmp_path: Path, opened: Open) -> None:
    (tmp_path / "alerts.db").write_text("not a database, but long enough to be taken for one" * 40)
    with pytest.raises(ConfigError, match="no alerts DB"):
        opened(f"sqlite:///{tmp_path / 'alerts.db'}").migrate()
