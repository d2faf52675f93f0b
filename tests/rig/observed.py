"""What an installation under test has written, whoever runs its jobs."""

from __future__ import annotations

import json
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition

from tests.rig.load import EMAIL, URGENT
from tests.rig.waiting import patient
from tocsin.declare.model.job_report import JobReport
from tocsin.declare.model.names import detector_job, ingest_job
from tocsin.declare.settings import Settings

SOURCE, DETECTOR = "logins", "failed_logins"
INGEST, DETECT = ingest_job(SOURCE), detector_job(DETECTOR)


class Observed(ABC):
    """One installation, seen from outside."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @abstractmethod
    def message_ids(self) -> list[str]:
        """The ids of all mails that its mail server got."""

    def read(self, topic: str) -> list[Message]:
        """All records that `topic` holds now."""
        config = {"group.id": f"reader-{os.getpid()}", "enable.auto.commit": False, "log_level": 0}
        consumer = Consumer(self.settings.kafka.for_librdkafka() | config)
        try:
            return list(_all_of(consumer, topic))
        finally:
            consumer.close()

    def values(self, topic: str) -> list[dict[str, Any]]:
        """All JSON values that `topic` holds now."""
        return [json.loads(message.value() or b"{}") for message in self.read(topic)]

    def reports(self, job: str) -> list[JobReport]:
        """Every report of `job` that job-metrics still holds, in order."""
        mine = [m for m in self.read(self.settings.names.job_metrics) if m.key() == job.encode()]
        return [JobReport.model_validate_json(message.value() or b"") for message in mine]


def low_limits(project: Path) -> None:
    """Give the detector of the checkout the limits of the load."""
    detector = project / "detectors" / f"{DETECTOR}.py"
    text, replaced = re.subn(r"email=\d+, urgent=\d+", f"email={EMAIL}, urgent={URGENT}", detector.read_text())
    assert replaced == 1, "the detector has other limits than this expects"
    detector.write_text(text)


def _all_of(consumer: Consumer, topic: str) -> Iterator[Message]:
    found = consumer.list_topics(topic, timeout=60).topics[topic]
    ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=60)[1] for p in found.partitions}
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in ends])
    begun = time.monotonic()
    while any(_position(consumer, topic, partition) < end for partition, end in ends.items()):
        assert time.monotonic() - begun < patient(60), f"{topic} cannot be read to its end"
        for message in consumer.consume(5_000, timeout=0.2):
            assert message.error() is None, message.error()
            yield message


def _position(consumer: Consumer, topic: str, partition: int) -> int:
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=60)
    position: int = consumer.position([TopicPartition(topic, partition)])[0].offset
    return high if low == high else position
