"""Read the files in which releases before 2026-11-27 kept the state of days, so that `DayRows` can take it over."""

from __future__ import annotations

from datetime import date

import structlog
from pydantic import ValidationError

from tocsin.declare.model.names import sealing_job
from tocsin.declare.settings import Settings
from tocsin.history.day_versions import DayVersion, Unsealed
from tocsin.history.places import Places
from tocsin.platform import state_file
from tocsin.platform.storage.stored_path import ObjectPath, StoredPath, find_all, read_each, remove_tree
from tocsin.quality.verdict_files import FOLDER, VerdictRecord

log = structlog.get_logger()


class EarlierFiles:
    """The files of one source, read: versions that were written to their end. What cannot be read is left in place."""

    def __init__(self, settings: Settings, places: Places) -> None:
        self._settings, self._places = settings, places
        self._quality = settings.state / FOLDER / places.source
        days = [(day, file) for day, folder in places.day_folders() for file in find_all(folder, "*/_version.json")]
        read = read_each(lambda item: self._version(item[1]), days, places.days)
        found = [(day, file, version) for (day, file), version in zip(days, read, strict=True) if version is not None]
        self._files = [file for _, file, _ in found]
        self.versions = [(day, version) for day, _, version in found]
        self.unsealed = state_file.read(self._quality / "unsealed.json", dict[date, Unsealed], {})

    def remove(self) -> None:
        """Remove what was read, and what follows from it."""
        run = self._settings.checkpoint(sealing_job(self._places.source)) / "run.json"
        for path in (*self._files, self._quality / "unsealed.json", self._quality / "refused.json", run):
            path.unlink(missing_ok=True)
        if isinstance(self._places.root, ObjectPath):  # copies for Airflow
            remove_tree(Places(self._settings.history_folder, self._places.source).days)

    def _version(self, file: StoredPath) -> DayVersion | None:
        try:
            version = DayVersion.model_validate_json(file.read_bytes())
        except (OSError, ValidationError) as error:
            log.error("version unreadable, left", file=str(file), error=str(error).splitlines()[0])
            return None
        path = (self._settings.state / str(version.report)).with_suffix(".json")
        record = state_file.read(path, VerdictRecord, None)
        unread = "its verdict is unreadable; seal the day again."
        summary = record.verdict.model_copy(update={"report": None}).text if record is not None else unread
        return version.model_copy(update={"summary": summary})
