"""A component of Airflow as the main process of a container."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.unit.dev.airflow_api import Health
from tocsin.dev import container
from tocsin.dev.servers.ports import free_ports


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOCSIN_PROJECT", str(tmp_path))
    monkeypatch.setenv("TOCSIN_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def test_it_becomes_the_component_and_the_containers_word_to_airflow_counts(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr(os, "execve", lambda _, words, environment: became.append((words, environment)))
    monkeypatch.setenv("AIRFLOW__API__HOST", "0.0.0.0")
    monkeypatch.setenv("SECRET_OF_ANOTHER", "x")
    container.main(["scheduler"])
    ((words, environment),) = became
    assert words[1:] == ["-m", "tocsin.airflow.component", "scheduler"]
    assert environment["AIRFLOW__API__HOST"] == "0.0.0.0"
    assert environment["AIRFLOW__CORE__LOAD_EXAMPLES"] == "False"
    assert environment["AIRFLOW_HOME"] == str(state / "airflow")
    assert "SECRET_OF_ANOTHER" not in environment
    assert (state / "airflow" / "jwt.secret").exists()


@pytest.mark.parametrize(("seconds", "code"), [(5, 0), (90, 1)])
def test_a_component_that_is_silent_for_a_minute_does_not_work(
    api: int, monkeypatch: pytest.MonkeyPatch, seconds: int, code: int
) -> None:
    beat = (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()
    told: dict[str, Any] = {"triggerer": {"latest_triggerer_heartbeat": beat}}
    monkeypatch.setattr(Health, "told", told)
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTION_API_SERVER_URL", f"http://127.0.0.1:{api}/execution/")
    assert container.main(["triggerer", "--check"]) == code


def test_without_an_answer_nothing_works(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{free_ports(1)[0]}/execution/"
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTION_API_SERVER_URL", url)
    assert container.main(["api-server", "--check"]) == 1
    assert capsys.readouterr().out == "waits for its API\n"


def test_a_wrong_setting_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TOCSIN_AIRFLOW__DATABASE_FILE", "/not/there")
    assert container.main(["scheduler"]) == 2
    assert "airflow.database_file" in capsys.readouterr().err
