"""Airflow with its metadata in PostgreSQL, as anything that is kept should have it."""

from __future__ import annotations

import signal
from pathlib import Path

import sqlalchemy

from tests.rig.postgres import running_postgres
from tests.rig.stack import Stack


def test_its_metadata_may_be_in_postgres(tmp_path: Path) -> None:
    with running_postgres() as address:
        admin = sqlalchemy.create_engine(address.format(name="postgres"), isolation_level="AUTOCOMMIT")
        with admin.connect() as connection:
            connection.execute(sqlalchemy.text("CREATE DATABASE airflow"))
        admin.dispose()
        (tmp_path / "address").write_text(
            address.format(name="airflow").replace("postgresql://", "postgresql+psycopg2://")
        )
        stack = Stack(tmp_path, sources=False)
        try:
            stack.up("--airflow", "--free-ports", TOCSIN_AIRFLOW__DATABASE_FILE=str(tmp_path / "address"))
            stack.ready()
            assert not (stack.state / "airflow" / "airflow.db").exists()
            assert stack.send(signal.SIGTERM) == 0
        finally:
            stack.end()
        kept = sqlalchemy.create_engine(address.format(name="airflow"))
        with kept.connect() as connection:
            runs = connection.execute(sqlalchemy.text("SELECT count(*) FROM dag_run WHERE state = 'success'")).scalar()
        kept.dispose()
        assert runs
