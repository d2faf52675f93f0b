"""A day that is landed, sealed and published as those programs do it, made without Kafka and without Spark."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from tests.rig.samples.history import DAY, NOON, facts_of
from tocsin.history.day_table import DayTable
from tocsin.history.day_versions import DayVersion, SealedFile, paths, write_version
from tocsin.history.land.arrow_events import PARTITION, arrow_schema, columns_of
from tocsin.history.land.landing import LandingWriter
from tocsin.history.land.landing_ledger import Entry, OffsetSpan, read_ledger, record
from tocsin.history.parquet_files import digest
from tocsin.history.places import Places, begin
from tocsin.model.source import Source
from tocsin.project.settings import Settings
from tocsin.project.source_file import read_source

ROOT = Path(__file__).parents[3]
LOGINS = read_source(ROOT / "sources" / "logins.toml").model_copy(update={"history_days": 3650})


def events(count: int, day: date = DAY) -> pa.Table:
    known = {"raw_topic": "raw.logins", "raw_partition": 0, "source": "logins", "schema_version": 1, "user_id": "u"}
    times = [begin(day) + timedelta(seconds=number) for number in range(count)]
    rows = [known | {"raw_offset": n, "event_time": at, "ingested_at": at} for n, at in enumerate(times)]
    return pa.Table.from_pylist(rows, arrow_schema(columns_of(LOGINS)))


def landed(settings: Settings, run: str, count: int, *, at: int = 0, source: Source = LOGINS) -> Entry:
    """A run that landed `count` events for DAY, from offset `at` on."""
    places = Places.of(settings, source.name)
    writer = LandingWriter(places, run, source)
    writer.write(events(count).append_column(PARTITION, pa.array([0] * count, pa.int32())))
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
    places = Places.of(settings, "logins")
    folder = places.version(DAY, name)
    folder.mkdir(parents=True)
    path = folder / "part-00000_00003.c000.zstd.parquet"
    parquet.write_table(events(count), path, store_schema=False)
    ledger = read_ledger(places)
    total = sum(file.total for file in ledger.files(DAY))
    version = DayVersion(
        version=name,
        sealed_at=NOON,
        code="0.1.0+abc",
        key="user_id",
        buckets=32,
        columns=columns_of(LOGINS),
        runs=ledger.runs(DAY),
        base=None,
        facts=facts_of(name, count, total),
        files=(SealedFile(name=path.name, rows=count, bytes=path.stat().st_size, sha256=digest(path)),),
        severity=severity,
        report="quality/logins/report.html",
        published_at=None if severity == "critical" else NOON,
    )
    write_version(places, DAY, version)
    if severity != "critical":
        with DayTable(settings, LOGINS) as table:
            table.publish(DAY, name, paths(places, DAY, version), {})
    return version
