"""Sealing: each event once, in buckets, sorted; what can be wrong with a day harms that day alone."""

import json
import shutil
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.spark.sealing import DAY, History, Judge, login
from tocsin.declare.catalog import read_catalog
from tocsin.declare.settings import Settings
from tocsin.detect.spark.ranges import EventReader, Range, find_in_range
from tocsin.history.care import roll_back, verify
from tocsin.history.day_table import audit_branch
from tocsin.history.history_retention import tidy
from tocsin.history.landing_ledger import read_ledger
from tocsin.history.places import begin
from tocsin.history.spark.seal import SealedDay, Sealer, Unsealable
from tocsin.history.spark.sealed_days import sealed_events, with_tick
from tocsin.platform.storage.stored_path import remove_tree
from tocsin.quality.day_facts import ColumnChange
from tocsin.quality.spark.day_gate import DayGate
from tocsin.quality.verdict import Severity
from tocsin.quality.verdict_files import Records
from tocsin.spark.events import parse_events

NEXT = DAY + timedelta(days=1)


def test_a_sealed_day_has_each_event_once_in_buckets_sorted_by_key_and_time(
    spark: SparkSession, tmp_path: Path
) -> None:
    history, judge = History(tmp_path), Judge()
    events = [login(n, seconds=86399 - n) for n in range(500)]
    history.land(events[:300])
    history.land(events[200:])
    sealed = history.seal(spark, judge)
    facts = judge.facts[0]
    assert (facts.rows, facts.landed, facts.duplicates, facts.late, judge.rows) == (500, 600, 100, 0, [500])
    assert (facts.newest_event, facts.previous_rows) == (events[0]["event_time"], None)
    with history.table() as table:
        assert table.published() == {DAY: sealed.version.version}
        assert sum(table.files().values()) == 500
        assert table.audits() == set()
    version = history.version(DAY, sealed.version.version)
    assert (version.buckets, version.key, version.state) == (32, "user_id", "published")
    users: dict[str, str] = {}
    for file in version.files:
        path = history.places.version(DAY, version.version) / file.name
        rows = pq.read_table(path).to_pylist()
        assert rows == sorted(rows, key=lambda row: (row["user_id"], row["event_time"]))
        assert len(rows) == file.rows
        for row in rows:
            assert users.setdefault(row["user_id"], file.name) == file.name, "a user lies in one bucket"
        stamp = pq.read_schema(path).field("event_time").type
        assert (stamp.unit, stamp.tz) == ("us", "UTC")
        assert pq.read_metadata(path).row_group(0).column(7).compression == "ZSTD"
    read = sealed_events(spark, history.places, history.source, {DAY: version}).orderBy("raw_offset").collect()
    assert [row["raw_offset"] for row in read] == list(range(500))


def test_an_aggregate_by_the_key_over_days_plans_no_exchange(spark: SparkSession, tmp_path: Path) -> None:
    history = History(tmp_path)
    history.land([login(n, seconds=n) for n in range(100)])
    version = history.seal(spark).version
    days = {DAY: version}
    events = sealed_events(spark, history.places, history.source, days)
    counts = events.groupBy(F.window("event_time", "10 seconds"), "user_id").count()
    plan = counts._jdf.queryExecution().executedPlan().toString()
    assert "Exchange" not in plan
    assert "Bucketed: true" in plan
    assert counts.agg(F.sum("count")).first() == (100,)


def test_late_events_seal_their_day_again_and_a_roll_back_takes_them_away(spark: SparkSession, tmp_path: Path) -> None:
    history, judge = History(tmp_path), Judge()
    history.land([login(n, seconds=n) for n in range(10)])
    first = history.seal(spark, judge).version
    with history.table() as table:
        tidy(history.settings, history.source, table)
    assert list(history.places.landed_folders()) == [], "what is published needs no landed files"
    late = [login(n, seconds=n, ingested_at=begin(NEXT)) for n in range(8, 15)]
    history.land(late)
    second = history.seal(spark, judge).version
    facts = judge.facts[-1]
    assert (facts.rows, facts.landed, facts.duplicates, facts.late, facts.previous_rows) == (15, 17, 2, 7, 10)
    assert (second.base, second.runs) == (first.version, read_ledger(history.places).runs(DAY))
    assert verify(history.settings, history.source, checksums=True) == []
    assert roll_back(history.settings, history.source, DAY).version == first.version
    with history.table() as table:
        assert sum(table.files().values()) == 10
    history.land([login(20, seconds=20)])
    with history.table() as table:
        tidy(history.settings, history.source, table)
    remove_tree(history.places.landed(DAY, max(second.runs)))
    with pytest.raises(Unsealable, match="roll the day back to a version that has"):
        history.seal(spark, judge)
    assert roll_back(history.settings, history.source, DAY, second.version).version == second.version
    assert history.seal(spark, judge).version.facts.rows == 16


