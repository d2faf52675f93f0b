"""Versions by day: each so many days one, and what is put back in force or held by hand."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa

from tocsin.declare.model.table import TableSpec
from tocsin.declare.settings import Settings
from tocsin.spark.tables.dated_versions import DatedVersions, days_of, lacking

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
    spans = versions.spans()
    assert spans[0] == (last, spans[-1][0].holds_from)
    assert spans[1][1] is not None and spans[1][1] < spans[1][0].holds_from
