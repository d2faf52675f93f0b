"""The state of each earlier release: this code goes on with it, exactly. `tests.rig.kept_release` makes it."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.rig.broker import Broker
from tests.rig.detect_job import Topic
from tests.rig.installation import READY_SECONDS, Installation
from tests.rig.kept_release import COUNTED, FOLDER, RELEASES, unpack
from tests.rig.observed import DETECT, DETECTOR, SOURCE
from tests.rig.waiting import await_that
from tocsin.alerts.store.queries import AlertFilter, FindingFilter, list_alerts, list_findings, open_store
from tocsin.history.land.landing import land
from tocsin.model.names import INDEXER
from tocsin.project.catalog import read_catalog
from tocsin.runtime.code_versions import kept_versions

WARM_UP: frozenset[str] = frozenset()
"""Releases whose state no longer fits the plan: the detector says that it warms up."""


@pytest.mark.parametrize("archive", sorted(RELEASES.glob("*.tar.gz")), ids=lambda path: path.name)
def test_a_window_that_an_earlier_release_has_begun_is_counted_on(
    archive: Path, broker: Broker, tmp_path: Path
) -> None:
    """60 events were counted and are gone from Kafka. One of them comes once more; with 40 further ones it is 100."""
    with Installation(tmp_path / FOLDER, broker) as one:
        kept = unpack(archive, one)
        one.make_topics()
        topic, settings, now = Topic(one.settings), one.settings, datetime.now(UTC)
        for partition, offset in kept.offsets.items():
            for _ in range(offset):  # whoever begins anew finds nothing to count
                topic.write(b"", int(partition))
        topic.event("ann", kept.event_time, now, 0)  # as Kafka may give the first of the 60 again
        for _ in range(40):
            topic.event("ann", kept.event_time, now, 0, raw_partition=1)
        topic.flush()
        one.start(DETECT, INDEXER)
        if kept.tocsin in WARM_UP:
            await_that(lambda: "no state fits the plan, warming up" in one.log(DETECT), READY_SECONDS)
            return

        def scores() -> list[float]:
            with closing(open_store(settings)) as database:
                return [found.finding.score for found in list_findings(database, FindingFilter())]

        await_that(lambda: scores() == [COUNTED + 40], READY_SECONDS, lambda: (scores(), one.log(DETECT)[-4000:]))
        with closing(open_store(settings)) as database:
            (alert,) = list_alerts(database, AlertFilter())
        assert (alert.detector, alert.level) == (DETECTOR, "email")
        landed = land(settings, read_catalog(settings.project).source(SOURCE))
        assert {str(p): span.from_offset for p, span in landed.partitions.items()} == kept.offsets
        assert sum(span.events for span in landed.partitions.values()) == 41
        first, *_ = kept_versions(settings, DETECT)
        assert first.first_at < now
