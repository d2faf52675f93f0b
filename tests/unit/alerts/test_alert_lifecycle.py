"""Ends of alerts: what was missing has come back, one mail to those who were told; and what is old goes."""

import sqlite3
from dataclasses import replace
from datetime import date, datetime, timedelta
from functools import partial

import pytest
from sqlalchemy import func, insert, select

from tests.rig.mail_server import read_body
from tests.rig.samples.backfills import list_backfilled
from tests.unit.alerts.backfilled_days import apply, published, stored
from tests.unit.alerts.notifier_scene import OWNER, PAGED, Scene
from tests.unit.alerts.scene import FACTS, MINUTE, NOON, RULES, SECOND, WINDOW, finding, index
from tocsin.alerts import actions, alert_lifecycle
from tocsin.alerts.actions import Actor
from tocsin.alerts.alert_states import Verdict
from tocsin.alerts.finding_feed import FindingRecord, Rejected, put_aside
from tocsin.alerts.notify import grouping, outbox
from tocsin.alerts.recording import Rules, record
from tocsin.alerts.store import queries
from tocsin.alerts.store.alert_rows import write_facts
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.queries import AlertFilter, FindingFilter
from tocsin.alerts.store.schema import alerts, findings, invalid_findings, job_usage, notifications
from tocsin.declare.model.alert_matcher import AlertMatcher
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.finding import Origin

DAY = timedelta(days=1)
SILENCE = FACTS.model_copy(update={"looks_every": WINDOW})


