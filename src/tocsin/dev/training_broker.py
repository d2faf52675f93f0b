"""`python -m tocsin.dev.training_broker FILE`: write the AppCDS archive of Spark's classes. Set-up calls it.

A broker of its own runs meanwhile, so that the archive holds what Spark and the clients of Kafka load when they work.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tocsin.declare.model.errors import TocsinError
from tocsin.declare.model.sizes import EVENT_BYTES
from tocsin.declare.settings import Settings
from tocsin.dev.servers.kafka_server import temporary_broker
from tocsin.platform.kafka.record_writer import RecordWriter
from tocsin.platform.kafka.topics import ensure_event_topic
from tocsin.setup.java import find_java
from tocsin.spark.engine.class_training import make_archive

_SECONDS = 120
_PURPOSE = "class-archive"
_EVENT = b'{"at": "2026-01-01T00:00:00Z", "user": "mallory", "n": 1, "tags": ["a"]}'
_TOPICS = ("events", "findings")


def main(archive: Path) -> int:
    """Write `archive`, which must not exist; returns the exit code."""
    try:
        with tempfile.TemporaryDirectory() as folder, temporary_broker(Path(folder) / "kafka", _PURPOSE) as kafka:
            os.environ["JAVA_HOME"] = str(find_java().home)
            settings = Settings(state=Path(folder) / "state", kafka=kafka)
            _fill(settings)
            make_archive(archive, settings, _TOPICS)
    except TocsinError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _fill(settings: Settings) -> None:
    """Make the topics, and write a few records into the one that is read."""
    for name in _TOPICS:
        ensure_event_topic(settings, name, 2, timeout_seconds=_SECONDS)
    with RecordWriter(settings, EVENT_BYTES, timeout_seconds=_SECONDS) as writer:
        for partition in (0, 0, 1):
            writer.write(_TOPICS[0], _EVENT, partition=partition)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
