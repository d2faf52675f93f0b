import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import structlog
from sqlalchemy import text

from tests.rig.mail_server import MailServer
from tests.unit.alerts.notifier_scene import Scene
from tocsin.alerts.notify.mail import chart
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.schema import metadata


@pytest.fixture(autouse=True)
def logged() -> Iterator[list[structlog.typing.EventDict]]:
    """What was logged, kept from the terminal."""
    with structlog.testing.capture_logs() as lines:
        yield lines


@pytest.fixture
def opened() -> Iterator[Callable[..., Database]]:
    """Opens databases, and closes them in the end."""
    databases: list[Database] = []

    def open_one(address: str, **options: bool | float) -> Database:
        databases.append(Database(address, **options))  # type: ignore[arg-type]  # each test knows its options
        return databases[-1]

    yield open_one
    for database in databases:
        database.close()


@pytest.fixture(scope="session")
def migrated_postgres(postgres: str) -> str:
    """The address of an alerts DB beside the one that `emptied` empties: tests remove its rows."""
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("CREATE DATABASE migrated")
    address = f"{postgres.rpartition('/')[0]}/migrated"
    one = Database(address)
    one.migrate()
    one.close()
    return address


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path, opened: Callable[..., Database]) -> Database:
    """An alerts DB with its schema and no rows: each test with it runs on both kinds."""
    if request.param == "sqlite":
        (tmp_path / "state").mkdir()
        path = shutil.copy(request.getfixturevalue("migrated_file"), tmp_path / "state" / "alerts.db")
        return opened(f"sqlite:///{path}")
    one = opened(request.getfixturevalue("migrated_postgres"))
    tables = ", ".join(table.name for table in metadata.sorted_tables)
    with one.write() as connection:
        connection.execute(text(f"TRUNCATE {tables} RESTART IDENTITY"))
    return one


@pytest.fixture
def sqlite(tmp_path: Path, migrated_file: Path, opened: Callable[..., Database]) -> Database:
    """An alerts DB in a file, that gives up a locked database soon."""
    path = shutil.copy(migrated_file, tmp_path / "alerts.db")
    return opened(f"sqlite:///{path}", busy_seconds=0.1)


@pytest.fixture
def server() -> Iterator[MailServer]:
    one = MailServer()
    one.start()
    yield one
    one.stop()


@pytest.fixture
def scene(database: Database, server: MailServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A notifier and all around it, without charts: drawing is slow, and tested with the mails."""
    monkeypatch.setattr(chart, "draw", lambda _: b"\x89PNG\r\n\x1a\n")
    return Scene(database, server, tmp_path)
