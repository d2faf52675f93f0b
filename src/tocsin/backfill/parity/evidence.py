"""Read what history and the catalog of versions say about a day that was backfilled."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

from tocsin.backfill.backfill_ledger import Published
from tocsin.backfill.parity.reasons import Lack
from tocsin.history.day_versions import BrokenVersion, DayVersion, read_version
from tocsin.history.land.landing_ledger import LandingLedger
from tocsin.history.places import Places, begin, end
from tocsin.model.errors import ConfigError
from tocsin.model.source import Source


def inputs(places: Places, published: Published) -> dict[date, DayVersion]:
    """The versions of the days that a backfill has read.

    Raises:
        ConfigError: one of them is gone or cannot be read; when the day has been backfilled again, it helps to retry.
    """
    try:
        return {day: read_version(places, day, name) for day, name in published.made.inputs.items()}
    except BrokenVersion as error:
        what = f"what the backfill has read is there no more ({error}); backfill the day again"
        raise ConfigError.one(f"parity of {published.run_id}", what) from error


def lacks(ledger: LandingLedger, source: Source, read: dict[date, DayVersion]) -> Iterator[Lack]:
    """Events that the backfill did not have because they are not in the versions that it has `read`."""
    for partition, hole in ledger.holes():
        # Offsets that Kafka never gave to a consumer (aborted, compacted) the stream did not get either.
        if hole.removed:
            what = f"Kafka had removed offsets {hole.from_offset} to {hole.to_offset} of partition {partition}"
            since = None if hole.after is None else hole.after - source.lateness
            until = None if hole.before is None else hole.before + source.max_ahead
            yield Lack(since, until, f"{what} before they were landed, so history lacks them")
    for day, version in read.items():
        new = ledger.runs(day) - version.runs
        if new:
            what = f"more landed for {day} after the version that the backfill has read was sealed"
            yield Lack(begin(day), end(day), f"{what}; it will be sealed and backfilled again")
