"""The floor of the REST answers: `bare_rows.py PORT FILE` looks a row up in SQLite and answers with it as JSON.

No token, no freshness, no ETag, no checks.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn


class Bare:
    """The application."""

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, check_same_thread=False)
        # The index begins with the build.
        (self._build,) = self._connection.execute("SELECT min(build) FROM rows").fetchone()

    async def __call__(
        self, scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        """Answer one request."""
        name = scope["path"].rpartition("/")[2]
        query = 'SELECT name, "values" FROM rows INDEXED BY by_name WHERE build = ? AND name = ? LIMIT 1'
        found = self._connection.execute(query, (self._build, name)).fetchone()
        body = b"" if found is None else json.dumps({"name": found[0], "values": json.loads(found[1])}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 404 if found is None else 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    port, path = sys.argv[1:]
    uvicorn.run(Bare(path), port=int(port), lifespan="off", ws="none", log_level="warning")
