"""Several real brokers that replicate to each other, and one whose clients reach it through a proxy."""

import base64
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient

from tests.rig.broker import Broker
from tests.rig.tcp_proxy import TcpProxy, tcp_proxy
from tests.rig.waiting import await_that
from tocsin.declare.setting_blocks import KafkaSettings
from tocsin.dev.servers.kafka_server import Kafka
from tocsin.dev.servers.ports import LOOPBACK, free_ports
from tocsin.setup.java import find_java

NODES = 3
_SECONDS = 90.0


@dataclass(frozen=True)
class _Further(Kafka):
    """A broker with `further` properties: of two lines for one property the last counts."""

    further: str = ""
    cluster: str = ""
    outside: int = 0

    @property
    def client(self) -> KafkaSettings:
        return KafkaSettings(bootstrap_servers=f"{LOOPBACK}:{self.outside or self.port}")

    def _properties(self, data: Path) -> str:
        return f"{super()._properties(data)}{self.further}"

    def _cluster_id(self) -> str:
        return self.cluster or super()._cluster_id()


class BrokerSet:
    """Three brokers, each a controller too; each topic has three replicas, of which two must have a record."""

    def __init__(self, folder: Path) -> None:
        ports = free_ports(2 * NODES)
        self._ports, controllers = ports[:NODES], ports[NODES:]
        voters = ",".join(f"{number}@{LOOPBACK}:{port}" for number, port in enumerate(controllers, 1))
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self.brokers = {}
        for number, (port, controller) in enumerate(zip(self._ports, controllers, strict=True), 1):
            further, own = _REPLICATED.format(number=number, voters=voters), folder / str(number)
            server = _Further(own, own / "kafka.log", port, controller, find_java(), further, cluster)
            self.brokers[number] = Broker(own, server)

    @property
    def kafka(self) -> KafkaSettings:
        """How to reach them: all are named, so that any may be away."""
        return KafkaSettings(bootstrap_servers=",".join(f"{LOOPBACK}:{port}" for port in self._ports))

    def start(self, *numbers: int) -> None:
        """Start `numbers`, or all, and wait until every partition has all its replicas again."""
        for number in numbers or self.brokers:
            self.brokers[number].launch()
        await_that(self._are_whole, _SECONDS, lambda: self.brokers[1].log.read_text()[-3000:])

    def leader(self, topic: str, partition: int) -> int:
        """The broker that leads a partition; 0 if none does."""
        found = AdminClient(self.kafka.for_librdkafka()).list_topics(topic, timeout=30).topics[topic]
        return max(0, found.partitions[partition].leader)

    def kill(self) -> None:
        for broker in self.brokers.values():
            broker.kill()

    def _are_whole(self) -> bool:
        try:
            metadata = AdminClient(self.kafka.for_librdkafka()).list_topics(timeout=2.0)
        except Exception:
            return False
        partitions = [one for topic in metadata.topics.values() for one in topic.partitions.values()]
        return len(metadata.brokers) == NODES and all(len(one.isrs) == len(one.replicas) for one in partitions)


@contextmanager
def broker_behind_proxy(folder: Path) -> Iterator[tuple[Broker, TcpProxy]]:
    """A broker that runs, and the proxy that all its clients are led to, whatever address they begin with."""
    port, controller, outside = free_ports(3)
    further = f"advertised.listeners=PLAINTEXT://{LOOPBACK}:{outside}\n"
    broker = Broker(folder, _Further(folder, folder / "kafka.log", port, controller, find_java(), further, "", outside))
    with tcp_proxy(port, outside) as proxy:
        try:
            broker.start()
            yield broker, proxy
        finally:
            broker.kill()


_REPLICATED = """node.id={number}
controller.quorum.voters={voters}
default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
share.coordinator.state.topic.replication.factor=3
share.coordinator.state.topic.min.isr=2
"""
