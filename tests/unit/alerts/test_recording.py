"""What is recorded of findings, and how it is listed."""

import sqlite3
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import event

from tests.unit.alerts.scene import FACTS, MINUTE, NOON, RULES, SECOND, WINDOW, burst, finding, index, show
from tocsin.alerts.alert_policy import INCOMPLETE_AFTER
from tocsin.alerts.recording import Rules, record
from tocsin.alerts.store import queries
from tocsin.alerts.store.alert_rows import AlertDetails
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.queries import AlertFilter, FindingFilter
from tocsin.alerts.store.schema import notifications
from tocsin.declare.model.finding import Finding, Origin
from tocsin.declare.model.sizes import shortened

NOW = NOON + 8 * SECOND


def only_alert(database: Database) -> AlertDetails:
    (alert,) = queries.list_alerts(database, AlertFilter())
    return show(database, alert.id)


def alive(details: AlertDetails) -> list[tuple[str, str, str, int]]:
    """What will reach people: kind, state, recipient, revision."""
    return [(n.kind, n.state, n.recipient, n.revision) for n in details.notifications if n.state != "replaced"]


def mark_all(database: Database, state: str) -> None:
    with database.write() as connection:
        connection.execute(notifications.update().values(state=state))


OWNER, PAGED = FACTS.owner, "oncall@example.com"


def test_a_burst_of_60_opens_one_alert_with_one_email_that_waits_for_its_window(database: Database) -> None:
    index(database, burst(60))
    details = only_alert(database)
    assert (details.alert.level, details.alert.state, details.alert.findings) == ("email", "open", 1)
    assert (details.alert.score, details.alert.first_seen, details.alert.last_seen) == (60, NOON, NOON + WINDOW)
    assert alive(details) == [("email", "waiting", OWNER, 1)]
    (waiting,) = details.notifications
    assert waiting.window_end == NOON + WINDOW
    assert waiting.wait_until == NOON + WINDOW + FACTS.lateness + INCOMPLETE_AFTER


@pytest.mark.parametrize("cut", [0, 1, 10, 49, 50, 51, 69])
def test_a_burst_of_120_pages_once_and_sends_no_email_wherever_its_batches_are_cut(
    database: Database, cut: int
) -> None:
    records = burst(120)
    for batch in (records[:cut], records[cut:]):
        if batch:
            index(database, batch)
    details = only_alert(database)
    revision = details.notifications[-1].revision
    assert alive(details) == [("urgent", "pending", OWNER, revision), ("urgent", "pending", PAGED, revision)]
    assert (details.alert.level, details.alert.score) == ("urgent", 120)


def test_what_kafka_delivers_again_changes_nothing(database: Database) -> None:
    records = burst(120)
    index(database, records)
    before = only_alert(database)
    for again in (records, records[-1:], records[:10], [*records[:10], *records]):
        done = index(database, again, now=NOW + MINUTE)
        assert (done.findings, done.alerts, done.notifications) == (0, 0, {})
    assert only_alert(database) == before


def test_after_its_email_was_sent_an_alert_escalates_once(database: Database) -> None:
    index(database, burst(60))
    mark_all(database, "sent")
    later = NOON + 5 * MINUTE
    index(database, burst(120, at=later), now=later + 9 * SECOND)
    details = only_alert(database)
    assert [(kind, revision) for kind, _, _, revision in alive(details)] == [("email", 1), ("urgent", 2), ("urgent", 2)]
    index(database, burst(150, at=later + MINUTE), now=later + MINUTE + 9 * SECOND)
    assert len(alive(only_alert(database))) == 3


def test_an_email_that_still_waits_is_replaced_by_the_page_of_a_later_window(database: Database) -> None:
    index(database, burst(60))
    index(database, burst(120, at=NOON + WINDOW), now=NOON + 2 * WINDOW)
    details = only_alert(database)
    assert {kind for kind, *_ in alive(details)} == {"urgent"}
    assert [n.state for n in details.notifications if n.kind == "email"] == ["replaced"]


def test_nothing_downgrades(database: Database) -> None:
    index(database, burst(120))
    index(database, burst(60, at=NOON + 5 * MINUTE), now=NOON + 6 * MINUTE)
    details = only_alert(database)
    assert details.alert.level == "urgent"
    assert {kind for kind, *_ in alive(details)} == {"urgent"}
    assert details.alert.findings == 2