def test_a_critical_day_is_not_published_and_a_warning_is(spark: SparkSession, tmp_path: Path) -> None:
    history = History(tmp_path)
    history.land([login(n, seconds=n) for n in range(5)])
    good = history.seal(spark).version
    history.land([login(n, seconds=n) for n in range(5, 9)])
    refused = history.seal(spark, Judge(Severity.CRITICAL)).version
    assert (refused.state, refused.report) == ("refused", "quality/report.html")
    with history.table() as table:
        assert table.published() == {DAY: good.version}
        assert sum(table.files().values()) == 5
        assert sum(table.files(audit_branch(DAY, refused.version)).values()) == 9
    assert verify(history.settings, history.source) == []
    warned = history.seal(spark, Judge(Severity.WARNING)).version
    with history.table() as table:
        assert table.published() == {DAY: warned.version}


def test_a_day_without_events_is_published_as_empty(spark: SparkSession, tmp_path: Path) -> None:
    history, judge = History(tmp_path), Judge()
    version = history.seal(spark, judge).version
    assert (version.files, version.facts.rows, judge.rows) == ((), 0, [0])
    with history.table() as table:
        assert table.published() == {DAY: version.version}
    assert sealed_events(spark, history.places, history.source, {DAY: version}).count() == 0
    assert verify(history.settings, history.source) == []


def test_keys_that_are_null_and_times_around_midnight(spark: SparkSession, tmp_path: Path) -> None:
    history, judge = History(tmp_path), Judge()
    edge = timedelta(days=1)
    moments = [begin(DAY), begin(DAY) + edge - timedelta(microseconds=1), begin(DAY) + edge, begin(DAY) + edge * 2]
    history.land([login(n, event_time=moment, user_id=None if n % 2 else "u") for n, moment in enumerate(moments)])
    assert history.seal(spark, judge).version.facts.rows == 2
    assert history.seal(spark, judge, NEXT).version.facts.rows == 1
    with history.table() as table:
        days = {day: table.rows.version(day, name) for day, name in table.published().items()}
        assert sum(table.files().values()) == 3
    read = sealed_events(spark, history.places, history.source, days).orderBy("raw_offset").collect()
    assert [(row["raw_offset"], row["user_id"]) for row in read] == [(0, "u"), (1, None), (2, "u")]


def test_a_column_that_came_went_or_changed_its_type_within_the_day(spark: SparkSession, tmp_path: Path) -> None:
    history = History(tmp_path)
    plain = history.source
    old = plain.model_copy(update={"columns": plain.columns | {"size": "string", "gone": "int"}})
    history.source = plain.model_copy(update={"columns": plain.columns | {"size": "int"}})
    history.land([login(1, size="7", gone=1), login(2, size="seven", gone=2)], source=old)
    history.land([login(3, size=8), login(4)])
    version = history.seal(spark).version
    rows = sealed_events(spark, history.places, history.source, {DAY: version}).orderBy("raw_offset").collect()
    assert [row["size"] for row in rows] == [7, None, 8, None]
    assert "gone" not in rows[0]
    assert version.facts.changes == (
        ColumnChange(column="size", was="string", now="int", events=2, lost=1),
        ColumnChange(column="gone", was="int", now=None, events=2),
    )
    remove_tree(history.places.landing)
    history.land([login(5)], source=plain)
    again = history.seal(spark).version
    assert again.base == version.version
    late = ColumnChange(column="size", was=None, now="int", events=1)
    assert again.facts.changes == (*version.facts.changes, late), "what is taken over was lost all the same"
    history.source = history.source.model_copy(update={"columns": history.source.columns | {"later": "double"}})
    other = history.seal(spark, day=NEXT).version
    both = sealed_events(spark, history.places, history.source, {DAY: version, NEXT: other})
    assert both.select("later").distinct().collect() == [(None,)]


