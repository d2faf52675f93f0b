"""Name the places of history: every folder and file of it, formed here and nowhere else.

::

    <history folder, or its URI>/
      landing/<source>/dt=2026-11-21/run=<run>/part-00000.parquet    as landed, in the order in which events came
      landing/<source>/reading/...                                   what a seal is reading from Kafka
      ledger/<source>/<run>.json                                     what each run landed; its last act
      days/<source>/dt=2026-11-21/<version>/*.parquet                sealed, one file for each bucket
      refused/<source>/<run>.jsonl                                   rows of imported files that cannot be used
      tables/<source>/metadata/...                                   of the Iceberg table
      catalog.db                                                     the Iceberg catalogue and the state of days, unless
                                                                     a setting says else

Beside them lie, if `storage.history` is set, `versions/` of `tocsin.spark.tables.dated_versions`; and while a batch
runs on a cluster, `scratch/` of `tocsin.history.spark.shared_scratch`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from tocsin.declare.model.errors import TransientError
from tocsin.declare.settings import Settings
from tocsin.platform.storage.job_folders import folder_at
from tocsin.platform.storage.stored_path import StoredPath, find_all

IMPORTED = "import-"
"""How the run of an imported file begins; as many digits of the hash of the file follow as `RUN_DIGITS` says."""
RUN_DIGITS = 12

_DAY, _RUN = "dt=", "run="


class Places:
    """The folders of one source."""

    def __init__(self, root: StoredPath, source: str) -> None:
        self.root, self.source = root, source
        self.landing, self.ledger = root / "landing" / source, root / "ledger" / source
        self.days, self.table = root / "days" / source, root / "tables" / source

    @classmethod
    def of(cls, settings: Settings, source: str) -> Places:
        """The folders of `source` in this installation."""
        return cls(history_root(settings), source)

    def within(self, path: StoredPath) -> Path:
        """Name `path`, which lies in `root`, relative to it."""
        return Path(str(path).removeprefix(f"{self.root}/"))

    def landed(self, day: date, run: str) -> StoredPath:
        """Folder of what `run` landed for `day`."""
        return self.landing / f"{_DAY}{day}" / f"{_RUN}{run}"

    def version(self, day: date, version: str) -> StoredPath:
        """Folder of one version of a sealed day."""
        return self.days / f"{_DAY}{day}" / version

    def refused(self, run: str) -> StoredPath:
        """File of the rows that an import could not use."""
        return self.root / "refused" / self.source / f"{run}.jsonl"

    def landed_folders(self) -> Iterator[tuple[date, str, StoredPath]]:
        """Day, run and folder of all that lies in landing, whether the ledger knows it or not."""
        for day, folder in _days(self.landing):
            for path in find_all(folder, f"{_RUN}*"):
                yield day, path.name.removeprefix(_RUN), path

    def day_folders(self) -> list[tuple[date, StoredPath]]:
        """Day and folder of all days of which a version lies there, the oldest first."""
        return list(_days(self.days))

    def version_folders(self) -> Iterator[tuple[date, str, StoredPath]]:
        """Day, version and folder of all versions that lie there, whole or not."""
        for day, folder in self.day_folders():
            for path in find_all(folder, "*"):
                if path.is_dir():
                    yield day, path.name, path


def import_run(sha256: str, before: int = 0) -> str:
    """Name the run that imports the file with this digest, of which `before` earlier imports were withdrawn."""
    return f"{IMPORTED}{sha256[:RUN_DIGITS]}{f'-{before}' if before else ''}"


def history_root(settings: Settings) -> StoredPath:
    """Find the folder of all history: on a disk, or in the object store that `storage.history` names.

    ConfigError if the file of credentials cannot be read.
    """
    uri = settings.storage.history
    return settings.history_folder if uri is None else folder_at(settings, uri)


@contextmanager
def writing_history(settings: Settings) -> Iterator[None]:
    """Turn an OSError (disk full or read-only) into a TransientError: a file of history is whole or not there."""
    try:
        yield
    except ConnectionError as error:  # of Py4J: a call to a JVM that is gone
        what = f"the JVM of Spark has ended ({error.strerror or error}), perhaps for lack of memory"
        raise TransientError(f"{what}; published days are complete: run this again") from error
    except OSError as error:
        what = f"{history_root(settings)} cannot be used: {error.strerror or error}"
        raise TransientError(f"{what}; published days are complete: make room and run this again") from error


def stamp(moment: datetime, after: str | None = None) -> str:
    """`moment` as part of a name that sorts by time and comes behind `after`, as in 20261121T020000000Z."""
    name = _stamped(moment)
    while after is not None and name <= after:
        moment = max(moment, _moment(after)) + timedelta(milliseconds=1)
        name = _stamped(moment)
    return name


def begin(day: date) -> datetime:
    """The first moment of a UTC day."""
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def end(day: date) -> datetime:
    """The first moment after a UTC day."""
    return begin(day) + timedelta(days=1)


def _stamped(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y%m%dT%H%M%S}{moment.microsecond // 1000:03d}Z"


def _moment(name: str) -> datetime:
    return datetime.strptime(name, "%Y%m%dT%H%M%S%fZ").replace(tzinfo=UTC)


def _days(folder: StoredPath) -> Iterator[tuple[date, StoredPath]]:
    for path in find_all(folder, f"{_DAY}*"):
        yield date.fromisoformat(path.name.removeprefix(_DAY)), path