@pytest.fixture
def silence(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Where each message leaves alone."""
    monkeypatch.setattr(grouping, "WAIT", timedelta(0))
    with scene.database.write() as connection:
        write_facts(connection, [SILENCE])
    return scene


def missing(scene: Scene, *seconds: int, score: float = 120, origin: Origin = Origin.STREAM) -> None:
    """Findings of silence in the windows that begin so long after NOON, with the clock some seconds after the last."""
    scene.now = max(scene.now, NOON + seconds[-1] * SECOND + 2 * WINDOW)
    found = [finding(score, at=NOON + second * SECOND, origin=origin) for second in seconds]
    index(scene.database, found, replace(RULES, facts={FACTS.name: SILENCE}), scene.now)


def closed(scene: Scene, until: int) -> None:
    scene.now = max(scene.now, NOON + until * SECOND + WINDOW)
    scene.close_windows(NOON + until * SECOND)
    step(scene)


def step(scene: Scene) -> None:
    scene.send()
    scene.notifier.tidy()
    scene.send()


def backs(scene: Scene) -> list[tuple[str, str]]:
    return [(to, subject) for to, subject in scene.subjects if subject.startswith("[back]")]


def test_those_who_were_told_get_one_mail_when_a_later_window_has_closed_without_a_finding(silence: Scene) -> None:
    missing(silence, 0, 10, 20)
    closed(silence, 39)
    assert backs(silence) == [], "the window after the silence is open"
    closed(silence, 40)
    silence.notifier = silence.new_notifier()
    closed(silence, 50)
    step(silence)
    assert sorted(to for to, _ in backs(silence)) == sorted([OWNER, PAGED])
    assert all(subject.startswith("[back] mallory - Bursts of failed logins") for _, subject in backs(silence))
    mail = next(one for one in silence.server.mails if one["Subject"].startswith("[back]"))
    body = read_body(mail)
    assert "mallory is back, or is not expected any more: since 2026-11-21 12:00:30" in body
    first = next(one for one in silence.server.mails if one["Subject"].startswith("[URGENT]"))
    assert mail["References"] == first["References"]
    (alert,) = queries.list_alerts(silence.database, AlertFilter())
    assert alert.state == "resolved"


def test_another_silence_in_the_same_hour_is_told_and_ends_again(silence: Scene) -> None:
    missing(silence, 0)
    closed(silence, 20)
    missing(silence, 0)
    step(silence)
    assert len(silence.subjects) == 4, "a finding that comes a second time is no news"
    missing(silence, 60, 70)
    step(silence)
    assert len(silence.subjects) == 6
    closed(silence, 90)
    assert len(backs(silence)) == 4
    missing(silence, 0, 60, origin=Origin.BACKFILL)
    step(silence)
    assert len(silence.subjects) == 8, "a backfill that finds the same tells nothing"


def test_a_verdict_outlives_the_end_of_a_silence_and_not_the_next_one(silence: Scene) -> None:
    missing(silence, 0)
    silence.send()
    with silence.database.write() as connection:
        actions.resolve(connection, [1], Actor("ann@example.com", silence.now), Verdict.FALSE)
    closed(silence, 20)
    (alert,) = queries.list_alerts(silence.database, AlertFilter())
    assert (alert.state, alert.verdict, len(backs(silence))) == ("resolved", "false", 2)
    missing(silence, 60)
    step(silence)
    (alert,) = queries.list_alerts(silence.database, AlertFilter())
    assert (alert.state, alert.verdict, len(silence.subjects)) == ("open", "", 6)


def test_nothing_has_come_back_while_findings_may_be_on_their_way_or_nothing_is_known(silence: Scene) -> None:
    missing(silence, 0)
    silence.close_windows(NOON + 60 * SECOND)
    indexer = silence.reports["indexer"]  # type: ignore[index]
    silence.reports |= {"indexer": indexer.model_copy(update={"watermark": silence.now - SECOND})}  # type: ignore[operator]
    step(silence)
    reports, silence.reports = silence.reports, TransientError("Kafka is away")
    silence.notifier.tidy()
    silence.reports = {}
    step(silence)
    assert backs(silence) == []
    # Later reports of the job do not move the mark that the indexer has to reach.
    silence.reports = dict(reports) | {"indexer": indexer.model_copy(update={"watermark": silence.now})}
    step(silence)
    assert len(backs(silence)) == 2


def test_a_silence_that_goes_on_into_the_next_period_ends_once(silence: Scene) -> None:
    for hour in range(3):
        missing(silence, 3600 * hour, 3600 * (hour + 1) - 10, score=60)
        closed(silence, 3600 * (hour + 1))
    assert backs(silence) == []
    closed(silence, 10_810)
    assert [to for to, _ in backs(silence)] == [OWNER]


def test_a_mail_about_a_silence_that_still_waits_leaves_before_the_one_about_its_end(silence: Scene) -> None:
    missing(silence, 0, score=60)
    silence.now = NOON + 2 * MINUTE
    silence.close_windows(NOON + MINUTE)
    silence.notifier.tidy()  # it reads newer reports than what released e-mails before it
    assert silence.subjects == []
    step(silence)
    step(silence)
    assert ["[back]" in subject for _, subject in silence.subjects] == [False, True]


def test_what_still_gathers_leaves_before_the_message_about_its_end(
    silence: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing(silence, 0, score=60)
    silence.close_windows(NOON + WINDOW)
    silence.send()
    monkeypatch.setattr(grouping, "WAIT", 5 * MINUTE)
    missing(silence, 0, 10)
    closed(silence, 60)
    silence.now += 5 * MINUTE
    silence.send()
    silence.now += 5 * MINUTE
    step(silence)
    assert [subject.split()[0] for to, subject in silence.subjects if to == OWNER] == ["mallory:", "[URGENT]", "[back]"]


@pytest.mark.parametrize("muted_by", ["silence", "acknowledgement"])
def test_the_end_of_what_people_were_notified_of_is_not_muted(silence: Scene, muted_by: str) -> None:
    missing(silence, 0)
    silence.send()
    ann = Actor("ann@example.com", silence.now, "looking")
    with silence.database.write() as connection:
        if muted_by == "silence":
            actions.silence(connection, AlertMatcher(detector=(FACTS.name,)), ann, silence.now + DAY)
        else:
            actions.acknowledge(connection, [1], ann)
    closed(silence, 20)
    assert sorted(to for to, _ in backs(silence)) == sorted([OWNER, PAGED])


@pytest.mark.parametrize("hear", [[OWNER, PAGED], [PAGED]], ids=["both", "one, since the other's address is wrong"])
def test_the_end_of_a_silence_is_seen_however_long_its_windows_are(silence: Scene, hear: list[str]) -> None:
    silence.server.answer_recipient = lambda to: "250 OK" if to in hear else "550 5.1.1 no such user"
    with silence.database.write() as connection:
        write_facts(connection, [SILENCE.model_copy(update={"looks_every": 2 * DAY})])
    missing(silence, 0)
    step(silence)
    silence.now = NOON + 2 * DAY + MINUTE
    silence.notifier.tidy()
    silence.close_windows(silence.now)
    step(silence)
    assert sorted(to for to, _ in backs(silence)) == sorted(hear)


def test_only_those_who_were_told_of_this_silence_hear_of_its_end(silence: Scene) -> None:
    missing(silence, 0)
    closed(silence, 20)
    assert sorted(to for to, _ in backs(silence)) == sorted([OWNER, PAGED])
    missing(silence, 60, score=60)
    closed(silence, 70)
    closed(silence, 90)
    again = backs(silence)[2:]
    assert sorted(to for to, _ in again) == sorted(
        to for to, subject in silence.subjects[4:] if "[back]" not in subject
    )


def test_other_detectors_have_no_such_end(scene: Scene) -> None:
    scene.index(120)
    at: datetime = NOON + MINUTE
    scene.now = at
    scene.close_windows(at)
    step(scene)
    assert backs(scene) == []


# --- what is old ------------------------------------------------------------------------------------------------------


OLD, LATER = NOON, NOON + timedelta(days=400)
BEFORE = NOON + timedelta(days=200)


def fill(database: Database) -> None:
    """The same twice: long ago, and just now; and one alert of long ago about which a mail still waits."""
    for now in (OLD, LATER):
        batch = [finding(120, user=f"user-{n}", at=now + n * 10 * SECOND) for n in range(30)]
        alone = [finding(120, user=f"user-{n}", at=now, detector="undeclared") for n in range(30)]
        aside = FindingRecord(topic="findings", partition=0, offset=now.toordinal(), appended_at=now, value=b"x")
        with database.write() as connection:
            record(connection, [*batch, *alone], RULES, now)
            put_aside(connection, [Rejected(record=aside, reasons=("no finding",))], now)
            connection.execute(insert(job_usage).values(job="indexer", day=now.date(), **dict.fromkeys(FIGURES, 0)))
    with database.write() as connection:
        ids = list(connection.execute(select(notifications.c.id).where(notifications.c.alert_id != 1)).scalars())
        outbox.mark_sent(connection, ids, OLD)
        at = OLD + timedelta(days=1)
        alert_lifecycle.resolve(connection, alert_lifecycle.find_over(connection, at), at)


FIGURES = ("seconds", "cpu_seconds", "rss_bytes", "rows_in", "rows_out", "restarts")


def counts(database: Database) -> dict[str, int]:
    with database.read() as connection:
        tables = (findings, alerts, notifications, job_usage, invalid_findings)
        return {one.name: connection.execute(select(func.count()).select_from(one)).scalar() or 0 for one in tables}


def test_what_is_old_goes_in_chunks_and_an_open_alert_stays(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(database)
    monkeypatch.setattr(alert_lifecycle, "CHUNK", 7)
    assert counts(database) == {
        "findings": 120, "alerts": 60, "notifications": 120, "job_usage": 2, "invalid_findings": 2,
    }  # fmt: skip
    removed = [-1]
    while removed[-1]:
        with database.write() as connection:
            removed.append(alert_lifecycle.prune(connection, BEFORE))
    assert len(removed) > 8
    assert max(removed) <= 4 * 7
    assert counts(database) == {
        "findings": 61, "alerts": 31, "notifications": 62, "job_usage": 1, "invalid_findings": 1,
    }  # fmt: skip
    left = queries.list_findings(database, FindingFilter(limit=200))
    assert [one.finding.entity["user_id"] for one in left if one.finding.moment < BEFORE] == ["user-0"]
    assert len(queries.list_alerts(database, AlertFilter(limit=200))) == 31


def test_a_chunk_costs_the_same_however_much_is_in_the_outbox(sqlite: Database) -> None:
    """Each finding that goes is looked for among the notifications, while the indexer waits for the lock."""
    costs: list[int] = []
    for users in (100, 400):
        with sqlite.write() as connection:
            batch = [finding(120, user=f"{users}-{n}", at=LATER) for n in range(users)]
            record(connection, [finding(120, detector="undeclared", user=f"{users}"), *batch], RULES, LATER)
            steps: list[int] = []
            raw = connection.connection.dbapi_connection
            assert isinstance(raw, sqlite3.Connection)
            raw.set_progress_handler(partial(steps.append, 1), 10)
            assert alert_lifecycle.prune(connection, BEFORE) == 1
            raw.set_progress_handler(None, 0)
            costs.append(len(steps))
    assert costs[1] <= costs[0] + 5


def test_superseded_findings_go_too_and_their_day_is_not_stored_again(database: Database) -> None:
    index(database, [finding(60)], Rules(facts={}))
    apply(database, [], published(), rules=Rules(facts={}))
    assert stored(database).superseded_by
    with database.write() as connection:
        assert alert_lifecycle.prune(connection, BEFORE) == 1
        assert alert_lifecycle.prune(connection, BEFORE) == 0
    assert [one.day for one in list_backfilled(database, "failed_logins")] == [date(2026, 11, 21)]
