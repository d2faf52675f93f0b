"""Days of logins of a chosen size, with planted bursts: their findings are known beforehand. Landing them, too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pyarrow as pa

from bench.landed import LandingWriter, arrow_schema
from tocsin.declare.model.source import Source, columns_of
from tocsin.declare.settings import Settings
from tocsin.history.landing_ledger import Entry, OffsetSpan, record
from tocsin.history.places import Places, begin

_AT_ONCE = 500_000
_MICROS = 86_400_000_000
_WINDOW = 10_000_000
_ADDRESSES = pa.array([f"192.0.2.{number}" for number in range(250)])
_ACTIONS = pa.array(["login succeeded", "login failed"])

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]
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


@dataclass(frozen=True)
class Happened:
    """Some events of a day, in the order in which they came.

    Attributes:
        who: of each, a place in `names`.
        times: microseconds since midnight.
        failed: whether the login failed.
        offsets: in its raw partition.
    """

    who: Numbers
    times: Numbers
    failed: np.ndarray[tuple[int], np.dtype[np.bool_]]
    offsets: Numbers


def land_past(settings: Settings, source: Source, past: Past) -> Expected:
    """Land all of it; returns what `expected` says."""
    places, people = Places.of(settings, source.name), pa.array(names(past))
    for day in past.dates:
        writer = LandingWriter(places, f"{day:%Y%m%d}T235959000Z", source)
        for some in happened(past, day):
            writer.write(events(source, day, people, some))
        moment, begins_at = begin(day) + timedelta(days=1, hours=2), _first_offset(past, day)
        span = OffsetSpan(from_offset=begins_at, to_offset=begins_at + past.rows, events=past.rows, newest_tick=moment)
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
    return expected(past)


def expected(past: Past) -> Expected:
    """The windows with more than 50 failures: what failed_logins must find, and nothing else.

    Events outside of bursts never reach 50 failures of one user in ten seconds: each user has a second of its own in
    which it can fail at all.
    """
    found = Expected()
    for day in past.dates:
        for number, (start, times) in enumerate(_bursts(past, day)):
            if len(times) > 50:
                found[_burst_name(day, number), begin(day) + timedelta(microseconds=start)] = len(times)
    return found


def names(past: Past) -> list[str]:
    """Everybody whom events can be about: the users, then those of the bursts of each day."""
    users = [f"user-{number}" for number in range(past.users)]
    return users + [_burst_name(day, number) for day in past.dates for number in range(past.bursts)]


def _first_offset(past: Past, day: date) -> int:
    """Of the day's first event."""
    return (day - past.first).days * past.rows


def happened(past: Past, day: date) -> Iterator[Happened]:
    """The events of one day, in the order of their times as far as chunks go; bursts come last."""
    chance, offset = np.random.default_rng([past.seed, day.toordinal()]), _first_offset(past, day)
    bursts = _bursts(past, day)
    left = past.rows - sum(len(times) for _, times in bursts)
    chunks = max(1, -(-left // _AT_ONCE))
    for chunk in range(chunks):
        count = left // chunks + (chunk < left % chunks)
        times = np.sort(chance.integers(chunk * _MICROS // chunks, (chunk + 1) * _MICROS // chunks, count))
        who = np.minimum((chance.exponential(0.12, count) * past.users).astype(np.int64), past.users - 1)
        failed = (times // 1_000_000 + who) % 60 == 0  # at most one second in sixty, and not two running
        yield Happened(who, times, failed, _from(offset, count))
        offset += count
    first = past.users + (day - past.first).days * past.bursts
    for number, (_, times) in enumerate(bursts):
        yield Happened(np.full(len(times), first + number), times, np.ones(len(times), bool), _from(offset, len(times)))
        offset += len(times)


def events(source: Source, day: date, people: pa.Array, some: Happened) -> pa.Table:
    """`some` events of `day` with all columns of landed and sealed ones; `people` are `names`."""
    micros = some.times + int(begin(day).timestamp()) * 1_000_000
    moments = pa.array(micros, pa.int64()).cast(pa.timestamp("us", "UTC"))
    count = len(micros)
    values = {
        "raw_topic": pa.repeat("raw.logins", count),
        "raw_partition": pa.array(np.zeros(count, np.int32)),
        "raw_offset": pa.array(some.offsets),
        "event_time": moments,
        "ingested_at": moments,
        "source": pa.repeat("logins", count),
        "schema_version": pa.array(np.ones(count, np.int32)),
        "user_id": people.take(pa.array(some.who)),
        "timestamp": moments,
        "ip_address": _ADDRESSES.take(pa.array(micros % len(_ADDRESSES))),
        "action": _ACTIONS.take(pa.array(some.failed.astype(np.int8))),
        "message": pa.nulls(count, pa.string()),
    }
    return pa.table([values[name] for name in columns_of(source)], arrow_schema(columns_of(source)))


def day_before(now: datetime, days: int) -> date:
    """The day that lies so many days before `now`, UTC."""
    return (now.astimezone(UTC) - timedelta(days=days)).date()


def _from(first: int, count: int) -> Numbers:
    return np.arange(first, first + count)


def _burst_name(day: date, number: int) -> str:
    return f"burst-{day}-{number}"


def _bursts(past: Past, day: date) -> list[tuple[int, Numbers]]:
    """Of each burst of the day: where its window begins and the times of its events, microseconds since midnight."""
    chance = np.random.default_rng([past.seed, day.toordinal(), 1])
    found = []
    for _ in range(past.bursts):
        count = int(chance.integers(40, 161))
        window = int(chance.integers(0, _MICROS // _WINDOW)) * _WINDOW
        found.append((window, window + chance.integers(0, _WINDOW, count)))
    return found
