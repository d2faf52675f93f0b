"""Lines into a raw topic: one record per line, keyed so that the lines of one user stay in one partition."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from types import TracebackType

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tocsin.model.errors import ConfigError, TransientError
from tocsin.model.sizes import RAW_BYTES
from tocsin.model.source import Format, Source, numbered_groups
from tocsin.project.settings import Settings

_BATCH_BYTES = 1_000_000

KeyOf = Callable[[bytes], bytes | None]


class LineProducer:
    """Sends lines to `raw.<source>`. Use it in a `with` statement, which flushes at the end.

    Attributes:
        sent: lines handed over.
        delivered: lines that Kafka has stored.
        refused: lines that Kafka will never take (longer than 2 MiB); they are gone.
        failed: lines that could not be delivered in time.
        error: what the first failed or refused line ran into; None when none did.
    """

    def __init__(self, settings: Settings, source: Source, *, timeout_seconds: float = 60.0) -> None:
        """Connect.

        Raises:
            TransientError: Kafka cannot be reached; a retry helps.
            ConfigError: the topic does not exist; `tocsin dev up` creates it.
        """
        self._topic, self._key_of, self._timeout = settings.names.raw(source.name), key_reader(source), timeout_seconds
        self.sent = self.delivered = self.refused = self.failed = 0
        self.error: str | None = None
        config = {
            "linger.ms": 5,
            "compression.type": "lz4",
            "enable.idempotence": True,
            "message.max.bytes": RAW_BYTES,
            "batch.size": _BATCH_BYTES,
            "message.timeout.ms": int(timeout_seconds * 1000),
        }
        self._producer = Producer(settings.kafka.for_librdkafka() | config)
        self._find_topic()

    def send(self, line: bytes) -> None:
        """Hand over one line (without line end); waits while too many are under way.

        Raises:
            TransientError: Kafka has not taken anything for `timeout_seconds`; a retry helps.
        """
        deadline = time.monotonic() + self._timeout
        key = self._key_of(line)
        while True:
            try:
                self._producer.produce(self._topic, value=line, key=key, on_delivery=self._delivered)
                break
            except BufferError:
                if time.monotonic() > deadline:
                    raise TransientError(f"Kafka takes no lines for {self._topic}") from None
                self._producer.poll(0.1)
            except KafkaException as error:
                self.refused += 1
                self.error = self.error or error.args[0].str()
                break
        self.sent += 1
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait until every line is delivered.

        Raises:
            TransientError: lines were lost on the way; `failed` says how many, sending them again helps.
        """
        left = self._producer.flush(self._timeout)
        self.failed += left
        if self.failed:
            lost = f"{self.failed} of {self.sent} lines did not reach {self._topic}"
            raise TransientError(f"{lost}: {self.error or 'Kafka does not answer'}")

    def __enter__(self) -> LineProducer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.flush()
        else:
            self._producer.flush(2.0)

    def _find_topic(self) -> None:
        try:
            topics = self._producer.list_topics(timeout=10.0).topics
        except KafkaException as error:
            raise TransientError(f"cannot reach Kafka: {error.args[0].str()}") from error
        if self._topic not in topics:
            raise ConfigError.one(self._topic, "does not exist; `tocsin dev up` creates the topics of all sources")

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.delivered += 1
        elif error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            self.refused += 1
            self.error = self.error or error.str()
        else:
            self.failed += 1
            self.error = self.error or error.str()


def key_reader(source: Source) -> KeyOf:
    """Make a function from a line of `source` to its key: the text of the key column, None where it cannot be read.

    A None is no fault: the record goes to any partition, and the ingest job judges it. The key is cheap to read, and
    only keeps the records of one user in one partition and in order.
    """
    plain = _pattern(source)
    group = numbered_groups(source.pattern)[1].get(source.key, 0) if source.pattern else 1
    may_be_json = Format.JSON in source.formats

    def key_of(line: bytes) -> bytes | None:
        if may_be_json and (plain is None or line.lstrip()[:1] == b"{"):
            return _json_key(line, source.key)
        match = plain.search(line) if plain is not None else None
        key = match.group(group) if match and group else None
        return (key or b"").strip() or None

    return key_of


def _pattern(source: Source) -> re.Pattern[bytes] | None:
    if Format.KEY_VALUE in source.formats:
        pair, colon = re.escape(source.pair_separator), re.escape(source.key_separator.rstrip())
        text = rf"(?:\A\s*|{pair}){re.escape(source.key)}{colon}(.*?)(?:{pair}|\Z)"
        return re.compile(text.encode(), re.DOTALL)
    if Format.REGEX not in source.formats:
        return None
    try:
        return re.compile(rf"\A(?:{numbered_groups(source.pattern or '')[0]})\Z".encode())
    except re.error:  # good Java, but no Python: no key then
        return None


def _json_key(line: bytes, column: str) -> bytes | None:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    value = fields.get(column) if isinstance(fields, dict) else None
    if value is None or isinstance(value, dict | list):
        return None
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode("utf-8", "replace") or None
