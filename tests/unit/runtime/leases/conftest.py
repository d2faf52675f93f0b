"""Machines of one installation: each has a state folder, and so lock files, of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
import structlog

from tocsin.project.blocks.lease_settings import LeaseSettings
from tocsin.project.settings import Settings
from tocsin.runtime.leases import lead
from tocsin.runtime.leases.lease_keeper import LeaseKeeper
from tocsin.runtime.leases.lease_table import LeaseTable

LENGTH = 60.0


class Clock:
    """A clock of one machine, which tests move."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def logged() -> Iterator[list[structlog.typing.EventDict]]:
    with structlog.testing.capture_logs() as lines:
        yield lines


@pytest.fixture
def address(postgres: str) -> str:
    """A database without leases."""
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS tocsin_leases")
    return postgres


@pytest.fixture
def keeper(address: str) -> Iterator[Callable[..., LeaseKeeper]]:
    """Makes the keepers of processes; what ends one is noted in its `ends`."""
    made: list[LeaseKeeper] = []

    def make(clock: Callable[[], float] | None = None, length: float = LENGTH) -> LeaseKeeper:
        ends: list[int] = []
        more = {} if clock is None else {"clock": clock}
        one = LeaseKeeper(LeaseTable(address, length), length, end=ends.append, **more)
        one.ends = ends  # type: ignore[attr-defined]
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()


@pytest.fixture
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Settings]]:
    """Makes the settings of machines, with leases or without, by the fixture `form`."""

    def settings(name: str = "a") -> Settings:
        leases = LeaseSettings()
        if request.getfixturevalue("form") == "lease":
            # A keeper of these ends this process when its lease is over: no test may come near that.
            leases = LeaseSettings(database=request.getfixturevalue("address"), length=timedelta(hours=1))
        return Settings(project=tmp_path, state=tmp_path / name, instance="prod", leases=leases)

    yield settings
    for one in lead._keepers.values():
        one.close()
    lead._keepers.clear()
    lead._held.clear()
