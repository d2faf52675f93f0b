"""Follow `routes.toml` while jobs run; while it is broken or gone the last good one stays, also after a restart."""

from __future__ import annotations

import structlog

from tocsin.declare.model.errors import ConfigError
from tocsin.declare.routes import NO_ROUTES, ROUTES_FILE, Routes, faults_of_receivers, parse_routes
from tocsin.declare.settings import Settings
from tocsin.platform.state_file import Followed, write_whole

_log = structlog.get_logger()


class FollowedRoutes(Followed[Routes]):
    """The routes in force; `trouble` says what is wrong with the file, and is empty if nothing is."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(lambda: [self._file], self._read_file)
        self._settings = settings
        self._file, self._copy = settings.project / ROUTES_FILE, settings.state / f"last_good_{ROUTES_FILE}"
        self._routes: Routes | None = None
        self.trouble = ""

    def _read_file(self) -> Routes:
        try:
            # Gone may mean for a moment, in which an editor puts a new file in its place.
            was_there = self._routes not in (None, NO_ROUTES) or self._copy.exists()
            text = self._file.read_text(encoding="utf-8") if was_there or self._file.exists() else ""
            routes = parse_routes(text, self._file)
            if faults := faults_of_receivers(routes, self._settings):
                raise ConfigError(faults)
        except FileNotFoundError:
            self.trouble = f"{ROUTES_FILE} is gone, so the last good routes stay in force: leave it empty to have none"
            return self._routes or self._last_good()
        except (ConfigError, OSError, UnicodeDecodeError) as error:
            self.trouble = f"{ROUTES_FILE} is broken, so the last good routes stay in force: {error}"
            _log.error("routes broken, the last good ones stay in force", error=str(error))
            return self._routes or self._last_good()
        self._routes, self.trouble = routes, ""
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
