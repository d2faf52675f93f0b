"""Raise one error for all clients when Kafka cannot be reached."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from confluent_kafka import KafkaError, KafkaException

from tocsin.model.errors import TransientError
from tocsin.project.setting_blocks import KafkaSettings


@contextlib.contextmanager
def reaching(kafka: KafkaSettings, topic: str) -> Iterator[None]:
    """Make errors of Kafka's client a TransientError that names brokers and topic."""
    try:
        yield
    except KafkaException as error:
        cause = error.args[0]
        text = cause.str() if isinstance(cause, KafkaError) else str(cause)
        raise TransientError(f"cannot reach Kafka at {kafka.bootstrap_servers} for {topic}: {text}") from error
