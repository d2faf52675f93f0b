import itertools
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, func, select
from sqlalchemy.event import listen

from tests.rig.samples.backfills import list_backfilled
from tests.unit.alerts.backfilled_days import DAY, MORNING, apply, days_of, drain, published, stored
from tests.unit.alerts.scene import FACTS, MINUTE, NOON, RULES, SECOND, WINDOW, burst, finding, index, show
from tocsin.alerts.backfilled import published_day
from tocsin.alerts.backfilled.published_day import UnusableDay
from tocsin.alerts.recording import Recorded, Rules, record
from tocsin.alerts.store import queries
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.queries import AlertFilter, FindingFilter
from tocsin.alerts.store.schema import findings, staged_findings
from tocsin.declare.model.finding import Finding, Origin

V2 = Rules(facts={FACTS.name: FACTS.model_copy(update={"version": "v2"})}, domain="tocsin.example.com")


def stream(database: Database, *found: Finding, rules: Rules = RULES, now: datetime = NOON + 9 * SECOND) -> None:
    index(database, found, rules, now)


def told(database: Database) -> list[tuple[str, str, str]]:
    """All that was ever planned to leave: kind, state, recipient."""
    alerts = queries.list_alerts(database, AlertFilter())
    return sorted((n.kind, n.state, n.recipient) for one in alerts for n in show(database, one.id).notifications)


def test_a_backfilled_day_has_the_last_word_and_the_stream_is_kept_beside_it(database: Database) -> None:
    stream(database, *burst(60))
    done = apply(database, [finding(64)], published())
    assert (done.findings, done.superseded) == (0, 0)
    one = stored(database)
    assert (one.finding.score, one.finding.origin, one.finding.detected_at) == (64, Origin.BACKFILL, MORNING)
    assert one.first_detected_at == NOON + 5 * SECOND
    assert one.stream is not None
    assert (one.stream.score, one.stream.version) == (60, "v1")
    stream(database, finding(62), now=MORNING + MINUTE)
    one = stored(database)
    assert (one.finding.score, one.stream and one.stream.score) == (64, 62)


def test_what_the_backfill_does_not_reproduce_is_superseded_and_not_deleted(database: Database) -> None:
    stream(database, *burst(60), *burst(70, user="trent"))
    done = apply(database, [finding(60)], published())
    assert done.superseded == 1
    gone = stored(database, "trent")
    assert (gone.superseded_at, gone.superseded_by) == (MORNING + MINUTE, "id-r1")
    assert [one.finding.entity["user_id"] for one in queries.list_findings(database, FindingFilter())] == ["mallory"]
    assert len(queries.list_findings(database, FindingFilter(superseded=True))) == 2
    assert apply(database, [finding(60), finding(70, user="trent")], published("r2")).superseded == 0
    back = stored(database, "trent")
    assert (back.superseded_at, back.superseded_by, back.finding.origin) == (None, "", Origin.BACKFILL)


@pytest.mark.parametrize("first", ["ledger", "stream"])
def test_it_makes_no_difference_whether_the_topic_or_the_ledger_is_read_first(database: Database, first: str) -> None:
    """As when a new alerts DB is filled again."""
    topic = [*burst(60), *burst(70, user="trent")]
    if first == "stream":
        stream(database, *topic)
    apply(database, [finding(64), finding(55, user="carol")], published())
    if first == "ledger":
        stream(database, *topic, now=MORNING + MINUTE)
    rows = queries.findings_of_day(database, "failed_logins", DAY)
    seen = {
        one.finding.entity["user_id"]: (
            one.finding.score, one.finding.origin, one.stream and one.stream.score, one.superseded_by,
        )
        for one in rows
    }  # fmt: skip
    assert seen == {
        "mallory": (64, "backfill", 60, ""),
        "trent": (70, "stream", None, "id-r1"),
        "carol": (55, "backfill", None, ""),
    }


def test_other_days_and_other_detectors_are_left_alone(database: Database) -> None:
    midnight = datetime(2026, 11, 22, tzinfo=UTC)
    others = [
        finding(60, user="before", at=midnight - timedelta(days=1) - WINDOW),
        finding(60, user="after", at=midnight),
        finding(60, detector="other"),
    ]
    inside = [
        finding(60, user="first", at=midnight - timedelta(days=1)),
        finding(60, user="last", at=midnight - WINDOW),
    ]
    stream(database, *others, *inside)
    assert apply(database, [], published()).superseded == 2
    assert {one.finding.finding_id for one in queries.list_findings(database, FindingFilter())} == {
        one.finding_id for one in others
    }


def test_an_older_version_does_not_supersede_what_the_declared_one_found(database: Database) -> None:
    stream(database, finding(70, version="v2"), rules=V2)
    assert apply(database, [], published(version="v1"), rules=V2).superseded == 0
    assert stored(database).superseded_at is None
    assert apply(database, [], published("r2", version="v2"), rules=V2).superseded == 1


