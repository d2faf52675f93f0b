from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import jinja2
import psycopg
import pytest
import structlog

from tests.rig.rendered import slips
from tests.rig.sink_servers import emptied, running
from tests.rig.waiting import repeated
from tocsin.alerts.store.database import Database
from tocsin.model.view import SinkKind
from tocsin.project.blocks.lease_settings import LeaseSettings
from tocsin.project.settings import Settings
from tocsin.runtime.leases import lead


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a database."""
    with running(SinkKind.POSTGRES) as server:
        yield emptied(server.address)


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An alerts DB without rows: tests copy it, for the migrations take longer than most of them."""
    path = tmp_path_factory.mktemp("migrated") / "alerts.db"
    one = Database(f"sqlite:///{path}")
    one.migrate()
    one.close()
    return path


@pytest.fixture(autouse=True)
def logs_go_where_they_go_by_themselves() -> None:
    """Forget how a command of another test has set up logging."""
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def no_slip_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judge each page and each mail that any test renders."""
    render = jinja2.Template.render

    def judged(template: jinja2.Template, *arguments: Any, **named: Any) -> str:
        text = render(template, *arguments, **named)
        assert slips(text) == [], f"{template.name} shows what is meant for programmers"
        return text

    monkeypatch.setattr(jinja2.Template, "render", judged)


@pytest.fixture
def led_elsewhere(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Settings, str], AbstractContextManager[Settings]]]:
    """Adds leases to settings; in the block another machine of the installation runs a batch and renews its lease."""
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS tocsin_leases")
    monkeypatch.setattr(lead, "_ASK_SECONDS", 0.05)
    # A keeper of these ends this process when its lease is over: no test may come near that.
    leases = LeaseSettings(database=postgres, length=timedelta(hours=1))

    @contextmanager
    def run(settings: Settings, job: str) -> Iterator[Settings]:
        here = settings.model_copy(update={"instance": "prod", "leases": leases})
        there = here.model_copy(update={"state": settings.state.with_name("elsewhere")})

        def renew() -> None:
            assert not lead.keeper_of(there).renew()

        with lead.try_lead(there, there.checkpoint(job) / "lock"), repeated(renew, 0.05):
            yield here

    yield run
    for one in lead._keepers.values():
        one.close()
    lead._keepers.clear()
    lead._held.clear()
