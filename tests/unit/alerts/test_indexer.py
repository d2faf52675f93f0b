"""The indexer: findings and alerts in the DB, the routes that it follows, and what detectors on findings read."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest
from sqlalchemy import Connection, event, insert, select, text, update

from tests.rig.played_kafka import played_kafka, written
from tests.rig.samples.backfills import list_backfilled
from tests.rig.samples.project import copy_project
from tests.rig.sink_servers import emptied
from tests.rig.waiting import await_that
from tests.unit.alerts.backfilled_days import publish
from tests.unit.alerts.scene import FACTS, MINUTE, NOON, RULES, SECOND, broken, burst, finding, raw, record, show
from tocsin.alerts import finding_feed, indexer, recording
from tocsin.alerts.finding_feed import FindingFeed, FindingRecord, event_of, reached_levels
from tocsin.alerts.followed_routes import FollowedRoutes
from tocsin.alerts.indexer import Indexer, IndexerJob
from tocsin.alerts.notify import outbox
from tocsin.alerts.recording import Recorded
from tocsin.alerts.store import queries
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.queries import AlertFilter, FindingFilter
from tocsin.alerts.store.schema import alerts, detectors, notifications
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.finding import Finding
from tocsin.declare.model.job_report import UNDECLARED_DETECTORS, JobReport, JobState
from tocsin.declare.routes import NO_ROUTES
from tocsin.declare.setting_blocks import KafkaSettings
from tocsin.declare.settings import Settings
from tocsin.dev.servers.ports import free_ports
from tocsin.platform.kafka.record_writer import PROMPT, RecordWriter
from tocsin.platform.kafka.reporter import Reporter

Open = Callable[..., Database]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project folder with the declarations of this repository."""
    copy_project(tmp_path / "project")
    return tmp_path / "project"


def indexer_of(project: Path, database: Database) -> Indexer:
    return Indexer(Settings(project=project), database, clock=lambda: NOON + 9 * SECOND)


def test_a_finding_is_detected_when_its_record_was_appended(project: Path, database: Database) -> None:
    appended = NOON + 6 * SECOND
    indexer_of(project, database).store([record(one, appended_at=appended) for one in burst(60)])
    (stored,) = queries.list_findings(database, FindingFilter())
    assert (stored.finding.detected_at, stored.first_detected_at) == (appended, appended)


BAD = [
    None,
    b"",
    b"\xff\xfe",
    b'{"finding_id": "x"',
    b"[]",
    broken(score="NaN"),
    broken(level="fatal"),
    broken(entity={"user_id": None}),
    broken(window_end="9999-12-31T23:59:59Z"),
    broken(window_end="2026-11-21T12:00:10"),
    broken(finding_id="x" * 100_000),
]


def test_what_is_no_finding_is_put_aside_with_its_origin_and_holds_nothing_up(
    project: Path, database: Database
) -> None:
    bad = [raw(value, offset) for offset, value in enumerate(BAD)]
    good = [record(one) for one in burst(60)]
    indexer_of(project, database).store([*bad[:5], *good, *bad[5:]])
    indexer_of(project, database).store(bad)
    aside = queries.list_invalid(database)
    assert {(one.topic, one.partition, one.offset) for one in aside} == {("findings", 3, n) for n in range(len(BAD))}
    assert all(one.reasons for one in aside)
    assert {one.offset: one.size for one in aside} == {n: len(value or b"") for n, value in enumerate(BAD)}
    assert [one.finding.score for one in queries.list_findings(database, FindingFilter())] == [60]


def test_what_the_database_refuses_is_put_aside_alone(project: Path, database: Database) -> None:
    """PostgreSQL takes no NUL in a text; SQLite does."""
    hostile = raw(broken(finding_id="n", run_id="\x00", entity={"user_id": "trent"}), offset=7)
    good = [record(one) for one in burst(60)]
    indexer_of(project, database).store([*good[:5], hostile, *good[5:]])
    assert [one.finding.score for one in queries.list_findings(database, FindingFilter(entity="mallory"))] == [60]
    refused = database.url.get_backend_name() == "postgresql"
    assert [one.offset for one in queries.list_invalid(database)] == ([7] if refused else [])
    assert len(queries.list_findings(database, FindingFilter(entity="trent"))) == (0 if refused else 1)


