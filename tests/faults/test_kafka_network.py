"""Faults of Kafka behind the jobs: leaders that change, brokers that die or stall, a network that is lost."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.faults.scene import under_load
from tests.rig.broker import Broker
from tests.rig.broker_set import BrokerSet, broker_behind_proxy
from tests.rig.installation import Installation
from tests.rig.observed import SOURCE

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[BrokerSet]:
    three = BrokerSet(tmp_path / "kafka")
    try:
        three.start()
        yield three
    finally:
        three.kill()


def test_leaders_that_change_and_a_lost_majority_lose_nothing(brokers: BrokerSet, tmp_path: Path) -> None:
    with Installation(tmp_path / "election", brokers) as one, under_load(one) as scene:
        processes = scene.processes()
        raw, events = one.settings.names.raw(SOURCE), one.settings.names.events(SOURCE)
        for topic in (raw, events):
            leader = brokers.leader(topic, 0)
            brokers.brokers[leader].kill()
            scene.await_findings()  # the two others go on without it
            assert brokers.leader(topic, 0) not in (0, leader)
            brokers.start(leader)
        for number in (1, 2):
            brokers.brokers[number].kill()
        time.sleep(15)  # no leader can be elected, and no record is accepted
        brokers.start(1, 2)
        scene.await_findings()
        assert scene.processes() == processes, "jobs wait in place, they do not crash"
        scene.assert_exact()


def test_a_network_that_is_lost_is_waited_for(tmp_path: Path) -> None:
    with (
        broker_behind_proxy(tmp_path / "kafka") as (broker, proxy),
        Installation(tmp_path / "network", broker) as one,
        under_load(one) as scene,
    ):
        processes = scene.processes()
        proxy.cut()
        time.sleep(60)  # longer than requests may take
        proxy.heal()
        scene.await_findings()
        for _ in range(5):
            proxy.hang_up()
            time.sleep(1)
        scene.await_findings()
        assert scene.processes() == processes, "jobs wait in place, they do not crash"
        scene.assert_exact()


@contextmanager
def stalled(process: psutil.Process) -> Iterator[None]:
    process.suspend()
    try:
        yield
    finally:
        process.resume()


def test_a_broker_that_stalls_as_on_a_slow_disk_delays_and_loses_nothing(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "kafka")
    try:
        broker.start()
        with Installation(tmp_path / "stalls", broker) as one, under_load(one) as scene:
            processes, server = scene.processes(), psutil.Process(broker.process.pid)
            for seconds in (4, 8, 4, 20):
                with stalled(server):
                    time.sleep(seconds)
                time.sleep(2)
            scene.await_findings()
            assert scene.processes() == processes, "jobs wait in place, they do not crash"
            scene.assert_exact()
    finally:
        broker.kill()
