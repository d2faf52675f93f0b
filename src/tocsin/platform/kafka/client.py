"""Raise one error for all clients when Kafka cannot be reached, and one when it refuses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from confluent_kafka import KafkaError, KafkaException

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
