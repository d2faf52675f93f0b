"""`python -m bench.alert_storm`: what indexer and notifier take, and what reaches people in a storm of alerts.

With `--database ADDRESS` in an empty database of PostgreSQL, else in a new file of SQLite.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from multiprocessing.queues import Queue
from pathlib import Path

import structlog
from sqlalchemy import Connection, delete, func, select

from bench.figures import Spread, table
from tocsin.alerts.alert_policy import DetectorFacts
from tocsin.alerts.finding_feed import FindingRecord
from tocsin.alerts.indexer import BATCH, COLLECT_AFTER, Indexer
from tocsin.alerts.notify.channel import Delivery, Message, Result
from tocsin.alerts.notify.notifier import Notifier
from tocsin.alerts.notify.notifier_job import POLL_SECONDS
from tocsin.alerts.store.alert_rows import write_facts
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.schema import alerts, metadata, notifications
from tocsin.declare.model.finding import Finding, finding_id
from tocsin.declare.receivers import RECEIVERS, ReceiverKind
from tocsin.declare.setting_blocks import SmtpSettings
from tocsin.declare.settings import Settings
from tocsin.dev.servers.ports import free_ports

_COUNTED, _MAILED = "counted:owner", "owner@example.com"
_SECOND = timedelta(seconds=1)


class Counted:
    """A receiver that accepts every message and notes when, by the clock of the measurement."""

    messages: list[tuple[datetime, str]] = []  # noqa: RUF012  # one for all channels
    clock = staticmethod(lambda: datetime.now(UTC))

    def __init__(self, settings: Settings) -> None:
        pass

    def send(self, message: Message) -> Delivery:
        """Accept it."""
        Counted.messages.append((Counted.clock(), message.subject))
        return Delivery(Result.SENT)

    def close(self) -> None:
        """There is nothing to end."""


RECEIVERS["counted"] = ReceiverKind(f"{__name__}:Counted", lambda _: None)


class TimedDatabase(Database):
    """Notes the longest wait for a transaction that writes, and the longest such transaction, in seconds."""

    waited = written = 0.0

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """See `Database.write`."""
        asked = time.monotonic()
        with super().write() as connection:
            begun = time.monotonic()
            self.waited = max(self.waited, begun - asked)
            yield connection
        self.written = max(self.written, time.monotonic() - begun)


class Site:
    """An empty alerts DB with detectors, and the clock of its indexer and notifier."""

    def __init__(self, folder: Path, address: str) -> None:
        self.database = TimedDatabase(address or f"sqlite:///{folder / 'alerts.db'}", busy_seconds=60.0)
        self.settings = Settings(project=folder, state=folder)
        self.now: datetime | None = None
        self.database.migrate()
        with self.database.write() as connection:
            for table_ in reversed(metadata.sorted_tables):
                connection.execute(delete(table_))

    def clock(self) -> datetime:
        """The time, unless `now` stands still."""
        return self.now or datetime.now(UTC)

    def indexer(self, *detectors: str, owner: str = _COUNTED) -> Indexer:
        """An indexer that knows `detectors`."""
        hour = timedelta(hours=1)
        with self.database.write() as connection:
            write_facts(connection, [
                DetectorFacts(name=name, version="v1", title="Many of something", owner=owner, runbook="r.md",
                              live=True, dedup_period=hour, page_within=hour, email_limit=50, urgent_limit=100)
                for name in detectors
            ])  # fmt: skip
        return Indexer(self.settings, self.database, self.clock)

    def notifier(self) -> Notifier:
        """A notifier that hears of no jobs."""
        return Notifier(self.settings, self.database, dict, self.clock)


def records(detector: str, users: Sequence[str], score: float, at: datetime) -> list[FindingRecord]:
    """One finding of each user in a window of ten seconds, as Kafka delivers it; the score rises a little with each."""
    window = (at, at + 10 * _SECOND)
    found = []
    for number, user in enumerate(users):
        entity = {"user_id": user}
        finding = Finding(
            finding_id=finding_id(detector, entity, *window), detector=detector, version="v1", entity=entity,
            window_start=window[0], window_end=window[1], level="urgent", limit=100,
            score=score + number / 1e6, event_time_max=at + number * timedelta(microseconds=1),
        )  # fmt: skip
        value = finding.to_json()
        found.append(FindingRecord(topic="findings", partition=0, offset=0, appended_at=at, value=value))
    return found


def fill(site: Site, indexer: Indexer, detector: str, users: Sequence[str], score: float = 120) -> float:
    """Store a finding of each user, in batches as the job takes them; returns how many a second."""
    found, begun = records(detector, users, score, site.clock() - 10 * _SECOND), time.monotonic()
    for first in range(0, len(found), BATCH):
        indexer.store(found[first : first + BATCH])
    return len(found) / (time.monotonic() - begun)


def throughput(site: Site, count: int) -> list[dict[str, object]]:
    """Findings a second of the indexer, which is alone."""
    gc.set_threshold(COLLECT_AFTER)
    site.now = datetime.now(UTC)
    indexer, users = site.indexer("many"), [f"user{number}" for number in range(count)]
    opening = fill(site, indexer, "many", users)
    unchanged = fill(site, indexer, "many", users, 121)
    rising = fill(site, indexer, "many", [user for user in users[: count // 10] for _ in range(10)], 122)
    return [
        {"indexer": "each finding opens an alert", "findings a second": round(opening)},
        {"indexer": "level unchanged, each finding once", "findings a second": round(unchanged)},
        {"indexer": "level unchanged, ten records of each finding", "findings a second": round(rising)},
    ]


def waits(site: Site, folder: Path, address: str, count: int) -> list[dict[str, object]]:
    """Fill a DB, and look how long indexer and notifier wait for each other while `count` alerts leave."""
    indexer = site.indexer("many", "live")
    fill(site, indexer, "many", [f"user{number}" for number in range(count)])
    site.database.waited = site.database.written = 0.0
    context = multiprocessing.get_context("spawn")
    stop, answers = context.Event(), context.Queue()
    beside = context.Process(target=_index_on, args=(folder, address, stop, answers))
    beside.start()
    answers.get()
    notifier, begun = site.notifier(), time.monotonic()
    while _unsent(site, "many"):
        notifier.send_due(threading.Event())
        notifier.tidy()
    took = time.monotonic() - begun
    stop.set()
    waited, written, batches = answers.get()
    beside.join()
    return [
        {"side": "indexer", "waits ms": 1000 * waited, "writes ms": 1000 * written, "took s": took, "batches": batches},
        {"side": "notifier", "waits ms": 1000 * site.database.waited, "writes ms": 1000 * site.database.written},
    ]


def _index_on(folder: Path, address: str, stop: threading.Event, answers: Queue[object]) -> None:
    """Store findings of another detector as they come at 50 a second, until stopped."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    database = TimedDatabase(address or f"sqlite:///{folder / 'alerts.db'}", busy_seconds=60.0)
    indexer = Indexer(Settings(project=folder, state=folder), database)
    batches = 0
    answers.put("begun")
    while not stop.is_set():
        users = [f"live{batches}-{number}" for number in range(10)]
        indexer.store(records("live", users, 120, datetime.now(UTC) - 10 * _SECOND))
        batches += 1
        time.sleep(0.2)
    answers.put((database.waited, database.written, batches))


