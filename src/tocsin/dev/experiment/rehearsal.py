"""An installation for an experiment: a view with topics, a group and a folder of its own, all removed at the end."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.names import view_job
from tocsin.declare.setting_blocks import KafkaSettings
from tocsin.declare.settings import Settings
from tocsin.dev.servers.kafka_server import temporary_broker
from tocsin.platform.kafka import probe
from tocsin.platform.kafka.topics import ensure_topics, wanted_topics
from tocsin.views.row_store import RowStore, store_path

VIEW = "rescale"
PARTITIONS = 8
_GROUP_SECONDS = 15.0
_DECLARED = '''"""What an experiment has sent, by number."""
from tocsin import view
@view(source="rescale", key="number", window=None, owner="experiment@localhost", stage="draft")
def view(events):
    return events
'''
_SOURCE = f"""title = "Records of an experiment"
owner = "experiment@localhost"
format = "json"
key = "number"
event_time = "at"
event_time_format = "iso8601"
partitions = {PARTITIONS}

[schema]
at = "timestamp"
number = "string"
"""
# Rows are replaced when they are applied again, so the file alone would not tell that they were.
_COUNTERS = """
CREATE TABLE shown (identity TEXT);
CREATE TRIGGER inserted AFTER INSERT ON rows BEGIN INSERT INTO shown VALUES (NEW.identity); END;
CREATE TRIGGER updated AFTER UPDATE ON rows BEGIN INSERT INTO shown VALUES (NEW.identity); END;
"""
_log = structlog.get_logger()


@contextlib.contextmanager
def kafka_of(settings: Settings, folder: Path) -> Iterator[tuple[KafkaSettings, bool]]:
    """Give the Kafka of the installation if it answers, else a broker that runs meanwhile; and whether it is that one.

    Raises:
        TransientError: neither answers.
    """
    try:
        probe.ask(settings.kafka)
    except TransientError:
        with temporary_broker(folder, "experiment") as kafka:
            yield kafka, True
    else:
        yield settings.kafka, False


@contextlib.contextmanager
def rehearsal(settings: Settings, kafka: KafkaSettings, folder: Path) -> Iterator[Settings]:
    """Make the installation in `folder`; its names on the broker begin with one that nobody else has.

    Raises:
        TransientError: Kafka cannot be reached.
        OSError: the folder cannot be written.
    """
    for file, text in ((f"views/{VIEW}.py", _DECLARED), (f"sources/{VIEW}.toml", _SOURCE)):
        (folder / file).parent.mkdir(parents=True)
        (folder / file).write_text(text, encoding="utf-8")
    own = kafka.model_copy(update={"topic_prefix": f"{kafka.topic_prefix}experiment-{uuid.uuid4().hex[:8]}."})
    made = settings.apart(folder / "state").model_copy(update={"project": folder, "kafka": own})
    try:
        ensure_topics(made, read_catalog(folder))
        path = store_path(made, VIEW)
        RowStore(path).close()
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.executescript(_COUNTERS)
        yield made
    finally:
        _remove(made)


@contextlib.contextmanager
def scratch(settings: Settings) -> Iterator[Path]:
    """Give a folder in the state folder, and remove it at the end.

    Raises:
        OSError: the state folder cannot be written.
    """
    folder = settings.state / "experiments" / uuid.uuid4().hex[:8]
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # another experiment has its folder there
            folder.parent.rmdir()


def _remove(settings: Settings) -> None:
    """Remove topics and group; members that were killed belong to it for some seconds."""
    admin = AdminClient(settings.kafka.for_librdkafka())
    topics = list(wanted_topics(settings, read_catalog(settings.project)))
    for topic, future in admin.delete_topics(topics, operation_timeout=10).items():
        try:
            future.result(_GROUP_SECONDS)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                _log.warning("topic not removed", topic=topic, reason=str(error))
    group, deadline = settings.names.group(view_job(VIEW)), time.monotonic() + _GROUP_SECONDS
    while True:
        try:
            admin.delete_consumer_groups([group])[group].result(_GROUP_SECONDS)
            return
        except KafkaException as error:
            if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return
            if time.monotonic() > deadline:
                _log.warning("group not removed", group=group, reason=str(error))
                return
            time.sleep(0.5)
