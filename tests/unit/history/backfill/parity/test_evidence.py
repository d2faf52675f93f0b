from datetime import timedelta
from pathlib import Path

import pytest

from tests.rig.samples.history import DAY, NOON, entry, ledger
from tests.rig.samples.sealed_days import LOGINS, landed, sealed
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.settings import Settings
from tocsin.history.backfill.backfill_ledger import Made, Published
from tocsin.history.backfill.parity.day_parity import inputs, lacks
from tocsin.history.landing_ledger import read_ledger
from tocsin.history.places import Places
from tocsin.quality.day_facts import Hole

ROUND = timedelta(seconds=1)


def test_offsets_that_were_removed_before_they_landed_lack_in_windows_around_them() -> None:
    removed = Hole(from_offset=5, to_offset=9, removed=True, after=NOON, before=NOON + timedelta(minutes=1))
    aborted = removed.model_copy(update={"removed": False})
    (lack,) = lacks(ledger(entry("r1", DAY, holes=[removed, aborted])), LOGINS, {})
    assert (lack.since, lack.until) == (NOON - LOGINS.lateness, NOON + timedelta(minutes=1) + LOGINS.max_ahead)
    assert "partition 0 of Kafka's topic: offsets 5 to 9 were removed" in lack.what
    assert lack.touches(NOON, NOON + ROUND)
    assert not lack.touches(NOON - timedelta(minutes=1), NOON - timedelta(seconds=50))


def test_what_landed_after_the_version_that_was_read_lacks_in_its_day(tmp_path: Path) -> None:
    settings = Settings(state=tmp_path)
    places = Places.of(settings, "logins")
    landed(settings, "r1", 5)
    version = sealed(settings, "v1", 5)
    assert list(lacks(read_ledger(places), LOGINS, {DAY: version})) == []
    landed(settings, "r2", 3, at=5)
    (lack,) = lacks(read_ledger(places), LOGINS, {DAY: version})
    assert f"more events landed for {DAY}" in lack.what
    assert not lack.touches(NOON, NOON + ROUND)  # which is on the next day
    assert lack.touches(NOON - timedelta(days=1), NOON)


def test_the_versions_that_a_backfill_has_read_are_found_or_it_is_told(tmp_path: Path) -> None:
    settings = Settings(state=tmp_path)
    landed(settings, "r1", 5)
    version = sealed(settings, "v1", 5)

    def of(name: str) -> Published:
        made = Made(version="a", inputs={DAY: name})
        return Published(run="r", run_id="test", made=made, at=NOON, findings=0, sha256="", severity="pass")

    assert inputs(settings, LOGINS, of("v1"))[DAY].version == version.version
    with pytest.raises(ConfigError, match="backfill the day again"):
        inputs(settings, LOGINS, of("v0"))