def _unsent(site: Site, detector: str) -> int:
    own = notifications.c
    query = select(func.count()).where(own.detector == detector, own.state.in_(("pending", "leaving")))
    with site.database.read() as connection:
        return connection.execute(query).scalar_one()


def storm(site: Site, count: int) -> list[dict[str, object]]:
    """`count` alerts within a minute and one of another detector in their midst: messages to their owner in an hour."""
    begun = site.now = datetime.now(UTC)
    Counted.messages.clear()
    Counted.clock = staticmethod(site.clock)
    indexer, notifier = site.indexer("many", "other"), site.notifier()
    for half_second in range(120):
        each = range(half_second * count // 120, (half_second + 1) * count // 120)
        fill(site, indexer, "many", [f"user{number}" for number in each])
        if half_second == 80:
            fill(site, indexer, "other", ["the one"])
            appeared, real = site.clock(), time.monotonic()
        notifier.send_due(threading.Event(), patience=30.0)
        if half_second == 80:
            took = time.monotonic() - real
        site.now += POLL_SECONDS * _SECOND
    for _ in range(12):
        site.now += timedelta(minutes=5)
        notifier.send_due(threading.Event(), patience=60.0)
    others = [at for at, subject in Counted.messages if "the one" in subject]
    with site.database.read() as connection:
        opened = connection.execute(select(func.count()).select_from(alerts)).scalar_one()
    return [
        {
            "alerts": opened,
            "messages": len(Counted.messages) - len(others),
            "at s": ", ".join(f"{(at - begun).total_seconds():g}" for at, _ in Counted.messages),
            "urgent of another after s": (others[0] - appeared).total_seconds() + took,
            "left": _unsent(site, "many"),
        }
    ]


def latency(folder: Path, address: str, rate: float, seconds: float, detectors: int) -> dict[str, object]:
    """Milliseconds from the store of a crossing until its mail was accepted, for the first alert of each detector.

    Indexer, notifier and SMTP server are processes of their own, as where they work.
    """
    (port,), context = free_ports(1), multiprocessing.get_context("spawn")
    site, names = Site(folder, address), [f"detector{number}" for number in range(detectors)]
    indexer, stop = site.indexer("first", *names, owner=_MAILED), context.Event()
    server = ("-m", "aiosmtpd", "-n", "-l", f"127.0.0.1:{port}", "-c", "aiosmtpd.handlers.Sink")
    with subprocess.Popen([sys.executable, *server]) as sink:
        notifier = context.Process(target=_notify_on, args=(folder, address, port, stop))
        notifier.start()
        indexer.store(records("first", ["user"], 120, site.clock() - 9 * _SECOND))  # finds the notifier cold
        time.sleep(5.0)
        begun = time.time()
        for number in range(int(rate * seconds)):
            time.sleep(max(0.0, begun + number / rate - time.time()))
            indexer.store(records(names[number % detectors], [f"user{number}"], 120, site.clock() - 9 * _SECOND))
        until = time.time() + 60
        while len(_first_sent(site)) < detectors and time.time() < until:
            time.sleep(0.1)
        stop.set()
        notifier.join()
        sink.terminate()
    spread = Spread.of([1000 * (sent - opened).total_seconds() for opened, sent in _first_sent(site)])
    row: dict[str, object] = {"alerts a second": rate, "detectors": detectors, "p50 ms": spread.p50}
    return row | {"p95 ms": spread.p95, "max ms": spread.worst, "firsts": spread.count, "mails": _mails(site)}


def _notify_on(folder: Path, address: str, port: int, stop: threading.Event) -> None:
    """Send what is due to the SMTP server at `port`, in rounds as the job does, until stopped."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    settings = Settings(project=folder, state=folder, smtp=SmtpSettings(port=port))
    notifier = Notifier(settings, Database(address or f"sqlite:///{folder / 'alerts.db'}"), dict)
    while not stop.is_set():
        if notifier.has_work():
            notifier.send_due(stop)
        stop.wait(POLL_SECONDS)
    notifier.finish(10.0)


def _mails(site: Site) -> int:
    sent = select(func.count(notifications.c.message_id.distinct())).where(notifications.c.sent_at.is_not(None))
    with site.database.read() as connection:
        return connection.execute(sent).scalar_one()


def _first_sent(site: Site) -> list[tuple[datetime, datetime]]:
    """When the first alert of each detector was opened, and when the mail about it was accepted."""
    first = select(func.min(alerts.c.id)).where(alerts.c.detector != "first").group_by(alerts.c.detector)
    own = select(alerts.c.opened_at, notifications.c.sent_at).join_from(alerts, notifications)
    with site.database.read() as connection:
        rows = connection.execute(own.where(alerts.c.id.in_(first), notifications.c.sent_at.is_not(None)))
        return [(opened, sent) for opened, sent in rows]


def main() -> None:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.alert_storm", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--database", default="", help="address of an empty database of PostgreSQL")
    parser.add_argument("--alerts", type=int, default=100_000, help="in the DB while both sides write")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    parts: tuple[Callable[[Path], list[dict[str, object]]], ...] = (
        lambda folder: throughput(Site(folder, options.database), 20_000),
        lambda folder: storm(Site(folder, options.database), 10_000),
        lambda folder: waits(Site(folder, options.database), folder, options.database, options.alerts),
        lambda folder: [latency(folder, options.database, 1, 40, 40), latency(folder, options.database, 50, 20, 40)],
    )
    for part in parts:
        with tempfile.TemporaryDirectory(prefix="alert-storm") as folder:
            print(f"{table(part(Path(folder)))}\n", flush=True)


if __name__ == "__main__":
    main()
