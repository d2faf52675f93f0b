"""The topics of an installation: what each must be like, and how missing ones come to be.

Topics are never created by the broker on its own: its defaults lose records (one partition, the producer's clock,
1 MB).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it exports them, but not in mypy's sense
    AdminClient,
    ClusterMetadata,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tocsin.declare.catalog import Catalog
from tocsin.declare.model.errors import ConfigError, TocsinError, TransientError
from tocsin.declare.model.job_kinds import KINDS
from tocsin.declare.model.names import JobName
from tocsin.declare.model.sizes import EVENT_BYTES, FINDING_BYTES, QUARANTINE_BYTES, RAW_BYTES, VIEW_BYTES
from tocsin.declare.settings import Settings
from tocsin.platform.kafka.client import GIVE_RIGHTS, UNAUTHORIZED, refused

FINDINGS_PARTITIONS = 4

QUARANTINE_DAYS = 30

_DAY = 24 * 3600 * 1000
_APPENDED = {"message.timestamp.type": "LogAppendTime"}
_COMPACTED = {"cleanup.policy": "compact"} | _APPENDED
_UNREACHABLE = (
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NOT_CONTROLLER,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.INVALID_REPLICATION_FACTOR,  # while brokers are still registering
)
_NO_LEADER = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    # The client and the broker that it asks do not know of the same election yet.
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.FENCED_LEADER_EPOCH,
)

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class TopicSpec:
    """The requirements on one topic: at least `partitions`, and `config` in Kafka's own words."""

    name: str
    partitions: int
    config: dict[str, str]


@dataclass(frozen=True)
class TopicsReport:
    """The result of `ensure_topics`: a sentence for each topic in `grown`, and for each setting in `differences`."""

    created: tuple[str, ...] = ()
    grown: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()


@dataclass
class _Found:
    created: list[str] = field(default_factory=list)
    grown: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)


def missing_topic(name: str) -> ConfigError:
    """Make the error about a topic that does not exist."""
    return ConfigError.one(name, "does not exist; `tocsin dev up` creates the topics of all sources")


