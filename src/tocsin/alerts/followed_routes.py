"""Follow `routes.toml` while jobs run; while it is broken the last good one stays in force, also after a restart."""

from __future__ import annotations

import structlog

from tocsin.declare.model.errors import ConfigError
from tocsin.declare.routes import ROUTES_FILE, Routes, faults_of_receivers, parse_routes
from tocsin.declare.settings import Settings
from tocsin.platform.state_file import Stamps, stamps, write_whole

_log = structlog.get_logger()


class FollowedRoutes:
    """The routes in force; `trouble` says what is wrong with the file, and is empty if nothing is."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._file, self._copy = settings.project / ROUTES_FILE, settings.state / f"last_good_{ROUTES_FILE}"
        self._stamps: Stamps | None = None
        self._routes: Routes | None = None
        self.trouble = ""

    def current(self) -> Routes:
        """Return the routes, read again when the file has changed."""
        now = stamps([self._file])
        if now != self._stamps or self._routes is None:
            self._stamps, self._routes = now, self._read()
        return self._routes

    def _read(self) -> Routes:
        try:
            text = self._file.read_text(encoding="utf-8") if self._file.exists() else ""
            routes = parse_routes(text, self._file)
            if faults := faults_of_receivers(routes, self._settings):
                raise ConfigError(faults)
        except (ConfigError, OSError, UnicodeDecodeError) as error:
            self.trouble = f"{ROUTES_FILE} is broken, so the last good routes stay in force: {error}"
            _log.error("routes broken, the last good ones stay in force", error=str(error))
            return self._routes or self._last_good()
        self.trouble = ""
        try:
            if text:
                write_whole(self._copy, text)
            else:
                self._copy.unlink(missing_ok=True)
        except OSError as error:  # a start with a broken file would not know these
            _log.warning("routes not copied", error=str(error))
        return routes

    def _last_good(self) -> Routes:
        try:
            return parse_routes(self._copy.read_text(encoding="utf-8"), self._copy)
        except (ConfigError, OSError):
            self.trouble += "; there is no copy of them, so alerts go to their owners and to urgent_recipients"
            return Routes()
