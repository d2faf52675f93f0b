from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rig.postgres import running_postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a server, to put a database name into."""
    with running_postgres() as address:
        yield address
