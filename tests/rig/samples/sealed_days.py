"""Days that are landed, sealed and published as those programs do it, made without Kafka and without Spark."""

from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from bench.landed import LandingWriter, arrow_schema
from tests.rig.samples.history import DAY, NOON, facts_of
from tocsin.declare.model.source import Source, columns_of
from tocsin.declare.settings import Settings
from tocsin.declare.source_file import read_source
from tocsin.history.day_table import DayTable
from tocsin.history.day_versions import DayVersion, SealedFile, paths
from tocsin.history.landing_ledger import Entry, OffsetSpan, read_ledger, record
from tocsin.history.parquet_files import digest
from tocsin.history.places import Places, begin, stamp
from tocsin.platform.state_file import write_whole
from tocsin.platform.storage.stored_path import size_of

ROOT = Path(__file__).parents[3]
LOGINS = read_source(ROOT / "sources" / "logins.toml").model_copy(update={"history_days": 3650})


def events(count: int, day: date = DAY, *, users: int = 1) -> pa.Table:
    """Logins a second apart, of `u`, `uu` and so on in turn."""
    known = {"raw_topic": "raw.logins", "raw_partition": 0, "source": "logins", "schema_version": 1}
    times = [begin(day) + timedelta(seconds=number) for number in range(count)]
    rows = [
        known | {"user_id": "u" * (1 + n % users), "raw_offset": n, "event_time": at, "ingested_at": at}
        for n, at in enumerate(times)
    ]
    return pa.Table.from_pylist(rows, arrow_schema(columns_of(LOGINS)))


def landed(settings: Settings, run: str, rows: int | pa.Table, *, at: int = 0, source: Source = LOGINS) -> Entry:
    """A run that landed `rows`, or so many `events`, for DAY, from offset `at` on."""
    table = events(rows) if isinstance(rows, int) else rows
    count = table.num_rows
    places = Places.of(settings, source.name)
    writer = LandingWriter(places, run, source)
    writer.write(table)
    entry = Entry(
        run=run,
        began=datetime(2026, 11, 18, 12, tzinfo=UTC),
        ended=NOON,
        topic="events.logins",
        partitions={0: OffsetSpan(from_offset=at, to_offset=at + count, events=count, newest_tick=NOON)},
        columns=columns_of(source),
        files=tuple(writer.files),
    )
    record(places, entry)
    return entry


def sealed(settings: Settings, name: str, count: int, *, severity: str = "pass") -> DayVersion:
    """A version of DAY with `count` events that has all runs of the ledger; published unless it is critical."""
    ledger = read_ledger(Places.of(settings, "logins"))
    facts = facts_of(name, count, sum(file.total for file in ledger.files(DAY)))
    given = {"facts": facts, "runs": ledger.runs(DAY), "sealed_at": NOON, "severity": severity}
    return _publish(settings, events(count), given)


def seal_day(settings: Settings, day: date, logins: Iterable[dict[str, Any]]) -> DayVersion:
    """Publish `logins` as the events of `day`, none of which landed."""
    rows = sorted(logins, key=lambda row: (row["user_id"], row["event_time"]))
    now = datetime.now(UTC)
    facts = facts_of(f"v{stamp(now)}", len(rows)).model_copy(update={"day": day})
    given = {"facts": facts, "runs": frozenset(), "sealed_at": now, "severity": "pass"}
    return _publish(settings, pa.Table.from_pylist(rows, arrow_schema(columns_of(LOGINS))), given)


def _publish(settings: Settings, rows: pa.Table, given: dict[str, Any]) -> DayVersion:
    """Write `rows`, which are sorted, as a version with one bucket: only Spark's hash says which of several it is."""
    places, facts = Places.of(settings, "logins"), given["facts"]
    path = places.version(facts.day, facts.version) / "part-00000_00000.c000.zstd.parquet"
    sink = pa.BufferOutputStream()
    parquet.write_table(rows, sink, store_schema=False)
    write_whole(path, sink.getvalue().to_pybytes())
    is_published = given["severity"] != "critical"
    version = DayVersion(
        version=facts.version,
        code="0.1.0+abc",
        key="user_id",
        buckets=1,
        columns=columns_of(LOGINS),
        base=None,
        files=(SealedFile(name=path.name, rows=rows.num_rows, bytes=size_of(path), sha256=digest(path)),),
        report="quality/logins/report.html",
        summary=f"the verdict is {given['severity']}.",
        published_at=given["sealed_at"] if is_published else None,
        **given,
    )
    with DayTable(settings, LOGINS) as table:
        table.rows.write(facts.day, version)
        if is_published:
            table.publish(facts.day, facts.version, paths(places, facts.day, version), {})
    return version
