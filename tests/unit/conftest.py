from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.sink_servers import emptied, running
from tocsin.alerts.store.database import Database
from tocsin.model.view import SinkKind


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a database."""
    with running(SinkKind.POSTGRES) as server:
        yield emptied(server.address)


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An alerts DB without rows: tests copy it, for the migrations take longer than most of them."""
    path = tmp_path_factory.mktemp("migrated") / "alerts.db"
    one = Database(f"sqlite:///{path}")
    one.migrate()
    one.close()
    return path
