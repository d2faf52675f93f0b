"""Serve an ASGI application with uvicorn, with bounds for clients that are slow."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Coroutine
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tocsin.declare.model.errors import ConfigError
from tocsin.declare.setting_blocks import ListenSettings, TlsSettings
from tocsin.declare.settings import Settings

HEADER_SECONDS = 10.0
"""In which the headers of a request must have arrived."""

HEADER_BYTES = 65_536
_CONNECTIONS = 1_000
_IDLE_SECONDS, _STOP_SECONDS = 60, 6


def serve_until_stopped(
    application: Any, settings: Settings, listen: ListenSettings, beside: Coroutine[Any, Any, None]
) -> None:
    """Serve until SIGTERM, while `beside` runs. ConfigError for faulty files for TLS, OSError if the port is taken."""
    try:
        server = uvicorn.Server(_config(application, settings, listen))
        with socket.create_server((listen.host, listen.port), backlog=_CONNECTIONS) as listener:
            # asyncio sets it only where the socket names TCP: an answer in two parts took 44 ms, and takes 1.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            asyncio.run(_serve(server, listener, beside))
    finally:
        beside.close()


async def _serve(server: uvicorn.Server, listener: socket.socket, beside: Coroutine[Any, Any, None]) -> None:
    reports = asyncio.create_task(beside)
    try:
        await server.serve(sockets=[listener])
    finally:
        reports.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reports


def _config(application: Any, settings: Settings, listen: ListenSettings) -> uvicorn.Config:
    tls = settings.tls if settings.has_tls(listen) else TlsSettings()
    files = [file and str(file) for file in (tls.certificate_file, tls.key_file)]
    config = uvicorn.Config(
        application,
        http=_BoundedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=_CONNECTIONS,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=_STOP_SECONDS,
        ssl_certfile=files[0],
        ssl_keyfile=files[1],
    )
    try:
        config.load()
    except OSError as error:
        raise ConfigError.one(str(tls.certificate_file), f"cannot be used: {error}", key="tls") from error
    return config


class _BoundedProtocol(HttpToolsProtocol):
    """Closes connections whose headers are slow to come, or long: uvicorn bounds neither."""

    _timer: asyncio.TimerHandle | None = None
    _length = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_headers()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._length += len(data)
        super().data_received(data)
        if self._timer is not None and self._length > HEADER_BYTES:
            self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_headers()

    def on_headers_complete(self) -> None:
        self._end_headers()
        super().on_headers_complete()

    def _expect_headers(self) -> None:
        if self._timer is None:
            self._length = 0
            self._timer = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _end_headers(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
