"""Files of past events: the rules of ingest, identities that make a second import harmless, refused rows to look at."""

import gzip
import json
import os
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.sealing import History, Judge
from tocsin.declare.model.errors import ConfigError
from tocsin.history.care import verify, withdraw
from tocsin.history.day_status import known
from tocsin.history.history_retention import tidy
from tocsin.history.landing_ledger import read_ledger
from tocsin.history.seal_planning import plan
from tocsin.history.spark import import_files
from tocsin.history.spark.seal import SealedDay, Sealer
from tocsin.history.spark.sealed_days import sealed_events
from tocsin.platform.storage.stored_path import remove_tree

DAY = date(2026, 10, 1)


@pytest.fixture
def history(starts: list[str], tmp_path: Path) -> History:
    return History(tmp_path / "state")


def logins(count: int, days: int = 1, **columns: Any) -> list[dict[str, Any]]:
    fields = {"ip_address": "192.0.2.1", "action": "login failed"} | columns
    return [
        {"user_id": f"u{n % 3}", "timestamp": f"{DAY + timedelta(days=n % days)}T12:00:00.{n:06d}Z"} | fields
        for n in range(count)
    ]


def bring_in(history: History, path: Path) -> import_files.Imported:
    (done,) = landed(history, path)
    return done


def landed(history: History, *paths: Path) -> list[import_files.Imported]:
    """What came of `paths`, of which each can be read."""
    done = list(import_files.import_files(history.settings, history.source, paths))
    return [one for one in done if not isinstance(one, ConfigError)]


def sealed(history: History, spark: SparkSession, day: date = DAY) -> list[Any]:
    version = history.seal(spark, day=day).version
    read = sealed_events(spark, history.places, history.source, {day: history.version(day, version.version)})
    return read.orderBy("raw_offset").collect()


def test_lines_land_by_the_rules_of_ingest_and_a_second_import_changes_nothing(
    history: History, spark: SparkSession, tmp_path: Path
) -> None:
    lines = [json.dumps(one) for one in logins(6, days=2)]
    plain = "user_id: kv | timestamp: 2026-10-01T13:00:00Z | ip_address: i | action: a"
    lines[2:2] = ["no login", json.dumps({"user_id": "u" * 257}), "", plain]
    path = tmp_path / "past.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode() + b"\n\xff\xfe\n"))
    done = bring_in(history, path)
    assert (done.entry.events, done.known) == (7, False)
    assert done.entry.imported is not None
    assert (done.entry.imported.rows, done.entry.imported.refused) == (11, 4)
    assert done.reasons == {
        **{"not_key_value": 1, "missing:timestamp": 1, "missing:ip_address": 1, "missing:action": 1},
        **{"empty": 1, "not_utf8": 1, "rule:user_id_length": 1},
    }
    assert done.refused is not None
    refused = [json.loads(line) for line in done.refused.read_text().splitlines()]
    assert [(one["row"], one["reasons"][0]) for one in refused] == [
        *[(3, "not_key_value"), (4, "missing:timestamp"), (5, "empty"), (11, "not_utf8")]
    ]
    assert (refused[0]["value"], refused[3]["value"]) == ("no login", "FFFE")
    rows = sealed(history, spark)
    assert [row["raw_offset"] for row in rows] == [1, 6, 7, 9]
    assert {row["raw_topic"] for row in rows} == {f"file:{done.entry.imported.sha256[:32]}"}
    assert rows[1]["user_id"] == "kv"
    before = read_ledger(history.places)
    again = bring_in(history, path)
    assert (again.known, read_ledger(history.places)) == (True, before)
    assert verify(history.settings, history.source, checksums=True) == []


def test_a_file_of_any_age_is_sealed_and_one_whose_day_was_lost_is_imported_again(
    history: History, spark: SparkSession, tmp_path: Path
) -> None:
    old = date(2014, 7, 1)
    path = tmp_path / "past.jsonl"
    path.write_text(json.dumps(logins(1)[0] | {"timestamp": f"{old}T12:00:00Z"}))
    source = history.source.model_copy(update={"history_days": 60})
    bring_in(history, path)
    with history.table() as table:
        assert tidy(history.settings, source, table).landed == ()
        assert plan(known(history.settings, source, table)).ready == (old,)
    remove_tree(history.places.landed(old, bring_in(history, path).entry.run))
    assert not bring_in(history, path).known
    assert len(sealed(history, spark, old)) == 1
    with history.table() as table:
        assert tidy(history.settings, source, table).days == ()
    assert not list(history.places.landed_folders())
    assert bring_in(history, path).known