def wanted_topics(settings: Settings, catalog: Catalog) -> dict[str, TopicSpec]:
    """The topics that an installation with the sources and views of `catalog` needs, by name."""
    names = settings.names
    specs = [
        TopicSpec(names.findings, FINDINGS_PARTITIONS, _compacted(days=70) | {"max.message.bytes": str(FINDING_BYTES)}),
        TopicSpec(names.job_metrics, 1, _compacted(days=7) | {"segment.ms": str(_DAY // 24)}),
    ]
    for source in catalog.sources.values():
        specs.append(TopicSpec(names.events(source.name), source.partitions, _log(days=7, longest=EVENT_BYTES)))
        if not source.is_derived:
            specs += [
                TopicSpec(names.raw(source.name), source.partitions, _log(days=7, longest=RAW_BYTES)),
                TopicSpec(names.quarantine(source.name), 1, _log(days=QUARANTINE_DAYS, longest=QUARANTINE_BYTES)),
            ]
    for name, source in catalog.read_findings.items():
        specs.append(TopicSpec(names.events(name), source.partitions, _log(days=7, longest=EVENT_BYTES)))
    for view in catalog.views.values():
        # As many partitions as the events it is made of, the most of several sources; nothing in it
        # is ever too old to be kept.
        partitions = max(source.partitions for source in catalog.sources_of(view))
        specs.append(TopicSpec(names.view(view.name), partitions, _COMPACTED | {"max.message.bytes": str(VIEW_BYTES)}))
    return {spec.name: spec for spec in specs}


def ensure_topics(settings: Settings, catalog: Catalog, *, timeout_seconds: float = 15.0) -> TopicsReport:
    """Create the missing topics of `catalog`, and give partitions to those that have too few.

    Nothing is ever lowered or reconfigured, since whoever runs the broker may have had a reason: what differs is told
    instead. Calling it again is harmless.

    Raises:
        TransientError: Kafka cannot be reached; a retry helps.
        TocsinError: Kafka refuses, for instance because of missing rights; a retry does not help.
    """
    admin = AdminClient(settings.kafka.for_librdkafka())
    specs = wanted_topics(settings, catalog).values()
    found = _Found()
    metadata = _answer(lambda: admin.list_topics(timeout=timeout_seconds))
    existing = {spec.name for spec in specs if spec.name in metadata.topics}
    _create(admin, [spec for spec in specs if spec.name not in existing], timeout_seconds, found)
    _grow(admin, [spec for spec in specs if spec.name in existing], metadata, found)
    _compare(admin, [spec for spec in specs if spec.name in existing], timeout_seconds, found)
    if found.created or found.grown:
        _await_visible(admin, list(specs), timeout_seconds)
    return TopicsReport(tuple(found.created), tuple(found.grown), tuple(found.differences))


def ensure_event_topic(settings: Settings, name: str, partitions: int, *, timeout_seconds: float = 15.0) -> None:
    """Create the topic `name`, if it is missing; it keeps events until it is removed. Raises as `ensure_topics`."""
    admin = AdminClient(settings.kafka.for_librdkafka())
    config = _log(days=1, longest=EVENT_BYTES) | {"retention.ms": "-1"}
    spec = TopicSpec(name, partitions, config)
    found = _Found()
    _create(admin, [spec], timeout_seconds, found)
    if found.created:
        _await_visible(admin, [spec], timeout_seconds)


def remove_topics(settings: Settings, beginning: str, keep: Collection[str] = ()) -> list[str]:
    """Remove the topics whose names begin like this but those to `keep`; returns them. Raises as `ensure_topics`."""
    admin = AdminClient(settings.kafka.for_librdkafka())
    names = _answer(lambda: admin.list_topics(timeout=15.0)).topics
    gone = sorted(name for name in names if name.startswith(beginning) and name not in keep)
    for future in admin.delete_topics(gone).values() if gone else ():
        try:
            _answer(future.result)
        except _Refused as refused:
            if refused.code != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
    return gone


def cluster_id(settings: Settings) -> str:
    """Return the id of the Kafka cluster, whose offsets mean nothing elsewhere. Raises as `ensure_topics`."""
    admin = AdminClient(settings.kafka.for_librdkafka())
    return str(_answer(lambda: admin.list_topics(timeout=15.0)).cluster_id)


def empty_topic(settings: Settings, name: str, ends: Mapping[int, int]) -> None:
    """Remove the records of each partition before the offset in `ends`; the topic stays. Raises as `ensure_topics`."""
    admin = AdminClient(settings.kafka.for_librdkafka())
    for future in admin.delete_records([TopicPartition(name, *place) for place in ends.items()]).values():
        _answer(future.result)


def _log(*, days: int, longest: int) -> dict[str, str]:
    # Append times: retention and clock checks have a clock of ours, and an old import does not vanish at once.
    return {"cleanup.policy": "delete", "retention.ms": str(days * _DAY), "max.message.bytes": str(longest)} | _APPENDED


def _compacted(*, days: int) -> dict[str, str]:
    return _COMPACTED | {"cleanup.policy": "compact,delete", "retention.ms": str(days * _DAY)}


def _create(admin: AdminClient, missing: list[TopicSpec], timeout: float, found: _Found) -> None:
    if not missing:
        return
    # -1: as many replicas as the broker's default.replication.factor says.
    wanted = [NewTopic(s.name, num_partitions=s.partitions, replication_factor=-1, config=s.config) for s in missing]
    for name, future in admin.create_topics(wanted, operation_timeout=timeout).items():
        try:
            _answer(future.result)
            found.created.append(name)
        except _Refused as refused:
            if refused.code != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


def _grow(admin: AdminClient, specs: list[TopicSpec], metadata: ClusterMetadata, found: _Found) -> None:
    have = {spec.name: len(metadata.topics[spec.name].partitions) for spec in specs}
    short = [spec for spec in specs if 0 < have[spec.name] < spec.partitions]
    for spec in specs:
        if have[spec.name] > spec.partitions:
            what = f"{spec.name} has {have[spec.name]} partitions, {spec.partitions} are declared"
            found.differences.append(f"{what}; partitions cannot be removed")
    if not short:
        return
    futures = admin.create_partitions([NewPartitions(spec.name, spec.partitions) for spec in short])
    for spec in short:
        _answer(futures[spec.name].result)
        found.grown.append(f"{spec.name} has grown from {have[spec.name]} to {spec.partitions} partitions")


def _await_visible(admin: AdminClient, specs: list[TopicSpec], timeout: float) -> None:
    """Wait until brokers tell of all partitions, and lead them: both take a moment after they were made."""
    deadline = time.monotonic() + timeout
    while True:
        topics = _answer(lambda: admin.list_topics(timeout=timeout)).topics
        hidden = [s.name for s in specs if s.name not in topics or len(topics[s.name].partitions) < s.partitions]
        hidden = hidden or _leaderless(admin, specs, timeout)
        if not hidden:
            return
        if time.monotonic() > deadline:
            raise TransientError(f"Kafka does not list all partitions of {', '.join(hidden)} yet")
        time.sleep(0.05)


def _leaderless(admin: AdminClient, specs: list[TopicSpec], timeout: float) -> list[str]:
    """List the topics of which a partition cannot be read yet."""
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # confluent_kafka says no types of it
    places = {TopicPartition(spec.name, number): latest for spec in specs for number in range(spec.partitions)}
    found = []
    for place, future in admin.list_offsets(places, request_timeout=timeout).items():
        try:
            _answer(future.result)
        except TransientError:
            found.append(place.topic)
        except _Refused as refused:
            if refused.code not in _NO_LEADER:
                raise
            found.append(place.topic)
    return sorted(set(found))


def _compare(admin: AdminClient, specs: list[TopicSpec], timeout: float, found: _Found) -> None:
    """List the settings of existing topics that are wrong; more room or time than declared is fine."""
    if not specs:
        return
    resources = [ConfigResource(ResourceType.TOPIC, spec.name) for spec in specs]
    futures: dict[ConfigResource, Future[dict[str, ConfigEntry]]]
    futures = admin.describe_configs(resources, request_timeout=timeout)
    configs = {resource.name: _answer(future.result) for resource, future in futures.items()}
    for spec in specs:
        for key, wanted in spec.config.items():
            entry = configs[spec.name].get(key)
            value = entry.value if entry is not None and entry.value is not None else ""
            if not _good_enough(key, value, wanted):
                found.differences.append(f"{spec.name} has {key}={value}, not {wanted}")


def _good_enough(key: str, value: str, wanted: str) -> bool:
    if key in ("retention.ms", "max.message.bytes"):
        return int(value) == -1 or int(value) >= int(wanted)
    if key == "segment.ms":
        return True
    return set(value.split(",")) == set(wanted.split(","))


class _Refused(TocsinError):
    """Kafka answered, and said no."""

    def __init__(self, error: KafkaError) -> None:
        self.code = error.code()
        super().__init__(f"Kafka refuses: {error.str()}")


def _answer(question: Callable[[], _Result]) -> _Result:
    try:
        return question()
    except KafkaException as error:
        cause: KafkaError = error.args[0]
        if cause.retriable() or cause.code() in _UNREACHABLE:
            raise TransientError(f"cannot reach Kafka: {cause.str()}") from error
        raise _Refused(cause) from error


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
