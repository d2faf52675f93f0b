"""Follow the declarations of all detectors while their files change."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from sqlalchemy import Connection, insert, select, update

from tocsin.alerts.alert_policy import DetectorFacts
from tocsin.alerts.store.schema import detectors
from tocsin.project.catalog import Catalog
from tocsin.project.settings import Settings
from tocsin.runtime.detector_versions import FollowedCatalog


class DeclaredFacts:
    """The facts of every detector, read again whenever a file of sources/ or detectors/ has changed.

    A file that is broken or gone keeps its last good facts: its job may still run, and what it finds must reach people.
    """

    def __init__(self, settings: Settings, known: dict[str, DetectorFacts]) -> None:
        """Begin with the `known` facts of an earlier run."""
        self._followed, self._facts = FollowedCatalog(settings), dict(known)
        self._catalog: Catalog | None = None

    def current(self) -> dict[str, DetectorFacts]:
        """The facts by detector."""
        catalog = self._followed.read()
        if catalog is not self._catalog:
            for name, spec in catalog.detectors.items():
                source = catalog.sources.get(spec.source)
                self._facts[name] = DetectorFacts.of(spec, source.lateness if source else timedelta(0))
            self._catalog = catalog
        return self._facts


def remember(connection: Connection, facts: Iterable[DetectorFacts]) -> None:
    """Store what is declared, for a start when the file is broken."""
    for one in facts:
        values = {"facts": one.model_dump(mode="json")}
        if connection.execute(update(detectors).filter_by(name=one.name).values(values)).rowcount == 0:
            connection.execute(insert(detectors).values(name=one.name, **values))


def remembered(connection: Connection) -> dict[str, DetectorFacts]:
    """Return the declarations that were read last, by detector."""
    rows = connection.execute(select(detectors.c.name, detectors.c.facts))
    return {name: DetectorFacts.model_validate(facts) for name, facts in rows}
