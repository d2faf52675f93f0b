"""A raw record that ends the query of its ingest, put into quarantine beside Spark."""

from __future__ import annotations

import base64
import hashlib
import json
from datetime import UTC, datetime

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tocsin.ingest.parsing_rules import Reason, rule_parts, rules_version
from tocsin.kafka.tail import read_one
from tocsin.model.errors import TransientError
from tocsin.model.sizes import KEPT_BYTES, KEPT_KEY_BYTES, QUARANTINE_BYTES
from tocsin.model.source import Source
from tocsin.project.settings import Settings
from tocsin.quality.suites.suite_catalog import read_row_rules


def quarantine(settings: Settings, source: Source, partition: int, offset: int, error: str) -> None:
    """Write the raw record of `source` at this place to quarantine, without its headers. `error` is told with it.

    Nothing where the raw topic does not have it any more. A repetition makes a second record of the same origin.

    Raises:
        ConfigError: what is expected of the source's events has faults; a retry does not help.
        TransientError: Kafka cannot be reached; a retry helps.
    """
    message = read_one(settings, settings.names.raw(source.name), partition, offset)
    if message is None:
        return
    written = _record(message, source, rule_parts(source, read_row_rules(settings.project, source)), error)
    config = {"enable.idempotence": True, "message.max.bytes": QUARANTINE_BYTES, "message.timeout.ms": 30_000}
    producer = Producer(settings.kafka.for_librdkafka() | config | {"log_level": 0})
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        failed.extend([] if error is None else [error])

    topic, key = settings.names.quarantine(source.name), f"{message.topic()}/{partition}/{offset}"
    try:
        producer.produce(topic, json.dumps(written).encode(), key=key, on_delivery=delivered)
    except KafkaException as refused:
        raise TransientError(f"cannot write to {topic}: {refused.args[0].str()}") from refused
    if producer.flush(30.0) or failed:
        raise TransientError(f"cannot write to {topic}: {failed[0].str() if failed else 'Kafka does not answer'}")


def _record(message: Message, source: Source, parts: dict[str, str], error: str) -> dict[str, object]:
    """The fields of `tocsin.ingest.quarantined_record.QuarantinedRecord`, and `error`."""
    appended = datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC)
    headers = message.headers() or []
    place = {"topic": message.topic(), "partition": message.partition(), "offset": message.offset()}
    return {
        **_part("payload", message.value(), KEPT_BYTES),
        **_part("raw_key", message.key(), KEPT_KEY_BYTES),
        "reasons": [Reason.SET_ASIDE],
        "error": error,
        "origin": place | {"timestamp": appended.strftime("%Y-%m-%dT%H:%M:%S.%fZ")},
        "source": source.name,
        "schema_version": source.schema_version,
        "rules_version": rules_version(parts),
        "rules": parts,
        "headers_count": len(headers),
    }


def _part(name: str, value: bytes | None, kept: int) -> dict[str, object]:
    """The beginning of `value`, its length and its digest; nothing of None."""
    if value is None:
        return {}
    beginning = base64.b64encode(value[:kept]).decode()
    return {name: beginning, f"{name}_length": len(value), f"{name}_sha256": hashlib.sha256(value).hexdigest()}
