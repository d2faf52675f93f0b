"""Look at the jobs again and again; what has not changed since the last look is not read again."""

from __future__ import annotations

import os

from tocsin.project.catalog import Catalog
from tocsin.project.settings import Settings
from tocsin.runtime.detector_versions import catalog_in_force, declared_files
from tocsin.runtime.state_file import Stamps, stamps
from tocsin.supervision.incidents.chronicle import chronicle_of, read_events
from tocsin.supervision.incidents.episodes import Episode, episodes
from tocsin.supervision.runners.local import LocalRunner
from tocsin.supervision.runners.process_labels import instance_of
from tocsin.supervision.snapshot import Snapshot, look


class Looker:
    """Looks for the pages."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._runner = LocalRunner(instance_of(settings), settings.log)
        self._stamps: Stamps | None = None
        self._catalog = Catalog()
        self._told: dict[str, tuple[int, list[Episode]]] = {}

    def look(self) -> Snapshot:
        """Look once.

        Raises:
            OSError: the state folder, or a file in it that supervision needs, cannot be read.
        """
        os.listdir(self._settings.state)
        return look(self._settings, self._declared(), self._runner.list())

    def episodes(self, job: str) -> list[Episode]:
        """Return the episodes of `job`, the newest first."""
        path = chronicle_of(self._settings.state, job)
        stamp = path.stat().st_mtime_ns if path.exists() else 0
        known = self._told.get(job)
        if known is None or known[0] != stamp:
            known = (stamp, episodes(read_events(self._settings.state, job)))
            self._told[job] = known
        return known[1]

    def _declared(self) -> Catalog:
        now = stamps(declared_files(self._settings))
        if now != self._stamps:
            self._catalog, self._stamps = catalog_in_force(self._settings), now
        return self._catalog
