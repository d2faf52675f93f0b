"""What an installation under test has written, whoever runs its jobs."""

import json
import re
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from confluent_kafka import Message

from tests.rig.load import EMAIL, URGENT
from tests.rig.waiting import patient
from tocsin.declare.model.job_report import JobReport
from tocsin.declare.model.names import detector_job, ingest_job
from tocsin.declare.settings import Settings
from tocsin.platform.kafka.reader import TopicReader

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
        return read_all(self.settings, topic)

    def values(self, topic: str) -> list[dict[str, Any]]:
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


def read_all(settings: Settings, topic: str) -> list[Message]:
    """All records of `topic`, up to its end at the time of the call."""
    with TopicReader(settings, "tests", topic, timeout_seconds=patient(60)) as reader:
        return list(reader.read(*reader.bounds()))
