"""What a version of a flow had begun is made by its own code, and left out by the version after it."""

from __future__ import annotations

import json
import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.rig.samples.checkpoints import batch
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.settings import Settings
from tocsin.ingest.flows.spark import flow_run
from tocsin.ingest.flows.spark.flow_run import begin_version
from tocsin.platform.code_versions import keep_version
from tocsin.platform.kafka.topic_set import Position, as_json, place_of
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
        """Make a new version."""
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
