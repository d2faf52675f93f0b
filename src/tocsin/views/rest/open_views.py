"""Keep the files of views open for reading, and find out why there is nothing to read."""

from __future__ import annotations

import time

from tocsin.declare.model.errors import ConfigError, nearest
from tocsin.declare.model.view import ViewSpec
from tocsin.declare.settings import Settings
from tocsin.platform.code_versions import FollowedCatalog
from tocsin.views.row_query import ViewReader
from tocsin.views.row_store import store_path
from tocsin.views.view_summary import reason_of

_LOOK_SECONDS = 1.0


class NoRowsYet(Exception):
    """The view has no rows to show yet; says why."""


class NoSuchName(Exception):
    """There is no view, or no row, of that name; `near` is one that is close."""

    def __init__(self, what: str, near: str | None) -> None:
        self.near = near
        super().__init__(what)


class OpenViews:
    """The views of an installation. For one thread."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._followed = FollowedCatalog(settings)
        self._catalog, self._looked = self._followed.read(), time.monotonic()
        self._open: dict[str, tuple[int, ViewReader]] = {}

    def specs(self) -> dict[str, ViewSpec]:
        """Return the views that are declared, by name."""
        if time.monotonic() - self._looked > _LOOK_SECONDS:
            self._catalog, self._looked = self._followed.read(), time.monotonic()
        return self._catalog.views

    def reader(self, view: str) -> ViewReader:
        """Return the reader of `view`.

        Raises:
            NoSuchName: it is not declared.
            NoRowsYet: its job has not made its file yet.
            TransientError: its file cannot be read now.
        """
        specs = self.specs()
        if view not in specs:
            fault = self._catalog.broken.get(f"views/{view}")
            raise NoSuchName(_describe(fault) if fault else f"there is no view '{view}'", nearest(view, specs))
        path = store_path(self.settings, view)
        try:
            number = path.stat().st_ino
            known = self._open.get(view)
            if known is None or known[0] != number:  # `tocsin dev up --reset` makes another file
                if known is not None:
                    known[1].close()
                self._open[view] = known = (number, ViewReader(path))
            return known[1]
        except FileNotFoundError:
            raise NoRowsYet(reason_of(self.settings, view)) from None

    def close(self) -> None:
        """Close all files."""
        for _, reader in self._open.values():
            reader.close()


def _describe(fault: ConfigError) -> str:
    return f"the file of the view cannot be read: {fault.faults[0].what}"
