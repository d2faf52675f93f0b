"""State can be read by nobody but its user."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.waiting import await_that
from tocsin.platform import private
from tocsin.supervise.runners.local import LocalRunner
from tocsin.supervise.runners.runner import Labels, Launch


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_there_is_tightened_and_what_comes_is_private(tmp_path: Path) -> None:
    state = tmp_path / "state"
    databases = [state / name for name in ("alerts.db", "alerts.db-wal", "airflow/airflow.db")]
    (state / "airflow").mkdir(parents=True)
    for database in databases:
        database.touch()
    assert {mode(path) for path in databases} == {0o644}
    private.protect(state)
    new = state / "heartbeats" / "indexer.json"
    new.parent.mkdir()
    new.touch()
    assert {mode(path) for path in (*databases, new)} == {0o600}
    assert {mode(path) for path in (state, new.parent)} == {0o700}


def test_a_job_writes_for_its_user_alone_whoever_starts_it(tmp_path: Path) -> None:
    runner = LocalRunner("x", lambda job: tmp_path / f"{job}.log")
    file = tmp_path / "made"
    launch = Launch(
        labels=Labels("x", "indexer", "abc"),
        command=("touch", str(file)),
        environment={"PATH": os.environ["PATH"]},
        directory=tmp_path,
        log=tmp_path / "indexer.log",
    )
    runner.start(launch)
    await_that(file.exists, 10)
    assert mode(file) == 0o600
    await_that(lambda: not runner.list(), 10)
