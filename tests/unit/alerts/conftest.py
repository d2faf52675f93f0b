from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from tests.rig.mail_server import MailServer
from tests.rig.postgres import emptied, running_postgres
from tests.unit.alerts.notifier_scene import Scene
from tocsin.alerts.notify.mail import chart
from tocsin.alerts.store.database import Database


@pytest.fixture(autouse=True)
def logged() -> Iterator[list[structlog.typing.EventDict]]:
    """What was logged, kept from the terminal."""
    with structlog.testing.capture_logs() as lines:
        yield lines


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    with running_postgres() as address:
        yield address


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database: each test with it runs on both kinds."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'state' / 'alerts.db'}"
    return emptied(request.getfixturevalue("postgres"))


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


@pytest.fixture
def database(address: str, opened: Callable[..., Database]) -> Database:
    """An alerts DB with its schema."""
    one = opened(address)
    one.migrate()
    return one


@pytest.fixture
def sqlite(tmp_path: Path, opened: Callable[..., Database]) -> Database:
    """An alerts DB in a file, that gives up a locked database soon."""
    one = opened(f"sqlite:///{tmp_path / 'alerts.db'}", busy_seconds=0.1)
    one.migrate()
    return one


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
