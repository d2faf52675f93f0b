"""The job of the log drain: its server, and its reports."""

from __future__ import annotations

import asyncio

import structlog

from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.declare.model.job_report import JobState
from tocsin.ingest.log_drain.batch_writer import BatchWriter
from tocsin.ingest.log_drain.credentials import Credentials, read_passwords
from tocsin.ingest.log_drain.endpoint import Endpoint
from tocsin.job import Job
from tocsin.platform.http_server import serve_until_stopped
from tocsin.platform.kafka.reporter import Reporter

_REPORT_SECONDS = 2.0


def run(job: Job) -> None:
    """Take lines until SIGTERM; OSError if the port is taken.

    ConfigError if nobody may send, or the files of passwords and TLS are faulty.
    """
    settings = job.settings
    credentials = settings.drain_credentials
    if credentials is None:
        raise ConfigError.one("tocsin.toml", "names no file that says who may send", key="drain.credentials_file")
    known = Credentials(read_passwords(credentials))
    with BatchWriter(settings) as writer:
        endpoint = Endpoint(read_catalog(settings.project), settings.drain, known, writer.store)
        status = _Status(job.reporter, endpoint, writer)
        structlog.get_logger().info("listening", host=settings.drain.host, port=settings.drain.port)
        serve_until_stopped(endpoint, settings.drain, settings.project, status.repeat())
    job.stop.set()


class _Status:
    def __init__(self, reporter: Reporter, endpoint: Endpoint, writer: BatchWriter) -> None:
        self._reporter, self._endpoint, self._writer = reporter, endpoint, writer

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
            self._writer.topics()  # asks a broker
        except TransientError as error:
            return str(error)
        return self._writer.trouble
