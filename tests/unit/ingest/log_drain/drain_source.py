"""Sources that lines are drained into, and who may."""

import base64
from typing import Any

from tocsin.declare.model.source import Format, Source


def basic(text: str) -> bytes:
    """The header of a user and password, `user:password`."""
    return b"Basic " + base64.b64encode(text.encode())


def source(*formats: Format, **fields: Any) -> Source:
    known: dict[str, Any] = {"name": "router", "title": "t", "owner": "a@b", "key": "k", "event_time": "syslog_time"}
    columns = {"syslog_time": "timestamp", "k": "string"}
    return Source(formats=formats or (Format.LOGFMT,), columns=columns, **known | fields)
