"""The Iceberg table: which version of each day counts, whoever else publishes, on SQLite and on PostgreSQL."""

import threading
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyiceberg.catalog.sql import SqlCatalog

from bench.landed import arrow_schema
from tests.rig.samples.history import DAY
from tests.rig.sink_servers import emptied
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.source import Source, columns_of
from tocsin.declare.setting_blocks import HistorySettings
from tocsin.declare.settings import Settings
from tocsin.declare.source_file import read_source
from tocsin.history.day_table import BrokenTable, DayTable, audit_branch
from tocsin.history.places import Places, begin

LOGINS = read_source(Path(__file__).parents[3] / "sources" / "logins.toml")
NEXT = DAY + timedelta(days=1)


def table(settings: Settings, **columns: str) -> DayTable:
    return DayTable(settings, _with(**columns))


def files(settings: Settings, day: date, version: str, rows: int, **columns: str) -> list[Path]:
    folder = Path(str(Places.of(settings, "logins").version(day, version)))
    folder.mkdir(parents=True)
    known = {"raw_topic": "raw.logins", "raw_partition": 0, "source": "logins", "schema_version": 1, "user_id": "u"}
    times = [begin(day) + timedelta(hours=23, milliseconds=number) for number in range(rows)]
    lines = [known | {"raw_offset": n, "event_time": at, "ingested_at": at} for n, at in enumerate(times)]
    made = pa.Table.from_pylist(lines, arrow_schema(columns_of(_with(**columns))))
    parquet.write_table(made, folder / "part_00000.parquet", store_schema=False)
    return [folder / "part_00000.parquet"]


def _with(**columns: str) -> Source:
    return LOGINS.model_copy(update={"columns": LOGINS.columns | columns})


def test_a_version_counts_when_it_is_published_and_not_when_it_is_staged(settings: Settings) -> None:
    with table(settings) as days:
        assert (days.published(), days.files(), days.audits()) == ({}, {}, set())
        first = files(settings, DAY, "v1", 3)
        days.stage(DAY, "v1", first, {})
        days.stage(DAY, "v1", first, {})
        assert (days.published(), days.files()) == ({}, {})
        assert days.files(audit_branch(DAY, "v1")) == {str(first[0]): 3}
        days.publish(DAY, "v1", first, {"tocsin.run": "v1"})
        assert (days.published(), days.files(), days.audits()) == ({DAY: "v1"}, {str(first[0]): 3}, set())


def test_a_later_version_takes_the_place_of_an_earlier_one_and_of_no_other_day(settings: Settings) -> None:
    with table(settings) as days:
        first, other = files(settings, DAY, "v1", 3), files(settings, NEXT, "v1", 2)
        days.publish(DAY, "v1", first, {})
        days.publish(NEXT, "v1", other, {})
        second = files(settings, DAY, "v2", 4)
        days.publish(DAY, "v2", second, {})
        assert days.files() == {str(second[0]): 4, str(other[0]): 2}
        days.publish(DAY, "v1", first, {})
        assert (days.published(), days.files()) == ({DAY: "v1", NEXT: "v1"}, {str(first[0]): 3, str(other[0]): 2})


