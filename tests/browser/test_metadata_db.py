"""Airflow with its metadata in PostgreSQL, on which the stack of this folder runs."""

from __future__ import annotations

import psycopg

from tests.browser.visiting import Running
from tests.rig.waiting import await_that


def test_its_metadata_may_be_in_postgres(running: Running) -> None:
    address = (running.stack.project.parent / "address").read_text().replace("+psycopg2", "")
    with psycopg.connect(address, autocommit=True) as connection:
        await_that(lambda: connection.execute("SELECT 1 FROM dag_run WHERE state = 'success'").fetchone(), 60)
    assert not (running.stack.state / "airflow" / "airflow.db").exists()