def test_a_finding_that_is_superseded_as_it_arrives_opens_no_alert_and_notifies_nobody(database: Database) -> None:
    """The stream is behind its own nightly backfill."""
    apply(database, [], published())
    stream(database, *burst(120), now=MORNING + MINUTE)
    assert stored(database).superseded_by == "id-r1"
    assert queries.list_alerts(database, AlertFilter()) == []


def test_a_second_application_tells_nobody_and_changes_no_row(database: Database) -> None:
    stream(database, *burst(60))
    day = [finding(120), finding(70, user="trent"), finding(130, user="carol")]
    apply(database, day, published())
    before, said = queries.findings_of_day(database, "failed_logins", DAY), told(database)
    assert {kind for kind, *_ in said} == {"email", "delayed"}, "what the stream has missed pages nobody"
    again = apply(database, day, published())
    assert (again.findings, again.alerts, again.notifications) == (0, 0, {})
    assert (queries.findings_of_day(database, "failed_logins", DAY), told(database)) == (before, said)
    apply(database, day, published("r2", at=MORNING + timedelta(hours=1)))
    assert told(database) == said


def test_a_first_run_over_history_opens_no_alert_for_what_is_long_over(database: Database) -> None:
    old = NOON - timedelta(days=30)
    apply(database, [finding(120, at=old)], published(), day=old.date())
    assert stored(database, day=old.date()).alert is None
    assert queries.list_alerts(database, AlertFilter()) == []


def seen(database: Database) -> set[tuple[str, float, str]]:
    """What readers know of the day: the findings that count, their scores and their origins."""
    rows = queries.findings_of_day(database, "failed_logins", DAY)
    counting = {
        (one.finding.entity["user_id"], one.finding.score, one.finding.origin.value)
        for one in rows
        if one.superseded_at is None
    }
    listed = queries.list_findings(database, FindingFilter(limit=5_000))
    assert {(one.finding.entity["user_id"], one.finding.score, one.finding.origin.value) for one in listed} == counting
    return counting