@pytest.mark.parametrize("damage", ["cut", "garbage", "inside", "gone", "longer"])
def test_a_broken_landed_file_stops_its_day_and_no_other(damage: str, spark: SparkSession, tmp_path: Path) -> None:
    history = History(tmp_path)
    history.land([login(1)])
    published = history.seal(spark).version
    broken = history.land([login(n, message=str(n)) for n in range(50)])
    history.land([login(1, day=NEXT)])
    path = history.settings.history_folder / broken.files[0].path
    content = path.read_bytes()
    changed = {
        "cut": content[: len(content) // 2],
        "garbage": b"nonsense",
        "inside": content[:100] + bytes(400) + content[500:],
        "longer": content + content,
    }
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(changed[damage])
    with pytest.raises(Unsealable) as raised:
        history.seal(spark)
    assert f"logins {DAY}" in str(raised.value)
    assert broken.run in str(raised.value)
    with history.table() as table:
        assert table.published() == {DAY: published.version}
    assert history.seal(spark, day=NEXT).version.state == "published"
    folders = [name for day, name, _ in history.places.version_folders() if day == DAY]
    assert folders == [published.version], "nothing is left behind"


def test_landed_files_that_lie_there_twice_change_nothing(spark: SparkSession, tmp_path: Path) -> None:
    history = History(tmp_path)
    entry = history.land([login(n, seconds=n) for n in range(10)])
    path = history.settings.history_folder / entry.files[0].path
    shutil.copy(path, path.with_name("part-00009.parquet"))
    shutil.copytree(path.parent, path.parent.with_name("run=stranger"))
    assert history.seal(spark).version.facts.rows == 10


def test_a_range_of_history_counts_each_event_once_and_only_its_own_windows(
    spark: SparkSession, tmp_path: Path
) -> None:
    history = History(tmp_path)
    spec = read_catalog(history.settings.project).detector("failed_logins")
    counts = {"few": 50, "more": 51, "many": 130, "before": 70, "behind": 70}
    starts = {"before": -1.0, "behind": 600.0}
    values: list[bytes] = []
    for user, count in counts.items():
        for number in range(count):
            at = begin(DAY) + timedelta(hours=1, seconds=starts.get(user, 5.0), milliseconds=number)
            values.append(_record(len(values), user, at))
    values += values[50:90]  # written twice, as after a crash
    records = spark.createDataFrame([(value,) for value in values], "value binary")
    parsed = parse_events(records, history.source).drop("tick")
    history.land(row.asDict() for row in parsed.collect())
    version = history.seal(spark).version
    wanted = Range(
        start=begin(DAY) + timedelta(hours=1),
        end=begin(DAY) + timedelta(hours=1, seconds=600),
        run_id="a",
    )
    read = EventReader(lambda one, _: with_tick(sealed_events(one, history.places, history.source, {DAY: version})))
    rows = find_in_range(spark, read, spec, [history.source], wanted).select("value").collect()
    found = [json.loads(row["value"]) for row in rows]
    assert {one["entity"]["user_id"]: one["score"] for one in found} == {"more": 51, "many": 130}


def _record(number: int, user: str, at: datetime) -> bytes:
    moment = at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    identity = {"raw_topic": "raw.logins", "raw_partition": 0, "raw_offset": number}
    times = {"event_time": moment, "ingested_at": moment, "timestamp": moment}
    columns = {"source": "logins", "schema_version": 1, "user_id": user, "ip_address": "i", "action": "login failed"}
    return json.dumps(identity | times | columns).encode()


def test_days_that_are_sealed_together_are_as_if_each_were_alone(spark: SparkSession, tmp_path: Path) -> None:
    histories = [History(tmp_path / name) for name in ("together", "alone")]
    days = [DAY + timedelta(days=number) for number in range(4)]
    found: list[list[Any]] = []
    for history in histories:
        history.land([login(n, seconds=n, day=days[n % 3]) for n in range(90)])
        history.land([login(n, seconds=n, day=days[n % 3]) for n in range(60, 120)])
        history.seal(spark)
        with history.table() as table:
            tidy(history.settings, history.source, table)
        history.land([login(n, seconds=n) for n in range(200, 203)])
        judge = DayGate(Settings(project=tmp_path, state=history.settings.state), history.source)  # without rules
        with history.table() as table:
            sealer = Sealer(spark, history.settings, history.source, table, judge)
            ledger = read_ledger(history.places)
            if history is histories[0]:
                done = sealer.seal_all(days, ledger)
            else:
                done = {day: sealer.seal(day, ledger) for day in days}
            assert [table.published()[day] for day in days] == [
                one.version.version for one in done.values() if isinstance(one, SealedDay)
            ]
            assert table.audits() == set()
        assert verify(history.settings, history.source, checksums=True) == []
        sealed = [one for one in done.values() if isinstance(one, SealedDay)]
        profiles = [Records(history.settings.state).latest("logins", day) for day in days]
        found.append(
            [
                (
                    one.day,
                    one.version.facts.model_copy(update={"version": ""}),
                    [file.rows for file in one.version.files],
                )
                for one in sealed
            ]
            + [record.profile.figures for record in profiles if record and record.profile]
        )
    assert len(found[0]) == 8
    assert found[0] == found[1]
    assert [rows for _, facts, rows in found[0][:4] if not facts.rows] == [[]], "the last day is empty"


def test_a_day_that_cannot_be_sealed_leaves_those_beside_it_alone(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(tmp_path)
    days = [DAY, NEXT, NEXT + timedelta(days=1)]
    for day in days:
        history.land([login(n, seconds=n, day=day) for n in range(9)])
    (gone,) = [history.places.root / file.path for file in read_ledger(history.places).files(DAY)]
    Path(str(gone)).write_bytes(b"nonsense")
    describe = Sealer._describe

    def failing(sealer: Sealer, day: Any, *rest: Any) -> Any:
        if day == NEXT:
            raise ValueError("odd")
        return describe(sealer, day, *rest)

    monkeypatch.setattr(Sealer, "_describe", failing)
    with history.table() as table:
        sealer = Sealer(spark, history.settings, history.source, table, Judge())
        done = sealer.seal_all(days, read_ledger(history.places))
        assert [*table.published()] == days[2:]
    assert isinstance(done[DAY], Unsealable)
    assert isinstance(done[NEXT], ValueError)
    assert [day for day, _, _ in history.places.version_folders()] == days[2:], "nothing is left behind"
