"""Where a checkpoint begins, and where it begins anew when what it would read next is gone or to be skipped."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Never

import pytest

from tests.rig.samples.checkpoints import P0, P1, batch
from tests.rig.samples.checkpoints import TOPIC as NAME
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.settings import Settings
from tocsin.platform.kafka.reader import CameAt
from tocsin.platform.kafka.topic_set import Place, Position, TopicSet, place_of
from tocsin.platform.lock import hold
from tocsin.platform.state_file import FORM
from tocsin.platform.storage.job_folders import JobFolders
from tocsin.spark.query import checkpoint as module
from tocsin.spark.query import gaps
from tocsin.spark.query.checkpoint import Checkpoint, Retention, begin_at, open_checkpoint
from tocsin.spark.query.gaps import Cause, RemovedRange, read_gaps
from tocsin.spark.query.leadership import remove_other_checkpoints

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MEMORY = 20 * SECOND


class Kept(TopicSet):
    """A topic to whose partitions one record was appended each second from noon on, and which was cut since then."""

    names: tuple[str, ...] = (NAME,)

    def __init__(self, *partitions: tuple[int, int]) -> None:
        """The first offset that is kept and the end of each partition."""
        self.kept = {place_of(NAME, number): kept for number, kept in enumerate(partitions)}
        self.id = "first"

    def ids(self) -> dict[str, str]:
        return {NAME: self.id} if self.id else {}

    def bounds(self, partitions: Iterable[Place] | None = None) -> tuple[Position, Position]:
        return {p: first for p, (first, _) in self.kept.items()}, {p: e for p, (_, e) in self.kept.items()}

    def first_at(self, place: Place, start: int, end: int, came_at: CameAt) -> datetime | None:
        first, last = self.kept[place]
        return NOON + max(first, start) * SECOND if max(first, start) < min(end, last) else None

    def since(self, moment: datetime) -> Position:
        offset = max(0, -((NOON - moment) // SECOND))
        return {p: min(max(first, offset), end) for p, (first, end) in self.kept.items()}


def opened(
    base: Path, topic: TopicSet, fingerprint: str = "f1", unread: datetime | None = None, reach: timedelta = 0 * SECOND
) -> Checkpoint:
    return open_checkpoint(JobFolders(base), fingerprint, topic, Retention(MEMORY, reach), lambda: unread)


def read_up_to(base: Path, fingerprint: str = "f1", watermark: datetime | None = None, **offsets: int) -> None:
    """A batch that has read partition 0 up to `p0`, and so on, was committed."""
    query = base / fingerprint / "query"
    batch(query, 7, {NAME: {partition.removeprefix("p"): offset for partition, offset in offsets.items()}})
    (query / "state").mkdir(exist_ok=True)
    millis = 0 if watermark is None else round(watermark.timestamp() * 1000)
    log = query / "offsets" / "7"
    version, _, *sources = log.read_text().splitlines()
    log.write_text("\n".join([version, json.dumps({"batchWatermarkMs": millis}), *sources]))


def test_the_first_begins_at_the_beginning_and_leaves_nothing_out(tmp_path: Path) -> None:
    one = opened(tmp_path, Kept((0, 50), (0, 10)))
    assert (one.offsets, one.publish_from, one.wanted, one.gaps) == ({P0: 0, P1: 0}, None, None, ())
    assert opened(tmp_path, Kept((0, 60), (0, 10))) == one


def test_the_first_on_a_topic_that_was_cut_publishes_whole_windows(tmp_path: Path) -> None:
    one = opened(tmp_path, Kept((30, 50), (0, 10)))
    assert (one.offsets, one.publish_from, one.gaps) == ({P0: 30, P1: 0}, NOON + 30 * SECOND, ())
    assert read_gaps(tmp_path) == []


def test_one_that_is_told_where_to_begin_tells_what_was_removed_since(
    tmp_path: Path,
) -> None:
    begin_at(tmp_path, "f1", {P0: 40, P1: 35}, NOON + 45 * SECOND)
    one = opened(tmp_path, Kept((30, 50), (35, 60)))
    assert (one.offsets, one.publish_from, one.gaps) == ({P0: 40, P1: 35}, NOON + 45 * SECOND, ())
    begin_at(tmp_path, "f1", {P0: 0, P1: 0}, NOON)
    assert opened(tmp_path, Kept((40, 50), (35, 60))) == one, "once"
    begin_at(tmp_path, "f2", {P0: 40, P1: 35}, NOON + 45 * SECOND)
    late = opened(tmp_path, Kept((48, 50), (35, 60)), "f2")
    (gap,) = late.gaps
    assert (gap.since, gap.until, gap.records) == (NOON + 45 * SECOND, NOON + 48 * SECOND, 8)


def test_a_new_plan_begins_a_memory_before_what_was_not_read(tmp_path: Path) -> None:
    opened(tmp_path, Kept((0, 100), (0, 100)))
    read_up_to(tmp_path, watermark=NOON + 85 * SECOND, p0=90, p1=80)
    one = opened(tmp_path, Kept((0, 100), (0, 100)), "f2")
    assert (one.offsets, one.publish_from, one.gaps) == ({P0: 60, P1: 60}, NOON + 60 * SECOND, ())
    assert one.wanted == NOON + 80 * SECOND - MEMORY
    assert opened(tmp_path, Kept((0, 100), (0, 100)), "f2") == one


def test_a_new_plan_does_not_publish_windows_of_which_a_part_is_gone_and_tells_it_once(tmp_path: Path) -> None:
    opened(tmp_path, Kept((0, 100), (0, 100)))
    read_up_to(tmp_path, watermark=NOON + 85 * SECOND, p0=90, p1=80)
    one = opened(tmp_path, Kept((70, 100), (0, 100)), "f2")
    assert (one.offsets, one.publish_from) == ({P0: 70, P1: 60}, NOON + 70 * SECOND)
    (gap,) = one.gaps
    assert (gap.since, gap.until, gap.records) == (NOON + 85 * SECOND, NOON + 70 * SECOND, 0)


def test_after_an_outage_a_new_plan_publishes_what_the_old_one_had_not_closed(tmp_path: Path) -> None:
    """The ingest has written no event yet of all that came meanwhile."""
    opened(tmp_path, Kept((0, 100)))
    read_up_to(tmp_path, watermark=NOON + 85 * SECOND, p0=100)
    one = opened(tmp_path, Kept((0, 100)), "f2")
    assert (one.offsets, one.publish_from, one.gaps) == ({P0: 65}, NOON + 65 * SECOND, ())


def test_a_new_plan_begins_before_what_the_ingest_has_not_read(tmp_path: Path) -> None:
    opened(tmp_path, Kept((0, 100)))
    read_up_to(tmp_path, watermark=NOON + 400 * SECOND, p0=100)  # one event was ahead of its time
    one = opened(tmp_path, Kept((0, 100)), "f2", unread=NOON + 110 * SECOND)
    assert (one.offsets, one.publish_from, one.gaps) == ({P0: 90}, NOON + 90 * SECOND, ())


def test_a_new_plan_publishes_all_that_the_first_batch_of_the_old_one_has_not_closed(tmp_path: Path) -> None:
    opened(tmp_path, Kept((0, 100)))
    read_up_to(tmp_path, p0=100)
    one = opened(tmp_path, Kept((0, 100)), "f2")
    assert (one.offsets, one.publish_from, one.gaps) == ({P0: 0}, NOON - MEMORY, ())


def test_a_plan_that_came_to_no_commit_leaves_its_beginning_to_the_next(tmp_path: Path) -> None:
    topic = Kept((0, 500))
    opened(tmp_path, Kept((0, 100)))
    read_up_to(tmp_path, watermark=NOON + 85 * SECOND, p0=100)
    broken = opened(tmp_path, topic, "f2")
    assert isinstance(broken.query, Path)
    (broken.query / "commits").mkdir(parents=True)  # as Spark makes it when a query starts
    assert opened(tmp_path, topic, "f3").offsets == {P0: 45}
    gaps.ask_to_skip(tmp_path)
    skipping = opened(tmp_path, topic, "f4")
    assert skipping.publish_from is not None
    last = opened(tmp_path, topic, "f5")
    assert last.publish_from == skipping.publish_from - MEMORY
    assert last.offsets == {P0: 500}, "what it was told to skip stays skipped"


def test_what_was_read_may_be_removed(tmp_path: Path) -> None:
    opened(tmp_path, Kept((0, 100), (0, 100)))
    read_up_to(tmp_path, p0=90, p1=80)
    one = opened(tmp_path, Kept((90, 100), (80, 100)))
    assert one.gaps == ()
    assert one.position([P0, P1]) == {P0: 90, P1: 80}
    assert not one.is_overtaken(Kept((90, 100), (80, 100)))


def test_behind_what_was_removed_it_begins_anew_with_the_earliest_that_is_kept(tmp_path: Path) -> None:
    before = opened(tmp_path, Kept((0, 100), (0, 100)))
    read_up_to(tmp_path, watermark=NOON + 70 * SECOND, p0=85, p1=80)
    topic = Kept((120, 200), (0, 200))
    assert before.is_overtaken(topic)
    one = opened(tmp_path, topic)
    (gap,) = one.gaps
    assert gap.partitions == {0: RemovedRange(from_offset=85, to_offset=120, appended_before=NOON + 120 * SECOND)}
    assert (gap.cause, gap.records) == (Cause.REMOVED, 35)
    assert (gap.since, gap.until) == (NOON + 70 * SECOND, NOON + 120 * SECOND)
    assert (one.offsets, one.publish_from) == ({P0: 120, P1: 50}, NOON + 120 * SECOND)
    assert not one.query.exists(), "the old state counted what is not whole"
    assert not (tmp_path / "f1" / "query").exists()
    assert one.position([P0, P1]) == {P0: 120, P1: 50}
    assert read_gaps(tmp_path) == [gap]
    assert json.loads((tmp_path / "gaps.json").read_text())[0]["partitions"]["0"]["records"] == 35


def test_a_gap_is_told_once(tmp_path: Path) -> None:
    opened(tmp_path, Kept((0, 100)))
    read_up_to(tmp_path, p0=80)
    assert opened(tmp_path, Kept((120, 200))).gaps != ()
    assert opened(tmp_path, Kept((120, 200))).gaps == ()
    assert len(read_gaps(tmp_path)) == 1


def test_before_the_first_batch_it_can_be_overtaken_too(tmp_path: Path) -> None:
    opened(tmp_path, Kept((0, 100)))
    one = opened(tmp_path, Kept((40, 100)))
    (gap,) = one.gaps
    assert gap.offsets == {0: "0 to 40"}
    assert gap.since is None


def test_a_partition_that_was_added_and_cut_before_it_was_read_is_a_gap(tmp_path: Path) -> None:
    opened(tmp_path, Kept((0, 100)))
    read_up_to(tmp_path, p0=80)
    one = opened(tmp_path, Kept((0, 100), (5, 9)))
    (gap,) = one.gaps
    assert gap.offsets == {1: "0 to 5"}


@pytest.mark.parametrize("end", [40, 80, 200])
def test_a_topic_that_was_recreated_is_read_from_its_start_however_long_it_is(tmp_path: Path, end: int) -> None:
    before = opened(tmp_path, Kept((0, 100), (0, 100)))
    read_up_to(tmp_path, watermark=NOON + 70 * SECOND, p0=85, p1=80)
    topic = Kept((0, end), (0, end))
    topic.id = "second"
    assert before.is_overtaken(topic)
    one = opened(tmp_path, topic)
    (gap,) = one.gaps
    assert (gap.is_recreated, gap.partitions, gap.records, gap.since) == (True, {}, 0, NOON + 70 * SECOND)
    assert "was deleted and created again" in gap.sentence
    assert one.offsets == {P0: 0, P1: 0}
    assert one.publish_from is not None
    assert one.publish_from == gap.until >= NOON, "no window that the former topic had begun is published"
    assert not one.query.exists(), "the old state is of the former topic"
    assert one.topic_ids == {NAME: "second"}
    assert opened(tmp_path, topic).gaps == ()
    assert read_gaps(tmp_path) == [gap]


def test_one_of_before_ids_were_noted_takes_the_topic_as_it_is(tmp_path: Path) -> None:
    topic = Kept((0, 100))
    topic.id = ""
    opened(tmp_path, topic)
    read_up_to(tmp_path, p0=80)
    topic.id = "first"
    one = opened(tmp_path, topic)
    assert (one.gaps, one.topic_ids, one.position([P0])) == ((), {NAME: "first"}, {P0: 80})
    topic.id = "second"
    assert opened(tmp_path, topic).position([P0]) == {P0: 0}


def test_gaps_of_a_former_topic_hide_none_of_the_topic_of_now(tmp_path: Path) -> None:
    opened(tmp_path, Kept((0, 100)))
    read_up_to(tmp_path, p0=80)
    opened(tmp_path, Kept((120, 200)))
    topic = Kept((0, 300))
    topic.id = "second"
    opened(tmp_path, topic)
    topic.kept[P0] = (110, 300)
    opened(tmp_path, topic)
    assert [gap.offsets for gap in read_gaps(tmp_path)] == [{0: "80 to 120"}, {}, {0: "0 to 110"}]


def test_where_nothing_is_kept_windows_are_whole_from_now_on(tmp_path: Path) -> None:
    opened(tmp_path, Kept((0, 100)))
    read_up_to(tmp_path, p0=80)
    began = datetime.now(UTC)
    one = opened(tmp_path, Kept((100, 100)))
    assert one.offsets == {P0: 100}
    assert one.publish_from is not None
    assert one.publish_from >= began


def test_a_new_plan_after_a_long_outage_records_the_gap_of_the_old_one(tmp_path: Path) -> None:
    opened(tmp_path, Kept((0, 100)))
    read_up_to(tmp_path, p0=80)
    one = opened(tmp_path, Kept((120, 200)), "f2")
    (gap,) = one.gaps
    assert gap.offsets == {0: "80 to 120"}
    assert (one.offsets, one.publish_from) == ({P0: 120}, NOON + 120 * SECOND)


def test_a_start_that_is_broken_off_records_nothing_twice_and_forgets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(tmp_path, Kept((0, 100)))
    read_up_to(tmp_path, p0=80)

    def killed(*_: object, **__: object) -> Never:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "_write_start", killed)
        with pytest.raises(KeyboardInterrupt):
            opened(tmp_path, Kept((120, 200)))
    one = opened(tmp_path, Kept((130, 200)))
    assert [gap.offsets for gap in read_gaps(tmp_path)] == [{0: "80 to 120"}, {0: "120 to 130"}]
    assert one.offsets == {P0: 130}
    assert not one.query.exists()


def test_it_may_begin_anew_again_and_again(tmp_path: Path) -> None:
    opened(tmp_path, Kept((0, 100)))
    read_up_to(tmp_path, p0=80)
    second = opened(tmp_path, Kept((120, 200)))
    batch(second.query, 0, {NAME: {"0": 150}})
    assert opened(tmp_path, Kept((120, 200))).position([P0]) == {P0: 150}
    third = opened(tmp_path, Kept((160, 200)))
    (gap,) = third.gaps
    assert gap.offsets == {0: "150 to 160"}
    assert third.query not in (second.query, tmp_path / "f1" / "query")
    assert [path.name for path in (tmp_path / "f1").iterdir()] == ["start.json"], "old states are gone"


def test_on_request_it_begins_at_the_end_and_records_what_it_skips(tmp_path: Path) -> None:
    opened(tmp_path, Kept((0, 100), (0, 100)))
    read_up_to(tmp_path, watermark=NOON + 70 * SECOND, p0=90, p1=100)
    gaps.ask_to_skip(tmp_path)
    began = datetime.now(UTC)
    one = opened(tmp_path, Kept((0, 500), (0, 100)))
    (gap,) = one.gaps
    assert (gap.cause, gap.offsets, gap.since) == (Cause.SKIPPED, {0: "90 to 500"}, NOON + 70 * SECOND)
    assert one.offsets == {P0: 500, P1: 100}
    assert one.publish_from is not None
    assert one.publish_from >= began
    assert not one.query.exists()
    assert not gaps.is_asked_to_skip(tmp_path)
    assert opened(tmp_path, Kept((0, 600), (0, 100))).gaps == ()


def test_what_was_removed_is_skipped_with_the_rest(tmp_path: Path) -> None:
    opened(tmp_path, Kept((0, 100)))
    read_up_to(tmp_path, p0=80)
    gaps.ask_to_skip(tmp_path)
    one = opened(tmp_path, Kept((120, 200)))
    (gap,) = one.gaps
    assert gap.offsets == {0: "80 to 200"}


def test_the_first_start_may_skip_all_that_is_there(tmp_path: Path) -> None:
    gaps.ask_to_skip(tmp_path)
    one = opened(tmp_path, Kept((30, 50)))
    (gap,) = one.gaps
    assert (one.offsets, gap.offsets) == ({P0: 50}, {0: "30 to 50"})


def test_without_a_backlog_there_is_nothing_to_skip_and_the_state_stays(tmp_path: Path) -> None:
    opened(tmp_path, Kept((0, 100)))
    read_up_to(tmp_path, p0=100)
    gaps.ask_to_skip(tmp_path)
    one = opened(tmp_path, Kept((0, 100)))
    assert one.gaps == ()
    assert one.query.exists()
    assert not gaps.is_asked_to_skip(tmp_path)


def test_what_no_version_can_go_back_to_is_removed_unless_a_process_still_writes_it(tmp_path: Path) -> None:
    topic = Kept((0, 10))
    for fingerprint in ("f1", "f2", "f3"):
        opened(tmp_path, topic, fingerprint)
    (tmp_path / "versions").mkdir()
    with hold(tmp_path / "f2" / "lock"):
        remove_other_checkpoints(Settings(), JobFolders(tmp_path), {"f3"})
    assert {path.name for path in tmp_path.iterdir()} == {"f2", "f3", "versions"}
    remove_other_checkpoints(Settings(), JobFolders(tmp_path), {"f3"})
    assert {path.name for path in tmp_path.iterdir()} == {"f3", "versions"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"form": FORM + 1, "begun": "elsewhere"}, f"was written by a later Tocsin in form {FORM + 1}"),
        ({"offsets": "all"}, r"cannot be read \(1 faults in it\)"),
    ],
)
def test_a_checkpoint_that_this_release_cannot_read_is_refused(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    """Also by the job that would begin beside it: it must know how far the last one came."""
    opened(tmp_path, Kept((0, 10)))
    start = tmp_path / "f1" / "start.json"
    start.write_text(json.dumps(json.loads(start.read_text()) | change))
    for fingerprint in ("f1", "f2"):
        with pytest.raises(ConfigError, match=f"{start}: {said}.*remove {start.parent}: the job then begins anew"):
            opened(tmp_path, Kept((0, 10)), fingerprint)
    assert not (tmp_path / "f2").exists()


def test_a_state_that_fits_no_more_is_left_and_the_log_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opened(tmp_path, Kept((0, 100)))
    read_up_to(tmp_path, p0=50)
    assert "warming up" not in capsys.readouterr().out
    opened(tmp_path, Kept((0, 100)), "f2")
    assert "no state fits the plan, warming up" in capsys.readouterr().out


def test_with_all_that_the_topic_holds_a_new_plan_begins_at_the_first_record_that_is_kept(tmp_path: Path) -> None:
    def whole(topic: Kept, fingerprint: str) -> Checkpoint:
        return open_checkpoint(JobFolders(tmp_path), fingerprint, topic, Retention(None), lambda: None)

    whole(Kept((0, 50), (0, 10)), "f1")
    read_up_to(tmp_path, "f1", NOON + 40 * SECOND, p0=50, p1=10)
    one = whole(Kept((30, 60), (0, 12)), "f2")
    assert (one.offsets, one.publish_from, one.gaps) == ({P0: 30, P1: 0}, NOON + 30 * SECOND, ())


def test_the_same_plan_over_another_source_begins_anew_in_that_topic(tmp_path: Path) -> None:
    opened(tmp_path, Kept((0, 50)))
    read_up_to(tmp_path, p0=40, watermark=NOON + 40 * SECOND)
    other, place = Kept(), place_of("events.others", 0)
    other.names, other.kept = ("events.others",), {place: (0, 90)}
    moved = opened(tmp_path, other)
    assert (moved.query.name, moved.offsets) == ("query-2", {place: 0})
    assert not (moved.folder / "query").exists(), "nothing of the old state is left"
    assert opened(tmp_path, other).query == moved.query


OTHER = place_of("events.resets", 0)


class Both(Kept):
    """The partitions of one topic, and one of another."""

    names = (NAME, "events.resets")

    def __init__(self, other: tuple[int, int], *partitions: tuple[int, int]) -> None:
        super().__init__(*partitions)
        self.kept[OTHER] = other


def test_the_places_of_several_topics_are_kept_apart(tmp_path: Path) -> None:
    opened(tmp_path, Both((0, 100), (0, 100)))
    query = tmp_path / "f1" / "query"
    batch(query, 7, {NAME: {"0": 90}})
    (query / "offsets" / "7").write_text("v1\n{}\n" + "\n".join(
        json.dumps({topic: {"0": offset}}) for topic, offset in ((NAME, 90), ("events.resets", 40), (NAME, 85))
    ))  # fmt: skip
    one = opened(tmp_path, Both((0, 100), (0, 100)))
    assert one.position([P0, OTHER]) == {P0: 85, OTHER: 40}, "a topic that is read twice counts as far as both are"
    assert json.loads(one.start([P0, P1, OTHER])) == {NAME: {"0": 0, "1": -2}, "events.resets": {"0": 0}}
    gaps_of = opened(tmp_path, Both((60, 200), (120, 200))).gaps
    assert {gap.topic: gap.offsets for gap in gaps_of} == {NAME: {0: "85 to 120"}, "events.resets": {0: "40 to 60"}}
    assert list(gaps_of) == read_gaps(tmp_path)


def test_a_new_plan_with_a_join_reads_its_reach_more_than_it_publishes(tmp_path: Path) -> None:
    opened(tmp_path, Kept((0, 100)))
    read_up_to(tmp_path, watermark=NOON + 85 * SECOND, p0=90)
    one = opened(tmp_path, Kept((0, 100)), "f2", reach=30 * SECOND)
    assert (one.offsets, one.publish_from) == ({P0: 85 - 20 - 30}, NOON + 65 * SECOND)
    cut = opened(tmp_path, Kept((50, 100)), "f3", reach=30 * SECOND)
    assert (cut.offsets, cut.publish_from) == ({P0: 50}, NOON + 80 * SECOND), "partners were removed"


def test_the_first_with_a_join_on_a_topic_that_was_cut_publishes_whole_windows(tmp_path: Path) -> None:
    one = opened(tmp_path, Kept((30, 50)), reach=30 * SECOND)
    assert (one.offsets, one.publish_from) == ({P0: 30}, NOON + 60 * SECOND)


@pytest.mark.parametrize("part", ["state/0/0/1.changelog", "offsets/.0.draft.tmp", "commits/0", "commits/.0.draft.tmp"])
def test_what_a_kill_in_the_first_batch_has_left_is_removed(tmp_path: Path, part: str) -> None:
    """Spark begins its first batch only in a folder without offsets, state and commits."""
    one = opened(tmp_path, Kept((0, 100)))
    left = tmp_path / "f1" / "query" / part
    left.parent.mkdir(parents=True)
    left.touch()
    assert opened(tmp_path, Kept((0, 100))) == one
    assert not left.parent.exists()
    read_up_to(tmp_path, p0=80)
    left.parent.mkdir(parents=True, exist_ok=True)
    left.touch()
    opened(tmp_path, Kept((0, 100)))
    assert left.exists(), "behind the first batch it is Spark's"
