"""What mutes notifications: people who have answered, silences, and wider alerts."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import Connection, select

from tests.unit.alerts.notifier_scene import OWNER, PAGED, Scene, let_a_program_read_mails
from tests.unit.alerts.scene import FACTS, MINUTE, NOON, RULES
from tocsin.alerts import actions
from tocsin.alerts.actions import Actor, Silence
from tocsin.alerts.alert_states import AlertState, AlertStatus, Verdict
from tocsin.alerts.notify.muting import Mutes, WiderAlert
from tocsin.alerts.recording import Rules
from tocsin.alerts.store.alert_rows import write_facts
from tocsin.alerts.store.schema import alert_transitions, alerts, notifications
from tocsin.declare.model.alert_matcher import AlertLabels, AlertMatcher, Inhibition

HOUR = timedelta(hours=1)
OPEN = AlertStatus(AlertState.OPEN, "urgent")
ANN = Actor("ann@example.com", NOON + 8 * MINUTE / 60, "looking")


def labels(detector: str = "failed_logins", level: str = "urgent", **entity: str) -> AlertLabels:
    return AlertLabels(detector, OWNER, level, entity or {"user": "mallory"}, ("T1110",))


def silence(**matcher: object) -> Silence:
    return Silence(
        id=3, matcher=AlertMatcher.model_validate(matcher), owner="ann", reason="load test", created_at=NOON,
        starts_at=NOON, ends_at=NOON + HOUR,
    )  # fmt: skip


SILENCES = [silence(detector=("slow_*",)), silence(entity={"user": ("mallory",)}, tags=("T1110",))]
OUTAGE = Inhibition(
    wider=AlertMatcher(detector=("outage",)), narrower=AlertMatcher(level=("urgent",)), same=("region",)
)
MUTES = Mutes(SILENCES, [OUTAGE], [WiderAlert(17, labels("outage", region="eu"))])


@pytest.mark.parametrize(
    ("status", "about", "why"),
    [
        (OPEN, labels(user="eve"), ""),
        (AlertStatus(AlertState.ACKNOWLEDGED, "urgent", NOON, "ann"), labels(user="eve"), "acknowledged by ann"),
        (AlertStatus(AlertState.RESOLVED, "email", None, "ann", "true"), labels(user="eve"), "resolved by ann (true)"),
        (AlertStatus(AlertState.RESOLVED, "email", None, "ann"), labels(user="eve"), "resolved by ann (no verdict)"),
        (AlertStatus(AlertState.RESOLVED, "email"), labels(user="eve"), ""),
        (OPEN, labels(), "silence 3 of ann: load test"),
        (OPEN, labels(region="eu", user="eve"), "alert 17, which is wider: outage"),
        (OPEN, labels(region="us", user="eve"), ""),
        (OPEN, labels(level="email", region="eu"), ""),
        (OPEN, labels("outage", region="eu", zone="b"), ""),
    ],
    ids=[
        "nothing", "acknowledged", "verdict", "no verdict", "returned", "silence", "wider", "elsewhere",
        "not narrower", "both",
    ],
)  # fmt: skip
def test_what_mutes_an_alert(status: AlertStatus, about: AlertLabels, why: str) -> None:
    assert MUTES.why(status, about) == why


@pytest.fixture
def scene(scene: Scene) -> Scene:
    """With its detector declared."""
    with scene.database.write() as connection:
        write_facts(connection, [FACTS])
    return scene


def states(scene: Scene) -> set[tuple[str, str, str]]:
    columns = (notifications.c.kind, notifications.c.state, notifications.c.muted_by)
    with scene.database.read() as connection:
        return {(row.kind, row.state, row.muted_by) for row in connection.execute(select(*columns))}


def history(scene: Scene) -> list[tuple[str, str]]:
    steps = select(alert_transitions.c.action, alert_transitions.c.why).order_by(alert_transitions.c.id)
    found = ("opened", "raised")
    with scene.database.read() as connection:
        return [(step.action, step.why) for step in connection.execute(steps) if step.action not in found]


def act(scene: Scene, step: Callable[[Connection], object]) -> None:
    with scene.database.write() as connection:
        step(connection)


def acknowledge(connection: Connection) -> None:
    actions.acknowledge(connection, [1], ANN, ANN.at + HOUR)


def test_an_acknowledged_alert_notifies_nobody_until_that_expires_and_then_once(scene: Scene) -> None:
    scene.index(120)
    act(scene, acknowledge)
    scene.send()
    assert scene.subjects == []
    assert states(scene) == {("urgent", "muted", "acknowledged by ann@example.com")}
    assert history(scene)[1:] == [("muted", "acknowledged by ann@example.com")], "one line for two recipients"
    scene.now += HOUR
    for _ in range(2):
        scene.notifier.tidy()
        scene.send()
    assert sorted(to for to, _ in scene.subjects) == sorted([OWNER, PAGED])
    assert history(scene)[2][0] == "expired"


@pytest.mark.parametrize("periods", [1, 2], ids=["one alert", "one that the next continues"])
def test_an_acknowledgement_that_expires_notifies_again_those_who_were_notified(scene: Scene, periods: int) -> None:
    scene.index(60)
    scene.close_windows(NOON + MINUTE)
    scene.send()
    act(scene, lambda connection: actions.acknowledge(connection, [1], ANN, ANN.at + periods * HOUR))
    for hour in range(1, periods):
        scene.now += HOUR
        scene.index(60, at=NOON + hour * HOUR)
        scene.send()
    scene.now += HOUR
    scene.notifier.tidy()
    scene.send()
    assert [(to, subject[:11]) for to, subject in scene.subjects] == [(OWNER, "mallory: 60")] * 2
    assert not {("continuing", "waiting", ""), ("continuing", "muted", "")} & states(scene)
    assert len({mail["Message-ID"] for mail in scene.server.mails}) == 2


@pytest.mark.parametrize("later", [HOUR / 12, HOUR / 2, 2 * HOUR], ids=["soon", "late", "after its end"])
def test_what_a_silence_muted_leaves_when_it_ends_in_a_summary_if_it_is_late(scene: Scene, later: timedelta) -> None:
    every = AlertMatcher(detector=(FACTS.name,))
    act(scene, lambda connection: actions.silence(connection, every, ANN, ANN.at + later))
    scene.index(120, rules=Rules(facts=RULES.facts))
    scene.send()
    scene.notifier.tidy()
    assert (scene.subjects, states(scene)) == ([], {("urgent", "muted", "silence 1 of ann@example.com: looking")})
    for _ in range(2):
        scene.now += later / 2
        scene.notifier.tidy()
    scene.send_later(2 * MINUTE)
    is_late = later > FACTS.page_within
    assert [subject[:9] for _, subject in scene.subjects] == ["[summary]" if is_late else "[URGENT] "]
    ended = ["quiet"] if later > HOUR else []
    assert [action for action, _ in history(scene)] == ["muted", *ended, "unmuted"]


def test_what_goes_on_when_a_silence_ends_is_listed_with_what_that_muted(scene: Scene) -> None:
    every = AlertMatcher(detector=(FACTS.name,))
    act(scene, lambda connection: actions.silence(connection, every, ANN, ANN.at + 2 * HOUR))
    for hour in range(3):
        scene.now = ANN.at + hour * HOUR
        scene.close_windows(scene.now)
        scene.index(60, at=NOON + hour * HOUR)
        scene.send()
    scene.notifier.tidy()
    scene.send()
    assert scene.subjects == [(OWNER, "[summary] 2 alerts of failed_logins")]


def test_a_wider_alert_mutes_others_until_it_is_resolved(scene: Scene) -> None:
    text = "[[inhibit]]\nwider = { entity = { user_id = ['outage'] } }\nnarrower = { detector = ['failed_logins'] }\n"
    (scene.settings.project / "routes.toml").write_text(text)
    scene.index(60, user="outage")
    scene.index(120, user="eve")
    scene.send()
    assert scene.subjects == []
    assert ("urgent", "muted", "alert 1, which is wider: failed_logins") in states(scene)
    act(scene, lambda connection: actions.resolve(connection, [1], ANN, Verdict.TRUE))
    scene.close_windows(NOON + MINUTE)
    scene.notifier.tidy()
    scene.send()
    assert {subject[:14] for _, subject in scene.subjects} == {"[URGENT] eve: "}
    assert ("email", "dropped", "resolved by ann@example.com (true)") in states(scene)


def test_what_is_muted_until_its_alert_ends_is_dropped(scene: Scene) -> None:
    scene.index(120)
    act(scene, acknowledge)
    scene.send()
    act(scene, lambda connection: actions.resolve(connection, [1], ANN, Verdict.FALSE))
    scene.notifier.tidy()
    scene.send()
    assert (scene.subjects, states(scene)) == ([], {("urgent", "dropped", "acknowledged by ann@example.com")})


def test_what_waits_about_an_alert_that_somebody_has_resolved_is_dropped(scene: Scene) -> None:
    scene.index(60)
    act(scene, lambda connection: actions.resolve(connection, [1], ANN, None))
    scene.close_windows(NOON + MINUTE)
    scene.send()
    assert (scene.subjects, states(scene)) == ([], {("email", "dropped", "resolved by ann@example.com (no verdict)")})
    scene.index(120)
    scene.send_later()
    assert {subject[:8] for _, subject in scene.subjects} == {"[URGENT]"}


def test_a_higher_level_breaks_through_an_acknowledgement(scene: Scene) -> None:
    scene.index(60)
    act(scene, acknowledge)
    scene.close_windows(NOON + MINUTE)
    scene.send()
    scene.index(120)
    scene.send()
    scene.notifier.tidy()
    scene.send_later()
    assert sorted(to for to, _ in scene.subjects) == sorted([OWNER, PAGED]), "the muted e-mail is replaced"


def test_receivers_that_follow_alerts_hear_of_answers(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    let_a_program_read_mails(monkeypatch)
    scene.index(120, rules=Rules(facts=RULES.facts))
    act(scene, acknowledge)
    scene.send()
    assert scene.subjects == [], "who was not notified hears nothing"
    scene.index(60, user="eve", rules=Rules(facts=RULES.facts))
    scene.close_windows(NOON + MINUTE)
    scene.send()
    act(scene, lambda connection: actions.resolve(connection, [2], ANN, Verdict.FALSE))
    scene.send()
    assert [subject.partition(" - ")[0] for _, subject in scene.subjects][1:] == ["[resolved] eve"]
    with scene.database.read() as connection:
        assert connection.execute(select(alerts.c.revision).order_by(alerts.c.id)).scalars().all() == [1, 2]


def test_an_answer_does_not_overtake_the_message_that_it_ends(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    let_a_program_read_mails(monkeypatch)
    scene.index(60)
    scene.close_windows(NOON + MINUTE)
    scene.server.answer_mail = lambda _: "450 try later"
    scene.send()
    scene.server.answer_mail = lambda _: "250 OK"
    act(scene, lambda connection: actions.resolve(connection, [1], ANN, Verdict.FALSE))
    scene.send()
    assert scene.subjects == [], "the first waits for its next try"
    scene.send_later()
    subjects = [subject.partition(": ")[0].partition(" - ")[0] for _, subject in scene.subjects]
    assert subjects == ["mallory", "[resolved] mallory"]
