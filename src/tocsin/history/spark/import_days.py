"""Days of a source that flows feed, made of sealed days of the source with which they begin.

A flow that is new has no past: its stream begins where it starts. This computes it over history.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, date, datetime
from functools import cache

from pyspark.sql import functions as F

from tocsin.declare.catalog import Catalog
from tocsin.declare.model.names import flow_job, landing_job
from tocsin.declare.model.source import Source
from tocsin.declare.settings import Settings
from tocsin.history.day_status import published_days
from tocsin.history.day_versions import DayVersion
from tocsin.history.landing_ledger import ImportedFile, is_lost, landing_lock, read_ledger, sweep, take_back
from tocsin.history.places import Places
from tocsin.history.spark.import_files import Imported, ImportWork
from tocsin.history.spark.sealed_days import sealed_events
from tocsin.history.spark.shared_scratch import shared_scratch
from tocsin.spark.batch_session import running_batch


def import_days(settings: Settings, catalog: Catalog, source: Source, origin: Source) -> Iterator[Imported]:
    """Land what flows make of each published day of `origin` as events of `source`; what came of each, day by day.

    They have the identities of the stream's, so what has landed from there too counts once. A day is made again when
    it was sealed anew, or a flow on the way has changed, and replaces what was made of it before.

    Raises:
        ConfigError: a flow on the way cannot be planned; a retry does not help.
        LockHeld: a landing or an import of this source runs; a retry helps once it has ended.
        TransientError: the catalogue of history, or a table that a flow joins, is away; a retry helps.
        OSError: the disk is full or cannot be written; nothing of this day is landed.
    """
    places, job = Places.of(settings, source.name), landing_job(source.name)
    steps = {feeder.job for feeder in catalog.upstream(source.name)}
    flows = sorted(f"{spec.name} {spec.version}" for spec in catalog.flows.values() if flow_job(spec.name) in steps)
    with ExitStack() as stack:
        session = cache(lambda: stack.enter_context(running_batch(settings, job)))
        versions = cache(lambda: published_days(settings, source))
        for day, version in published_days(settings, origin).items():
            made_of = repr([origin.name, str(day), version.version, flows])
            sha256 = hashlib.sha256(made_of.encode()).hexdigest()
            with landing_lock(settings, source.name):
                ledger = read_ledger(places)
                run = ledger.import_of(sha256)
                before = next((entry for entry in ledger.entries if entry.run == run), None)
                if before is not None and not is_lost(before, places, versions()):
                    yield Imported(before, None, {}, known=True)
                    continue
                sweep(places, ledger)
                with shared_scratch(session(), settings, job) as folder:
                    work = ImportWork(settings, session(), places, source, origin, folder)
                    landed = _land(work, day, version, sha256)
                for other in ledger.entries:
                    is_before = other.imported is not None and other.imported.name == _name(origin, day)
                    if is_before and other.run != run and other.files:
                        take_back(places, other, {file.day for file in other.files}, landed.entry.ended)
                yield landed


def _name(origin: Source, day: date) -> str:
    return f"{origin.name} {day}"


def _land(work: ImportWork, day: date, version: DayVersion, sha256: str) -> Imported:
    origin = work.origin
    events = sealed_events(work.spark, Places.of(work.settings, origin.name), origin, {day: version})
    rows = events.select(
        *("raw_topic", "raw_partition", "raw_offset", "event_time", "ingested_at"),
        F.struct(*origin.columns).alias("columns"),
        F.lit("").alias("reasons"),
        F.lit(False).alias("ignored"),
        F.lit(None).cast("binary").alias("value"),
        F.lit(0).alias("offset"),
    )
    file = ImportedFile(name=_name(origin, day), sha256=sha256, rows=version.facts.rows, refused=0)
    (landed,) = work.land_rows(rows, [file], datetime.now(UTC))
    return landed
