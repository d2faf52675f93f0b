"""A writer whose lease has passed to another changes nothing, however late it wakes up."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import select

from tocsin.alerts.store.database import Database
from tocsin.alerts.store.fence import fence_of
from tocsin.alerts.store.schema import detectors, writer_terms
from tocsin.model.names import INDEXER
from tocsin.project.blocks.lease_settings import LeaseSettings
from tocsin.project.settings import Settings
from tocsin.runtime.leases import lead
from tocsin.runtime.leases.lease_keeper import LeaseLost


class HeldIn:
    """A lease in `term` that is not known to have ended."""

    def __init__(self, term: int) -> None:
        self.term = term

    def check(self) -> None:
        return


@pytest.fixture
def in_term(
    database: Database, opened: Callable[..., Database], monkeypatch: pytest.MonkeyPatch
) -> Callable[[int], Database]:
    """Opens the alerts DB as the indexer that leads in a term does."""
    settings = Settings(instance="prod", leases=LeaseSettings(database="postgresql://db/x"))

    def open_in(term: int) -> Database:
        monkeypatch.setattr(lead, "_held", {"prod/indexer": HeldIn(term)})
        fence = fence_of(settings, INDEXER)
        assert fence is not None
        return opened(database.url.render_as_string(hide_password=False), fence=fence)

    return open_in


def write(database: Database, name: str) -> None:
    with database.write() as connection:
        connection.execute(detectors.insert().values(name=name, facts={}))


def test_a_writer_of_an_earlier_term_is_refused_and_writes_nothing(
    database: Database, in_term: Callable[[int], Database]
) -> None:
    former, later = in_term(7), in_term(9)
    write(former, "a")
    write(former, "b")
    write(later, "c")
    with pytest.raises(LeaseLost, match="indexer has written to the alerts DB in term 9, this process leads in term 7"):
        write(former, "d")
    with database.read() as connection:
        assert sorted(connection.execute(select(detectors.c.name)).scalars()) == ["a", "b", "c"]
        assert connection.execute(select(writer_terms.c.job, writer_terms.c.term)).all() == [(INDEXER, 9)]


def test_without_leases_nothing_is_fenced() -> None:
    assert fence_of(Settings(), INDEXER) is None
