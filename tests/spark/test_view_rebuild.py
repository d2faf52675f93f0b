"""Views rebuilt from sealed days, as people start it, in the session of the tests; a stand-in takes the rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.rig.command_line import invoke
from tests.rig.samples.project import copy_project
from tests.rig.samples.sealed_days import seal_day
from tests.rig.small_disk import small_disk
from tests.spark.sealing import login
from tocsin.declare.catalog import read_catalog
from tocsin.declare.settings import Settings
from tocsin.history.places import begin
from tocsin.history.spark.table_versions import refresh
from tocsin.job import main
from tocsin.platform import logs
from tocsin.platform.process_exit import ExitCode
from tocsin.spark.declared_function import DeclaredFunction
from tocsin.spark.events import IDENTITY, parse_events, prepare_events
from tocsin.views.rebuild import rebuild_status
from tocsin.views.rebuild.rebuild_request import Draft, HistoryPart, Rebuild, read_draft, read_rebuild, write_draft
from tocsin.views.spark import view_rebuild
from tocsin.views.spark.computation import Computation
from tocsin.views.stored_row import ViewRow

TODAY = datetime.now(UTC).date()
DAYS = [TODAY - timedelta(days=back) for back in (4, 3, 2, 1)]
ISO = "%Y-%m-%dT%H:%M:%S.%fZ"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
VIEW = '''"""Logins of each user."""
from pyspark.sql import functions as F

from tocsin import view


@view(source="logins", key="user_id", {when}, owner="o@example.com", stage="live")
def view(events):
    return events.groupBy("window", "user_id").agg({what}.alias("n"))
'''
TABLE = """title = "Logins of each user on a day"
owner = "o@example.com"
history = "logins"
sql = "SELECT user_id, count(*) AS logins FROM events GROUP BY user_id"
days = 1
key = "user_id"

