"""Which servers and topics a project needs, and what is said about those that it cannot have."""

from pathlib import Path

import pytest

from tests.rig.samples.project import copy_project
from tests.rig.samples.words import declare_words
from tests.rig.waiting import await_that
from tests.unit.supervise.dummies import OBEDIENT, launch
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import ConfigError, TocsinError, TransientError
from tocsin.declare.setting_blocks import ViewSettings
from tocsin.declare.settings import Settings
from tocsin.dev.servers import server_set
from tocsin.dev.servers.kafka_server import NAME
from tocsin.dev.servers.server_set import DeclaredTopics, Servers
from tocsin.dev.servers.sink_servers import KINDS, SinkServers, needed_kinds
from tocsin.supervise.runners.local import LocalRunner
from tocsin.supervise.runners.runner import Labels, Launch

PORTS = dict.fromkeys(KINDS, 1)


class Asleep:
    """A Kafka that does nothing."""

    def __init__(self, settings: Settings, lacks: str | None = "everything") -> None:
        self._settings, self._lacks = settings, lacks

    def launch(self, instance: str) -> Launch:
        return launch(self._settings.state, Labels(instance, NAME, "v1"), OBEDIENT)

    def waiting_for(self) -> str | None:
        return self._lacks


def test_only_sinks_that_running_views_name_and_nobody_else_serves_are_needed(settings: Settings) -> None:
    for name, sink, stage in (("a", "sqlite", "live"), ("b", "redis", "draft"), ("c", "postgres", "shadow")):
        declare_words(settings.project, name, sink=sink, stage=stage)
    catalog = read_catalog(settings.project)
    assert needed_kinds(settings, catalog) == ["postgres"]
    served = settings.model_copy(update={"views": ViewSettings(postgres="postgresql://elsewhere/x")})
    assert needed_kinds(served, catalog) == []
    assert "postgres" not in SinkServers(served, PORTS).servers


def test_addresses_are_in_files_for_their_owner_alone(settings: Settings) -> None:
    found = SinkServers(settings, PORTS)
    views = found.with_addresses(settings.views)
    assert {"postgres", "redis"} <= found.servers.keys(), "set-up installs both"
    first = views.address("redis")
    assert first is not None
    assert first == SinkServers(settings, PORTS).with_addresses(settings.views).address("redis"), "one for each state"
    for server in found.servers.values():
        assert server.address_file.stat().st_mode & 0o077 == 0


def test_a_server_that_is_not_installed_is_named_with_its_command_and_holds_nothing_up(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tocsin.dev.servers.sink_servers.shutil.which", lambda *_, **__: None)
    servers = Servers(settings, settings.local_id, {NAME: Asleep(settings)}, SinkServers(settings, PORTS))
    try:
        servers.tick()
        assert [part.name for part in servers.lines() if part.failing] == []
        declare_words(settings.project, "a", sink="influx")
        await_that(lambda: servers.tick() is False and any(part.failing for part in servers.lines()))
        (missing,) = [part for part in servers.lines() if part.failing]
        assert (missing.name, missing.ready) == ("influx", False)
        assert "run: apt-get install influxdb" in missing.text
        assert [process.labels.job for process in LocalRunner(settings.local_id, settings.log).list()] == [NAME]
    finally:
        servers.stop()


def test_a_view_that_is_added_gets_its_topic(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[set[str]] = []
    monkeypatch.setattr(server_set, "ensure_topics", lambda _, catalog: made.append(set(catalog.views)))
    kafka = {NAME: Asleep(settings, lacks=None)}
    servers = Servers(settings, settings.local_id, kafka, SinkServers(settings, PORTS))
    try:
        await_that(lambda: servers.tick() and made)
        declare_words(settings.project, "a", sink="sqlite")
        await_that(lambda: servers.tick() and len(made) > 1)
        servers.tick()
        assert made == [set(), {"a"}]
    finally:
        servers.stop()


def test_a_refusal_is_told_and_not_asked_about_again_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_project(tmp_path)
    catalog, settings = read_catalog(tmp_path), Settings(state=tmp_path / "state")
    answers: list[TocsinError | None] = [TransientError("away"), ConfigError.one("Kafka", "may not create"), None]

    def ensure(*_: object) -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    monkeypatch.setattr(server_set, "ensure_topics", ensure)
    topics = DeclaredTopics(settings)
    assert (topics.missing(catalog), topics.is_refused) == ("away", False)
    for _ in range(2):
        assert "may not create" in str(topics.missing(catalog))
        assert topics.is_refused
    monkeypatch.setattr(server_set, "_PAUSE_SECONDS", 0.0)
    assert (topics.missing(catalog), topics.is_refused) == (None, False)
