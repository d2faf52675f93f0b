"""Lines into a raw topic: one record per line, keyed so that the lines of one user stay in one partition."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from confluent_kafka import KafkaError, Message

from tocsin.declare.model.sizes import RAW_BYTES
from tocsin.declare.model.source import Format, Source, numbered_groups
from tocsin.declare.settings import Settings
from tocsin.ingest.line_forms import field_at, logfmt_reader
from tocsin.platform.kafka.record_writer import RecordWriter
from tocsin.platform.kafka.topics import missing_topic

_BATCH_BYTES = 1_000_000

KeyOf = Callable[[bytes], bytes | None]


class LineProducer(RecordWriter):
    """Sends lines to `raw.<source>`. Use it in a `with` statement, which flushes at the end."""

    def __init__(self, settings: Settings, source: Source, *, timeout_seconds: float = 60.0) -> None:
        """Connect; TransientError, where a retry helps, if Kafka is away; ConfigError if the topic does not exist."""
        config = {"linger.ms": 5, "compression.type": "lz4", "batch.size": _BATCH_BYTES}
        super().__init__(settings, RAW_BYTES, timeout_seconds=timeout_seconds, config=config)
        self._topic, self._key_of = settings.names.raw(source.name), key_reader(source)
        if not self.has_topic(self._topic):
            raise missing_topic(self._topic)

    def send(self, line: bytes) -> None:
        """Hand over one line (without line end); see `write`. A line longer than 2 MiB is counted as refused."""
        self.write(self._topic, line, self._key_of(line))

    def _count(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and error.code() == KafkaError.MSG_SIZE_TOO_LARGE:  # the broker's limit is lower
            self._refuse(error)
        else:
            super()._count(error, message)


def key_reader(source: Source) -> KeyOf:
    """Make a function from a line of `source` to its key: the text of the key column, None where it cannot be read.

    The key only keeps one user's records in one partition and in order. None is no fault: the record goes to any
    partition, and the ingest job judges it.
    """
    plain = column_groups(source, source.key)
    may_be_json = Format.JSON in source.formats
    of_logfmt = logfmt_reader(source.field_of(source.key)) if Format.LOGFMT in source.formats else None

    def key_of(line: bytes) -> bytes | None:
        if may_be_json and (source.formats == (Format.JSON,) or line.lstrip()[:1] == b"{"):
            return _json_key(line, source)
        line = line.strip(b" \t\r\n")
        if of_logfmt is not None:
            return of_logfmt(line)
        matches = ((pattern.search(line), group) for pattern, group in plain)
        key = next((match.group(group) if group else None for match, group in matches if match), None)
        return (key or b"").strip() or None

    return key_of


def column_groups(source: Source, column: str) -> list[tuple[re.Pattern[bytes], int]]:
    """List the patterns of a line that is no JSON and no logfmt, and which of their groups is `column`; 0 for none.

    Those from the first one on that only Java can read are left out.
    """
    if Format.KEY_VALUE in source.formats:
        pair, colon = re.escape(source.pair_separator), re.escape(source.key_separator.rstrip())
        text = rf"(?:\A\s*|{pair}){re.escape(source.field_of(column))}{colon}(.*?)(?:{pair}|\Z)"
        return [(re.compile(text.encode(), re.DOTALL), 1)]
    found = []
    for pattern in source.patterns:
        plain, groups = numbered_groups(pattern)
        try:
            found.append((re.compile(rf"\A(?:{plain})\Z".encode()), groups.get(column, 0)))
        except re.error:  # a later pattern would read lines that are for this one
            break
    return found


def _json_key(line: bytes, source: Source) -> bytes | None:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    path = source.field_of(source.key)
    value = field_at(fields, path, match_case=source.match_case) if isinstance(fields, dict) else None
    if value is None or isinstance(value, dict | list):
        return None
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode("utf-8", "replace") or None
