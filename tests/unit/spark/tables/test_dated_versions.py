"""Versions by day: each so many days one, and what is put back in force or held by hand."""

import os
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from tocsin.declare.model.table import TableSpec
from tocsin.declare.settings import Settings
from tocsin.spark.tables.dated_versions import DatedVersions, days_of, lacking
from tocsin.spark.tables.model_files import ModelFiles
from tocsin.spark.tables.published_table import TableFolder, read_rows_of

ONE = timedelta(days=1)
MONDAY = date(2026, 1, 5)
SPEC = TableSpec(
    name="model.made", title="t", owner="o", history="logins", sql="", days=3, every=7, trains="made",
    key=("detector",), columns={"detector": "string", "hash": "string"},
)  # fmt: skip


def test_a_version_of_each_week_is_due_once_and_is_made_of_the_days_before_it() -> None:
    assert lacking(SPEC, [], MONDAY + 2 * ONE, [MONDAY - 9 * ONE]) == [MONDAY - 14 * ONE, MONDAY]
    assert days_of(SPEC, MONDAY + 6 * ONE) == [MONDAY - back * ONE for back in (4, 3, 2)]


def test_a_version_put_back_holds_from_now_and_the_ones_to_come_never_do(tmp_path: Path) -> None:
    versions = DatedVersions(Settings(state=tmp_path), SPEC)
    now = datetime.now(UTC)
    for back, name in ((14, "good"), (7, "bad"), (-1, "worse")):
        day = now.date() - back * ONE
        versions.add(day, pa.table({"detector": ["made"], "hash": [name]}), [day], now)
        versions.publish()
    good = versions.read()[0]
    versions.put_back(good, now)
    held = DatedVersions(Settings(state=tmp_path), SPEC).spans()
    assert [version.made_of for version, _ in held][-1] == good.made_of
    assert held[-1][1] is None
    assert held[-1][0].holds_from >= now
    assert now.date() + ONE not in {version.day for version, _ in held}
    versions.refuse(now.date(), "why", now)
    assert [refused.reason for refused in versions.refused()] == ["why"]
    versions.hold("by hand", now)
    assert versions.held is not None
    versions.release()
    assert versions.held is None


def test_what_still_holds_is_not_forgotten_and_two_never_hold_at_once(tmp_path: Path) -> None:
    versions = DatedVersions(Settings(state=tmp_path), SPEC)
    rows, now = pa.table({"detector": ["made"], "hash": ["x"]}), datetime.now(UTC)
    for days in (21, 14, 7):
        versions.add(now.date() - days * ONE, rows, [], now)
    versions.forget(now.date() - 10 * ONE)  # the one of 14 days back holds until 7 days back
    assert [(now.date() - version.day).days for version in versions.read()] == [14, 7]
    versions.forget(now.date())
    (last,) = versions.read()
    versions.publish()
    versions.add(now.date(), rows, [], now + 3 * ONE)  # made by hand later than the next one holds
    versions.add(now.date() + ONE, rows, [], now)
    versions.refuse(now.date() - 11 * ONE, "why", now)
    versions.forget(now.date() - 10 * ONE)
    assert versions.refused() == []
    spans = versions.spans()
    assert spans[0] == (last, spans[-1][0].holds_from)
    assert spans[1][1] is not None and spans[1][1] < spans[1][0].holds_from


def test_each_event_of_yesterday_and_today_finds_a_row_of_a_changed_query(tmp_path: Path) -> None:
    settings, now = Settings(state=tmp_path), datetime.now(UTC)
    for sql in ("SELECT 1", "SELECT 2"):
        spec = SPEC.model_copy(update={"trains": "", "every": 1, "sql": sql})
        versions, rows = DatedVersions(settings, spec), pa.table({"detector": ["made"], "hash": [sql]})
        for day in lacking(spec, [], now.date(), [now.date() - 9 * ONE]):
            versions.add(day, rows, [day], now)
        versions.publish()
    held = read_rows_of(TableFolder(settings, spec).place(TableFolder(settings, spec).current() or pytest.fail()))
    spans = sorted((row["valid_from"], row["hash"]) for row in held.to_pylist())
    assert spans == [(datetime.combine(now + days * ONE, time(), UTC), "SELECT 2") for days in (-9, -1, 0, 1)]


def test_a_model_is_not_put_in_force_for_other_code_and_the_rows_before_it_stay(tmp_path: Path) -> None:
    settings, rows, now = Settings(state=tmp_path), pa.table({"detector": ["made"], "hash": ["x"]}), datetime.now(UTC)
    other = SPEC.model_copy(update={"sql": "other code"})
    before = DatedVersions(settings, SPEC)
    before.add(now.date(), rows, [], now)
    read = TableFolder(settings, SPEC).place(before.publish() or pytest.fail("nothing published"))
    os.utime(str(read), (0, 0))
    assert TableFolder(settings, other).current() is None, "its job waits for its own model"
    versions = DatedVersions(settings, other)
    versions.add(now.date(), rows.set_column(1, "hash", pa.array(["y"])), [], now)
    versions.publish()
    versions.forget(now.date())
    assert read_rows_of(read)["hash"].to_pylist() == ["x"], "the job of the version before may still read it"
    assert {name for found in versions.all_rows() for name in found["hash"].to_pylist()} == {"x", "y"}
    versions.publish()
    assert not read.exists()


def test_files_of_models_go_that_no_version_names_and_that_are_not_new(tmp_path: Path) -> None:
    files, now = ModelFiles(str(tmp_path)), datetime.now(UTC)
    for name in ("old", "new", "named"):
        files.add(name.encode(), name)
    os.utime(tmp_path / "old.pickle", (0, 0))
    os.utime(tmp_path / "named.pickle", (0, 0))
    files.forget({"named"}, now - 8 * ONE)
    assert {path.stem for path in tmp_path.iterdir()} == {"new", "named"}