def test_entities_and_periods_have_alerts_of_their_own(database: Database) -> None:
    hour = FACTS.dedup_period
    entities = [*burst(60), *burst(60, user="trent"), attempt("a"), attempt("b")]
    index(database, [*entities, *burst(60, at=NOON + hour)], now=NOON + hour)
    alerts = queries.list_alerts(database, AlertFilter())
    assert sorted(("/".join(sorted(alert.entity.values())), alert.period_start) for alert in alerts) == [
        ("a/mallory", NOON),
        ("b/mallory", NOON),
        ("mallory", NOON),
        ("mallory", NOON + hour),
        ("trent", NOON),
    ]


def attempt(address: str, score: float = 60, at: datetime = NOON) -> Finding:
    return finding(score, entity={"user_id": "mallory", "address": address}, at=at)


BY_USER = Rules(facts={FACTS.name: FACTS.model_copy(update={"dedup": ("user_id",)})}, paged=RULES.paged)


def test_entities_that_agree_in_the_dedup_key_share_an_alert_which_opens_again_after_its_period(
    database: Database,
) -> None:
    index(database, [attempt("a"), attempt("b", 120), attempt("a")], BY_USER)
    index(database, [attempt("c", 130, NOON + MINUTE)], BY_USER, now=NOON + MINUTE)
    details = only_alert(database)
    assert (details.alert.entity, details.alert.findings) == ({"user_id": "mallory"}, 3)
    assert details.highest.finding.entity == {"user_id": "mallory", "address": "c"}
    assert {one[:3] for one in alive(details)} == {("urgent", "pending", OWNER), ("urgent", "pending", PAGED)}
    hour = FACTS.dedup_period
    index(database, [attempt("d", 60, NOON + hour)], BY_USER, now=NOON + hour)
    starts = {alert.period_start for alert in queries.list_alerts(database, AlertFilter())}
    assert starts == {NOON, NOON + hour}


def test_windows_that_arrive_in_the_wrong_order_share_their_alert(database: Database) -> None:
    index(database, burst(60, at=NOON + WINDOW))
    index(database, burst(60))
    details = only_alert(database)
    assert (details.alert.findings, details.alert.first_seen) == (2, NOON)
    assert alive(details) == [("email", "waiting", OWNER, 1)]


def test_an_attack_that_goes_on_pages_although_its_beginning_was_found_late(database: Database) -> None:
    now = NOON + 40 * MINUTE
    index(database, burst(120), now=now)
    index(database, burst(120, at=now - WINDOW), now=now)
    details = only_alert(database)
    assert {(kind, state) for kind, state, *_ in alive(details)} == {("urgent", "pending")}


@pytest.mark.parametrize("together", [True, False])
def test_a_delayed_line_does_not_take_the_place_of_an_email(database: Database, together: bool) -> None:
    now = NOON + 40 * MINUTE
    fresh, old = burst(60, at=now - WINDOW), burst(120)
    for batch in [[*fresh, *old]] if together else [fresh, old]:
        index(database, batch, now=now)
    kinds = [(kind, state, revision) for kind, state, _, revision in alive(only_alert(database))]
    assert kinds == [("email", "waiting", 1), ("delayed", "waiting", 2)]


@pytest.mark.parametrize(
    "rules", [Rules(facts={FACTS.name: FACTS.model_copy(update={"live": False})}), Rules(facts={})]
)
def test_findings_of_shadow_and_unknown_detectors_are_stored_without_an_alert(database: Database, rules: Rules) -> None:
    done = index(database, burst(120), rules)
    assert done.undeclared == (0 if rules.facts else 70)
    (stored,) = queries.list_findings(database, FindingFilter())
    assert (stored.finding.score, stored.alert) == (120, None)
    assert queries.list_alerts(database, AlertFilter()) == []


def test_a_detector_that_goes_live_opens_an_alert_for_a_finding_that_is_already_stored(database: Database) -> None:
    shadow = Rules(facts={FACTS.name: FACTS.model_copy(update={"live": False})})
    index(database, burst(120), shadow)
    index(database, burst(120)[-1:])
    assert only_alert(database).alert.findings == 1


