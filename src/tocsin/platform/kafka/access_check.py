"""Find out what a job may not do on Kafka before it begins: it would fail later, or wait for ever."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.job_kinds import KINDS
from tocsin.declare.model.names import JobName
from tocsin.declare.settings import Settings
from tocsin.platform.kafka.client import GIVE_RIGHTS, UNAUTHORIZED, refused

_SECONDS = 10.0


def check_access(settings: Settings, job: str, reads: Iterable[str] = (), writes: Iterable[str] = ()) -> None:
    """Return when the principal of `settings` may do on topics what `job` needs; nothing is asked without a login.

    `reads` and `writes` come beside the topic of reports and those of a job without Spark. Topics that do not exist are
    left out: the job says itself that it waits for them. So are topics whose rights the broker does not report.

    Raises:
        ConfigError: Kafka refuses the login, or rights are missing; names them all.
        TransientError: Kafka cannot be reached; a retry helps.
    """
    own = JobName.parse(job)
    kind = KINDS.get(own.kind)
    if kind is None or not settings.kafka.security_protocol.startswith("SASL"):
        return
    names = settings.names
    needed = {("Read", name) for name in (*reads, *kind.reads(names, own.name), names.job_metrics)}
    needed |= {("Write", name) for name in (*writes, *kind.writes(names, own.name), names.job_metrics)}
    allowed = _allowed(settings, {name for _, name in needed})
    missing = [
        f"{operation} on topic {name}"
        for operation, name in sorted(needed)
        if operation.upper() not in allowed.get(name, {"READ", "WRITE"})
    ]
    if missing:
        raise refused(settings.kafka, f"lacks {', '.join(missing)}, which {job} needs; {GIVE_RIGHTS}")


def _allowed(settings: Settings, topics: set[str]) -> dict[str, set[str]]:
    seen: list[KafkaError] = []
    admin = AdminClient(settings.kafka.for_librdkafka() | {"error_cb": seen.append})
    futures: dict[str, Future[Any]] = admin.describe_topics(
        TopicCollection(sorted(topics)), include_authorized_operations=True, request_timeout=_SECONDS
    )
    deadline = time.monotonic() + _SECONDS
    while not all(future.done() for future in futures.values()) and time.monotonic() < deadline:
        admin.poll(0.1)  # gives a refused login, which the futures tell as a broker that is away
        for error in seen:
            if error.code() == KafkaError._AUTHENTICATION:
                what = f"cannot log in: {error.str()}; look at sasl_username, sasl_password_file and the broker's users"
                raise refused(settings.kafka, what)
    found: dict[str, set[str]] = {}
    for name, future in futures.items():
        try:
            described = future.result(timeout=0.1)
            if described.authorized_operations is not None:
                found[name] = {operation.name for operation in described.authorized_operations}
        except KafkaException as error:
            if error.args[0].code() in UNAUTHORIZED:
                found[name] = set()
            elif error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise TransientError(f"cannot reach Kafka: {error.args[0].str()}") from error
        except TimeoutError as error:
            raise TransientError(f"Kafka at {settings.kafka.bootstrap_servers} does not answer") from error
    return found
