from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from tests.rig.samples.history import DAY, NOON, version
from tocsin.history.day_versions import write_version
from tocsin.history.places import Places
from tocsin.history.seal_runs import begin_sealing, read_sealing, sealed_since
from tocsin.project.settings import Settings

BEFORE = DAY - timedelta(days=1)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(project=tmp_path, state=tmp_path / "state")


def test_a_retry_is_the_same_run_and_the_next_run_begins_anew(settings: Settings) -> None:
    before = datetime.now(UTC)
    first = begin_sealing(settings, "logins", "night")
    assert before <= first.began_at <= datetime.now(UTC)
    assert begin_sealing(settings, "logins", "night") == first
    assert read_sealing(settings, "orders", "night") is None
    after = begin_sealing(settings, "logins", "the next night")
    assert after.began_at > first.began_at
    assert read_sealing(settings, "logins", "night") is None


def test_only_the_latest_version_of_a_day_tells_whether_it_was_sealed_since(settings: Settings) -> None:
    places = Places.of(settings, "logins")

    def seal(day: date, name: str, hours: int, severity: str) -> None:
        sealed_at = NOON + timedelta(hours=hours)
        made = version(name, severity=severity).model_copy(update={"sealed_at": sealed_at})
        write_version(places, day, made)

    seal(BEFORE, "v1", -1, "critical")
    seal(DAY, "v1", 0, "critical")
    seal(DAY, "v2", 1, "pass")
    found = sealed_since(settings, "logins", NOON)
    assert {day: one.version for day, one in found.items()} == {DAY: "v2"}
    assert sealed_since(settings, "logins", NOON + timedelta(hours=2)) == {}