def test_a_transaction_takes_few_findings_that_may_open_alerts_and_more_that_go_on(
    project: Path, sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexer, "_WORK", 20)
    watched, users = indexer_of(project, sqlite), [f"user{number}" for number in range(5)]
    watched.follow_declarations()
    taken = Mock(wraps=recording.record)
    monkeypatch.setattr(recording, "record", taken)
    rises = [[finding(score, user=user) for user in users] for score in (60, 61, 120)]
    for batch, sizes in zip([*rises, burst(60)], ([2, 2, 1], [5], [2, 2, 1], [10]), strict=True):
        taken.reset_mock()
        watched.store([record(one) for one in batch])
        assert [len(each.args[1]) for each in taken.call_args_list] == sizes


def test_declarations_are_those_of_the_moment(project: Path, database: Database) -> None:
    indexer = indexer_of(project, database)
    detector = project / "detectors" / "failed_logins.py"
    detector.write_text(detector.read_text().replace('stage="live"', 'stage="shadow"'))
    indexer.store([record(one) for one in burst(60)])
    assert queries.list_alerts(database, AlertFilter()) == []
    changed = detector.read_text().replace('stage="shadow"', 'stage="live"')
    detector.write_text(changed.replace("security@example.com", "red-team@example.com"))
    indexer.store([record(one) for one in burst(60, user="trent")])
    (alert,) = queries.list_alerts(database, AlertFilter())
    assert (alert.owner, alert.email_limit, alert.urgent_limit) == ("red-team@example.com", 50, 100)


@pytest.mark.parametrize("ruin", [lambda path: path.write_text("def detect(:"), lambda path: path.unlink()])
def test_a_broken_or_missing_file_does_not_silence_its_running_job(
    project: Path, database: Database, ruin: object
) -> None:
    indexer_of(project, database).store([record(one) for one in burst(60)])
    assert callable(ruin)
    ruin(project / "detectors" / "failed_logins.py")
    indexer_of(project, database).store([record(one) for one in burst(120, user="trent")])
    assert {alert.entity["user_id"] for alert in queries.list_alerts(database, AlertFilter())} == {"mallory", "trent"}


def test_an_email_waits_as_long_as_the_source_may_be_late(project: Path, database: Database) -> None:
    source = project / "sources" / "logins.toml"
    source.write_text(source.read_text().replace('lateness = "10 seconds"', 'lateness = "7 minutes"'))
    indexer_of(project, database).store([record(one) for one in burst(60)])
    until = show(database).notifications[0].wait_until
    assert until is not None
    assert (until - finding().window_end).total_seconds() == 7 * 60 + 120  # type: ignore[operator]  # it has a window


