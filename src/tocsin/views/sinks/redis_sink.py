"""Keep a view in Redis: one hash for each row, or the hashes that the view itself names.

A view without windows whose key is ("hash", "field") with the one value "value" is written as `HSET hash field value`.
Any other has a hash for each row, `<table>:<key>` or `<table>:<key>:<start of its window>`, with a field for each value
that is not null, and `final` if it has windows. One script applies a batch and remembers its offsets, so Redis has both
or none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import redis
from pydantic_core import to_json

from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.declare.model.view import ViewSpec
from tocsin.platform.kafka.reader import Offsets
from tocsin.views.sinks.sink import IN_A_PASSWORD, SinkBatch, SinkLost, chunks
from tocsin.views.stored_row import StoredRow

_SECONDS = 5.0
_CHUNK = 500
_FIELDS = 200
# Words: what to do (P: put a whole hash, F: put a field, D: delete a hash, R: remove a field), the key, how many more
# words, and these. Nothing is done unless the offsets are those of the last batch. They come as one JSON array: the
# client takes eight times as long to send each by itself. Lua takes some thousand arguments at most.
_SCRIPT = """
local known = redis.call('GET', KEYS[1])
if ARGV[1] ~= '*' and (known or '') ~= ARGV[1] then return 0 end
local words, at = cjson.decode(ARGV[3]), 1
while at <= #words do
  local verb, key, count = words[at], words[at + 1], words[at + 2]
  if verb == 'P' or verb == 'D' then redis.call('DEL', key) end
  if verb == 'R' then redis.call('HDEL', key, words[at + 3]) end
  if verb == 'P' or verb == 'F' then
    local last = at + 2 + count
    for word = at + 3, last, MANY do redis.call('HSET', key, unpack(words, word, math.min(word + MANY - 1, last))) end
  end
  at = at + 3 + count
end
if ARGV[2] ~= '' then redis.call('SET', KEYS[1], ARGV[2]) else redis.call('DEL', KEYS[1]) end
return 1
""".replace("MANY", str(2 * _FIELDS))


class RedisSink:
    """One view in one Redis; see `tocsin.views.sinks.sink.Sink`."""

    def __init__(self, address: str, consumer: str, spec: ViewSpec) -> None:
        """Write to an address such as redis://127.0.0.1:6379/0; `consumer` is the key of the offsets. See `Sink`."""
        self.refused = 0
        self._consumer, self._table = consumer, spec.table
        self._names_hashes = spec.key == ("hash", "field") and spec.window is None
        self._expected = ""
        options: dict[str, Any] = {"socket_timeout": _SECONDS, "socket_connect_timeout": _SECONDS}
        try:
            self._client = redis.Redis.from_url(address, **options)
        except ValueError:  # which may repeat a part of the password
            what = "is no address of a Redis, such as redis://:password@host:6379/0"
            raise ConfigError.one("views.redis", f"{what}; {IN_A_PASSWORD}") from None
        self._script = self._client.register_script(_SCRIPT)

    def offsets(self) -> Offsets | None:
        """See `Sink`."""
        with _translate_errors():
            found: Any = self._client.get(self._consumer)
        self._expected = "" if found is None else found.decode()
        return (
            {int(partition): offset for partition, offset in json.loads(self._expected).items()}
            if self._expected
            else None
        )

    def apply(self, batch: SinkBatch) -> None:
        """See `Sink`."""
        self._run([*self._removals(batch.removed), *self._puts(batch.rows)], _text(batch.offsets), self._expected)

    def replace(self, rows: Iterable[StoredRow], gone: Iterable[StoredRow], offsets: Offsets) -> None:
        """See `Sink`. In chunks: until the last one, which remembers the offsets, readers see rows of both."""
        for chunk in chunks(gone, _CHUNK):
            self._run(self._removals(chunk), "", "*")
        for chunk in chunks(rows, _CHUNK):
            self._run(self._puts(chunk), "", "*")
        self._run([], _text(offsets), "*")

    def close(self) -> None:
        """See `Sink`."""
        self._client.close()

    def _run(self, words: list[str | int], offsets: str, expected: str) -> None:
        with _translate_errors():
            done = self._script(keys=[self._consumer], args=[expected, offsets, to_json(words)])
        if not done:
            raise SinkLost("Redis does not have the offsets of the last batch")
        self._expected = offsets

    def _puts(self, rows: Iterable[StoredRow]) -> list[str | int]:
        words: list[str | int] = []
        for row in rows:
            if self._is_field(row):
                words += ["F", str(row.key["hash"]), 2, str(row.key["field"]), _to_text(row.values["value"])]
            else:
                fields = [word for name, value in _fields(row) for word in (name, value)]
                words += ["P", self._key(row), len(fields), *fields]
        return words

    def _removals(self, rows: Iterable[StoredRow]) -> list[str | int]:
        words: list[str | int] = []
        for row in rows:
            if self._is_field(row):
                words += ["R", str(row.key["hash"]), 1, str(row.key["field"])]
            else:
                words += ["D", self._key(row), 0]
        return words

    def _is_field(self, row: StoredRow) -> bool:
        return self._names_hashes and row.values.keys() == {"value"}

    def _key(self, row: StoredRow) -> str:
        window = "" if row.window_start is None else f":{row.window_start:%Y-%m-%dT%H:%M:%S.%fZ}".replace(".000000", "")
        return f"{self._table}:{row.name}{window}"


def _fields(row: StoredRow) -> Iterator[tuple[str, str]]:
    for name, value in row.values.items():
        if value is not None:
            yield name, _to_text(value)
    if row.window_start is not None:
        yield "final", _to_text(row.is_final)


def _to_text(value: Any) -> str:
    """Write a value as text: numbers as JSON does, texts as they are, null as nothing."""
    if value is None:
        return ""
    return value if isinstance(value, str) else to_json(value).decode()


def _text(offsets: Offsets) -> str:
    return json.dumps(dict(sorted(offsets.items())))


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except (redis.RedisError, OSError) as error:
        raise TransientError(f"Redis: {error}") from error
