import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from tests.rig.served import Served
from tests.unit.alerts.scene import FACTS, burst, index
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.schema import notifications
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.settings import Settings
from tocsin.web.metrics.alert_figures import AlertFigures

NAME = FACTS.name
OTHER = "slow_routes"
SECOND = timedelta(seconds=1)


class Scene:
    """An alerts DB, the figures of it, and up to when the indexer says that it has stored everything."""

    def __init__(self, state: Path) -> None:
        self.settings = Settings(project=state, state=state)
        self.database = Database(f"sqlite:///{state / 'alerts.db'}")
        self.stored_until: datetime | None = None
        self.figures = AlertFigures(self.settings, lambda: self.stored_until)

    def read(self) -> Served:
        return Served(self.figures.families([NAME, OTHER]))

    def find(
        self, user: str, score: int = 60, *, at: datetime | None = None, appended_after: timedelta = SECOND
    ) -> None:
        """Findings of a burst whose 51st event, at `at`, crosses the lowest limit."""
        start = (at or datetime.now(UTC)) - 51 * timedelta(milliseconds=50)
        found = [
            one.model_copy(update={"detected_at": one.event_time_max + appended_after})
            for one in burst(score, user=user, at=start)
            if one.event_time_max
        ]
        index(self.database, found, now=datetime.now(UTC))

    def mark(self, state: str, **changes: object) -> None:
        with self.database.write() as connection:
            connection.execute(update(notifications).values(state=state, **changes))


@pytest.fixture
def scene(tmp_path: Path, migrated_file: Path) -> Iterator[Scene]:
    shutil.copy(migrated_file, tmp_path / "alerts.db")
    made = Scene(tmp_path)
    yield made
    made.database.close()


def test_what_was_there_before_is_not_counted_and_what_comes_is_counted_once(scene: Scene) -> None:
    scene.find("before")
    served = scene.read()
    assert served.by("tocsin_findings_total", "detector") == {NAME: 0, OTHER: 0}
    assert served.by("tocsin_alerts_opened_total", "detector") == {NAME: 0, OTHER: 0}
    for number, user in enumerate("abc", 1):
        scene.find(user)
        for _ in range(2):
            served = scene.read()
            assert served.by("tocsin_findings_total", "detector") == {NAME: number, OTHER: 0}
            assert served.by("tocsin_alerts_opened_total", "detector") == {NAME: number, OTHER: 0}


def test_findings_that_were_appended_while_the_indexer_was_down_are_counted(scene: Scene) -> None:
    scene.stored_until = datetime.now(UTC) - timedelta(hours=2)
    scene.read()
    scene.find("late", at=datetime.now(UTC) - timedelta(hours=1))
    assert scene.read().get("tocsin_findings_total", detector=NAME) == 1
    scene.stored_until = datetime.now(UTC)
    assert scene.read().get("tocsin_findings_total", detector=NAME) == 1
    assert scene.read().get("tocsin_findings_total", detector=NAME) == 1


def test_the_latency_of_a_finding_begins_with_the_event_that_crossed(scene: Scene) -> None:
    scene.read()
    scene.find("a", 70, appended_after=timedelta(milliseconds=200))
    scene.find("b", appended_after=timedelta(seconds=40))
    served, name = scene.read(), "tocsin_event_to_finding_seconds"
    buckets = {le: served.get(f"{name}_bucket", detector=NAME, le=le) for le in ("0.1", "0.25", "30.0", "60.0", "+Inf")}
    assert buckets == {"0.1": 0, "0.25": 1, "30.0": 1, "60.0": 2, "+Inf": 2}
    assert served.get(f"{name}_sum", detector=NAME) == pytest.approx(40.2)


def test_the_latency_of_a_mail_begins_with_the_event_that_crossed_its_limit(scene: Scene) -> None:
    scene.read()
    begun = datetime.now(UTC)
    scene.find("a", 110, at=begun)  # the 101st event, 2.5 s after the 51st, is the first above 100
    scene.mark("sent", sent_at=begun + timedelta(seconds=4.5))
    for _ in range(2):
        served = scene.read()
        sent = served.get("tocsin_notifications_total", kind="urgent", result="sent")
        assert sent == 2, "to the owner and to who is paged"
        assert served.get("tocsin_crossing_to_mail_seconds_count", kind="urgent") == sent
        assert served.get("tocsin_crossing_to_mail_seconds_sum", kind="urgent") == pytest.approx(2 * sent)


def test_what_waits_and_what_failed_is_shown(scene: Scene) -> None:
    scene.read()
    scene.find("a", 110)
    (scene.settings.state / "supervision" / "mails").mkdir(parents=True)
    (scene.settings.state / "supervision" / "mails" / "m.json").write_text("{}")
    served = scene.read()
    assert served.get("tocsin_alerts_open", detector=NAME, level="urgent") == 1
    assert served.get("tocsin_notifications_unsent", kind="urgent", state="pending") == 2
    assert served.by("tocsin_outbox_mails", "outbox") == {"alerts": 2, "conditions": 1}
    oldest = served.by("tocsin_outbox_oldest_timestamp_seconds", "outbox")
    assert oldest.keys() == {"alerts", "conditions"}
    assert all(abs(at - datetime.now(UTC).timestamp()) < 60 for at in oldest.values())
    scene.mark("pending", kind="email")
    gathers = scene.read().by("tocsin_outbox_oldest_timestamp_seconds", "outbox")
    assert gathers["alerts"] == oldest["alerts"] + scene.settings.alerts.group_interval.total_seconds()
    scene.mark("failed", kind="urgent")
    for _ in range(2):
        served = scene.read()
        assert served.get("tocsin_notifications_total", kind="urgent", result="failed") == 2
        assert served.by("tocsin_outbox_mails", "outbox")["alerts"] == 0


def test_the_last_finding_is_known_from_the_start(scene: Scene) -> None:
    at = datetime.now(UTC) - timedelta(days=3)
    scene.find("old", at=at)
    assert scene.read().by("tocsin_last_finding_timestamp_seconds", "detector") == {NAME: at.timestamp() + 1}
    now = datetime.now(UTC)
    scene.find("new", at=now)
    assert scene.read().by("tocsin_last_finding_timestamp_seconds", "detector") == {NAME: now.timestamp() + 1}


def test_there_is_nothing_before_the_indexer_has_made_the_db_and_an_error_where_it_is_none(scene: Scene) -> None:
    file = scene.settings.state / "alerts.db"
    file.unlink()
    assert scene.read().names == set()
    file.write_text("no database, and longer than the header of one: " + "x" * 100)
    with pytest.raises(ConfigError, match="no alerts DB"):
        scene.read()
