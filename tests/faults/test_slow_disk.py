"""A disk that is slow for a minute: each write to it waits its turn. Kafka's log lies on it, or a checkpoint."""

import time
from pathlib import Path

import pytest

from tests.faults.scene import Scene, under_load
from tests.rig.broker import Broker
from tests.rig.installation import Installation
from tests.rig.observed import DETECT
from tests.rig.slow_disk import SlowDisk, slow_disk

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
SECONDS = 60


def slow_down(disk: SlowDisk, scene: Scene, writes: int) -> None:
    """Let the disk be slow for a minute; whatever that delays comes, from the same processes, and once."""
    processes = scene.processes()
    disk.allow(writes)
    time.sleep(SECONDS)
    disk.allow(0)
    scene.await_findings()
    assert scene.processes() == processes, "jobs wait in place, they do not crash"
    scene.assert_exact()


def test_a_slow_disk_under_kafka_delays_and_loses_nothing(tmp_path: Path) -> None:
    with slow_disk(tmp_path / "kafka", 500) as disk:
        broker = Broker(tmp_path / "kafka")
        try:
            broker.start()
            with Installation(tmp_path / "slow", broker) as one, under_load(one) as scene:
                slow_down(disk, scene, 20)
        finally:
            broker.kill()


def test_a_slow_disk_under_a_checkpoint_delays_and_loses_nothing(broker: Broker, tmp_path: Path) -> None:
    with (
        Installation(tmp_path, broker) as one,
        slow_disk(one.settings.checkpoint(DETECT), 200) as disk,
        under_load(one) as scene,
    ):
        slow_down(disk, scene, 20)