def large_day(database: Database, monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """A day of many chunks: half of it known from the stream, which has found others, too."""
    monkeypatch.setattr(published_day, "CHUNK", 7)
    stream(
        database, *[finding(60, user=f"user-{n}") for n in range(25)], *[finding(80, user=f"x-{n}") for n in range(20)]
    )
    return [finding(70, user=f"user-{n}") for n in range(50)]


def test_readers_see_a_large_day_as_before_or_whole(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    day = large_day(database, monkeypatch)
    before = seen(database)
    (alert,) = [one for one in queries.list_alerts(database, AlertFilter()) if one.entity == {"user_id": "user-3"}]
    views, scores = [], []
    steps = days_of(database).apply(published_day.read_day("failed_logins", DAY, published(), day))
    for _ in steps:
        views.append(seen(database))
        details = show(database, alert.id)
        scores.append((details.alert.score, details.highest.finding.score))
    after = {(f"user-{n}", 70.0, "backfill") for n in range(50)}
    assert seen(database) == after
    assert len(views) > 10
    assert views == [before] * views.count(before) + [after] * views.count(after)
    assert views.count(before) > 5 < views.count(after)
    assert scores == [(60, 60)] * views.count(before) + [(70, 70)] * views.count(after)
    assert {one.superseded_by for one in queries.list_findings(database, FindingFilter(superseded=True))} == {
        "",
        "id-r1",
    }


def test_a_process_that_dies_anywhere_leaves_nothing_half_done(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = large_day(database, monkeypatch)
    before, after = seen(database), {(f"user-{n}", 70.0, "backfill") for n in range(50)}
    ready = published_day.read_day("failed_logins", DAY, published(), day)
    for died_after in range(100):
        steps = days_of(database).apply(ready)
        ended = sum(1 for _ in itertools.islice(steps, died_after)) < died_after
        steps.close()
        is_shown = bool(list_backfilled(database, "failed_logins"))
        assert seen(database) == (after if is_shown else before)
        drain(days_of(database).settle())
        assert seen(database) == (after if is_shown else before)
        with database.read() as connection:
            assert published_day.visible(connection) is findings
            assert connection.execute(select(func.count()).select_from(staged_findings)).scalar() == 0
        if is_shown:
            break
    assert is_shown
    assert not ended
    assert len(queries.list_alerts(database, AlertFilter(limit=200))) == 70


def test_no_transaction_grows_with_the_day(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    day = large_day(database, monkeypatch)
    written = [0]

    def count(connection: Connection, statement: object, many: list[object], *rest: object) -> None:
        written[-1] += max(1, len(many))

    listen(database.engine, "before_execute", count)
    listen(database.engine, "begin", lambda _: written.append(0))
    drain(days_of(database).apply(published_day.read_day("failed_logins", DAY, published(), day)))
    assert len(written) > 20
    assert max(written) <= 6 * published_day.CHUNK  # of it: findings, alerts, their history, notifications


def test_what_the_stream_says_while_a_day_comes_in_is_not_lost(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = large_day(database, monkeypatch)
    number = 0
    for number, _ in enumerate(
        days_of(database, V2).apply(published_day.read_day("failed_logins", DAY, published(), day))
    ):
        stream(database, finding(90, user=f"late-{number}"), finding(64, user="user-0"), rules=V2)
        stream(database, finding(95, user=f"x-{number}", version="v2"), rules=V2)
    assert number > 10
    assert seen(database) == {(f"user-{n}", 70.0, "backfill") for n in range(50)} | {
        (f"x-{n}", 95.0, "stream") for n in range(number + 1)
    }
    said = stored(database, "user-0").stream
    assert said is not None
    assert said.score == 64


def test_a_finding_that_cannot_be_merged_is_told_and_holds_no_other_back(
    database: Database, monkeypatch: pytest.MonkeyPatch, logged: list[Any]
) -> None:
    day = large_day(database, monkeypatch)

    def refuse(connection: Connection, batch: Sequence[Finding], *rest: Any) -> Recorded:
        if any(one.entity == {"user_id": "user-30"} for one in batch):
            raise ValueError("a string may not contain NUL")
        return record(connection, batch, *rest)

    monkeypatch.setattr(published_day, "record", refuse)
    apply(database, day, published())
    assert seen(database) == {(f"user-{n}", 70.0, "backfill") for n in range(50) if n != 30}
    assert [line["finding_id"] for line in logged if line["log_level"] == "error"] == [day[30].finding_id]


def test_the_days_that_are_in_the_db_are_known_with_their_run(database: Database) -> None:
    apply(database, [finding(60)], published("r1"))
    apply(database, [finding(60), finding(70, user="trent")], published("r2", version="v2"))
    apply(database, [], published("r1"), day=DAY - timedelta(days=1))
    newest, oldest = list_backfilled(database, "failed_logins")
    assert (newest.day, newest.run, newest.run_id, newest.version, newest.findings) == (DAY, "r2", "id-r2", "v2", 2)
    assert newest.applied_at == MORNING + MINUTE
    assert (oldest.day, oldest.findings) == (DAY - timedelta(days=1), 0)
    with database.read() as connection:
        assert published_day.applied_runs(connection, "failed_logins") == {DAY: "r2", DAY - timedelta(days=1): "r1"}
        assert published_day.applied_runs(connection, "other") == {}


def test_a_day_with_more_findings_than_a_statement_takes_values(database: Database) -> None:
    day = [finding(60, user=f"user-{number}") for number in range(1_200)]
    stream(database, *day[:700], finding(60, user="gone"))
    done = apply(database, day, published())
    assert (done.findings, done.superseded) == (500, 1)
    assert len(queries.list_findings(database, FindingFilter(limit=5_000))) == 1_200


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"detector": "other"}, "is of other"),
        ({"at": NOON + timedelta(days=1)}, "belongs to 2026-11-22"),
        ({"entity": {}}, "entity: is empty"),
        ({"window_end": NOON - SECOND}, "window_end: is not after"),
    ],
)
def test_a_day_that_holds_what_cannot_be_its_own_is_refused_whole(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(UnusableDay, match=why):
        published_day.read_day("failed_logins", DAY, published(), [finding(60), finding(60, **changes)])


def test_an_event_of_its_own_belongs_to_the_day_of_its_event(database: Database) -> None:
    alone = finding(60, window_start=None, window_end=None, event_time_max=NOON, discriminator="raw.logins/0/7")
    apply(database, [alone], published())
    assert stored(database).finding.origin is Origin.BACKFILL


def test_sums_of_an_alert_leave_out_what_is_superseded_unless_nothing_else_is_left(database: Database) -> None:
    stream(database, *burst(60), *burst(120, at=NOON + 2 * WINDOW))
    apply(database, [finding(60)], published())
    (alert,) = queries.list_alerts(database, AlertFilter())
    assert (alert.findings, alert.score, alert.last_seen) == (1, 60, NOON + WINDOW)
    details = show(database)
    assert details.highest.finding.score == 60
    assert [one.finding.score for one in details.findings] == [60]
    apply(database, [], published("r2"))
    (alert,) = queries.list_alerts(database, AlertFilter())
    assert (alert.findings, alert.score, alert.first_seen, alert.last_seen) == (2, 120, NOON, NOON + 3 * WINDOW)
    assert show(database).highest.finding.score == 120
