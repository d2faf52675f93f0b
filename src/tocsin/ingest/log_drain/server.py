"""The job of the log drain: its server, and its reports."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import structlog
from confluent_kafka import KafkaError, Message

from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.declare.model.job_report import JobState
from tocsin.declare.model.sizes import RAW_BYTES, RECORD_OVERHEAD
from tocsin.declare.settings import Settings
from tocsin.ingest.log_drain.batch import BadRequest, Batch
from tocsin.ingest.log_drain.endpoint import Credentials, Endpoint, read_passwords
from tocsin.ingest.parsing_rules import BATCH_HEADER
from tocsin.ingest.producer import KeyOf, key_reader
from tocsin.job import Job
from tocsin.platform.http_server import serve_until_stopped
from tocsin.platform.kafka.record_writer import RecordWriter
from tocsin.platform.kafka.reporter import Reporter

_REPORT_SECONDS = 2.0


def run(job: Job) -> None:
    """Take lines until SIGTERM; OSError if the port is taken.

    ConfigError if nobody may send, or the files of passwords and TLS are faulty.
    """
    settings = job.settings
    credentials = settings.drain.credentials_file
    if credentials is None:
        raise ConfigError.one("tocsin.toml", "names no file that says who may send", key="drain.credentials_file")
    known = Credentials(read_passwords(credentials))
    with BatchWriter(settings) as writer:
        endpoint = Endpoint(read_catalog(settings.project), settings.drain, known, writer.store)
        status = _Status(job.reporter, endpoint, writer)
        structlog.get_logger().info("listening", host=settings.drain.host, port=settings.drain.port)
        serve_until_stopped(endpoint, settings, settings.drain, status.repeat())
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


ACK_SECONDS = 3.0
"""Within which Kafka must have a batch; its client takes up to a second more to say so, and Logplex waits for 5."""

_PAUSE_SECONDS = 0.1


class BatchWriter(RecordWriter):
    """Writes batches from an event loop; use it in a `with` statement.

    `trouble` says why the last batch did not reach Kafka; empty when it did.
    """

    def __init__(self, settings: Settings) -> None:
        # What waits is bounded in bytes by whoever takes requests, so the queue of the client must never be full.
        config = {"linger.ms": 2, "compression.type": "lz4", "queue.buffering.max.messages": 10_000_000}
        super().__init__(settings, RAW_BYTES, timeout_seconds=ACK_SECONDS, config=config)
        self.trouble = ""
        self._names, self._keys = settings.names, dict[str, KeyOf]()
        self._closed = threading.Event()
        threading.Thread(target=self._poll, name="acks", daemon=True).start()

    async def store(self, batch: Batch) -> None:
        """Write `batch` and wait until Kafka has all of it.

        Raises:
            TransientError: it has not, or not all; sending the batch again helps, and repeats do no harm.
            BadRequest: a record is longer than Kafka takes, so none was written, unless only the broker refuses it.
        """
        if not batch.records:
            return
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        outcomes: list[KafkaError | None] = []  # to append is atomic, and callbacks may run in two threads

        def settle() -> None:
            if not done.done():
                done.set_result(None)

        def acknowledge(error: KafkaError | None, message: Message) -> None:
            outcomes.append(error)
            if len(outcomes) >= len(batch.records):
                loop.call_soon_threadsafe(settle)

        topic, place = self._names.raw(batch.source.name), b"%s/%%d" % batch.identity.encode()
        keyed = self._with_keys(batch)
        more: dict[str, Any] = {"on_delivery": acknowledge}
        for index, value, key in keyed:
            if batch.identity:
                more["headers"] = [(BATCH_HEADER, place % index)]
            self._hand_over(topic, value, key, **more)
        await done
        self._judge([error for error in outcomes if error is not None], topic)

    def _with_keys(self, batch: Batch) -> list[tuple[int, bytes, bytes | None]]:
        if batch.source.name not in self._keys:
            self._keys[batch.source.name] = key_reader(batch.source)
        key_of = self._keys[batch.source.name]
        keyed = [(index, value, key_of(value)) for index, value in batch.records]
        # Before the first is on its way: what is refused is not sent again, and those before would look refused.
        for index, value, key in keyed:
            if len(value) + len(key or b"") > RAW_BYTES - RECORD_OVERHEAD:
                raise BadRequest(413, f"record {index + 1} is longer than Kafka takes")
        return keyed

    def _judge(self, errors: list[KafkaError], topic: str) -> None:
        worst = next((error for error in errors if error.code() != KafkaError.MSG_SIZE_TOO_LARGE), None)
        self.trouble = f"Kafka does not take records for {topic}: {worst.str()}" if worst else ""
        if worst:
            raise TransientError(self.trouble)
        if errors:
            raise BadRequest(413, f"a record is longer than Kafka takes: {errors[0].str()}")

    def __exit__(self, *exception: object) -> None:
        self._closed.set()
        self._producer.flush(1.0)

    def _poll(self) -> None:
        while not self._closed.is_set():
            self._producer.poll(_PAUSE_SECONDS)
