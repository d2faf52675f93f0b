"""Cases in real-time mode run on the broker that was started for them, whatever the environment says."""

from pathlib import Path
from typing import Any, cast

import pytest

from tocsin.cases.spark.stream_ways import RealTimeWay
from tocsin.declare.setting_blocks import KafkaSettings
from tocsin.declare.settings import load_settings


def test_the_broker_of_the_installation_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOCSIN_KAFKA__BOOTSTRAP_SERVERS", "kafka.example.com:9092")
    monkeypatch.setenv("TOCSIN_KAFKA__TOPIC_PREFIX", "shop.")
    settings = load_settings(tmp_path)
    assert settings.kafka.bootstrap_servers == "kafka.example.com:9092"
    own = KafkaSettings(bootstrap_servers="127.0.0.1:7")
    used = RealTimeWay(cast(Any, None), settings, own, tmp_path / "run").settings_of("x")
    assert (used.kafka.bootstrap_servers, used.state) == ("127.0.0.1:7", tmp_path / "run")
    assert (used.names.events("logins"), used.names.findings) == ("cases-x.events.logins", "cases-x.findings")
