"""Days of logins of a chosen size, as landed files, with planted bursts: their findings are known beforehand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pyarrow as pa

from tocsin.history.events import PARTITION, arrow_schema, columns_of
from tocsin.history.landing import LandingWriter
from tocsin.history.ledger import Entry, Span, record
from tocsin.history.places import Places, begin
from tocsin.settings import Settings
from tocsin.source import Source

_AT_ONCE = 500_000
_MICROS = 86_400_000_000
_WINDOW = 10_000_000

Expected = dict[tuple[str, datetime], int]
"""User and start of the window to how many failures lie in it, where these are more than 50."""


@dataclass(frozen=True)
class Past:
    """What to make.

    Attributes:
        first: the first day.
        days: how many.
        rows: of each day, bursts included.
        users: how many there are besides those of bursts; events are spread over them unevenly.
        bursts: of each day; each is a user with 40 to 160 failures within one window.
        seed: the same one gives the same events.
    """

    first: date
    days: int
    rows: int
    users: int = 500_000
    bursts: int = 20
    seed: int = 1

    @property
    def dates(self) -> list[date]:
        """All days."""
        return [self.first + timedelta(days=number) for number in range(self.days)]


def land_past(settings: Settings, source: Source, past: Past) -> Expected:
    """Land all of it; returns the windows with more than 50 failures: what failed_logins must find, and nothing else.

    Events outside of bursts never reach 50 failures of one user in ten seconds: each user has a second of its own in
    which it can fail at all.
    """
    places, expected = Places.of(settings, source.name), Expected()
    offset = 0
    for day in past.dates:
        writer = LandingWriter(places, f"{day:%Y%m%d}T235959000Z", source)
        bursts = _bursts(past, day, expected)
        for table in _tables(past, source, day, bursts, offset):
            writer.write(table)
            offset += table.num_rows
        moment = begin(day) + timedelta(days=1, hours=2)
        span = Span(from_offset=offset - past.rows, to_offset=offset, events=past.rows, newest_tick=moment)
        record(
            places,
            Entry(
                run=writer.run,
                began=begin(day),
                ended=moment,
                topic=settings.names.events(source.name),
                partitions={0: span},
                columns=columns_of(source),
                files=tuple(writer.files),
            ),
        )
    return expected


def _tables(past: Past, source: Source, day: date, bursts: list[tuple[str, int]], offset: int) -> Iterator[pa.Table]:
    """The events of one day, in the order of their times as far as chunks go; bursts come last."""
    chance = np.random.default_rng([past.seed, day.toordinal()])
    left, made = past.rows - len(bursts), 0
    chunks = max(1, -(-left // _AT_ONCE))
    for chunk in range(chunks):
        count = left // chunks + (chunk < left % chunks)
        times = np.sort(chance.integers(chunk * _MICROS // chunks, (chunk + 1) * _MICROS // chunks, count))
        users = np.minimum((chance.exponential(0.12, count) * past.users).astype(np.int64), past.users - 1)
        failed = (times // 1_000_000 + users) % 60 == 0  # at most one second in sixty, and not two running
        if chunk == chunks - 1 and bursts:
            burst_users, burst_times = zip(*bursts, strict=True)
            names = np.concatenate([_names(users), np.array(burst_users)])
            times = np.concatenate([times, np.array(burst_times)])
            failed = np.concatenate([failed, np.ones(len(bursts), bool)])
        else:
            names = _names(users)
        yield _table(source, day, offset + made, (names, times, failed))
        made += len(names)


def _bursts(past: Past, day: date, expected: Expected) -> list[tuple[str, int]]:
    """User and time of the events of the day's bursts."""
    chance = np.random.default_rng([past.seed, day.toordinal(), 1])
    found: list[tuple[str, int]] = []
    for burst in range(past.bursts):
        user, count = f"burst-{day}-{burst}", int(chance.integers(40, 161))
        window = int(chance.integers(0, _MICROS // _WINDOW)) * _WINDOW
        found += [(user, window + int(at)) for at in chance.integers(0, _WINDOW, count)]
        if count > 50:
            expected[user, begin(day) + timedelta(microseconds=window)] = count
    return found


def _names(users: np.ndarray[tuple[int], np.dtype[np.int64]]) -> np.ndarray[tuple[int], np.dtype[np.str_]]:
    return np.char.add("user-", users.astype(np.str_))


def _table(source: Source, day: date, offset: int, columns: tuple[object, object, object]) -> pa.Table:
    names, times, failed = columns
    micros = np.asarray(times) + int(begin(day).timestamp()) * 1_000_000
    count = len(micros)
    moments = pa.array(micros, pa.int64()).cast(pa.timestamp("us", "UTC"))
    addresses = np.char.add("192.0.2.", (micros % 250).astype(np.str_))
    filled = {
        "raw_topic": pa.array(["raw.logins"] * count),
        "raw_partition": pa.array(np.zeros(count, np.int32)),
        "raw_offset": pa.array(np.arange(offset, offset + count)),
        "event_time": moments,
        "ingested_at": moments,
        "source": pa.array(["logins"] * count),
        "schema_version": pa.array(np.ones(count, np.int32)),
        "user_id": pa.array(names),
        "timestamp": moments,
        "ip_address": pa.array(addresses),
        "action": pa.array(np.where(np.asarray(failed), "login failed", "login succeeded")),
        "message": pa.nulls(count, pa.string()),
    }
    table = pa.table([filled[name] for name in columns_of(source)], arrow_schema(columns_of(source)))
    return table.append_column(PARTITION, pa.array(np.zeros(count, np.int32)))


def day_before(now: datetime, days: int) -> date:
    """The day that lies so many days before `now`, UTC."""
    return (now.astimezone(UTC) - timedelta(days=days)).date()
