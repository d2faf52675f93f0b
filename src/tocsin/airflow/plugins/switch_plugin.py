"""Tells the supervisor that somebody paused or unpaused a DAG, so that it need not wait for its next minute.

Airflow calls no listener for that; so a middleware of the API server watches the calls that do it. They keep working
when the note cannot be written: then the next minute finds out.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, ClassVar

import structlog
from airflow.plugins_manager import AirflowPlugin

from tocsin.declare.settings import load_settings
from tocsin.supervise.switches import note_turn

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
_TURNS = re.compile(r".*/api/v2/dags(/[^/]+)?")

log = structlog.get_logger()


class SwitchTurned:
    """ASGI middleware that notes each successful change of a DAG, once it is in the metadata DB."""

    def __init__(self, app: Callable[[_Message, _Receive, _Send], Awaitable[None]]) -> None:
        self._app = app
        self._state = load_settings().state

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        """Pass everything on."""
        if scope["type"] != "http" or scope["method"] != "PATCH" or not _TURNS.fullmatch(scope["path"]):
            await self._app(scope, receive, send)
            return
        statuses = []

        async def watched(message: _Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            await send(message)

        await self._app(scope, receive, watched)
        if statuses and statuses[0] < 300:
            try:
                await asyncio.to_thread(note_turn, self._state)
            except OSError:
                log.exception("switch turn not recorded")


class SwitchesPlugin(AirflowPlugin):
    """Adds the middleware to the API server."""

    name = "tocsin_switches"
    fastapi_root_middlewares: ClassVar[list[dict[str, Any]]] = [
        {"name": "switch turned", "middleware": SwitchTurned, "args": [], "kwargs": {}}
    ]
