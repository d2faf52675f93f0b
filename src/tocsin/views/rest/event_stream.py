"""Send what changes in a view as server-sent events, until the reader goes or the server stops."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from tocsin.declare.model.errors import TransientError
from tocsin.views.rest.open_views import NoRowsYet, NoSuchName, OpenViews
from tocsin.views.row_query import RowShape

EVENT_STREAM = "text/event-stream"
_LOOK_SECONDS, _ALIVE_SECONDS = 0.1, 15.0
_MOST = 100


@dataclass
class Follower:
    """One reader that follows a view, or its row `key`; it has everything up to `version` of the view."""

    views: OpenViews
    view: str
    key: str | None
    version: int
    has_row: bool = False

    def look(self) -> list[str]:
        """Return what has changed since the last look, as events."""
        try:
            reader = self.views.reader(self.view)
            rows, self.version = reader.changes(self.version, self.key)
            gone = self.has_row and not rows and self.key is not None and reader.get(self.key) is None
        except (NoRowsYet, NoSuchName, TransientError):
            return []
        events = [_event("row", self.version, RowShape.of(row).model_dump_json()) for row in rows]
        self.has_row = not gone and (self.has_row or bool(rows))
        return [*events, _event("removed", self.version, json.dumps({"name": self.key}))] if gone else events


class Followers:
    """All readers that follow; more than 100 at once are refused."""

    def __init__(self) -> None:
        self.count = 0
        self.stopping = False

    def take(self) -> bool:
        """Count one more; False if there are too many."""
        if self.count >= _MOST:
            return False
        self.count += 1
        return True

    async def events(self, follower: Follower) -> AsyncIterator[str]:
        """Give the events of `follower` while there is a server."""
        sent_at = time.monotonic()
        try:
            yield ": following\n\n"
            while not self.stopping:
                events = follower.look()
                for event in events:
                    yield event
                if events:
                    sent_at = time.monotonic()
                elif time.monotonic() - sent_at > _ALIVE_SECONDS:
                    sent_at = time.monotonic()
                    yield ": alive\n\n"
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            self.count -= 1


def _event(name: str, version: int, data: str) -> str:
    return f"id: {version}\nevent: {name}\ndata: {data}\n\n"
