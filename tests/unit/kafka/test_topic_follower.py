"""A follower without a broker: when all is done that was there, and how far behind it is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tocsin.kafka.topic_follower import TopicFollower
from tocsin.project.setting_blocks import KafkaSettings
from tocsin.project.settings import Settings

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


@pytest.fixture
def follower(tmp_path: Path) -> TopicFollower:
    settings = Settings(project=tmp_path, state=tmp_path, kafka=KafkaSettings(bootstrap_servers="127.0.0.1:1"))
    return TopicFollower(settings, "test", "events.logins")


def look(follower: TopicFollower, seconds: int, done: int, end: int) -> None:
    follower._next = follower._reached = {0: done}
    follower._measure_lag(NOON + timedelta(seconds=seconds), {0: end})


def test_complete_moves_on_though_records_keep_coming(follower: TopicFollower) -> None:
    look(follower, 0, done=0, end=5)
    assert (follower.complete_at, follower.lag_records, follower.lag_seconds) == (None, 5, 0.0)
    look(follower, 1, done=4, end=9)
    assert follower.complete_at is None
    look(follower, 2, done=6, end=12)
    assert follower.complete_at == NOON, "all that was there at the first look"
    assert (follower.lag_records, follower.lag_seconds) == (6, 2.0)
    look(follower, 3, done=12, end=12)
    assert follower.complete_at == NOON + timedelta(seconds=3)
    assert (follower.lag_records, follower.lag_seconds) == (0, 0.0)
