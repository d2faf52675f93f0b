"""The server of the log drain: uvicorn, with bounds for clients that are slow, and the reports of the job."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Any

import structlog
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tocsin.kafka import probe
from tocsin.kafka.reporter import Reporter
from tocsin.log_drain.batch_writer import BatchWriter
from tocsin.log_drain.credentials import Credentials, read_passwords
from tocsin.log_drain.endpoint import Endpoint
from tocsin.model.errors import ConfigError, TransientError
from tocsin.model.job_report import JobState
from tocsin.project.catalog import read_catalog
from tocsin.project.setting_blocks import DrainSettings, KafkaSettings
from tocsin.project.settings import Settings

HEADER_SECONDS = 10.0
"""In which the headers of a request must have arrived."""

HEADER_BYTES = 65_536
_CONNECTIONS = 1_000
_IDLE_SECONDS, _STOP_SECONDS, _REPORT_SECONDS = 60, 6, 2.0


def serve(settings: Settings, reporter: Reporter, stop: threading.Event) -> None:
    """Take lines until SIGTERM.

    Raises:
        ConfigError: nobody may send, or the files of passwords and TLS are faulty.
        OSError: the port is taken.
    """
    credentials = settings.drain_credentials
    if credentials is None:
        raise ConfigError.one("tocsin.toml", "names no file that says who may send", key="drain.credentials_file")
    known = Credentials(read_passwords(credentials))
    with BatchWriter(settings) as writer:
        endpoint = Endpoint(read_catalog(settings.project), settings.drain, known, writer.store)
        config = _config(endpoint, settings)
        with socket.create_server((settings.drain.host, settings.drain.port), backlog=_CONNECTIONS) as listener:
            structlog.get_logger().info("listening", host=settings.drain.host, port=settings.drain.port)
            asyncio.run(_serve(uvicorn.Server(config), listener, _Status(settings.kafka, reporter, endpoint, writer)))
    stop.set()


class _Status:
    """Reports the state of the job."""

    def __init__(self, kafka: KafkaSettings, reporter: Reporter, endpoint: Endpoint, writer: BatchWriter) -> None:
        self._kafka, self._reporter, self._endpoint, self._writer = kafka, reporter, endpoint, writer

    async def repeat(self) -> None:
        while True:
            trouble = await asyncio.to_thread(self._trouble)
            counts = self._endpoint.counts
            self._reporter.update(
                state=JobState.WAITING if trouble else JobState.RUNNING,
                reason=trouble,
                rows_in=counts["lines"] + counts["left_out"],
                rows_out=counts["lines"],
                counts={name: float(count) for name, count in counts.items()},
            )
            await asyncio.sleep(_REPORT_SECONDS)

    def _trouble(self) -> str:
        try:
            probe.ask(self._kafka)
        except TransientError as error:
            return str(error)
        return self._writer.trouble


async def _serve(server: uvicorn.Server, listener: socket.socket, told: _Status) -> None:
    reports = asyncio.create_task(told.repeat())
    try:
        await server.serve(sockets=[listener])
    finally:
        reports.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reports


def _config(endpoint: Endpoint, settings: Settings) -> uvicorn.Config:
    drain: DrainSettings = settings.drain
    files = [
        None if file is None else str(settings.project / file) for file in (drain.certificate_file, drain.key_file)
    ]
    config = uvicorn.Config(
        endpoint,
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
        raise ConfigError.one(str(drain.certificate_file), f"cannot be used: {error}", key="drain") from error
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