def test_readers_see_a_day_as_before_or_as_published_and_nothing_between(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, seen = SqlCatalog.commit_table, []
    with table(settings) as days, table(settings) as reader:
        first, second = files(settings, DAY, "v1", 3), files(settings, DAY, "v2", 4)
        days.publish(DAY, "v1", first, {})
        days.stage(DAY, "v2", second, {})

        def look(self: SqlCatalog, *arguments: Any) -> Any:
            done = commit(self, *arguments)
            seen.append((reader.published(), reader.files(), reader.audits()))
            return done

        monkeypatch.setattr(SqlCatalog, "commit_table", look)
        days.publish(DAY, "v2", second, {})
    assert seen == [({DAY: "v2"}, {str(second[0]): 4}, set())]


def test_a_day_without_events_is_published_too(settings: Settings) -> None:
    with table(settings) as days:
        days.stage(DAY, "v1", [], {})
        days.publish(DAY, "v1", [], {})
        assert (days.published(), days.files()) == ({DAY: "v1"}, {})
        events = files(settings, DAY, "v2", 1)
        days.publish(DAY, "v2", events, {})
        days.publish(DAY, "v3", [], {})
        assert (days.published(), days.files()) == ({DAY: "v3"}, {})


def test_several_days_are_published_in_one_commit(settings: Settings) -> None:
    with table(settings) as days:
        days.publish(NEXT, "v1", files(settings, NEXT, "v1", 2), {})
        later = NEXT + timedelta(days=1)
        made = {day: ("v2", files(settings, day, "v2", 1)) for day in (DAY, NEXT, later)}
        seen = days.metadata_in_use()
        days.publish_all(made, {"tocsin.run": "v2"})
        assert days.published() == dict.fromkeys((DAY, NEXT, later), "v2")
        assert sorted(days.files()) == sorted(str(path) for _, paths in made.values() for path in paths)
        assert len({one for one in days.metadata_in_use() - seen if one.endswith(".metadata.json")}) == 1


def test_what_is_withdrawn_and_expired_needs_no_metadata_any_more(settings: Settings) -> None:
    with table(settings) as days:
        for number in range(3):
            day = DAY + timedelta(days=number)
            days.publish(day, "v1", files(settings, day, "v1", 1), {})
        days.withdraw([DAY, NEXT], {})
        assert list(days.published()) == [DAY + timedelta(days=2)]
        assert len(days.files()) == 1
        before = days.metadata_in_use()
        days.expire(datetime.now(UTC) + timedelta(minutes=1))
        needed = days.metadata_in_use()
        assert len(needed) < len(before)
        assert all(Path(location.removeprefix("file://")).exists() for location in needed)
        assert len(days.files()) == 1


def test_columns_may_come_and_go_but_not_change_their_type(settings: Settings) -> None:
    with table(settings) as days:
        days.publish(DAY, "v1", files(settings, DAY, "v1", 1), {})
    with table(settings, device="int") as days:
        days.check()
        days.publish(NEXT, "v1", files(settings, NEXT, "v1", 1, device="int"), {})
    with table(settings, device="bigint") as days:
        days.check()
        later = NEXT + timedelta(days=1)
        days.publish(later, "v1", files(settings, later, "v1", 1, device="bigint"), {})
    with table(settings) as days:
        days.publish(DAY, "v2", files(settings, DAY, "v2", 1), {})
        assert len(days.files()) == 3
    with table(settings, ip_address="int") as days, pytest.raises(ConfigError) as raised:
        days.check()
    assert "sources/logins.toml: ip_address is int, but its history holds it as string" in str(raised.value)


@pytest.mark.parametrize("server", [False, True], ids=["sqlite", "postgres"])
def test_those_who_publish_at_the_same_time_lose_nothing(
    server: bool, settings: Settings, request: pytest.FixtureRequest
) -> None:
    if server:
        address = emptied(request.getfixturevalue("postgres")).replace("postgresql://", "postgresql+psycopg://")
        (file := settings.state.parent / "catalogue").write_text(address)
        own = HistorySettings(catalog_file=file)
        settings = settings.model_copy(update={"history": own})
    failed: list[BaseException] = []

    def publish(number: int) -> None:
        day = DAY + timedelta(days=number)
        try:
            with table(settings) as days:
                made = files(settings, day, "v1", 1)
                days.stage(day, "v1", made, {})
                days.publish(day, "v1", made, {})
        except BaseException as error:
            failed.append(error)

    with table(settings) as days:
        days.publish(DAY, "v0", [], {})
        threads = [threading.Thread(target=publish, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        assert days.published() == {DAY + timedelta(days=number): "v1" for number in range(4)}
        assert (len(days.files()), days.audits()) == (4, set())


@pytest.mark.parametrize(("broken", "error"), [(b"Obj\x01", "EOF"), (b"Obj\x01\x02\x04\xff\xff", "UnicodeDecodeError")])
def test_metadata_that_cannot_be_read_is_one_sentence_that_names_it(
    settings: Settings, broken: bytes, error: str
) -> None:
    with table(settings) as days:
        days.publish(DAY, "v1", files(settings, DAY, "v1", 5), {})
    folder = Path(str(Places.of(settings, "logins").table / "metadata"))
    for path in folder.glob("*.avro"):
        path.write_bytes(broken)
    with table(settings) as days, pytest.raises(BrokenTable, match=rf"logins/metadata cannot be read \({error}"):
        days.metadata_in_use()
    for path in folder.glob("*.json"):
        path.write_bytes(b"")
    with table(settings) as days, pytest.raises(BrokenTable, match="restore it from a backup") as caught:
        days.published()
    assert "\n" not in str(caught.value)
