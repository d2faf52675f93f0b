"""Raise one error for all clients when Kafka cannot be reached, and one when it refuses."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Hashable, Iterator, Mapping
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection, Uuid
from confluent_kafka.admin import AdminClient

from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.declare.setting_blocks import KafkaSettings

UNAUTHORIZED = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)

GIVE_RIGHTS = "give it the rights of its role (docs/run/kafka-security.md)"


@contextlib.contextmanager
def reaching(kafka: KafkaSettings, topic: str) -> Iterator[None]:
    """Turn errors of Kafka's client into a ConfigError if it refuses the principal, else into a TransientError."""
    try:
        yield
    except KafkaException as error:
        cause = error.args[0]
        if isinstance(cause, KafkaError) and cause.code() in UNAUTHORIZED:
            raise refused(kafka, f"has no right to use {topic} ({cause.name()}); {GIVE_RIGHTS}") from error
        text = cause.str() if isinstance(cause, KafkaError) else str(cause)
        raise TransientError(f"cannot reach Kafka at {kafka.bootstrap_servers} for {topic}: {text}") from error


def refused(kafka: KafkaSettings, what: str) -> ConfigError:
    """Make the error that says what Kafka refuses to the principal of `kafka`."""
    principal = f"User:{kafka.sasl_username}" if kafka.sasl_username else "the client"
    return ConfigError.one(f"Kafka at {kafka.bootstrap_servers}", f"{principal} {what}")


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
