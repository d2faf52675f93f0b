from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest
import structlog

from tests.rig.rendered import slips
from tests.rig.samples.project import copy_project
from tests.rig.sink_servers import emptied, running
from tocsin.alerts.store.database import Database
from tocsin.declare.settings import Settings


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a database."""
    with running("postgres") as server:
        yield emptied(server.address)


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An alerts DB without rows: tests copy it, for the migrations take longer than most of them."""
    path = tmp_path_factory.mktemp("migrated") / "alerts.db"
    one = Database(f"sqlite:///{path}")
    one.migrate()
    one.close()
    return path


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Of an installation that declares nothing, and in which nothing has run."""
    return Settings(project=tmp_path, state=tmp_path / "state")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with the shipped source and detector."""
    copy_project(tmp_path)
    return tmp_path


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