def test_a_backfill_corrects_the_score_and_pages_nobody(database: Database) -> None:
    index(database, burst(120))
    before = only_alert(database)
    index(database, [finding(110, origin=Origin.BACKFILL)])
    assert only_alert(database).alert.score == 110
    assert only_alert(database).notifications == before.notifications
    index(database, burst(120))
    assert only_alert(database).alert.score == 110
    index(database, [finding(190, user="trent", origin=Origin.BACKFILL)])
    (other,) = [one for one in queries.list_alerts(database, AlertFilter()) if one.entity["user_id"] == "trent"]
    assert alive(show(database, other.id)) == [("delayed", "waiting", OWNER, 1)]


def test_a_new_version_replaces_the_old_one_and_not_the_other_way_round(database: Database) -> None:
    index(database, burst(120))
    declared = Rules(facts={FACTS.name: FACTS.model_copy(update={"version": "v2"})})
    index(database, [finding(70, version="v2", event_time_max=NOON + SECOND)], declared)
    index(database, burst(120), declared)
    (stored,) = queries.list_findings(database, FindingFilter())
    assert (stored.finding.version, stored.finding.score, len(stored.trajectory)) == ("v2", 70, 1)


def test_an_event_of_its_own_needs_no_window_to_close(database: Database) -> None:
    alone = finding(60, window_start=None, window_end=None, event_time_max=NOON, discriminator="raw.logins/0/7")
    index(database, [alone])
    assert alive(only_alert(database)) == [("email", "pending", OWNER, 1)]


def test_message_ids_differ_by_recipient_and_revision_and_are_the_same_in_any_database(
    database: Database, sqlite: Database
) -> None:
    # The second database holds another alert first, so that the ids of its rows differ.
    index(sqlite, burst(60, user="trent"))
    ids = []
    for one in (database, sqlite):
        index(one, burst(60))
        mark_all(one, "sent")
        index(one, burst(120, at=NOON + WINDOW))
        (alert,) = [alert for alert in queries.list_alerts(one, AlertFilter()) if alert.entity["user_id"] == "mallory"]
        ids.append([notification.message_id for notification in show(one, alert.id).notifications])
    assert len(set(ids[0])) == 3
    assert ids[0] == ids[1]
    assert all(one.startswith("<") and one.endswith("@tocsin.example.com>") for one in ids[0])


def test_the_trajectory_holds_how_the_score_rose_within_its_bound(database: Database) -> None:
    index(database, burst(120))
    (stored,) = queries.list_findings(database, FindingFilter())
    assert [score for _, score in stored.trajectory] == list(range(51, 121))
    index(
        database,
        [finding(n, user="trent", event_time_max=NOON + n * timedelta(milliseconds=5)) for n in range(51, 1200)],
    )
    (stored,) = queries.list_findings(database, FindingFilter(entity="trent"))
    times, scores = zip(*stored.trajectory, strict=True)
    assert 100 <= len(scores) <= 200
    assert (scores[0], scores[-1]) == (51, 1199)
    assert list(times) == sorted(times)


def test_hostile_entities_are_stored_as_they_are_but_for_their_length(database: Database) -> None:
    names = ["a" * 10_000, "\x00\x1f", "'; DROP TABLE alerts; --", "\u202egnp", "Mallory", "mallory", '"', "%_"]
    index(database, [one for name in names for one in burst(52, user=name)])
    for name in names:
        (stored,) = queries.list_findings(database, FindingFilter(entity=name))
        assert stored.finding.entity == {"user_id": shortened(name)}
    assert len(queries.list_alerts(database, AlertFilter())) == len(names)


def test_a_finding_that_changes_keeps_its_key_untouched(database: Database) -> None:
    """Else SQLite reads all notifications for each such finding: a minute of CPU for a day of 50,000."""
    said: list[str] = []
    index(database, [finding(60)])

    def listen(connection: Any, cursor: Any, statement: str, *others: Any) -> None:
        said.append(statement)

    event.listen(database.engine, "before_cursor_execute", listen)
    index(database, [finding(70)])
    (update,) = [statement for statement in said if statement.startswith("UPDATE findings")]
    assert " score=" in update.partition("WHERE")[0]
    assert "finding_id" not in update.partition("WHERE")[0]


