"""The states of an alert: each case is a story, the statement what comes of it."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from tests.unit.alerts.scene import MINUTE, NOON, SECOND, finding, index, show
from tocsin.alerts import actions, alert_lifecycle, alert_states
from tocsin.alerts.actions import ActionResult, Actor
from tocsin.alerts.alert_states import AlertState, AlertStatus, CannotChange, Verdict
from tocsin.alerts.store import queries
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.queries import AlertFilter
from tocsin.declare.model.alert_matcher import AlertLabels, AlertMatcher, Inhibition

OPEN, ACKNOWLEDGED, RESOLVED = AlertState
HOUR = timedelta(hours=1)
ANN, BOB = Actor("ann", NOON, "looking"), Actor("bob", NOON + MINUTE)

Step = Callable[[AlertStatus], alert_states.Change | None]


def acknowledged(who: str = "ann", until: timedelta = HOUR) -> Step:
    return lambda status: alert_states.acknowledge(status, who, NOON + until, "", NOON)


def resolved(verdict: Verdict, who: str = "ann") -> Step:
    return lambda status: alert_states.resolve(status, who, verdict, "")


def found(level: str) -> Step:
    return lambda status: alert_states.raise_level(status, level, "v1")


def expires(after: timedelta) -> Step:
    return lambda status: alert_states.expire(status, NOON + after)


def news(status: AlertStatus) -> alert_states.Change | None:
    return alert_states.renew(status, "v1")


@pytest.mark.parametrize(
    ("steps", "state", "last"),
    [
        ([], OPEN, ""),
        ([acknowledged()], ACKNOWLEDGED, "acknowledged by ann"),
        ([acknowledged(), acknowledged("bob")], ACKNOWLEDGED, "acknowledged by bob"),
        ([acknowledged(), found("email")], ACKNOWLEDGED, ""),
        ([acknowledged(), found("urgent")], OPEN, "raised by detector v1"),
        ([acknowledged(), expires(59 * MINUTE)], ACKNOWLEDGED, ""),
        ([acknowledged(), expires(60 * MINUTE)], OPEN, "expired by tocsin"),
        ([acknowledged(), resolved(Verdict.TRUE)], RESOLVED, "resolved by ann"),
        ([resolved(Verdict.FALSE)], RESOLVED, "resolved by ann"),
        ([resolved(Verdict.FALSE), resolved(Verdict.TRUE, "bob")], RESOLVED, "resolved by bob"),
        ([resolved(Verdict.FALSE), found("email")], RESOLVED, ""),
        ([resolved(Verdict.FALSE), news], RESOLVED, ""),
        ([resolved(Verdict.FALSE), found("urgent")], OPEN, "reopened by detector v1"),
        ([alert_states.end_quietly], RESOLVED, "quiet by tocsin"),
        ([alert_states.end_quietly, news], OPEN, "reopened by detector v1"),
        ([alert_states.end_quietly, alert_states.end_quietly], RESOLVED, ""),
        ([alert_states.end_quietly, resolved(Verdict.EXPECTED)], RESOLVED, "resolved by ann"),
        ([acknowledged(), alert_states.end_quietly], RESOLVED, "quiet by tocsin"),
    ],
)
def test_an_alert_moves_from_state_to_state(steps: list[Step], state: AlertState, last: str) -> None:
    status, happened = AlertStatus(OPEN, "email"), ""
    for step in steps:
        change = step(status)
        happened = "" if change is None else f"{change.action.value} by {change.who}"
        status = status if change is None else change.status
    assert (status.state, happened) == (state, last)
    assert (status.until is not None) == (state is ACKNOWLEDGED), "an acknowledgement ends with its state"


@pytest.mark.parametrize(
    ("steps", "last", "reason"),
    [
        ([resolved(Verdict.FALSE)], acknowledged("bob"), "resolved by ann (false)"),
        ([resolved(Verdict.FALSE)], resolved(Verdict.FALSE, "bob"), "resolved by ann (false) already"),
        ([alert_states.end_quietly], acknowledged(), "nothing more was found"),
        ([], acknowledged(until=timedelta(0)), "later than now"),
    ],
)
def test_what_cannot_be_done_says_whose_doing_that_is(steps: list[Step], last: Step, reason: str) -> None:
    status = AlertStatus(OPEN, "email")
    for step in steps:
        change = step(status)
        assert change is not None
        status = change.status
    with pytest.raises(ValueError, match="later than now") if not steps else pytest.raises(CannotChange) as error:
        last(status)
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("after", "score", "state"),
    [(HOUR, 60, ACKNOWLEDGED), (3 * HOUR, 60, ACKNOWLEDGED), (5 * HOUR, 60, OPEN), (HOUR, 120, OPEN)],
)
def test_an_acknowledgement_goes_on_in_the_next_period_until_it_expires_or_the_level_rises(
    database: Database, after: timedelta, score: float, state: AlertState
) -> None:
    index(database, [finding(60)])
    now = NOON + after
    with database.write() as connection:
        actions.acknowledge(connection, [1], ANN)
    with database.write() as connection:
        alert_lifecycle.resolve(connection, alert_lifecycle.find_over(connection, now), now)
    index(database, [finding(score, at=now, detected_at=now)], now=now + 10 * SECOND)
    second = queries.list_alerts(database, AlertFilter())[0]
    assert (second.id, second.state) == (2, state)
    assert [(step.action, "ann" in step.why) for step in show(database, 2).history] == [
        ("opened", state is ACKNOWLEDGED)
    ]


@pytest.mark.parametrize(
    ("after", "score", "kinds"),
    [
        (HOUR, 60, ["continuing"]),
        (2 * HOUR - SECOND, 60, ["continuing"]),
        (2 * HOUR, 60, ["email"]),
        (HOUR, 120, ["urgent", "urgent"]),
    ],
)
def test_what_continues_below_urgent_notifies_once_and_is_then_listed_in_summaries(
    database: Database, after: timedelta, score: float, kinds: list[str]
) -> None:
    index(database, [finding(60)])
    now = NOON + after
    index(database, [finding(score, at=now + count * SECOND) for count in (0, 20)], now=now + 30 * SECOND)
    assert [one.kind for one in show(database, 2).notifications] == kinds


def test_of_two_who_act_at_once_the_second_is_told_what_the_first_has_done(database: Database) -> None:
    index(database, [finding(60)])
    acted = threading.Event()

    def resolve(by: Actor, verdict: Verdict, before_commit: float = 0.0) -> list[ActionResult]:
        with database.write() as connection:
            done = actions.resolve(connection, [1, 7], by, verdict)
            acted.set()
            time.sleep(before_commit)
        return done

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(resolve, ANN, Verdict.FALSE, 0.3)
        acted.wait()
        second = threads.submit(resolve, BOB, Verdict.FALSE)
    for done, refused in ((first.result(), False), (second.result(), True), (resolve(BOB, Verdict.TRUE), False)):
        assert (done[0].state, "resolved by ann" in done[0].refused) == ("resolved", refused)
        assert done[1].refused == "there is no such alert"
    assert [(step.who, step.action, step.why) for step in show(database, 1).history] == [
        ("detector v1", "opened", ""),
        ("ann", "resolved", "false: looking"),
        ("bob", "resolved", "true"),
    ]


@pytest.mark.parametrize(
    ("matcher", "by", "hours", "fault"),
    [
        ({"detector": ("failed_*",)}, ANN, 1, ""),
        ({"detector": ("failed_*",)}, BOB, 1, "reason"),
        ({"detector": ("failed_*",)}, Actor("", NOON, "why"), 1, "owner"),
        ({"detector": ("failed_*",)}, ANN, 0, "later than now"),
        ({}, ANN, 1, "every alert"),
        ({"detector": ("*",), "entity": {"user_id": ("*",)}}, ANN, 1, "every alert"),
    ],
)
def test_a_silence_has_a_matcher_an_owner_a_reason_and_an_end(
    database: Database, matcher: dict[str, object], by: Actor, hours: int, fault: str
) -> None:
    wanted, end = AlertMatcher.model_validate(matcher), NOON + hours * HOUR
    with database.write() as connection:
        if fault:
            with pytest.raises(ValueError, match=fault):
                actions.silence(connection, wanted, by, end)
            assert actions.list_silences(connection, NOON, ended=True) == []
            return
        made = actions.silence(connection, wanted, by, end)
        assert (made.matcher, made.owner, made.reason) == (wanted, "ann", "looking")
        assert actions.list_silences(connection, NOON) == actions.list_active(connection, NOON) == [made]
        assert actions.list_active(connection, NOON - HOUR) == [], "a clock that was set back"
        ended = actions.unsilence(connection, made.id, BOB)
        assert actions.unsilence(connection, made.id, Actor("eve", NOON + HOUR)) == ended, "it ends once"
        assert (ended.ends_at, ended.ended_by) == (BOB.at, "bob")
        assert actions.list_silences(connection, BOB.at) == []
        with pytest.raises(LookupError, match="no silence 7"):
            actions.unsilence(connection, 7, BOB)


LABELS = AlertLabels("failed_logins", "sec@example.com", "urgent", {"user": "mallory", "ip": "10.0.0.1"}, ("takeover",))


@pytest.mark.parametrize(
    ("matcher", "fits"),
    [
        ({}, True),
        ({"detector": ("failed_*", "x")}, True),
        ({"detector": ("FAILED_*",)}, False),
        ({"owner": ("sec@*",), "level": ("urgent",)}, True),
        ({"owner": ("ops@*",)}, False),
        ({"level": ("email",)}, False),
        ({"entity": {"user": ("m*",), "ip": ("10.0.*",)}}, True),
        ({"entity": {"user": ("m*",), "host": ("*",)}}, False),
        ({"tags": ("take*", "fraud")}, True),
        ({"tags": ("fraud",)}, False),
    ],
)
def test_a_matcher_takes_an_alert_of_which_every_given_field_fits(matcher: dict[str, object], fits: bool) -> None:
    assert AlertMatcher.model_validate(matcher).matches(LABELS) is fits


@pytest.mark.parametrize(
    ("same", "user", "mutes"), [((), "eve", True), (("user",), "eve", False), (("user",), "mallory", True)]
)
def test_a_wider_alert_mutes_narrower_ones_of_the_same_entity(same: tuple[str, ...], user: str, mutes: bool) -> None:
    wider = AlertLabels("source_silent", "ops@example.com", "urgent", {"user": "mallory"})
    rule = Inhibition(
        wider=AlertMatcher(detector=("source_*",)), narrower=AlertMatcher(detector=("failed_*",)), same=same
    )
    narrower = AlertLabels("failed_logins", "sec@example.com", "email", {"user": user})
    assert rule.mutes(narrower, wider) is mutes
    assert not rule.mutes(wider, narrower)
