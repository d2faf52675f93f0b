"""The state of each earlier release: this code goes on with it, exactly. `tests.rig.kept_release` makes it."""

import json
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.rig.broker import Broker
from tests.rig.detect_job import Topic, text
from tests.rig.installation import READY_SECONDS, Installation
from tests.rig.kept_release import (
    COUNTED,
    FOLDER,
    JOBS,
    LINES,
    RELEASES,
    VIEW,
    WORDS,
    KeptRelease,
    send_lines,
    totals,
    unpack,
)
from tests.rig.landing import land
from tests.rig.observed import DETECT, DETECTOR, SOURCE
from tests.rig.waiting import await_that
from tocsin.alerts.store.queries import AlertFilter, FindingFilter, list_alerts, list_findings, open_store
from tocsin.declare.model.names import compute_job
from tocsin.declare.model.sizes import EVENT_BYTES
from tocsin.platform.code_versions import kept_versions
from tocsin.platform.kafka.record_writer import RecordWriter

WARM_UP: frozenset[str] = frozenset()
"""Releases whose state no longer fits the plan: detector and view say that they warm up."""
WARMS_UP = "no state fits the plan, warming up"
MORE = 40
TOTALS = {"tocsin": COUNTED + MORE, "bell": 1}


@pytest.mark.long
@pytest.mark.parametrize("archive", sorted(RELEASES.glob("*.tar.gz")), ids=lambda path: path.name)
def test_what_an_earlier_release_has_begun_is_gone_on_with(archive: Path, broker: Broker, tmp_path: Path) -> None:
    """60 failed logins and 60 lines were counted and are gone from Kafka; with 40 further ones it is 100 of each.

    One of the logins comes once more. Who begins anew instead of going on finds other records where those 60 were.
    """
    with Installation(tmp_path / FOLDER, broker) as one:
        kept = unpack(archive, one)
        one.make_topics()
        topic, settings, now = Topic(one.settings), one.settings, datetime.now(UTC)
        fill(one, kept)
        topic.event("ann", kept.event_time, now, 0)  # as Kafka may give the first of the 60 again
        for _ in range(MORE):
            topic.event("ann", kept.event_time, now, 0, raw_partition=1)
        topic.flush()
        send_lines(one, MORE, "tocsin")
        one.start(*JOBS)
        if kept.tocsin in WARM_UP:
            await_that(lambda: all(WARMS_UP in one.log(job) for job in (DETECT, compute_job(VIEW))), READY_SECONDS)
            return

        def scores() -> list[float]:
            with closing(open_store(settings)) as database:
                return [found.finding.score for found in list_findings(database, FindingFilter())]

        await_that(lambda: scores() == [COUNTED + MORE], READY_SECONDS, lambda: (scores(), one.log(DETECT)[-4000:]))
        with closing(open_store(settings)) as database:
            (alert,) = list_alerts(database, AlertFilter())
        assert (alert.detector, alert.level) == (DETECTOR, "email")
        landed = land(settings, one.catalog.source(SOURCE))
        spans = {str(p): span.from_offset for p, span in landed.partitions.items()}
        assert spans == kept.offsets[settings.names.events(SOURCE)]
        assert sum(span.events for span in landed.partitions.values()) == MORE + 1
        first, *_ = kept_versions(settings, DETECT)
        assert first.first_at < now
        await_that(lambda: totals(settings) == TOTALS, READY_SECONDS, lambda: totals(settings))
        for job in JOBS:
            assert one.stop(job) == 0
        assert written(one, kept, LINES, "line") == ["tocsin"] * MORE
        assert written(one, kept, WORDS, "word") == ["tocsin"] * MORE
        assert totals(settings) == TOTALS
        assert one.read(settings.names.quarantine(LINES)) == []


def fill(one: Installation, kept: KeptRelease) -> None:
    """Let each topic reach as far as it was read: with records that whoever begins anew takes for new ones."""
    names, now = one.settings.names, text(datetime.now(UTC))
    known = {names.raw(LINES): f"{now} writer again", names.events(SOURCE): ""}
    event = {"raw_topic": "x", "source": "x", "schema_version": 1, "event_time": now, "ingested_at": now}
    event |= {"writer": "writer", "line": "again", "word": "again"}
    with RecordWriter(one.settings, EVENT_BYTES) as writer:
        for topic, offsets in kept.offsets.items():
            for partition, offset in offsets.items():
                for number in range(offset):
                    record = json.dumps(event | {"raw_partition": int(partition), "raw_offset": number})
                    writer.write(topic, known.get(topic, record), "again", partition=int(partition))


def written(one: Installation, kept: KeptRelease, source: str, column: str) -> list[str]:
    """What events of `source` say that this code has written."""
    topic = one.settings.names.events(source)
    read = [m for m in one.read(topic) if (m.offset() or 0) >= kept.offsets[topic][str(m.partition())]]
    return [event[column] for event in (json.loads(m.value() or b"") for m in read) if "tick" not in event]