def test_a_withdrawn_file_is_left_out_of_what_was_sealed_with_it_and_can_come_again(
    history: History, spark: SparkSession, tmp_path: Path
) -> None:
    for name, user in (("good", "ann"), ("bad", "eve")):
        (tmp_path / name).write_text(json.dumps(logins(1)[0] | {"user_id": user}))
        bring_in(history, tmp_path / name)
    assert {row["user_id"] for row in sealed(history, spark)} == {"ann", "eve"}
    with history.table() as table:
        tidy(history.settings, history.source, table)
    assert not list(history.places.landed_folders()), "only the sealed version has them now"
    assert withdraw(history.settings, history.source, tmp_path / "bad").emptied == ()
    with history.table() as table:
        assert plan(known(history.settings, history.source, table)).ready == (DAY,)
    assert [row["user_id"] for row in sealed(history, spark)] == ["ann"]
    with history.table() as table:
        assert plan(known(history.settings, history.source, table)).ready == ()
    assert not bring_in(history, tmp_path / "bad").known
    assert {row["user_id"] for row in sealed(history, spark)} == {"ann", "eve"}
    assert verify(history.settings, history.source, checksums=True) == []


@pytest.mark.parametrize(
    ("beside", "is_in_part"),
    [pytest.param((), False, marks=pytest.mark.long), ((0, 1), False), ((1,), True)],
    ids=["alone", "beside others", "in part"],
)
def test_what_is_withdrawn_and_imported_again_is_sealed_as_the_source_reads_it_now(
    history: History, spark: SparkSession, tmp_path: Path, beside: tuple[int, ...], is_in_part: bool
) -> None:
    before, _, later = days = [DAY + timedelta(days=number) for number in (-1, 0, 1)]

    def write(user: str, *moments: str) -> Path:
        rows = [logins(1)[0] | {"user_id": user, "timestamp": moment} for moment in moments]
        (tmp_path / user).write_text("\n".join(json.dumps(row) for row in rows))
        return tmp_path / user

    eve = write("eve", f"{DAY}T05:00:00", f"{later}T05:00:00")
    ann = [f"{days[1 + number]}T12:00:00Z" for number in beside]
    landed(history, eve, *([write("ann", *ann)] if ann else []))
    for day in (DAY, later):
        history.seal(spark, day=day)
    with history.table() as table:
        tidy(history.settings, history.source, table)
    withdraw(history.settings, history.source, DAY if is_in_part else eve)
    history.source = history.source.model_copy(update={"time_zone": "Asia/Tokyo"})
    again, _ = landed(history, eve, write("bob", f"{before}T12:00:00Z"))
    assert (again.known, again.entry.events) == (False, 2)
    with history.table() as table:
        ready = plan(known(history.settings, history.source, table)).ready
    users = {day: sorted(row["user_id"] for row in sealed(history, spark, day)) for day in ready}
    expected = {before: ["bob", "eve"], DAY: [*["ann"] * (0 in beside), "eve"], later: ["ann"] * (1 in beside)}
    assert users == {day: names for day, names in expected.items() if names}
    assert withdraw(history.settings, history.source, eve).days == (before, DAY)
    assert verify(history.settings, history.source, checksums=True) == []


def test_what_is_ignored_lands_nowhere_and_what_has_no_time_is_not_imported(history: History, tmp_path: Path) -> None:
    lines = [json.dumps(one) for one in logins(2)]
    (tmp_path / "past.jsonl").write_text("\n".join(["# comment", *lines, "no login"]))
    commented = history.source.model_copy(update={"ignore": ("^#",)})
    (done,) = import_files.import_files(history.settings, commented, [tmp_path / "past.jsonl"])
    assert not isinstance(done, ConfigError)
    assert done.entry.imported is not None
    assert (done.entry.imported.rows, done.entry.imported.refused, done.entry.events) == (4, 1, 2)
    timeless = history.source.model_copy(update={"event_time": "ingested_at"})
    with pytest.raises(ConfigError, match="all events of a file would seem to happen while it is read"):
        list(import_files.import_files(history.settings, timeless, [tmp_path / "past.jsonl"]))


def test_csv_and_parquet_give_the_same_events_as_lines(history: History, spark: SparkSession, tmp_path: Path) -> None:
    rows = logins(9, message="a, b")
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(one) for one in rows))
    names = list(rows[0])
    cells = "\n".join(",".join(f'"{one[name]}"' for name in names) for one in rows)
    (tmp_path / "a.csv").write_text(f"{','.join(names)}\n{cells}\n")
    frame = spark.createDataFrame(rows).selectExpr("user_id", "to_timestamp(timestamp) timestamp", *names[2:])
    frame.coalesce(1).sortWithinPartitions("timestamp").write.parquet(str(tmp_path / "out"))
    (part,) = (tmp_path / "out").glob("*.parquet")
    part.rename(tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.csv", "a.parquet"):
        done = bring_in(history, tmp_path / name)
        assert (done.entry.events, done.reasons) == (9, {}), name
    found = sealed(history, spark)
    assert len(found) == 27
    for number, one in enumerate(rows):
        same = {
            tuple(row[name] for name in ("user_id", "event_time", "action", "message"))
            for row in found[number * 3 : number * 3 + 3]
        }
        assert len(same) == 1
        assert next(iter(same))[0] == one["user_id"]


def test_refused_rows_count_for_their_day_and_those_without_one_for_the_days_of_the_others(
    history: History, spark: SparkSession, tmp_path: Path
) -> None:
    later = DAY + timedelta(days=1)
    good = [f"{day}T10:00:{n:02d}Z" for day, count in ((DAY, 4), (later, 2)) for n in range(count)]
    rows = [logins(1)[0] | {"timestamp": at} for at in good] + logins(1, action=None)
    ahead = logins(1)[0] | {"timestamp": "2126-10-01T12:00:00Z"}
    lines = [*map(json.dumps, rows), "no login", "", json.dumps(ahead)]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines))
    imported = bring_in(history, path).entry.imported
    assert imported is not None
    assert (imported.refused, imported.refused_days) == (4, {DAY: 3, later: 1})
    judge = Judge()
    history.seal(spark, judge, day=later)
    (facts,) = judge.facts
    assert (facts.quarantined, facts.records, facts.quarantine_ratio) == (1, 3, 1 / 3)


