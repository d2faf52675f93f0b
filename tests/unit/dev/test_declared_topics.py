"""The topics of all that is declared: what happens when Kafka refuses to make them."""

from pathlib import Path

import pytest

from tests.rig.samples.project import copy_project
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import ConfigError, TocsinError, TransientError
from tocsin.declare.settings import Settings
from tocsin.dev.servers import server_set
from tocsin.dev.servers.server_set import DeclaredTopics


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