[schema]
user_id = "string"
logins = "bigint"
"""
HOURS = next(hours for hours in (7, 5, 11) if (begin(TODAY) - EPOCH) % timedelta(hours=hours))
"""A length of windows of which none ends at midnight; those of seven hours do so on Thursdays."""
COUNTED = {"when": f'window="{HOURS} hours"', "what": 'F.count("*")'}
LATEST = {"when": 'window=None, keep="3 days"', "what": 'F.max_by("ip_address", "event_time")'}


class Topic:
    """The events topic, whose first record was appended at `begins`."""

    name = "events.logins"
    begins = begin(DAYS[3]) - timedelta(seconds=30)

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> Topic:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def partitions(self) -> list[int]:
        return [0, 1]

    def bounds(self) -> tuple[dict[int, int], dict[int, int]]:
        return {0: 10, 1: 0}, {0: 90, 1: 90}

    def appended_at(self, *_: int) -> datetime:
        return self.begins

    def since(self, moment: datetime) -> dict[int, int]:
        assert moment < self.begins + timedelta(days=2)
        return {0: 20, 1: 5}


@dataclass
class Installation:
    """A project with its history, and the rows that were written.

    Attributes:
        events: user, time and address of each that is sealed.
        writes: the rows of each query, by the identity of the row.
        past: the values of the records on each topic of events of history.
        dies_at: the number of the write that is killed in its middle; 0 for none.
    """

    settings: Settings
    events: list[tuple[str, datetime, str]] = field(default_factory=list)
    writes: list[dict[str, ViewRow]] = field(default_factory=list)
    past: dict[str, list[str]] = field(default_factory=dict)
    dies_at: int = 0

    def declare(self, name: str, **view: str) -> None:
        (self.settings.project / "views").mkdir(exist_ok=True)
        (self.settings.project / "views" / f"{name}.py").write_text(VIEW.format(**view))

    def declare_totals(self, name: str) -> None:
        """Declare a view of all events."""
        self.declare(name, **COUNTED | {"when": "window=None"})
        path = self.settings.project / "views" / f"{name}.py"
        path.write_text(path.read_text().replace('"window", ', ""))

    def seal(self, day: date, number: int) -> None:
        """A day with logins each hour, and around midnight."""
        rows = [*range(0, 86_400, 3600), 86_390, 86_399, *range(number * 100, number * 100 + number)]
        found: list[dict[str, Any]] = [
            login(number * 1000 + one, second, day=day, user_id=f"u{one % 3}", ip_address=f"192.0.{number}.{one}")
            for one, second in enumerate(rows)
        ]
        found.append(login(number * 1000 + 999, 5, day=day, user_id=f"only-{number}", ip_address=f"192.0.{number}.99"))
        seal_day(self.settings, day, found)
        self.events += [(one["user_id"], one["event_time"], one["ip_address"]) for one in found]

    def write(self, _: Settings, topic: str, records: DataFrame) -> None:
        rows: dict[str, ViewRow] = {}
        if topic.startswith("rebuild."):
            self.past[topic] += [one.value for one in records.collect()]
        else:
            rows = {one.key: ViewRow.from_record(one.value.encode(), topic, 0, 0) for one in records.collect()}
        assert all(key == row.identity for key, row in rows.items())
        if len(self.writes) + 1 == self.dies_at:
            self.dies_at = 0
            raise KeyboardInterrupt
        self.writes.append(rows)

    def rebuild(self, name: str, *options: str, code: int = 0) -> str:
        result = invoke(["rebuild", name, "--yes", *options])
        assert result.exit_code == code, (result.output, result.exception)
        return result.output

    def rows(self) -> dict[str, ViewRow]:
        return {key: row for rows in self.writes for key, row in rows.items()}

    def request(self, name: str) -> Rebuild:
        found = read_rebuild(self.settings.state, name)
        assert found is not None
        return found


@pytest.fixture
def installation(starts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installation]:
    del starts
    project = tmp_path / "project"
    copy_project(project, "sources")
    monkeypatch.setenv("TOCSIN_PROJECT", str(project))
    monkeypatch.setenv("TOCSIN_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(logs, "configure", lambda _job: None)
    one = Installation(Settings(project=project, state=tmp_path / "state"))
    monkeypatch.setattr(rebuild_status, "TopicReader", Topic)
    monkeypatch.setattr(view_rebuild, "write_records", one.write)
    monkeypatch.setattr(view_rebuild, "ensure_event_topic", lambda _, name, __: one.past.setdefault(name, []))
    monkeypatch.setattr(rebuild_status, "remove_topics", lambda _, name: one.past.pop(name, None))
    monkeypatch.setattr(view_rebuild, "ROWS_AT_ONCE", 1)  # one day by one query
    for number, day in enumerate(DAYS):
        one.seal(day, number)
    yield one


def test_windows_that_start_before_the_streams_are_computed_once_also_across_midnight(
    installation: Installation,
) -> None:
    installation.declare("v", **COUNTED)
    output = installation.rebuild("v")
    assert f"3 days, {DAYS[0]} to {DAYS[2]}" in output, "windows that start on the last reach into today"
    assert "3 of 3 days" in output
    request = installation.request("v")
    assert request.history is not None
    assert (request.history.since, request.history.offsets) == (
        begin(DAYS[3]),
        {"events.logins/0": 20, "events.logins/1": 5},
    )
    truth = Counter[tuple[str, datetime]]()
    for user, moment, _ in installation.events:
        start = moment - (moment - EPOCH) % timedelta(hours=HOURS)
        if begin(DAYS[0]) <= start < begin(DAYS[3]):
            truth[user, start] += 1
    found = installation.rows().values()
    assert {(row.key["user_id"], row.window_start): row.values["n"] for row in found} == truth
    assert {row.build for row in found} == {request.history.build}
    assert sum(map(len, installation.writes)) == len(truth), "no window twice"
    assert read_draft(installation.settings.state, "v") is None


def test_a_run_that_was_killed_goes_on_where_it_was_and_another_version_begins_anew(installation: Installation) -> None:
    installation.declare("v", **LATEST)
    installation.dies_at = 3
    result = invoke(["rebuild", "v", "--yes"])
    assert isinstance(result.exception, KeyboardInterrupt | SystemExit)
    assert read_rebuild(installation.settings.state, "v") is None, "nothing is asked of the stream before all is there"
    assert "4 of 4 days" in installation.rebuild("v")
    assert len(installation.writes) == len(DAYS), "no day again that had been noted"
    latest: dict[tuple[str, datetime], tuple[datetime, str]] = {}
    for user, moment, address in installation.events:
        period = moment - (moment - EPOCH) % timedelta(days=3)
        latest[user, period] = max(latest.get((user, period), (EPOCH, "")), (moment, address))
    found = installation.rows().values()
    assert {(one.key["user_id"], one.window_start): one.values["n"] for one in found} == {
        place: address for place, (_, address) in latest.items()
    }
    request = installation.request("v")
    assert request.history is not None
    assert ({one.build for one in found}, request.history.since) == ({request.history.build}, begin(TODAY))
    installation.dies_at = len(installation.writes) + 2
    invoke(["rebuild", "v", "--yes"])
    drafted = read_draft(installation.settings.state, "v")
    assert drafted is not None and list(drafted.days) == DAYS[:1]
    installation.declare("v", **LATEST | {"what": 'F.max("event_time")'})
    installation.rebuild("v")
    last = installation.request("v").history
    assert last is not None and last.build != drafted.build
    assert {one.build for rows in installation.writes[-4:] for one in rows.values()} == {last.build}
    assert {one.build for one in installation.writes[-5].values()} == {drafted.build}


def test_what_is_missing_is_named_and_left_out_only_when_asked(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation.declare("v", **COUNTED | {"when": 'window="1 hour"'})
    monkeypatch.setattr(Topic, "begins", begin(TODAY) + timedelta(hours=1))
    output = installation.rebuild("v", code=1)
    assert f"{TODAY}: Kafka has it from 01:00:" in output and "--incomplete" in output
    assert (installation.writes, read_rebuild(installation.settings.state, "v")) == ([], None)
    installation.rebuild("v", "--incomplete")
    assert len(installation.writes) == len(DAYS)
    request = installation.request("v")
    installation.rebuild("v", "--kafka-only")
    assert len(installation.writes) == len(DAYS)
    assert installation.request("v").history is None
    assert installation.request("v").id != request.id


def test_totals_count_each_event_once_that_is_sealed_or_in_kafka(
    installation: Installation, spark: SparkSession
) -> None:
    installation.declare_totals("v")
    installation.dies_at = 2
    invoke(["rebuild", "v", "--yes"])
    assert "4 of 4 days" in installation.rebuild("v")
    request, settings = installation.request("v"), installation.settings
    assert request.history is not None
    assert (request.history.since, request.history.events_from) == (begin(TODAY), begin(DAYS[0]))
    ((topic, records),) = installation.past.items()
    assert topic == settings.names.rebuild("v", request.history.build)
    assert len(records) > len(installation.events), "the day of the kill is there twice"
    assert {frozenset(json.loads(one)) for one in records} == {frozenset([*IDENTITY, "event_time", "user_id"])}

    catalog = read_catalog(settings.project)
    spec, source = catalog.view("v"), catalog.source("logins")
    new = [login(number, 60, day=TODAY, user_id="u0") for number in range(7)]
    fresh = [json.dumps(one | {"event_time": one["event_time"].strftime(ISO)}, default=str) for one in new]
    stream = [*records, *records[-20:], *fresh]  # what was sealed is on the stream still
    events = parse_events(spark.createDataFrame([(one,) for one in stream], "value string"), source)
    rows = DeclaredFunction(spec.path, "view")(prepare_events(events, spec.computed, source.lateness), None)
    truth = Counter(user for user, _, _ in installation.events) + Counter({"u0": len(new)})
    assert {row.user_id: row.n for row in rows.collect()} == truth


def test_a_rebuild_that_was_given_up_leaves_nothing_and_one_that_was_asked_for_stays(
    installation: Installation,
) -> None:
    installation.declare_totals("v")
    installation.dies_at = 2
    invoke(["rebuild", "v", "--yes"])
    assert len(installation.past) == 1
    installation.rebuild("v", "--kafka-only")
    assert (installation.past, read_draft(installation.settings.state, "v")) == ({}, None)
    installation.rebuild("v")
    request = installation.request("v")
    assert request.history is not None
    asked = Draft(request.id, request.history.build, dict.fromkeys(DAYS, ""))
    write_draft(installation.settings.state, "v", asked)  # as of a run that was killed behind the request
    installation.rebuild("v")
    assert len(installation.past) == 2, "the job of the view may read the one that was asked for"
    assert installation.request("v").id != request.id


def test_each_day_joins_the_table_of_its_time(installation: Installation, spark: SparkSession) -> None:
    project = installation.settings.project
    (project / "tables").mkdir()
    (project / "tables" / "before.toml").write_text(TABLE)
    installation.declare("v", when='window="1 hour", tables=["before"]', what='F.max("logins")')
    path = project / "views" / "v.py"
    joined = path.read_text().replace("(events)", "(events, tables)")
    path.write_text(joined.replace("return events", 'return tables.join(events, "before")'))
    truth: dict[tuple[str, datetime], int | None] = {}
    for user, moment, _ in installation.events:
        day = moment.date() - timedelta(days=2)  # of which the version of this day is made
        logins = sum(one == user and at.date() == day for one, at, _ in installation.events)
        truth[user, moment.replace(minute=0, second=0, microsecond=0)] = logins or None
    table = read_catalog(project).table("before")
    refresh(spark, installation.settings, table, read_catalog(project).source("logins"))
    installation.rebuild("v")
    rows = installation.rows().values()
    assert {(row.key["user_id"], row.window_start): row.values["n"] for row in rows} == truth
    assert {None, *truth.values()} > {None}
    path.write_text(path.read_text().replace('window="1 hour"', "window=None").replace('"window", ', ""))
    assert "of older days are not known" in installation.rebuild("v", "--plan")


def test_a_full_disk_is_told_and_the_next_run_goes_on(installation: Installation) -> None:
    installation.declare_totals("v")
    state = installation.settings.state
    with small_disk(state / "views", 1) as disk:

        def fill(settings: Settings, topic: str, records: DataFrame) -> None:
            installation.write(settings, topic, records)
            if len(installation.writes) == 2:
                disk.fill()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(view_rebuild, "write_records", fill)
            error = str(invoke(["rebuild", "v", "--yes"]).exception)
            assert f"{state} cannot be written (No space left on device); make room" in error
            assert main(["rebuild", "v"]) == ExitCode.UNWRITABLE
        assert read_rebuild(state, "v") is None, "the view stays as it is"
        drafted = read_draft(state, "v")
        assert drafted is not None and list(drafted.days) == DAYS[:1]
        disk.make_room()
        assert main(["rebuild", "v"]) == ExitCode.OK
        assert len(installation.writes) == len(DAYS) + 2, "one day again and again, which had not been noted"
        request = installation.request("v")
        assert request.history is not None and request.history.build == drafted.build


def test_two_at_once_are_refused_and_a_change_in_the_middle_is_noticed(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation.declare("v", **COUNTED | {"when": 'window="1 hour"'})
    with rebuild_status.lock_rebuild(installation.settings, "v"):
        for option in ((), ("--kafka-only",)):
            assert "v is being rebuilt already" in str(invoke(["rebuild", "v", "--yes", *option]).exception)

    def change(settings: Settings, topic: str, records: DataFrame) -> None:
        installation.write(settings, topic, records)
        installation.declare("v", **COUNTED)

    monkeypatch.setattr(view_rebuild, "write_records", change)
    assert "has changed meanwhile" in str(invoke(["rebuild", "v", "--yes"]).exception)
    assert (len(installation.writes), read_rebuild(installation.settings.state, "v")) == (1, None)


def test_the_stream_leaves_to_history_the_events_that_it_has(installation: Installation, spark: SparkSession) -> None:
    at = begin(TODAY)
    events = spark.createDataFrame([(at - timedelta(microseconds=1),), (at,)], "event_time timestamp")
    for when, seen in ((LATEST["when"], [at]), (COUNTED["when"], [at - timedelta(microseconds=1), at])):
        installation.declare("v", **LATEST | {"when": when})
        computation = Computation(installation.settings, "v")
        assert computation.select(events).count() == 2
        computation._history = HistoryPart("history-1", at, {})
        found = [row.event_time.replace(tzinfo=UTC) for row in computation.select(events).collect()]
        assert found == seen