def test_a_batch_costs_the_same_however_much_is_in_the_outbox(sqlite: Database) -> None:
    """It holds the lock of the alerts DB, for which the notifier waits."""
    costs: list[int] = []
    for users in (100, 400):
        with sqlite.write() as connection:
            record(connection, [finding(60, user=f"{users}-{n}") for n in range(users)], RULES, NOON + 8 * SECOND)
            record(connection, [finding(120, user=f"{users}-{n}") for n in range(users // 2)], RULES, NOON + 9 * SECOND)
            steps: list[int] = []
            raw = connection.connection.dbapi_connection
            assert isinstance(raw, sqlite3.Connection)
            raw.set_progress_handler(partial(steps.append, 1), 10)
            record(connection, [finding(60, user=f"{users}-new")], RULES, NOON + 10 * SECOND)
            raw.set_progress_handler(None, 0)
            costs.append(len(steps))
    assert costs[1] <= costs[0] + 5


# --- lists ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def filled(database: Database) -> Database:
    """Mallory in two windows (60, 120), Trent in one (70), indexed a minute apart."""
    scene = [burst(60), burst(120, at=NOON + 2 * WINDOW), burst(70, user="trent", at=NOON + WINDOW)]
    for minute, batch in enumerate(scene):
        index(database, batch, now=NOON + minute * MINUTE)
    return database


@pytest.mark.parametrize(
    ("wanted", "scores"),
    [
        (FindingFilter(), [120, 70, 60]),
        (FindingFilter(limit=2), [120, 70]),
        (FindingFilter(entity="mallory"), [120, 60]),
        (FindingFilter(entity="MALLORY"), []),
        (FindingFilter(entity="mallor"), []),
        (FindingFilter(detector="failed_logins", level="urgent"), [120]),
        (FindingFilter(detector="other"), []),
        (FindingFilter(since=NOON + WINDOW), [120, 70]),
        (FindingFilter(since=NOON + 2 * WINDOW + SECOND), []),
    ],
)
def test_findings_are_listed_by_what_is_asked_for_newest_first(
    filled: Database, wanted: FindingFilter, scores: list[float]
) -> None:
    assert [one.finding.score for one in queries.list_findings(filled, wanted)] == scores


@pytest.mark.parametrize(
    ("wanted", "users"),
    [
        (AlertFilter(), ["trent", "mallory"]),
        (AlertFilter(limit=1), ["trent"]),
        (AlertFilter(state="open"), ["trent", "mallory"]),
        (AlertFilter(state="resolved"), []),
        (AlertFilter(detector="other"), []),
        (AlertFilter(since=NOON + 2 * MINUTE), ["trent"]),
    ],
)
def test_alerts_are_listed_by_what_is_asked_for_last_change_first(
    filled: Database, wanted: AlertFilter, users: list[str]
) -> None:
    assert [one.entity["user_id"] for one in queries.list_alerts(filled, wanted)] == users


def test_an_alert_shows_what_its_findings_add_up_to(filled: Database) -> None:
    (alert,) = [one for one in queries.list_alerts(filled, AlertFilter()) if one.entity["user_id"] == "mallory"]
    assert (alert.findings, alert.score, alert.level) == (2, 120, "urgent")
    assert (alert.first_seen, alert.last_seen) == (NOON, NOON + 3 * WINDOW)
    details = show(filled, alert.id)
    assert details.highest.finding.score == 120
    assert [one.finding.score for one in details.findings] == [120, 60]
    assert queries.show_alert(filled, 10_000) is None


def test_a_digest_sums_up_what_opened_by_detector_and_entity(filled: Database) -> None:
    (found,) = queries.digest(filled, AlertFilter(since=NOON, limit=1))
    assert (found.detector, found.owner, found.alerts, found.urgent, found.open) == (
        "failed_logins", "security@example.com", 2, 1, 2,
    )  # fmt: skip
    assert [count for _, count in found.entities] == [1, 1]
    assert queries.digest(filled, AlertFilter(since=NOON + 3 * MINUTE)) == []
    assert queries.digest(filled, AlertFilter(since=NOON, owner="nobody@example.com")) == []
