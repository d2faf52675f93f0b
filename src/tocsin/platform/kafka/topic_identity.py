"""Tell a topic from a later one of the same name, by the id that Kafka gives each topic when it is created."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection, Uuid
from confluent_kafka.admin import AdminClient

from tocsin.declare.setting_blocks import KafkaSettings
from tocsin.platform.kafka.client import reaching

_NONE = str(Uuid(0, 0))
_Key = TypeVar("_Key", bound=Hashable)


class TopicIds:
    """Asks Kafka for the ids of topics; connects with the first question."""

    def __init__(self, kafka: KafkaSettings, timeout_seconds: float) -> None:
        """Ask nothing yet; Kafka may be away."""
        self._kafka, self._timeout = kafka, timeout_seconds
        self._admin: AdminClient | None = None

    def of(self, names: Collection[str]) -> dict[str, str]:
        """Return the id of each of `names`, without topics that do not exist, or have none: brokers before 2.8.

        Raises a TransientError if Kafka cannot be reached, and a ConfigError if it refuses the principal.
        """
        found: dict[str, str] = {}
        with reaching(self._kafka, ", ".join(names)):
            self._admin = self._admin or AdminClient(self._kafka.for_librdkafka())
            asked = self._admin.describe_topics(TopicCollection([*names]), request_timeout=self._timeout)
            for name, answer in asked.items():
                try:
                    found[name] = str(answer.result().topic_id)
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise
        return {name: topic_id for name, topic_id in found.items() if topic_id != _NONE}


def is_recreated(known: str, current: str, read: Mapping[_Key, int], ends: Mapping[_Key, int]) -> bool:
    """Return whether a topic was deleted and created again since it was read up to the offsets `read`.

    `known` is the id of the topic that was read ("" if nobody noted it), `current` its id now ("" if Kafka gives none),
    and `ends` where its partitions end now.
    """
    has_other_id = bool(known and current) and known != current
    return has_other_id or any(offset > ends.get(partition, 0) for partition, offset in read.items())
