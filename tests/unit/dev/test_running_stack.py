from dataclasses import replace
from pathlib import Path

import pytest

from tocsin.declare.settings import load_settings
from tocsin.dev.state_folder import Running, announce, read_running, withdraw

RUNNING = Running(
    pid=7,
    kafka_port=29092,
    smtp_port=2525,
    drain_port=2430,
    web_port=2431,
    metrics_port=2435,
    mail_url="http://127.0.0.1:2080",
)


def test_others_read_where_a_stack_is_and_nothing_once_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOCSIN_STATE", str(tmp_path))
    before = load_settings(tmp_path)
    running = replace(RUNNING, sinks={"redis": tmp_path / 'a "file"'})
    announce(tmp_path, running)
    settings = load_settings(tmp_path)
    assert settings.kafka.bootstrap_servers == "127.0.0.1:29092"
    assert (settings.smtp.host, settings.smtp.port) == ("127.0.0.1", 2525)
    assert (settings.drain.port, settings.web.port, settings.metrics.port) == (2430, 2431, 2435)
    assert settings.views.model_dump() == {"redis_file": str(tmp_path / 'a "file"')}
    assert read_running(tmp_path) == running
    withdraw(tmp_path)
    withdraw(tmp_path)
    assert load_settings(tmp_path) == before
    assert read_running(tmp_path) is None


def test_a_half_written_file_is_no_stack(tmp_path: Path) -> None:
    (tmp_path / "stack.json").write_text('{"pid": 7')
    assert read_running(tmp_path) is None
