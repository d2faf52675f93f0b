"""Evidence of alerts: events that Kafka holds, and what differs from before; null, empty, huge, hostile, and away."""

import json
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.rig.played_kafka import played_kafka
from tests.unit.alerts.scene import MINUTE, NOON, SECOND, WINDOW, finding, index, show
from tocsin.alerts.evidence import gathering
from tocsin.alerts.evidence.alert_evidence import AlertEvidence, SourceEvidence
from tocsin.alerts.evidence.gathering import EvidenceGatherer, gather, unusual_columns
from tocsin.alerts.store.alert_rows import AlertDetails
from tocsin.alerts.store.database import Database
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.source import tick_value
from tocsin.declare.setting_blocks import KafkaSettings
from tocsin.declare.settings import Settings
from tocsin.platform.kafka.reader import TopicReader
from tocsin.platform.kafka.record_writer import PROMPT, RecordWriter

ROOT = Path(__file__).parents[4]
TOPIC = "events.logins"


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaSettings]:
    with played_kafka(TOPIC) as settings:
        yield settings


@pytest.fixture
def settings(kafka: KafkaSettings, tmp_path: Path) -> Settings:
    return Settings(project=ROOT, state=tmp_path, kafka=kafka)


def details_of(database: Database, user: str, **changes: Any) -> AlertDetails:
    index(database, [finding(120, user=user, **changes)])
    return show(database)


def event(user: str, offset: int, at: datetime, **values: Any) -> bytes:
    origin = {"raw_topic": "raw.logins", "raw_partition": 0, "raw_offset": offset, "event_time": at.isoformat()}
    return json.dumps(origin | {"user_id": user, "action": "login failed"} | values).encode()


def write(settings: Settings, *values: bytes) -> None:
    with RecordWriter(settings, 2_000_000, config=PROMPT) as writer:
        for number, value in enumerate(values):
            writer.write(TOPIC, value, partition=number % 4)


def gathered(settings: Settings, details: AlertDetails) -> SourceEvidence:
    with TopicReader(settings, "test", TOPIC) as reader:
        (source,) = gather(settings, details, lambda _: reader).sources
    return source


def test_the_latest_events_of_the_entity_and_what_differs_from_those_before(
    settings: Settings, sqlite: Database
) -> None:
    before = [event("mallory", n, NOON - (21 - n) * MINUTE, ip_address="10.0.0.1") for n in range(20)]
    window = [event("mallory", 100 + n, NOON + n * SECOND / 4, ip_address="203.0.113.7") for n in range(30)]
    others = [event("trent", 200 + n, NOON + SECOND) for n in range(10)]
    others += [event("mallory", 300, NOON + WINDOW), window[0], b"{", b"[]", tick_value(NOON)]
    write(settings, *before, *others, *window)
    found = gathered(settings, details_of(sqlite, "mallory"))
    assert (found.count, found.before, found.since, found.note) == (30, 20, NOON - 21 * MINUTE, "")
    assert [each["event_time"][17:23] for each in found.events] == [f"{n / 4:06.3f}" for n in range(20, 30)]
    assert found.events[0].keys() == {"event_time", "user_id", "action", "ip_address"}
    (column,) = found.unusual
    assert (column.column, column.difference) == ("ip_address", 1.0)
    assert [(each.value, each.share, each.usual) for each in column.values] == [("203.0.113.7", 1.0, 0.0)]


def test_without_events_in_the_window_the_last_ones_before_are_shown(settings: Settings, sqlite: Database) -> None:
    write(settings, *(event("silent", n, NOON - (5 - n) * MINUTE, ip_address=None) for n in range(3)))
    found = gathered(settings, details_of(sqlite, "silent"))
    assert (found.count, found.before, len(found.events), found.unusual) == (0, 3, 3, [])
    nobody = gathered(settings, details_of(sqlite, "nobody"))
    assert (nobody.count, nobody.events, nobody.since) == (0, [], None)


def test_huge_and_strange_values_are_cut(
    settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "STORED_BYTES", 4_000)
    strange = ["x" * 1_000_000, "\x00\u202e<script>", "\ud800", {"a": [1, "b" * 5000]}, float("nan"), 10**400, True]
    values = [{"ip_address": value, "message": "\x01" * 9_000} for value in strange]
    write(settings, *(event("huge", n, NOON + n * SECOND, **each) for n, each in enumerate(values)))
    details = details_of(database, "huge")
    gatherer = EvidenceGatherer(settings, database)
    evidence = gatherer.enrich(details).evidence
    assert evidence is not None
    assert evidence.note == ""
    assert evidence.sources[0].count == len(strange)
    assert len(evidence.model_dump_json().encode()) <= 4_000
    assert 0 < len(evidence.sources[0].events) < len(strange), "the latest are left"
    assert stored(database, details) == evidence


