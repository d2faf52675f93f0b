"""A day of 100,000 findings with thirty planted attacks: how many messages people get, and which attacks reach them.

`python -m bench.alert_day`. Forty detectors of four owners find something all day about 2,000 entities: a trickle each,
and eight storms in which one detector finds hundreds of entities within minutes, as after a wrong deploy. The attacks
are urgent, five of them in the middle of a storm of their own detector. Indexer and notifier are those of the product
on SQLite, with a clock that jumps from half minute to half minute and a receiver that takes all; beside them the rule
that most tools have: one message an hour for each detector and entity.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from pkgutil import resolve_name

import structlog

from bench.figures import table
from tocsin.alerts.alert_policy import DetectorFacts
from tocsin.alerts.notify.channel import Delivery, Message, Result
from tocsin.alerts.notify.notifier import Notifier
from tocsin.alerts.recording import Rules, record
from tocsin.alerts.store.alert_rows import write_facts
from tocsin.alerts.store.database import Database
from tocsin.declare.model.finding import Finding, finding_id
from tocsin.declare.receivers import RECEIVERS, ReceiverKind
from tocsin.declare.settings import Settings

FINDINGS, DETECTORS, ENTITIES, ATTACKS, STORMS = 100_000, 40, 2_000, 30, 8
_DAY, _STEP, _WINDOW = datetime(2026, 3, 2, tzinfo=UTC), timedelta(seconds=30), timedelta(minutes=1)
_STORM_MINUTES, _STORM_ENTITIES = 20, 900
_messages: list[Message] = []


class Memory:
    """A receiver that takes every message."""

    def __init__(self, settings: Settings) -> None:
        pass

    def send(self, message: Message) -> Delivery:
        """Take it."""
        _messages.append(message)
        return Delivery(Result.SENT)

    def close(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True)
class Day:
    """The findings by step of the clock, and the entity and beginning of each attack."""

    findings: dict[int, list[Finding]]
    attacks: list[tuple[str, datetime]]


def made(seed: int) -> Day:
    """Make a day; the same for the same seed."""
    chance = random.Random(seed)
    steps = int(timedelta(days=1) / _STEP)
    found: dict[int, list[Finding]] = defaultdict(list)
    storms = [(chance.randrange(steps - 100), detector) for detector in range(STORMS)]
    for begin, detector in storms:
        for number in chance.sample(range(ENTITIES), _STORM_ENTITIES):
            for _ in range(3):
                step = begin + chance.randrange(_STORM_MINUTES * 2)
                found[step].append(_finding(detector, f"user-{number}", step, 60 + chance.randrange(40)))
    attacks = []
    for number in range(ATTACKS):
        begin, detector = storms[number] if number < 5 else (chance.randrange(steps - 20), chance.randrange(DETECTORS))
        step = begin + 10 if number < 5 else begin
        entity = f"attacked-{number}"
        attacks.append((entity, _DAY + step * _STEP))
        for later in range(5):
            found[step + later].append(_finding(detector, entity, step + later, 150 + later))
    # A trickle: three entities of each detector, so most findings belong to an alert that is open.
    for _ in range(FINDINGS - sum(map(len, found.values()))):
        step, detector = chance.randrange(steps), chance.randrange(DETECTORS)
        found[step].append(_finding(detector, f"user-{chance.randrange(3)}", step, 60))
    return Day(found, attacks)


def _finding(detector: int, entity: str, step: int, score: float) -> Finding:
    end = _DAY + step * _STEP
    name, who, level = f"detector_{detector}", {"user": entity}, "urgent" if score > 100 else "email"
    return Finding(
        finding_id=finding_id(name, who, end - _WINDOW, end), detector=name, version="v1", entity=who,
        window_start=end - _WINDOW, window_end=end, level=level, score=score, limit=100 if score > 100 else 50,
        event_time_max=end, detected_at=end,
    )  # fmt: skip


def main() -> int:
    """Measure, and print the table."""
    RECEIVERS["memory"] = ReceiverKind("bench.alert_day:Memory", lambda address: None)
    day = made(7)
    with tempfile.TemporaryDirectory() as folder:
        seconds = _run(day, Path(folder))
    text = [message.subject + message.text for message in _messages]
    own = sum(any(entity in each for each in text) for entity, _ in day.attacks)
    waited = [
        min((message.date - since for message in _messages if entity in message.subject), default=timedelta.max)
        for entity, since in day.attacks
    ]
    alone, longest = sum(each < timedelta.max for each in waited), max(waited)
    plain = {
        (each.detector, each.entity["user"], int(each.moment.timestamp() // 3600))
        for findings in day.findings.values()
        for each in findings
    }
    rows = [
        {"rule": "Tocsin", "messages": len(_messages), "attacks in a message": own, "in its subject": alone},
        {"rule": "one an hour for each entity", "messages": len(plain), "attacks in a message": ATTACKS,
         "in its subject": ATTACKS},
    ]  # fmt: skip
    print(f"{sum(map(len, day.findings.values())):,} findings, {seconds:.0f} s")
    print(table(rows))
    print(f"An attack waited {longest.total_seconds():.0f} s at most, with a clock of {_STEP.total_seconds():.0f} s.")
    kinds = ("[summary]" if "[summary]" in m.subject else "urgent" if m.urgent else "e-mail" for m in _messages)
    print(Counter(kinds).most_common())
    return 0


def _run(day: Day, folder: Path) -> float:
    settings, began = Settings(project=folder, state=folder), time.monotonic()
    database = Database(f"sqlite:///{folder / 'alerts.db'}")
    database.migrate()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    facts = {f"detector_{number}": _facts(number) for number in range(DETECTORS)}
    with database.write() as connection:
        write_facts(connection, facts.values())
    clock = [_DAY]
    notifier = Notifier(settings, database, dict, lambda: clock[0])
    steps = int(timedelta(days=1) / _STEP)
    for step in range(steps + 240):
        clock[0] = _DAY + step * _STEP
        if findings := day.findings.get(step):
            with database.write() as connection:
                record(connection, findings, Rules(facts=facts), clock[0])
        notifier.release_closed()
        notifier.send_due(threading.Event(), patience=30.0)
        if step % 20 == 0:
            notifier.tidy()
    database.close()
    return time.monotonic() - began


def _facts(number: int) -> DetectorFacts:
    return DetectorFacts(
        name=f"detector_{number}", version="v1", title=f"Detector {number} finds something", live=True,
        owner=f"memory:team{number % 4}", runbook="docs/x.md", dedup_period=timedelta(hours=1),
        page_within=timedelta(minutes=15), email_limit=50, urgent_limit=100,
    )  # fmt: skip


if __name__ == "__main__":
    # Not this module: the receiver is made by its name, and what it took is there.
    raise SystemExit(resolve_name("bench.alert_day:main")())
