"""The versions of a table that is made of history: one for each UTC day, whole, and kept as long as history is.

The version of a day is made of the `days` sealed days that end with the day before yesterday, as seen from it: so it is
made a whole day before it holds, and a backfill of the day joins the same rows as the stream did. A version that is
made late holds from where no job has looked yet, and the version before holds until then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

from pydantic import BaseModel, ValidationError

from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.table import FROM, TableSpec
from tocsin.declare.settings import Settings
from tocsin.platform import state_file
from tocsin.platform.storage.job_folders import TABLES, checkpoint_root, folder_at
from tocsin.platform.storage.stored_path import StoredPath, find_all, read_each, remove_tree
from tocsin.spark.tables.published_table import (
    PublishedRows,
    TableFolder,
    arrow_schema,
    folders_with_rows,
    read_rows_of,
    write_rows,
)

if TYPE_CHECKING:
    import pyarrow as pa

_DAY = timedelta(days=1)
_NOTE, _ROOT, _HELD, _REFUSED = "version.json", "versions", "held.json", "refused-"
_DATE = len("2026-01-01")
UNREAD_AFTER = timedelta(days=8)
"""What no version names any more may still be read so long: a stream may have a backlog of what Kafka keeps."""
_FEWEST = 3  # yesterday's for late events, today's, tomorrow's


class DatedVersion(BaseModel, frozen=True):
    """One version.

    Attributes:
        day: the first day whose events it is for.
        holds_from: since when it holds: the beginning of the day unless it was made later than that.
        made_of: the days of history that were there to make it of.
        made_at: when it was made.
        number: counts those of one day that were made by hand: trained again, or put back in force.
    """

    day: date
    holds_from: datetime
    made_of: tuple[date, ...]
    rows: int
    made_at: datetime
    number: int = 0


class RefusedVersion(BaseModel, frozen=True):
    """Why the version of a day could not be made at the last attempt, and when that was."""

    day: date
    reason: str
    at: datetime


class HeldVersions(BaseModel, frozen=True):
    """Why no further versions are made for streams, and since when."""

    reason: str
    at: datetime


def anchor(spec: TableSpec, day: date) -> date:
    """Find the day for which the version of `day` is made: each `every`-th one, so that weeks begin on Mondays."""
    return date.fromordinal(day.toordinal() - (day.toordinal() - 1) % spec.every)


def days_of(spec: TableSpec, day: date) -> list[date]:
    """List the days of history of which the version of `day` is made, the oldest first."""
    last = anchor(spec, day) - 2 * _DAY
    return [last - back * _DAY for back in reversed(range(spec.days))]


def lacking(spec: TableSpec, versions: Sequence[DatedVersion], today: date, wanted: Iterable[date] = ()) -> list[date]:
    """List the days whose versions are to be made, the oldest first.

    Those of yesterday (for late events), today and tomorrow if there is none yet, else the one of tomorrow, or of today
    where that is missing too. `wanted` are days of a backfill: only those before the first version, for from there on
    the stream has joined what there was.
    """
    known = sorted(version.day for version in versions)
    yesterday, *ahead = (anchor(spec, today + days * _DAY) for days in (-1, 0, 1))
    days = [day for day in ahead if day > known[-1]] if known else [yesterday, *ahead]
    first = min([*known, *days])
    return sorted({*days, *(anchor(spec, day) for day in wanted if day < first)})


class DatedVersions:
    """The versions of one table, `<state>/tables/<name>/dated/<declaration>/<day>`, or where `storage.history` says.

    They are read once. For the one process that writes them, or for one look. Methods raise a ConfigError if the object
    store refuses, and a TransientError if the disk has no room or no right, or the store does not answer.
    """

    def __init__(self, settings: Settings, spec: TableSpec) -> None:
        """Name the folders; nothing is read yet."""
        self.spec, self._folder = spec, TableFolder(settings, spec)
        self._root = _root_of(settings, spec.name) / spec.made_by
        self._known: dict[str, DatedVersion] | None = None

    def read(self) -> list[DatedVersion]:
        """List the versions that are whole, in the order of their days."""
        return sorted(self._by_name().values(), key=lambda version: (version.day, version.number))

    def place(self, version: DatedVersion) -> StoredPath:
        """Name the folder of the rows of `version`."""
        return self._root / _name(version)

    def before(self, day: date) -> DatedVersion | None:
        """Find the version that holds before that of `day`; None if there is none."""
        return next((version for version in reversed(self.read()) if version.day < day), None)

    def add(self, day: date, rows: pa.Table, made_of: Iterable[date], now: datetime) -> DatedVersion:
        """Keep `rows`, the columns of the table, as the version of `day`, or as another one of it: all or nothing."""
        version = DatedVersion(
            day=day, holds_from=self._holds_from(day, now), made_of=tuple(made_of), rows=rows.num_rows, made_at=now,
            number=sum(known.day == day for known in self.read()),
        )  # fmt: skip
        folder = self.place(version)
        write_rows(folder, rows)
        try:
            state_file.write(folder / _NOTE, DatedVersion, version)  # the last act: without it there is no version
        except OSError as error:
            remove_tree(folder)
            raise TransientError(f"{folder}: {error}") from error
        self._by_name()[_name(version)] = version
        (self._root / f"{_REFUSED}{day}.json").unlink(missing_ok=True)
        return version

    def put_back(self, version: DatedVersion, now: datetime) -> DatedVersion:
        """Put `version` in force again, from where no job has looked yet; what would hold later never does."""
        moment = now + self.spec.settle - self.spec.punctual
        for later in [known for known in self.read() if known.holds_from > moment]:
            remove_tree(self.place(later))
            del self._by_name()[_name(later)]
        last = max([now.date(), *(known.day for known in self.read())])
        return self.add(last, read_rows_of(self.place(version)), version.made_of, now)

    def refuse(self, day: date, reason: str, now: datetime) -> None:
        """Note why there is no version of `day`."""
        refused = RefusedVersion(day=day, reason=reason, at=now)
        state_file.write(self._root / f"{_REFUSED}{day}.json", RefusedVersion, refused)

    def refused(self) -> list[RefusedVersion]:
        """List the days whose versions could not be made."""
        found = find_all(self._root, f"{_REFUSED}*.json")
        return sorted((state_file.load(path, RefusedVersion) for path in found), key=lambda refused: refused.day)

    @property
    def held(self) -> HeldVersions | None:
        """Return why no further versions are made; None if they are."""
        return state_file.read(self._root / _HELD, HeldVersions, None)

    def hold(self, reason: str, now: datetime) -> None:
        """Make no further versions for streams; those of days before the first one are made for backfills."""
        state_file.write(self._root / _HELD, HeldVersions, HeldVersions(reason=reason, at=now))

    def release(self) -> None:
        """Make further versions again."""
        (self._root / _HELD).unlink(missing_ok=True)

    def publish(self) -> PublishedRows | None:
        """Put the newest versions in force for streams, as many as fit into `max_rows`, or leave what was in force."""
        import pyarrow as pa

        taken: list[pa.Table] = []
        rows, schema, spans = 0, arrow_schema(self.spec), self.spans()
        for version, until in reversed(spans):
            rows += version.rows
            is_old = until is not None and until < datetime.now(UTC) - UNREAD_AFTER
            if len(taken) >= _FEWEST and (is_old or rows > self.spec.max_rows):
                break
            read = read_rows_of(self.place(version))
            moments = [pa.repeat(pa.scalar(moment, schema.field(FROM).type), read.num_rows)
                       for moment in (version.holds_from, until)]  # fmt: skip
            taken.append(pa.table([*read.columns, *moments], schema=schema))
        if not taken:
            return None
        complete_at = _begin(spans[-1][0].day + _DAY)
        return self._folder.publish_rows(pa.concat_tables(taken), complete_at, self.spec.made_by)

    def spans(self) -> list[tuple[DatedVersion, datetime | None]]:
        """List the versions with the moment from which on a later one holds: never two at once."""
        spans: list[tuple[DatedVersion, datetime | None]] = []
        until = None
        for version in reversed(self.read()):
            spans.append((version, until))
            until = version.holds_from if until is None else min(until, version.holds_from)
        return spans[::-1]

    def forget(self, before: date) -> None:
        """Remove the versions of days before `before`, but those that hold then, and those of other declarations."""
        self._known = None
        needed = {_name(version) for version, until in self.spans() if until is None or until > _begin(before)}
        for folder in find_all(self._root.parent, "*"):
            if folder != self._root:
                remove_tree(folder)
        for path in find_all(self._root, "*[0-9]*"):
            day = date.fromisoformat(path.name.removeprefix(_REFUSED)[:_DATE])
            if day < before and path.name not in needed:
                remove_tree(path) if path.name[0].isdigit() else path.unlink(missing_ok=True)
        self._known = None

    def all_rows(self) -> list[pa.Table]:
        """Read the rows of all versions, also of other declarations, and those that streams may still read."""
        folders = [*folders_with_rows(self._root.parent, "*/[0-9]*"), *self._folder.snapshots()]
        return [read_rows_of(folder) for folder in folders]

    def _by_name(self) -> dict[str, DatedVersion]:
        if self._known is None:
            try:
                read = read_each(_read_note, find_all(self._root, "[0-9]*"), self._root)
            except (OSError, ValidationError) as error:
                raise TransientError(f"{self._root}: {error}") from error
            self._known = {_name(version): version for version in read if version is not None}
        return self._known

    def _holds_from(self, day: date, now: datetime) -> datetime:
        """Choose since when a version that is made now holds: where it would change what jobs have joined, later."""
        known, in_force = self.read(), self._folder.current()
        # Rows in force by another query, which this one's replace, say nothing of the days before now any more.
        is_first = in_force is None or in_force.made_by not in ("", self.spec.made_by)
        if is_first or (known and day < known[0].day):
            return _begin(day)
        return max(_begin(day), now + self.spec.settle - self.spec.punctual)


def forget_table(settings: Settings, name: str) -> None:
    """Remove all that is kept of the table `name`, which is made of history and declared no more."""
    for folder in (_root_of(settings, name), checkpoint_root(settings) / TABLES / name, settings.state / TABLES / name):
        remove_tree(folder)


def _root_of(settings: Settings, name: str) -> StoredPath:
    uri = settings.storage.history
    return settings.state / TABLES / name / "dated" if uri is None else folder_at(settings, uri) / _ROOT / name


def _read_note(folder: StoredPath) -> DatedVersion | None:
    try:
        return state_file.load(folder / _NOTE, DatedVersion)
    except FileNotFoundError:  # what a crash left
        return None


def _name(version: DatedVersion) -> str:
    return f"{version.day}.{version.number}" if version.number else str(version.day)


def _begin(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)
