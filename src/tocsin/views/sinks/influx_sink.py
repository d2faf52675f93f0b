"""Keep a view in InfluxDB, by its line protocol: the table is the measurement, the key its tags, the values its fields.

The time of a point is the start of its window, else when the row was appended to the topic of the view: a point that is
written again takes the place of itself, so the offsets need not be remembered there. A new process writes all rows.
Without windows the points of a key are its history, which goes with its row.
"""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode, urlsplit, urlunsplit

import structlog

from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.declare.model.view import ViewSpec
from tocsin.platform.kafka.reader import Offsets
from tocsin.views.sinks.sink import SinkBatch, chunks
from tocsin.views.stored_row import StoredRow, micros

_SECONDS = 10.0
_CHUNK, _REMOVALS = 5_000, 200
_LONG = 2**63
_SPECIAL = str.maketrans({",": "\\,", " ": "\\ ", "=": "\\=", "\n": "\\n"})
_FIRST, _LAST = datetime(1700, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
_MOMENT = "%Y-%m-%dT%H:%M:%S.%fZ"
_log = structlog.get_logger()


class InfluxSink:
    """One view in one database or bucket; see `tocsin.views.sinks.sink.Sink`."""

    def __init__(self, address: str, consumer: str, spec: ViewSpec) -> None:
        """Write to an address such as `http://user:password@host:8086/write?db=name`; see `Sink`.

        In version 2 it is `http://:token@host:8086/api/v2/write?org=name&bucket=name`.
        """
        del consumer
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname or not parts.path.endswith("/write"):
            what = "is no address of an InfluxDB: http://host:8086/write?db=..., or .../api/v2/write?org=...&bucket=..."
            raise ConfigError.one("views.influx", what)
        self.refused = 0
        self._measurement = spec.table
        self._offsets: Offsets | None = None
        login, parts = parts, parts._replace(netloc=parts.netloc.rpartition("@")[2])
        self._is_second = parts.path.endswith("/api/v2/write")
        removal = "delete" if self._is_second else "query"
        self._url = urlunsplit(parts)
        self._removal_url = urlunsplit(parts._replace(path=f"{parts.path.removesuffix('write')}{removal}"))
        self._headers: dict[str, str] = {}
        if login.password and self._is_second:
            self._headers["Authorization"] = f"Token {login.password}"
        elif login.password:
            pair = base64.b64encode(f"{login.username}:{login.password}".encode()).decode()
            self._headers["Authorization"] = f"Basic {pair}"

    def offsets(self) -> Offsets | None:
        """See `Sink`: none before this process has filled it."""
        return self._offsets

    def apply(self, batch: SinkBatch) -> None:
        """See `Sink`."""
        self._remove(batch.removed)
        self._write(batch.rows)
        self._offsets = dict(batch.offsets)

    def replace(self, rows: Iterable[StoredRow], gone: Iterable[StoredRow], offsets: Offsets) -> None:
        """See `Sink`."""
        for chunk in chunks(rows, _CHUNK):
            self._write(chunk)
        for chunk in chunks(gone, _REMOVALS):
            self._remove(chunk)
        self._offsets = dict(offsets)

    def close(self) -> None:
        """See `Sink`."""

    def _write(self, rows: Sequence[StoredRow]) -> None:
        lines = [line for row in rows if (line := self._line(row)) is not None]
        if lines:
            self._post(lines, self._write_request)

    def _remove(self, rows: Sequence[StoredRow]) -> None:
        if self._is_second:  # it takes one at a time
            for row in rows:
                self._post([json.dumps(self._predicate(row))], self._delete_request)
        elif rows:
            self._post([self._statement(row) for row in rows], self._query_request)

    def _write_request(self, lines: Sequence[str]) -> urllib.request.Request:
        headers = self._headers | {"Content-Type": "text/plain; charset=utf-8"}
        return urllib.request.Request(self._url, "\n".join(lines).encode(), headers)

    def _query_request(self, statements: Sequence[str]) -> urllib.request.Request:
        return urllib.request.Request(self._removal_url, urlencode({"q": ";".join(statements)}).encode(), self._headers)

    def _delete_request(self, predicates: Sequence[str]) -> urllib.request.Request:
        headers = self._headers | {"Content-Type": "application/json"}
        return urllib.request.Request(self._removal_url, "".join(predicates).encode(), headers)

    def _post(self, lines: Sequence[str], request: Callable[[Sequence[str]], urllib.request.Request]) -> None:
        """Send `lines` together; if the server refuses one, each for itself, without those that it refuses."""
        try:
            with urllib.request.urlopen(request(lines), timeout=_SECONDS) as answer:
                found = json.loads(answer.read() or "{}")  # a removal ends when its reader goes
        except urllib.error.HTTPError as error:
            with error:
                text = error.read(500).decode(errors="replace").strip()
            if error.code not in (400, 413, 422):
                raise TransientError(f"InfluxDB answers {error.code}: {text}") from error
        except (OSError, ValueError) as error:
            raise TransientError(f"InfluxDB: {error}") from error
        else:
            faults = [result["error"] for result in found.get("results", ()) if "error" in result]
            if not faults:
                return
            text = faults[0]
        if len(lines) > 1:
            middle = len(lines) // 2
            self._post(lines[:middle], request)
            self._post(lines[middle:], request)
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
        at = micros(row.window_start or row.appended_at) * 1_000  # nanoseconds
        return f"{_name(self._measurement)}{head} {body} {at}"

    def _statement(self, row: StoredRow) -> str:
        """Write the removal of a row in the language of version 1."""
        found = [f"{_identifier(name)} = {_literal(_plain(value))}" for name, value in row.key.items()]
        if row.window_start is not None:
            found.append(f"time = {micros(row.window_start) * 1_000}")
        return f"DELETE FROM {_identifier(self._measurement)} WHERE {' AND '.join(found)}"

    def _predicate(self, row: StoredRow) -> dict[str, str]:
        """Write the removal of a row as version 2 takes it."""
        start, end = row.window_start or _FIRST, row.window_start or _LAST
        tags = {"_measurement": self._measurement} | {name: _plain(value) for name, value in row.key.items()}
        wanted = " AND ".join(f"{_identifier(name)}={_identifier(_tag_text(text))}" for name, text in tags.items())
        return {"start": f"{start:{_MOMENT}}", "stop": f"{end:{_MOMENT}}", "predicate": wanted}


def _name(text: str) -> str:
    """Write a tag or a name. A backslash at its end would hide what follows, so a blank is put behind it."""
    return (f"{text} " if text.endswith("\\") else text).translate(_SPECIAL)


def _tag_text(text: str) -> str:
    """Return the text that the server keeps of a tag that was written by `_name`."""
    return (f"{text} " if text.endswith("\\") else text).replace("\n", "\\n")


def _literal(text: str) -> str:
    return "'" + _tag_text(text).replace("\\", "\\\\").replace("'", "\\'") + "'"


def _identifier(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _plain(value: Any) -> str:
    """Write a value of the key as text; its language takes no NUL, and the sign for it stands in its place."""
    return json.dumps(value) if isinstance(value, bool) else str(value).replace("\0", "\u2400")


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
