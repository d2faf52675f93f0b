"""Where a flow goes on: behind its last version, in another order of its sources, and with which ticks."""

import json
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.rig.samples.checkpoints import batch
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.source import tick_value
from tocsin.declare.settings import Settings
from tocsin.ingest.flows.spark import flow_run
from tocsin.ingest.flows.spark.flow_run import UpstreamTicks, begin_at, begin_version, fit_order
from tocsin.platform import state_file
from tocsin.platform.code_versions import keep_version
from tocsin.platform.kafka.topic_set import Place, Position, TopicSet, as_json, partition_of, place_of
from tocsin.spark.declared_function import DeclaredFunction
from tocsin.spark.query.checkpoint import read_committed
from tocsin.spark.query.poison import Read
from tocsin.spark.query.work import Run

EXAMPLE = Path(__file__).parents[4] / "examples" / "words"
JOB, TOPIC = "flow:words", "events.lines"
P0, P1, P2 = (place_of(TOPIC, partition) for partition in range(3))


class Flow:
    """A flow that has committed 40 and 10 of its two partitions, and a topic that ends at 50 and 12."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        shutil.copytree(EXAMPLE, folder / "project")
        self.settings = Settings(project=folder / "project", state=folder / "state")
        self.file = self.settings.project / "flows" / "words.py"
        self.text = self.file.read_text()
        self.first: Position = {P0: 0, P1: 0}
        self.ends: Position = {P0: 50, P1: 12}
        self.appended_since: Position = {P0: 0, P1: 0}
        self.made: list[tuple[str, Position, Position]] = []
        self.error: Exception | None = None
        self.commit({P0: 40, P1: 10})
        monkeypatch.setattr(flow_run, "_between", lambda run, starts, ends: (starts, ends))
        self.start()

    def commit(self, offsets: Position, ago: timedelta = timedelta()) -> None:
        query = self.settings.checkpoint(JOB) / "query"
        batch(query, 7, json.loads(as_json(offsets)))
        moment = (datetime.now(UTC) - ago).timestamp()
        os.utime(query / "commits" / "7", (moment, moment))

    def edit(self) -> None:
        text = self.file.read_text()
        self.file.write_text(text.replace("word != ''", "word != '' AND word != 'a'"))

    def start(self) -> Position:
        """What a job does that starts; before which offsets it leaves out what it reads."""
        spec = read_catalog(self.settings.project).flow("words")
        topics = SimpleNamespace(bounds=lambda: (self.first, self.ends), since=lambda _: self.appended_since)
        reporter = SimpleNamespace(update=lambda **_: None)
        run = SimpleNamespace(settings=self.settings, job=JOB, topics=topics, reporter=reporter)
        committed = read_committed(self.settings.checkpoint(JOB) / "query") or {}
        begins = begin_version(cast(Run, run), spec, committed, self.write)
        keep_version(self.settings, JOB, spec.version, spec.path.read_bytes(), "query")
        return begins

    def write(self, flow: DeclaredFunction, read: Read) -> None:
        if self.error is not None:
            raise self.error
        starts, ends = cast(Any, read)
        self.made.append((flow._path.parent.name, starts, ends))

    def version(self) -> str:
        return read_catalog(self.settings.project).flow("words").version


@pytest.fixture
def flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Flow:
    return Flow(tmp_path, monkeypatch)


def test_the_same_version_goes_on_and_makes_nothing_twice(flow: Flow) -> None:
    assert flow.start() == {}
    assert flow.made == []


def test_another_version_begins_behind_what_the_last_one_may_have_read(flow: Flow) -> None:
    first = flow.version()
    flow.edit()
    assert flow.start() == {P0: 50, P1: 12}
    assert flow.made == [(first, {P0: 40, P1: 10}, {P0: 50, P1: 12})]
    flow.ends = {P0: 60, P1: 20}
    assert flow.start() == {P0: 50, P1: 12}, "it was killed before its first commit"
    flow.commit({P0: 55, P1: 11})
    assert flow.start() == {P1: 12}
    assert len(flow.made) == 1


def test_a_version_that_goes_before_its_first_commit_finishes_what_it_began_alone(flow: Flow) -> None:
    first = flow.version()
    flow.edit()
    second = flow.version()
    flow.start()
    flow.ends = {P0: 60, P1: 12}
    flow.file.write_text(flow.text)
    assert flow.start() == {P0: 60, P1: 12}
    assert flow.made[1:] == [(second, {P0: 50, P1: 12}, {P0: 60, P1: 12})]
    assert flow.version() == first


def test_what_came_long_after_the_last_version_had_ended_is_left_to_the_new_one(flow: Flow) -> None:
    flow.commit({P0: 40, P1: 10}, ago=timedelta(hours=1))
    flow.ends, flow.appended_since = {P0: 9_000, P1: 9_000}, {P0: 43, P1: 10}
    flow.edit()
    assert flow.start() == {P0: 43}
    assert [ends for _, _, ends in flow.made] == [{P0: 43, P1: 10}]


def test_where_nothing_was_begun_nothing_is_finished(flow: Flow) -> None:
    flow.ends = {P0: 40, P1: 10}
    flow.edit()
    assert flow.start() == {}
    assert flow.made == []


def test_records_that_retention_has_removed_are_not_asked_for(flow: Flow) -> None:
    flow.first = {P0: 45, P1: 0, P2: 0}
    flow.ends = {P0: 50, P1: 12, P2: 3}
    flow.edit()
    assert flow.start() == {P0: 50, P1: 12, P2: 3}
    assert [starts for _, starts, _ in flow.made] == [{P0: 45, P1: 10, P2: 0}], "an added one is unread"


@pytest.mark.parametrize("what", ["fails", "is gone", "joins something else"])
def test_a_last_version_that_cannot_finish_is_no_hindrance(flow: Flow, what: str) -> None:
    kept = flow.settings.checkpoint(JOB) / "versions" / flow.version() / "words.py"
    flow.edit()
    if what == "fails":
        flow.error = ConfigError.one("a", "b")
    elif what == "is gone":
        kept.unlink()
    else:
        kept.write_text(kept.read_text().replace('source="lines"', 'source="shouted"'))
    assert flow.start() == {}
    assert flow.made == []


def test_a_topic_that_is_read_from_its_beginning_is_read_whole(flow: Flow) -> None:
    """As after a change of the source: offsets of before say nothing."""
    flow.edit()
    flow.start()
    shutil.rmtree(flow.settings.checkpoint(JOB) / "query")
    assert flow.start() == {}
    flow.commit({P0: 3, P1: 2})
    assert flow.start() == {}


A, B, C = (f"events.{name}" for name in "abc")
A0, B0, C0 = (place_of(topic, 0) for topic in (A, B, C))


def commit(query: Path, offsets: Position) -> None:
    batch(query, 3, json.loads(as_json(offsets)))


def test_it_begins_where_the_checkpoint_before_was_until_it_has_one_of_its_own(tmp_path: Path) -> None:
    query = tmp_path / "query"
    assert fit_order(query, [A, B], [A0, B0]) == {}
    commit(query, {A0: 5, B0: 7})
    assert fit_order(query, [A, B], [A0, B0]) == {}
    for order in ([B, A, C], None, [B, A, C]):  # it is killed in its first batch, too
        assert fit_order(query, order, [A0, B0, C0]) == {A0: 5, B0: 7, C0: -2}
        assert not query.exists()
        (query / "offsets").mkdir(parents=True)
    shutil.rmtree(query)
    commit(query, {A0: 9, B0: 9, C0: 1})
    assert fit_order(query, [B, A, C], [A0, B0, C0]) == {}
    assert fit_order(query, [C], [C0]) == {C0: 1}, "one that it does not read any more is forgotten"


def test_a_flow_of_one_source_keeps_the_checkpoint_that_it_has(tmp_path: Path) -> None:
    query = tmp_path / "query"
    commit(query, {A0: 5})
    assert fit_order(query, [A], [A0]) == {}
    assert read_committed(query) == {A0: 5}
    assert fit_order(query, [A, B], [A0, B0]) == {A0: 5, B0: -2}


@pytest.mark.parametrize("dies_at", [1, 2])
def test_a_kill_while_it_changes_loses_no_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_at: int) -> None:
    query, written = tmp_path / "query", []
    commit(query, {A0: 5, B0: 7})
    assert fit_order(query, [A, B], [A0, B0]) == {}
    write = state_file.write

    def die(path: Path, kind: type, value: object) -> None:
        written.append(value)
        if len(written) == dies_at:
            raise KeyboardInterrupt
        write(path, kind, value)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(state_file, "write", die)
        fit_order(query, [B, A], [A0, B0])
    assert fit_order(query, [B, A], [A0, B0]) == {A0: 5, B0: 7}
    commit(query, {A0: 6, B0: 7})
    assert fit_order(query, [B, A], [A0, B0]) == {}


def test_a_flow_with_a_topic_that_was_recreated_goes_on_where_it_was_in_the_others(tmp_path: Path) -> None:
    query = tmp_path / "query"
    batch(query, 0, {A: {"0": 5}, B: {"0": 7}})
    assert fit_order(query, [A, B], [A0, B0]) == {}
    begin_at(query, {B0: 7})
    assert fit_order(query, None, [A0, B0]) == {A0: -2, B0: 7}
    assert not query.exists()
    assert fit_order(query, [A, B], [A0, B0]) == {A0: -2, B0: 7}
    begin_at(query, {})
    assert fit_order(query, None, [A0, B0]) == {}, "all of it from the first event"


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
EVENT = b'{"ingested_at":"2026-01-01T12:00:00.000000Z"}'


class Topics:
    """Records of two topics."""

    names = ("events.a", "events.b")

    def __init__(self) -> None:
        self.records: dict[Place, list[bytes]] = {A0: [], B0: []}

    def bounds(self) -> tuple[Position, Position]:
        return dict.fromkeys(self.records, 0), {place: len(values) for place, values in self.records.items()}

    def read(self, starts: Position, ends: Position) -> Iterator[Any]:
        for place, start in starts.items():
            topic, partition = partition_of(place)
            for offset in range(start, ends[place]):
                told = {"topic": topic, "partition": partition, "offset": offset, "value": self.records[place][offset]}
                yield SimpleNamespace(**{key: lambda one=one: one for key, one in told.items()})


def test_a_flow_of_two_sources_goes_by_the_one_that_is_behind() -> None:
    topics = Topics()
    ask = UpstreamTicks(cast(TopicSet, topics))
    topics.records[A0] += [EVENT, tick_value(NOON)]
    assert ask() is None, "nothing is known of the other"
    topics.records[B0] += [tick_value(NOON - timedelta(seconds=5)), EVENT]
    assert ask() == (NOON - timedelta(seconds=5), {A0: 1, B0: 2})
    topics.records[B0].append(tick_value(NOON + timedelta(seconds=5)))
    assert ask() == (NOON, {A0: 1, B0: 2})
