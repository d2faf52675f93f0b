"""From a live stream through its history to `tocsin parity`: what the stream lacks is told with its reason, proved.

What was imported is a part of it, and history lies on a disk or in an object store.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.rig.broker import Broker
from tests.rig.commands import Commands
from tests.rig.detect_job import Topic, text
from tests.rig.installation import Installation
from tests.rig.load import EMAIL, URGENT
from tests.rig.object_store import object_store
from tests.rig.observed import DETECT, DETECTOR, SOURCE
from tests.rig.samples.backfills import list_backfilled
from tests.rig.sink_servers import emptied, running
from tests.rig.waiting import await_that
from tocsin.alerts.store.queries import open_store
from tocsin.declare.model.job_report import JobReport
from tocsin.declare.model.names import INDEXER
from tocsin.declare.setting_blocks import HistorySettings
from tocsin.history.backfill.parity.parity_report import ParityReport
from tocsin.history.places import Places, begin
from tocsin.platform.storage.stored_path import find_all

DAY = datetime.now(UTC).date() - timedelta(days=1)
NOON = begin(DAY) + timedelta(hours=12)
MUCH_LATER = NOON + timedelta(hours=1)
SECONDS = 60.0


@pytest.fixture(params=["disk", "object store"])
def one(request: pytest.FixtureRequest, broker: Broker, tmp_path: Path) -> Iterator[Installation]:
    with ExitStack() as stack:
        installation = stack.enter_context(Installation(tmp_path, broker))
        changed: dict[str, Any] = {"history": HistorySettings(grace=timedelta(seconds=1))}
        if request.param == "object store":
            address = emptied(stack.enter_context(running("postgres")).address)
            (catalog := tmp_path / "catalogue").write_text(address.replace("postgresql:", "postgresql+psycopg:"))
            changed["history"] = changed["history"].model_copy(update={"catalog_file": catalog})
            changed["storage"] = stack.enter_context(object_store(tmp_path)).history_settings("team/history")
        installation.settings = installation.settings.model_copy(update=changed)
        installation.make_topics()
        yield installation


def reported(one: Installation) -> JobReport:
    report = one.report(DETECT)
    assert report is not None, one.log(DETECT)[-4000:]
    return report


def await_batch(one: Installation, wanted: Callable[[JobReport], bool]) -> None:
    """Wait for the report on a batch that is `wanted`. What is written then is read whole by the next, just begun."""
    before = reported(one).batch_id
    await_that(lambda: reported(one).batch_id != before and wanted(reported(one)), SECONDS)


def fail(topic: Topic, user: str, count: int, ingested: datetime = NOON) -> list[dict[str, Any]]:
    """Let `user` fail `count` times within the window at NOON; what came in at `ingested`."""
    moments = [NOON + timedelta(milliseconds=10 * number) for number in range(count)]
    return [json.loads(topic.event(user, moment, max(moment, ingested), 0)) for moment in moments]


def quarantine(one: Installation, events: list[dict[str, Any]]) -> None:
    """Write what ingest has written of the records of `events` before they were replayed."""
    producer = Producer(one.settings.kafka.for_librdkafka())
    for event in events:
        origin = {name: event[f"raw_{name}"] for name in ("topic", "partition", "offset")}
        record = {
            "reasons": ["missing:ip_address"], "origin": origin | {"timestamp": event["ingested_at"]},
            "source": SOURCE, "schema_version": 1, "rules_version": "before", "replays": 0,
        }  # fmt: skip
        producer.produce(one.settings.names.quarantine(SOURCE), json.dumps(record).encode())
    assert producer.flush(10) == 0


def stream(one: Installation) -> None:
    """A live stream that drops what comes behind its watermark, late or replayed, and all that it found stored."""
    topic = Topic(one.settings)
    one.start(DETECT, INDEXER)
    one.await_ready(DETECT, INDEXER)
    await_batch(one, lambda report: True)
    for user, count in (("in-time", URGENT + 5), ("slow", EMAIL + 5), ("silent", EMAIL - 2), ("mended", EMAIL + 5)):
        fail(topic, user, count)
    topic.tick(MUCH_LATER)
    topic.flush()
    await_batch(one, lambda report: report.watermark == MUCH_LATER - timedelta(seconds=12))
    await_batch(one, lambda report: True)  # a batch drops what lies behind the watermark of the one before
    for user in ("slow", "silent"):
        fail(topic, user, 15, MUCH_LATER)
    replayed = fail(topic, "mended", 15)
    topic.flush()
    quarantine(one, replayed)
    await_batch(one, lambda report: report.rows_dropped_late > 0)
    topic.tick(datetime.now(UTC))
    topic.flush()
    await_batch(one, lambda report: (report.watermark or NOON) > begin(DAY) + timedelta(days=1))
    assert one.stop(DETECT) == 0


def write_past(file: Path) -> Path:
    """A file of what the stream never read: failures of `imported` at NOON, and one line that is none."""
    moments = [NOON + timedelta(milliseconds=10 * number) for number in range(EMAIL + 7)]
    rows = [{"user_id": "imported", "timestamp": text(at), "ip_address": "192.0.2.1"} for at in moments]
    lines = [json.dumps(row | {"action": "login failed"}) for row in rows]
    file.write_text("\n".join([*lines, "no login"]))
    return file


def backfill(one: Installation, commands: Commands) -> None:
    """The same day from history, and what it says instead of the stream in the alerts DB."""
    past = write_past(one.settings.project / "past.jsonl")
    commands.run("history", "import", "--source", SOURCE, str(past), code=1)  # a row of it is refused
    (refused,) = find_all(Places.of(one.settings, SOURCE).root / "refused" / SOURCE, "*.jsonl")
    assert json.loads(refused.read_bytes())["row"] == EMAIL + 8
    commands.run("history", "seal", "--source", SOURCE, "--day", str(DAY))
    commands.run("backfill", "--detector", DETECTOR, "--from", str(DAY), "--to", str(DAY), "--yes")
    store = open_store(one.settings)
    await_that(lambda: [day.day for day in list_backfilled(store, DETECTOR)] == [DAY], SECONDS)
    store.close()


@pytest.mark.long
def test_what_a_stream_has_dropped_is_told_as_late_or_quarantined_and_the_rest_agrees(one: Installation) -> None:
    stream(one)
    with Commands(one.environment()) as commands:
        backfill(one, commands)
        report = ParityReport.model_validate_json(commands.run("parity", "--detector", DETECTOR, "--json"))
    told = {
        other.entity["user_id"]: (
            other.reason,
            other.stream.score if other.stream else None,
            other.batch.score if other.batch else None,
        )
        for other in report.differences
    }
    assert told == {
        "slow": ("late", EMAIL + 5, EMAIL + 20),
        "silent": ("late", None, EMAIL + 13),
        "mended": ("quarantined", EMAIL + 5, EMAIL + 20),
        "imported": ("data missing", None, EMAIL + 7),
    }
    assert (report.day, report.same, report.unexplained) == (DAY, 1, 0)
    assert all(other.why.startswith("without ") for other in report.differences), "proved by recomputing"
