"""Follow the declarations of all detectors while their files change."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from sqlalchemy import Connection, insert, select, update

from tocsin.alerts.alert_policy import DetectorFacts
from tocsin.alerts.store.schema import detectors
from tocsin.project.settings import Settings
from tocsin.runtime.detector_versions import catalog_in_force, declared_files
from tocsin.runtime.state_file import Stamps, stamps


class DeclaredFacts:
    """The facts of every detector, read again whenever a file of sources/ or detectors/ has changed.

    A file that is broken or gone keeps its last good facts: its job may still run, and what it finds must reach people.
    """

    def __init__(self, settings: Settings, known: dict[str, DetectorFacts]) -> None:
        """Begin with the `known` facts of an earlier run."""
        self._settings, self._facts = settings, dict(known)
        self._stamp: Stamps | None = None

    def current(self) -> dict[str, DetectorFacts]:
        """The facts by detector."""
        stamp = stamps(declared_files(self._settings))
        if stamp != self._stamp:
            catalog = catalog_in_force(self._settings)
            for name, spec in catalog.detectors.items():
                source = catalog.sources.get(spec.source)
                self._facts[name] = DetectorFacts.of(spec, source.lateness if source else timedelta(0))
            self._stamp = stamp
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
