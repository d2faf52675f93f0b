from __future__ import annotations

import pytest

from tests.unit.alerts.scene import MINUTE, NOON, RULES, SECOND, WINDOW, burst, show
from tocsin.alerts.recording import record
from tocsin.alerts.store import queries
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.queries import AlertFilter, FindingFilter


@pytest.fixture
def filled(database: Database) -> Database:
    """Mallory in two windows (60, 120), Trent in one (70), indexed a minute apart."""
    scene = [burst(60), burst(120, at=NOON + 2 * WINDOW), burst(70, user="trent", at=NOON + WINDOW)]
    for minute, batch in enumerate(scene):
        with database.write() as connection:
            record(connection, batch, RULES, NOON + minute * MINUTE)
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
    (found,) = queries.digest(filled, NOON)
    assert (found.detector, found.owner, found.alerts, found.urgent, found.open) == (
        "failed_logins", "security@example.com", 2, 1, 2,
    )  # fmt: skip
    assert [count for _, count in found.entities] == [1, 1]
    assert queries.digest(filled, NOON + 3 * MINUTE) == []
    assert queries.digest(filled, NOON, owner="nobody@example.com") == []
