from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rig.sink_servers import emptied, running
from tocsin.model.view import SinkKind


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a database."""
    with running(SinkKind.POSTGRES) as server:
        yield emptied(server.address)
