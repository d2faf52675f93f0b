"""Routes while jobs run: a broken file changes nothing but what the jobs report."""

from __future__ import annotations

from pathlib import Path

from tests.rig.samples.project import copy_project
from tests.unit.alerts.scene import FACTS, NOON, SECOND, burst, record
from tocsin.alerts.followed_routes import FollowedRoutes
from tocsin.alerts.indexer import Indexer
from tocsin.alerts.store import queries
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.queries import AlertFilter
from tocsin.declare.routes import NO_ROUTES
from tocsin.declare.settings import Settings

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
    details = queries.show_alert(database, sorted(found, key=lambda one: one.id)[alert].id)
    assert details is not None
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