def test_many_files_share_a_session_and_known_ones_start_none(
    history: History, starts: list[str], tmp_path: Path
) -> None:
    paths = [tmp_path / name for name in ("a.jsonl", "b.jsonl", "none.jsonl", "c.jsonl")]
    for number, path in enumerate(paths):
        path.write_text("\n".join(json.dumps(one) for one in logins(3, message=str(number))))
    paths[2].unlink()
    done = list(import_files.import_files(history.settings, history.source, paths))
    said = [str(one) if isinstance(one, ConfigError) else one.entry.events for one in done]
    assert said == [3, 3, f"{paths[2]}: cannot be read: No such file or directory", 3], "the files after it are landed"
    paths[2].write_text("")
    again = landed(history, *paths)
    assert [(one.known, one.entry.events) for one in again] == [(True, 3), (True, 3), (False, 0), (True, 3)]
    assert len(starts) == 2
    assert all(one.known for one in landed(history, *paths[:2]))
    assert len(starts) == 2
    scratch = history.settings.checkpoint(starts[0]) / "scratch" / str(os.getpid())
    assert list(scratch.glob("import-*")) == []


def test_a_file_of_which_every_row_was_refused_is_read_again(history: History, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps(one) for one in logins(3, action=None)))
    assert bring_in(history, path).entry.events == 0
    history.source = history.source.model_copy(update={"optional": history.source.optional | {"action"}})
    done = bring_in(history, path)
    assert (done.entry.events, done.known) == (3, False)


def test_files_that_land_together_keep_their_own_counts_and_go_one_by_one(
    history: History, starts: list[str], spark: SparkSession, tmp_path: Path
) -> None:
    later = DAY + timedelta(days=1)
    texts = {
        "a.jsonl": [json.dumps(one) for one in logins(6, days=2)] + ["no login"],
        "b.jsonl": [json.dumps(one) for one in logins(3, user_id="bob")] + ["", json.dumps(logins(1, action=None)[0])],
        "c.csv": ["user_id,timestamp,ip_address,action", f"carl,{later}T09:00:00Z,i,a", "carl,never,i,a"],
    }
    for name, lines in texts.items():
        (tmp_path / name).write_text("\n".join(lines))
    (tmp_path / "again.jsonl").write_text((tmp_path / "a.jsonl").read_text())
    a, b, again, c = landed(history, *[tmp_path / name for name in ("a.jsonl", "b.jsonl", "again.jsonl", "c.csv")])
    assert len(starts) == 1
    assert (again.known, again.entry) == (True, a.entry)
    assert [(one.entry.events, one.reasons) for one in (a, b, c)] == [
        (6, {"not_key_value": 1}),
        (3, {"empty": 1, "missing:action": 1}),
        (1, {"wrong_type:timestamp": 1}),
    ]
    imports = [one.entry.imported for one in (a, b, c) if one.entry.imported]
    assert [(one.rows, one.refused, one.refused_days) for one in imports] == [
        (7, 1, {later: 1}),
        (5, 2, {DAY: 2}),
        (2, 1, {later: 1}),
    ]
    refused = [one.refused.read_text().splitlines() if one.refused else [] for one in (a, b, c)]
    assert [[json.loads(line)["row"] for line in lines] for lines in refused] == [[7], [4, 5], [2]]
    files = [(one.entry.run, file.day) for one in (a, b, c) for file in one.entry.files]
    assert len(files) == len(set(files)) == 4, "one file for each run and day"
    ledger = read_ledger(history.places)
    with history.table() as table:
        done = Sealer(spark, history.settings, history.source, table, Judge()).seal_all([DAY, later], ledger)
    assert [one.version.facts.rows for one in done.values() if isinstance(one, SealedDay)] == [6, 4]
    assert verify(history.settings, history.source, checksums=True) == []
    assert withdraw(history.settings, history.source, tmp_path / "b.jsonl").days == (DAY,)
    assert [row["raw_topic"] for row in sealed(history, spark)] == [f"file:{imports[0].sha256[:32]}"] * 3