@pytest.mark.parametrize("restarted", [False, True])
def test_findings_of_a_detector_that_is_declared_later_open_their_alerts_then(
    restarted: bool, project: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is copied to the machine of the indexer after its job has begun elsewhere."""
    monkeypatch.setattr(indexer, "BATCH", 2)
    monkeypatch.setattr(indexer, "_PAUSE_SECONDS", 0.0)
    detector = project / "detectors" / "failed_logins.py"
    source = detector.read_text()
    detector.unlink()
    indexing = indexer_of(project, database)
    users = [f"user-{number}" for number in range(5)]
    indexing.store([record(finding(120, user=user), offset) for offset, user in enumerate(users)])
    assert (queries.list_alerts(database, AlertFilter()), indexing.undeclared) == ([], [FACTS.name])
    assert len(queries.list_findings(database, FindingFilter())) == len(users)
    detector.write_text(source)
    if restarted:
        indexing = indexer_of(project, database)
    for step in (partial(indexing.store, []), indexing.follow_declarations):
        step()
        assert indexing.undeclared == []
        found = queries.list_alerts(database, AlertFilter())
        assert sorted(alert.entity["user_id"] for alert in found) == users
        with database.read() as connection:
            assert outbox.counts(connection) == {"pending": 5}


def test_a_notification_that_another_process_planned_meanwhile_is_no_fault_of_the_finding(
    project: Path, postgres: str, opened: Open
) -> None:
    """The notifier ends an alert, with a notification of the next revision, while the indexer raises the same alert."""
    database = opened(emptied(postgres))
    database.migrate()
    indexing = indexer_of(project, database)
    indexing.store([record(finding(60), 1)])

    def is_blocked() -> bool:
        with database.read() as connection:
            return connection.execute(text("SELECT 1 FROM pg_locks WHERE NOT granted")).first() is not None

    storing = threading.Thread(target=indexing.store, args=([record(finding(120), 2)],))
    with database.write() as connection:
        returned = select(notifications).where(notifications.c.kind == "email")
        (row,) = connection.execute(returned).mappings()
        planned = {**row, "revision": row["revision"] + 1, "kind": "returned", "state": "pending"}
        connection.execute(update(alerts).values(revision=planned["revision"]))
        connection.execute(insert(notifications), [{name: planned[name] for name in planned if name != "id"}])
        storing.start()
        await_that(is_blocked)
    storing.join()
    assert queries.list_invalid(database) == []
    with database.read() as connection:
        kinds = select(notifications.c.kind, notifications.c.revision).order_by(notifications.c.revision)
        assert [tuple(one) for one in connection.execute(kinds)] == [("email", 1), ("returned", 2), ("urgent", 3)]


def test_a_finding_that_another_writer_was_faster_with_is_tried_again_and_not_put_aside(
    project: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    indexing = indexer_of(project, database)

    def insert_twice(connection: Connection, *_: object) -> Recorded:
        for _repeat in range(2):
            connection.execute(insert(detectors).values(name="twice", facts={}))
        return Recorded()

    with monkeypatch.context() as patch, pytest.raises(TransientError):
        patch.setattr(recording, "record", insert_twice)
        indexing.store([record(finding(60))])
    assert queries.list_invalid(database) == []


def test_backfilled_days_come_in_while_kafka_is_away(
    project: Path, tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = KafkaSettings(bootstrap_servers=f"127.0.0.1:{free_ports(1)[0]}")
    monkeypatch.setattr("tocsin.platform.kafka.topic_follower._TIMEOUT", 0.1)
    settings = Settings(project=project, state=tmp_path / "state", kafka=kafka)
    for back in range(3):
        day = NOON.date() - timedelta(days=back)
        publish(settings, [finding(60, at=NOON - timedelta(days=back))], day)
    stop, reporter = threading.Event(), Reporter(settings, "indexer")
    job = threading.Thread(target=IndexerJob(settings, reporter, stop).run)
    reader = opened(settings.alerts_database, read_only=True)
    job.start()
    try:
        await_that(lambda: len(list_backfilled(reader, FACTS.name)) == 3, 20)
        assert reporter.report().state is JobState.WAITING
    finally:
        stop.set()
        job.join()
        reporter.close()


class Topic:
    """The findings topic with one batch; offsets are kept, and what the alerts DB held when they were committed."""

    def __init__(self, records: list[FindingRecord], stop: threading.Event, reader: Database) -> None:
        self.records, self.stop, self.reader = records, stop, reader
        self.stored_at_commit: list[int] = []
        self.is_following = True

    def poll(self, *_: object) -> list[FindingRecord]:
        return self.records

    def done(self, records: list[FindingRecord]) -> None:
        assert records == self.records

    def commit(self) -> None:
        self.stored_at_commit.append(len(queries.list_findings(self.reader, FindingFilter())))
        self.stop.set()

    def measure(self) -> None:
        return None

    def close(self) -> None:
        pass


@pytest.mark.parametrize("stopped", [False, True])
def test_offsets_are_committed_behind_their_findings_and_not_without_them(
    stopped: bool, project: Path, tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The DB is away at first; the job may be stopped meanwhile."""
    settings, stop, kept = Settings(project=project, state=tmp_path / "state"), threading.Event(), Indexer.store
    topic = Topic([record(finding(60))], stop, opened(settings.alerts_database, read_only=True))
    tries: list[int] = []

    def away_at_first(self: Indexer, records: list[FindingRecord]) -> object:
        tries.append(len(topic.stored_at_commit))
        if len(tries) == 1:
            if stopped:
                stop.set()
            raise TransientError("the alerts DB is locked")
        return kept(self, records)

    feed = Mock(spec=FindingFeed)
    monkeypatch.setattr(indexer, "TopicFollower", lambda *_: topic)
    monkeypatch.setattr(indexer, "record_of", lambda message: message)
    monkeypatch.setattr(indexer, "FindingFeed", lambda *_: feed)
    monkeypatch.setattr(Indexer, "store", away_at_first)
    IndexerJob(settings, Mock(spec=Reporter), stop).run()
    assert tries == ([0] if stopped else [0, 0])
    assert topic.stored_at_commit == ([] if stopped else [1])
    assert feed.pass_on.call_args_list == ([] if stopped else [call(topic.records)])


def test_alerts_go_on_while_findings_cannot_be_passed_on_and_offsets_wait_for_those(
    project: Path, tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three batches come while the topic cannot be written; what is passed on at last is all of them, in order."""
    settings, stop = Settings(project=project, state=tmp_path / "state"), threading.Event()
    (project / "routes.toml").write_text("[[route]]")
    topic = Topic([], stop, opened(settings.alerts_database, read_only=True))
    names = (FACTS.name, FACTS.name, "unheard_of")
    batches = iter([[record(finding(60, detector=name, user=f"user-{n}"))] for n, name in enumerate(names)])
    passed: list[list[FindingRecord]] = []

    def read(*_: object) -> list[FindingRecord]:
        topic.records = next(batches, [])
        return topic.records

    def pass_on(records: list[FindingRecord]) -> None:
        passed.append(list(records))
        if len(passed) < 3:
            raise TransientError("not authorised to write to events.findings.failed_logins")

    feed, reporter = Mock(spec=FindingFeed), Mock(spec=Reporter)
    feed.pass_on.side_effect = pass_on
    monkeypatch.setattr(topic, "poll", read)
    monkeypatch.setattr(topic, "measure", dict)
    for name in ("lag_records", "lag_seconds", "complete_at", "recreated"):
        monkeypatch.setattr(topic, name, None, raising=False)
    monkeypatch.setattr(indexer, "TopicFollower", lambda *_: topic)
    monkeypatch.setattr(indexer, "record_of", lambda message: message)
    monkeypatch.setattr(indexer, "FindingFeed", lambda *_: feed)
    monkeypatch.setattr(finding_feed, "_FIRST_SECONDS", 0.1)
    IndexerJob(settings, reporter, stop).run()
    assert topic.stored_at_commit == [3]
    assert len(passed[-1]) == 3
    reasons = [str(one.kwargs.get("reason", "")) for one in reporter.update.call_args_list]
    troubles = ("detectors that read findings wait for them", "routes.toml is broken", "no file declares unheard_of")
    for trouble in troubles:
        assert any(trouble in reason for reason in reasons)
    assert {UNDECLARED_DETECTORS: 1.0} in [one.kwargs.get("counts") for one in reporter.update.call_args_list]


class Killed(BaseException):
    """The process ends here; no handler of the program sees it."""


@contextmanager
def dying_after(statements: int, database: Database) -> Iterator[None]:
    """Let so many statements through."""
    left = iter(range(statements))

    def die(*_: object) -> None:
        if next(left, None) is None:
            raise Killed

    event.listen(database.engine, "before_cursor_execute", die)
    yield
    event.remove(database.engine, "before_cursor_execute", die)


def test_an_indexer_that_dies_at_any_statement_loses_no_notification_once_kafka_delivers_again(
    project: Path, database: Database
) -> None:
    """If an alert were stored without its notification, the second delivery would take it for notified."""
    indexing = indexer_of(project, database)
    for statements in range(30):
        batch, survived = [record(finding(60, user=f"user-{statements}"))], True
        with dying_after(statements, database):
            try:
                indexing.store(batch)
            except Killed:
                survived = False
        indexing.store(batch)
        with database.read() as connection:
            waiting = outbox.counts(connection).get("waiting", 0)
        assert waiting == statements + 1, f"it died at statement {statements}"
        if survived:
            break
    assert survived
    assert statements > 3


# --- routes -----------------------------------------------------------------------------------------------------------


TO_SOC = """
[[route]]
match = { level = "urgent", tags = "credential-stuffing", entity = { user_id = "m*" } }
to = ["soc@example.com", "urgent_recipients"]
"""


def installation(tmp_path: Path) -> Settings:
    copy_project(tmp_path / "project")
    return Settings(project=tmp_path / "project", state=tmp_path / "state")


def recipients(database: Database, alert: int) -> set[str]:
    found = queries.list_alerts(database, AlertFilter())
    details = show(database, sorted(one.id for one in found)[alert])
    return {planned.recipient for planned in details.notifications if planned.state != "replaced"}


def test_notifications_are_planned_by_the_routes_of_the_moment_and_the_last_good_ones(
    tmp_path: Path, sqlite: Database
) -> None:
    settings = installation(tmp_path)
    settings = settings.model_copy(
        update={"alerts": settings.alerts.model_copy(update={"urgent_recipients": ("oncall@example.com",)})}
    )
    file = settings.project / "routes.toml"
    indexer = Indexer(settings, sqlite, clock=lambda: NOON + 9 * SECOND)
    file.write_text(TO_SOC)
    indexer.store([record(one) for one in [*burst(120), *burst(120, user="eve"), *burst(60, user="bob")]])
    assert recipients(sqlite, 0) == {"soc@example.com", "oncall@example.com"}
    assert recipients(sqlite, 1) == {FACTS.owner, "oncall@example.com"}
    assert recipients(sqlite, 2) == {FACTS.owner}
    file.write_text(TO_SOC + "[[route]]\nto = 'webhook:siem'")
    indexer.routes.read()
    assert "has no block [receivers.webhook.siem] in the settings" in indexer.routes.trouble
    file.write_text(TO_SOC + "[[route]]\nto = 'pager:ann'")
    restarted = Indexer(settings, sqlite, clock=lambda: NOON + 9 * SECOND)
    for number, (again, user) in enumerate(((indexer, "mike"), (restarted, "mona")), start=3):
        again.store([record(one) for one in burst(120, user=user)])
        assert recipients(sqlite, number) == {"soc@example.com", "oncall@example.com"}
        assert "routes.toml:6: route 2, to: 'pager' in 'pager:ann' is no kind" in again.routes.trouble
    routes = FollowedRoutes(settings)
    assert len(routes.read().route) == 1
    file.unlink()
    for unsaved in (routes, FollowedRoutes(settings)):
        assert len(unsaved.read().route) == 1
        assert "routes.toml is gone" in unsaved.trouble
    file.write_text("")
    assert (routes.read(), routes.trouble) == (NO_ROUTES, "")
    file.unlink()
    assert (routes.read(), routes.trouble) == (NO_ROUTES, "")
    file.write_text("[[route]")
    assert FollowedRoutes(settings).read() == NO_ROUTES


# --- what detectors on findings read ----------------------------------------------------------------------------------


TOPIC = "events.findings.failed_logins"


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    with played_kafka(TOPIC, "job-metrics") as kafka:  # no file is declared: one that breaks must stop nothing
        yield Settings(project=tmp_path, state=tmp_path / "state", kafka=kafka)


def events(settings: Settings) -> list[dict[str, Any]]:
    values = [value for partition in range(4) for _, value in written(settings, TOPIC, partition)]
    return [json.loads(value or b"") for value in values]


def identities(settings: Settings) -> list[tuple[str, str]]:
    return sorted((one["finding_id"], one["level"]) for one in events(settings) if "tick" not in one)


def pass_on(feed: FindingFeed, *found: Finding) -> None:
    feed.pass_on([record(one) for one in found])


def test_each_level_of_a_finding_is_one_event_however_often_it_is_updated(settings: Settings) -> None:
    feed, one, two = FindingFeed(settings, lambda: RULES.facts), finding(60), finding(60, user="trent")
    pass_on(feed, one, finding(61), two)
    pass_on(feed, finding(99), finding(101), finding(150))
    expected = [(one.finding_id, "email"), (one.finding_id, "urgent"), (two.finding_id, "email")]
    assert identities(settings) == sorted(expected)


def test_a_restart_repeats_events_that_are_equal_so_that_readers_can_drop_them(settings: Settings) -> None:
    pass_on(FindingFeed(settings, lambda: RULES.facts), finding(60))
    later = finding(180, event_time_max=NOON + 9 * SECOND)
    pass_on(FindingFeed(settings, lambda: RULES.facts), later)
    same = [one for one in events(settings) if one["level"] == "email"]
    assert len(same) == 2
    assert same[0] | {"ingested_at": ""} == same[1] | {"ingested_at": ""}


def test_a_finding_that_jumps_over_the_lower_limit_has_reached_it() -> None:
    assert reached_levels(finding(150), FACTS) == ["email", "urgent"]
    assert reached_levels(finding(150), FACTS.model_copy(update={"email_limit": None})) == ["urgent"]
    assert reached_levels(finding(60), FACTS) == ["email"]


def test_an_event_has_the_time_of_its_finding_and_nothing_that_changes_later() -> None:
    one = event_of(finding(60), "email")
    assert one["event_time"] == one["window_start"] == "2026-11-21T12:00:00.000000Z"
    assert (one["user_id"], one["source"]) == ("mallory", "findings.failed_logins")
    assert not {"score", "context", "evidence", "at_least", "version"} & one.keys()
    alone = finding(60, window_start=None, window_end=None)
    assert event_of(alone, "email")["event_time"] == "2026-11-21T12:00:05.000000Z"


def test_records_that_are_no_findings_or_that_nobody_reads_are_passed_over(settings: Settings) -> None:
    feed = FindingFeed(settings, lambda: RULES.facts)
    feed.pass_on([raw(b"{"), raw(None)])
    pass_on(feed, finding(60, detector="password_spraying"), finding(60, detector="unknown"))
    assert events(settings) == []


def report(settings: Settings, watermark: datetime, at: datetime) -> None:
    own = settings.installation_id
    said = JobReport(job="detector:failed_logins", instance=own, at=at, state=JobState.RUNNING, watermark=watermark)
    with RecordWriter(settings, 10_000, config=PROMPT) as writer:
        writer.write("job-metrics", said.model_dump_json(), said.job, partition=0)


def test_a_tick_says_how_far_a_detector_has_got_once_all_that_it_found_is_passed_on(settings: Settings) -> None:
    feed = FindingFeed(settings, lambda: RULES.facts)
    report(settings, NOON, at=NOON + MINUTE)
    feed.tick(None)
    feed.tick(NOON + MINUTE - timedelta(microseconds=1))
    assert events(settings) == []
    for _ in range(2):
        feed.tick(NOON + MINUTE)
    assert [one["event_time"] for one in events(settings)] == ["2026-11-21T12:00:00.000000Z"]
    report(settings, NOON - SECOND, at=NOON + 2 * MINUTE)  # another version has begun again
    feed.tick(NOON + 3 * MINUTE)
    assert len(events(settings)) == 1
