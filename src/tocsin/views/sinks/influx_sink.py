"""Keep a view in InfluxDB, by its line protocol: the table is the measurement, the key its tags, the values its fields.

The time of a point is the start of its window, else when the row was appended to the topic of the view: a point that is
written again takes the place of itself, so the offsets need not be remembered there. A new process writes all rows.
Nothing is removed: that is the business of the retention of the database.
"""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import structlog

from tocsin.kafka.reader import Offsets
from tocsin.model.errors import ConfigError, TransientError
from tocsin.views.sinks.sink import SinkBatch
from tocsin.views.stored_row import StoredRow, micros

_SECONDS = 10.0
_CHUNK = 5_000
_LONG = 2**63
_SPECIAL = str.maketrans({",": "\\,", " ": "\\ ", "=": "\\=", "\n": "\\n"})
_log = structlog.get_logger()


class InfluxSink:
    """One view in one database or bucket; see `tocsin.views.sinks.sink.Sink`."""

    def __init__(self, address: str, table: str) -> None:
        """Describe the sink; nothing is opened yet.

        Args:
            address: to write to: `http://user:password@host:8086/write?db=name`, or of version 2
                `http://:token@host:8086/api/v2/write?org=name&bucket=name`.
            table: the measurement.

        Raises:
            ConfigError: the address is none.
        """
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname or not parts.path.endswith("/write"):
            what = "is no address of an InfluxDB: http://host:8086/write?db=..., or .../api/v2/write?org=...&bucket=..."
            raise ConfigError.one("views.influx", what)
        self.refused = 0
        self._measurement = table
        self._held: Offsets | None = None
        self._url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        self._headers = {"Content-Type": "text/plain; charset=utf-8"}
        if parts.password and parts.path.endswith("/api/v2/write"):
            self._headers["Authorization"] = f"Token {parts.password}"
        elif parts.password:
            login = base64.b64encode(f"{parts.username}:{parts.password}".encode()).decode()
            self._headers["Authorization"] = f"Basic {login}"

    def offsets(self) -> Offsets | None:
        """See `Sink`: none before this process has filled it."""
        return self._held

    def apply(self, batch: SinkBatch) -> None:
        """See `Sink`."""
        self._write(batch.rows)
        self._held = dict(batch.offsets)

    def replace(self, rows: Iterable[StoredRow], gone: Iterable[StoredRow], offsets: Offsets) -> None:
        """See `Sink`. Points of rows that are gone stay."""
        del gone
        chunk: list[StoredRow] = []
        for row in rows:
            chunk.append(row)
            if len(chunk) == _CHUNK:
                self._write(chunk)
                chunk = []
        self._write(chunk)
        self._held = dict(offsets)

    def close(self) -> None:
        """See `Sink`."""

    def _write(self, rows: Sequence[StoredRow]) -> None:
        lines = [line for row in rows if (line := self._line(row)) is not None]
        if lines:
            self._post(lines)

    def _post(self, lines: Sequence[str]) -> None:
        """Write `lines` together; if the server refuses one, each for itself, without those that it refuses."""
        request = urllib.request.Request(self._url, "\n".join(lines).encode(), self._headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS):
                return
        except urllib.error.HTTPError as error:
            with error:
                text = error.read(500).decode(errors="replace").strip()
            if error.code not in (400, 413, 422):
                raise TransientError(f"InfluxDB answers {error.code}: {text}") from error
        except OSError as error:
            raise TransientError(f"InfluxDB: {error}") from error
        if len(lines) > 1:
            middle = len(lines) // 2
            self._post(lines[:middle])
            self._post(lines[middle:])
        else:
            self.refused += 1
            _log.warning("row left out of InfluxDB", row=lines[0][:100], reason=text[:300])

    def _line(self, row: StoredRow) -> str | None:
        """Write a row as a line; None if all its values are null, which InfluxDB cannot hold."""
        tags = {name: _plain(value) for name, value in row.key.items()}
        fields = {name: _field(value) for name, value in row.values.items() if value is not None}
        if not fields:
            return None
        if row.window_start is not None:
            fields["final"] = _field(row.is_final)
        head = "".join(f",{_name(name)}={_name(text)}" for name, text in sorted(tags.items()) if text)
        body = ",".join(f"{_name(name)}={text}" for name, text in fields.items())
        at = micros(row.window_start or row.appended_at) * 1_000
        return f"{_name(self._measurement)}{head} {body} {at}"


def _name(text: str) -> str:
    """Write a tag or a name. A backslash at its end would hide what follows, so a blank is put behind it."""
    return (f"{text} " if text.endswith("\\") else text).translate(_SPECIAL)


def _plain(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)


def _field(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and -_LONG <= value < _LONG:
        return f"{value}i"
    if isinstance(value, int | float):
        return repr(float(value))
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
