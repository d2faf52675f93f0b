import re
import sqlite3
from contextlib import closing
from datetime import timedelta

import pytest

from tests.rig.samples.history import DAY, NOON, day_rows, judged, version
from tests.rig.samples.sealed_days import landed, sealed
from tocsin.declare.model.errors import TransientError
from tocsin.declare.settings import Settings
from tocsin.history.day_rows import DayRows
from tocsin.history.day_versions import BrokenVersion, Unsealed
from tocsin.history.places import Places
from tocsin.platform import state_file
from tocsin.platform.state_file import write_whole
from tocsin.quality.verdict_files import Records, VerdictRecord

BEFORE = DAY - timedelta(days=1)


def test_a_version_is_read_as_it_was_written_last_and_the_latest_decides_whether_its_day_is_refused(
    settings: Settings,
) -> None:
    rows = day_rows(settings)
    first = version("v1", "r1", severity=None, published=None)
    rows.write(DAY, first)
    assert rows.version(DAY, "v1") == first
    rows.write(DAY, judged := first.model_copy(update={"severity": "critical"}))
    rows.write(BEFORE, version("v1"))
    day_rows(settings, "orders").write(DAY, version("v7"))
    assert rows.versions() == {BEFORE: [version("v1")], DAY: [judged]}
    assert rows.refused() == {DAY: judged}
    rows.write(DAY, version("v2"))
    assert (list(rows.versions()[DAY]), rows.refused()) == ([judged, version("v2")], {})
    rows.remove(DAY, "v2")
    assert rows.refused() == {DAY: judged}
    with pytest.raises(BrokenVersion, match="seal 2026-11-19 again"):
        rows.version(DAY, "v2")


def test_a_day_has_its_last_reason_until_it_is_sealed(settings: Settings) -> None:
    rows = day_rows(settings)
    rows.note(DAY, None)
    rows.note(DAY, "no room", "night")
    rows.note(DAY, f"logins {DAY}: a file is gone", "the next night")
    rows.note(BEFORE, "no room")
    known = rows.unsealed()
    assert {day: (one.reason, one.run_id) for day, one in known.items()} == {
        BEFORE: ("no room", ""),
        DAY: ("a file is gone", "the next night"),
    }
    assert re.fullmatch(r"could not be sealed at 20\d\d-\d\d-\d\d \d\d:\d\d UTC: a file is gone", known[DAY].text)
    assert (day_rows(settings, "orders").unsealed(), rows.versions()) == ({}, {})
    rows.forget_unsealed(DAY)
    assert list(rows.unsealed()) == [DAY]
    rows.note(DAY, None)
    assert rows.unsealed() == {}


def test_who_only_reads_makes_nothing(settings: Settings) -> None:
    rows = DayRows(settings, "logins")
    assert (rows.versions(), rows.refused(), rows.unsealed()) == ({}, {}, {})
    assert not settings.state.exists()


def test_a_database_that_is_locked_is_an_error_that_a_retry_mends(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tocsin.history.day_rows._WAIT_SECONDS", 0.1)
    rows = day_rows(settings)
    with closing(sqlite3.connect(settings.history_folder / "catalog.db")) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(TransientError, match="does not answer: database is locked"):
            rows.write(DAY, version("v1"))


def test_files_of_earlier_releases_are_taken_over_once(settings: Settings) -> None:
    """As releases before 2026-11-27 wrote them: a version with a figure of still earlier ones, and one cut short."""
    places, quality = Places.of(settings, "logins"), settings.state / "quality" / "logins"
    report = f"quality/logins/{DAY}/v2.html"
    earlier = [version("v1", "r1"), version("v2", "r1", published=None, severity="critical")]
    for made in earlier:
        old = made.model_copy(update={"report": report}).model_dump(mode="json", exclude={"summary", "run_id"})
        old["facts"]["quarantined"] = None
        state_file.write(places.version(DAY, made.version) / "_version.json", dict, old)
    write_whole(places.version(BEFORE, "v1") / "_version.json", "{")
    failed = Unsealed(reason="no room", at=NOON)
    state_file.write(quality / "unsealed.json", dict, {str(BEFORE): failed.model_dump(mode="json", exclude={"run_id"})})
    write_whole(quality / "refused.json", "{}")
    verdict = judged("critical", run_id="v2")
    Records(settings.state).write(VerdictRecord(verdict=verdict), "page")
    rows = day_rows(settings)
    assert [one.version for one in rows.versions()[DAY]] == ["v1", "v2"]
    assert rows.versions().keys() == {DAY}
    assert rows.unsealed() == {BEFORE: failed}
    assert rows.refused()[DAY].summary == verdict.text
    left = [path.name for folder in (settings.history_folder, quality) for path in folder.rglob("*.json")]
    assert left == ["_version.json", "v2.json"], "what cannot be read is left, and so are verdicts"
    rows.remove(DAY, "v2")
    state_file.write(places.version(DAY, "v3") / "_version.json", dict, {})
    assert [one.version for one in day_rows(settings).versions()[DAY]] == ["v1"], "nothing is taken over twice"


def test_a_database_that_knows_nothing_of_the_days_that_are_there_is_refused(settings: Settings) -> None:
    for name in ("v1", "v2"):
        landed(settings, f"r-{name}", 5)
        sealed(settings, name, 5)
    (settings.history_folder / "catalog.db").unlink()
    with pytest.raises(BrokenVersion, match="knows no version of the days in"):
        day_rows(settings)
    assert len(list(Places.of(settings, "logins").version_folders())) == 2
