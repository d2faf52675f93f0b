"""An alerts DB goes over from one kind of database to another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sqlalchemy import insert, select

from tests.unit.alerts.scene import NOON, RULES, burst, finding
from tocsin.alerts.recording import record
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.database_copy import copy_all, is_empty
from tocsin.alerts.store.schema import alerts, metadata


def rows(database: Database) -> dict[str, list[tuple[object, ...]]]:
    with database.read() as connection:
        return {
            table.name: [tuple(row) for row in connection.execute(select(table).order_by(*table.primary_key))]
            for table in metadata.sorted_tables
        }


def test_all_rows_go_over_and_back_and_new_ones_get_new_numbers(
    database: Database, sqlite: Database, opened: Callable[..., Database], tmp_path: Path
) -> None:
    """From SQLite to each kind, and back to SQLite; what the target held is gone."""
    with sqlite.write() as connection:
        record(connection, [*burst(120), finding(70, user="trent")], RULES, NOON)
    with database.write() as connection:
        record(connection, [finding(80, user="gone")], RULES, NOON)
    copy_all(sqlite, database)
    assert rows(database) == rows(sqlite)
    assert len(rows(database)["alerts"]) == 2

    back = opened(f"sqlite:///{tmp_path / 'back.db'}")
    back.migrate()
    assert is_empty(back)
    copy_all(database, back)
    assert rows(back) == rows(sqlite)
    assert not is_empty(back)

    with database.write() as connection:
        values = rows(database)["alerts"][0]
        new = dict(zip(alerts.c.keys(), values, strict=True)) | {"entity_hash": "another"}
        del new["id"]
        number = connection.execute(insert(alerts).values(new)).inserted_primary_key
        assert number is not None
        assert number[0] == 3