def test_more_records_than_are_read_leave_the_latest_and_a_note(
    settings: Settings, sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(settings, *(event("busy", n, NOON + n * SECOND / 10, ip_address=f"10.0.0.{n}") for n in range(80)))
    # The broker that librdkafka plays knows no offsets by time.
    monkeypatch.setattr(TopicReader, "since", lambda self, moment: self.bounds()[moment > NOON])
    monkeypatch.setattr(gathering, "RECORDS", 40)
    found = gathered(settings, details_of(sqlite, "busy"))
    assert found.count == 40
    assert found.note == "of the window only the latest 40 records of all entities were read"
    monkeypatch.setattr(gathering, "SECONDS", -1)
    assert gathered(settings, details_of(sqlite, "busy")).note.startswith("the time for reading was over")


def stored(database: Database, details: AlertDetails) -> AlertEvidence | None:
    for _ in range(100):
        if (read := show(database, details.alert.id).evidence) is not None:
            return read
        threading.Event().wait(0.02)
    return None


def test_evidence_that_comes_too_late_is_stored_for_the_next_message(
    settings: Settings, sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(settings, event("late", 1, NOON + SECOND))
    go = threading.Event()
    monkeypatch.setattr(gathering, "URGENT_PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(gathering, "gather", lambda *given: go.wait(10) and gather(*given))
    details = details_of(sqlite, "late")
    gatherer = EvidenceGatherer(settings, sqlite)
    first = gatherer.enrich(details).evidence
    assert first is not None
    assert "not read from Kafka in time" in first.note
    go.set()
    kept = stored(sqlite, details)
    assert kept is not None
    away_until, another = gatherer._away_until, details_of(sqlite, "another")
    gatherer.enrich(another)
    assert stored(sqlite, another) is not None
    assert gatherer._away_until == away_until, "one that did not wait for Kafka does not tell the next not to"
    assert kept.sources[0].count == 1
    monkeypatch.setattr(gathering, "gather", lambda *_: pytest.fail("gathered again"))
    assert gatherer.enrich(details).evidence == kept, "for another recipient"
    later = EvidenceGatherer(settings, sqlite)
    assert later.enrich(details.model_copy(update={"evidence": kept})).evidence == kept


@pytest.mark.parametrize("error", [TransientError("Kafka is away"), ValueError("a fault of ours")])
def test_a_failure_gives_a_note_stores_nothing_and_ends_nothing(
    settings: Settings, sqlite: Database, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> AlertEvidence:
        raise error

    write(settings, event("again", 1, NOON + SECOND))
    details = details_of(sqlite, "again")
    gatherer = EvidenceGatherer(settings, sqlite)
    with monkeypatch.context() as patch:
        patch.setattr(gathering, "gather", fail)
        failed = gatherer.enrich(details).evidence
    assert failed is not None
    assert str(error) in failed.note
    assert show(sqlite, details.alert.id) == details
    monkeypatch.setattr(gatherer, "_away_until", 0.0)
    again = gatherer.enrich(details).evidence
    assert again is not None
    assert again.sources[0].count == 1


def rows(**columns: list[Any]) -> list[dict[str, Any]]:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


UNUSUAL = {
    "no events": ([], rows(a=["x"] * 20), []),
    "as usual": (rows(a=["x"] * 5), rows(a=["x"] * 20), []),
    "nothing but nulls": (rows(a=[None] * 5), rows(a=[None] * 20), []),
    "null where there was a value": (rows(a=[None] * 5), rows(a=["x"] * 20), [("(none)", 1.0, 0.0)]),
    "a new value": (rows(a=["y", "y", "y", "x"]), rows(a=["x"] * 20), [("y", 0.75, 0.0)]),
    "too little": (rows(a=["x"] * 9 + ["y"]), rows(a=["x"] * 20), []),
    "too many values": (rows(a=[*range(21)]), rows(a=["x"] * 20), []),
    "few events before": (rows(a=["y", "y", "x"]), rows(a=["x"] * 9), [("y", 2 / 3, None)]),
    "numbers and texts are alike": (rows(a=[1, "1"]), rows(a=[True] * 20), [("1", 1.0, 0.0)]),
}


@pytest.mark.parametrize(("window", "before", "told"), UNUSUAL.values(), ids=UNUSUAL)
def test_the_columns_that_differ(
    window: list[dict[str, Any]], before: list[dict[str, Any]], told: list[tuple[str, float, float | None]]
) -> None:
    found = unusual_columns(["a", "b"], window, before)
    assert [(each.value, each.share, each.usual) for column in found for each in column.values] == told


def test_the_column_that_differs_most_comes_first() -> None:
    window = rows(a=["x", "x", "y", "y"], b=["n"] * 4)
    assert [column.column for column in unusual_columns(["a", "b"], window, rows(a=["x"] * 20, b=["o"] * 20))] == [
        "b",
        "a",
    ]


def test_a_column_that_the_detector_computes_is_not_looked_for(settings: Settings, sqlite: Database) -> None:
    details = details_of(sqlite, "computed", entity={"template": "t"}, window_start=NOON - timedelta(hours=1))
    assert "logins has no column template" in gathered(settings, details).note
