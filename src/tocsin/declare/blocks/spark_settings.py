"""The settings of Spark jobs, and where they run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from tocsin.declare.model.detector import Resources
from tocsin.declare.setting_blocks import LOOPBACK, SettingBlock
from tocsin.declare.validation import LEAST_MEMORY, parse_size

LOCAL = "local"
_STANDALONE = r"spark://[^\s,:/]+:\d+(,[^\s,:/]+:\d+)*"
_MASTER = re.compile(rf"local|yarn|k8s://\S+|{_STANDALONE}")
_SECRET = re.compile(r"secret|password|token|credential|access\.?key", re.IGNORECASE)
_NO_SECRET = re.compile(r"(file|path|enabled)$|^spark\.kubernetes\.(driver|executor)\.secret", re.IGNORECASE)
"""Names of files and switches; those of Kubernetes are the names of Secrets, and where they are mounted."""
_HERE = ("localhost", LOOPBACK)
KUBERNETES = "k8s://"
IMAGES = ("spark.kubernetes.container.image", "spark.kubernetes.executor.container.image")
"""The options that name the image of executors."""


@dataclass(frozen=True)
class Waits:
    """How long a job lets records gather, milliseconds: what waits together costs less than what comes alone.

    Attributes:
        buffer: in the buffers between the tasks of a query.
        fetch: at the broker, before a consumer gets fewer than 64 kB; events wait in the producer instead, once for all
            who read them, and those fetch at once.
        linger: in the producer of anything else.
    """

    buffer: int
    fetch: int
    linger: int

    def consumer(self, gathered: int) -> dict[str, str]:
        """Give the options of Spark's Kafka source for records that have gathered for so many milliseconds."""
        if self.fetch <= gathered:
            return {}
        return {"kafka.fetch.max.wait.ms": str(self.fetch), "kafka.fetch.min.bytes": "65536"}

    def producer(self, *, are_events: bool) -> dict[str, str]:
        """Give the options of Spark's Kafka sink for events, or for others."""
        return {"kafka.linger.ms": str(max(self.fetch, self.linger) if are_events else self.linger)}


LATENCIES = {"10 ms": Waits(1, 0, 2), "100 ms": Waits(20, 50, 20), "1 s": Waits(200, 500, 200)}
"""The time from a raw record to its finding to aim at, with the waits that make it; docs/run/engines.md has figures."""
Latency = Literal["10 ms", "100 ms", "1 s"]


def _master(value: str) -> str:
    if not _MASTER.fullmatch(value):
        raise ValueError(f"must be local, spark://host:port, yarn or k8s://https://host:port, not {value!r}")
    return value


def _bytes(value: object) -> object:
    return value if isinstance(value, int) else parse_size(value)  # a job gets its settings with sizes in bytes


def _conf(options: dict[str, str]) -> dict[str, str]:
    if strange := [key for key in options if not key.startswith("spark.")]:
        raise ValueError(f"names '{strange[0]}'; every option of Spark begins with 'spark.'")
    if secret := [key for key in options if _SECRET.search(key) and not _NO_SECRET.search(key)]:
        raise ValueError(
            f"names '{secret[0]}', which looks like a secret, and would show it on command lines; name a file"
            " that holds it, such as spark.authenticate.secret.file"
        )
    return options


class ResourceSettings(SettingBlock):
    """The executors that each detector and view gets on a cluster; a file may declare its own, `resources={...}`.

    Attributes:
        executors: how many.
        cores: of each: so many tasks run at once. Real-time mode needs one for every task of the job, and a waiting
            task takes no time of a processor.
        memory: heap of each, in bytes, or as text such as "1 GB".
    """

    executors: int = Field(default=2, ge=1, le=1000)
    cores: int = Field(default=4, ge=1, le=1000)
    memory: Annotated[int, BeforeValidator(_bytes)] = Field(default=1_000_000_000, ge=LEAST_MEMORY)

    def with_declared(self, declared: Resources | None) -> ResourceSettings:
        """Return what a file gets that has `declared` some of it, or nothing."""
        own = vars(declared) if declared is not None else {}
        return self.model_copy(update={name: value for name, value in own.items() if value is not None})

    @property
    def slots(self) -> int:
        """Count the tasks that run at once."""
        return self.executors * self.cores

    @property
    def sentence(self) -> str:
        """Say how many that is, and why."""
        cores = f"{self.cores} core{'' if self.cores == 1 else 's'}"
        executors = "1 executor" if self.executors == 1 else f"{self.executors} executors"
        return f"{executors} with {cores} {'has' if self.executors == 1 else 'have'} {self.slots}"


class EngineSettings(SettingBlock):
    """The engines: JVMs that detectors, flows and views share, those that are live and those in shadow apart.

    Attributes:
        enabled: whether they share any. Without it each has a JVM of its own, as on a Spark cluster and on Kubernetes,
            and wherever a file declares `isolation=True`. So do the batches of Airflow.
        jobs: how many share one; for more there are several.
        heap_mb: its JVM heap; 512, and 64 for each of `jobs`, when None.
    """

    enabled: bool = True
    jobs: int = Field(default=25, ge=1, le=200)
    heap_mb: int | None = Field(default=None, ge=512)

    @property
    def most_heap_mb(self) -> int:
        """The heap of an engine that is full."""
        return self.heap_mb or 512 + 64 * self.jobs

    @property
    def most_mb(self) -> int:
        """The memory at which an engine ends itself: its heap, and what it holds besides, as RocksDB's."""
        return self.most_heap_mb + _ENGINE_BESIDES_MB


_ENGINE_BESIDES_MB = 4000
SHARED = {"shuffle_partitions", "latency"}
"""The fields of `SparkSettings` that an engine and its jobs must have in common."""


class SparkSettings(SettingBlock):
    """The options of Spark jobs.

    Attributes:
        master: where the tasks of detectors and views run: `local` in threads of the job, `spark://host:port` (several
            masters with commas), `k8s://...` or `yarn` (untried) on executors of that cluster.
        resources: what each of them gets there.
        driver_host: the name or address at which executors reach the jobs of this machine; unused with `local`. In the
            pods of jobs, the address of the pod.
        conf: further options of Spark for them, such as spark.kubernetes.container.image. None that Tocsin sets.
        latency: the time from a raw record to its finding to aim at, "10 ms", "100 ms" or "1 s": the longer, the less
            CPU a job takes. A detector, flow or view may declare its own, `latency="10 ms"`.
        trigger_seconds: checkpoint cadence of a detector in real-time mode, 5 at least; 60 at most for one that joins
            tables, which it reads once in a batch. Longer is a better p99, and more replay after a crash.
        ingest_trigger_seconds: the same for an ingest or a flow (5 at least). At the end of a batch it counts records,
            and says up to when all is processed: until then the last windows of a topic that falls silent stay open.
        heap_mb: JVM heap of a streaming job.
        memory_mb: the most that a streaming job may hold resident, Python and JVM together: one that takes more is
            restarted. 1500 more than the heap when None, and 150 more for each partition above eight. A detector or
            view may declare its own, `memory="900 MB"`.
        shuffle_partitions: partitions of state; fixed for the life of a checkpoint.
        drain_offsets_per_trigger: records of one micro-batch while a backlog drains.
    """

    master: Annotated[str, AfterValidator(_master)] = LOCAL
    resources: ResourceSettings = ResourceSettings()
    driver_host: str = LOOPBACK
    conf: Annotated[dict[str, str], AfterValidator(_conf)] = Field(default_factory=dict)
    latency: Latency = "100 ms"
    trigger_seconds: int = Field(default=300, ge=5, le=300)
    ingest_trigger_seconds: int = Field(default=60, ge=5, le=300)
    heap_mb: int = Field(default=512, ge=512)
    memory_mb: int | None = Field(default=None, ge=512)
    shuffle_partitions: int = Field(default=1, ge=1, le=64)
    drain_offsets_per_trigger: int = Field(default=200_000, ge=1000)

    def batch_seconds(self, *, joins_tables: bool) -> int:
        """Return the length of a real-time batch of a job."""
        return min(self.trigger_seconds, 60) if joins_tables else self.trigger_seconds

    @property
    def is_on_kubernetes(self) -> bool:
        """Return whether executors are pods."""
        return self.master.startswith(KUBERNETES)

    @property
    def masters(self) -> list[tuple[str, int]]:
        """The hosts and ports of a standalone cluster's masters, or of the API of Kubernetes; none of YARN."""
        if self.is_on_kubernetes:
            address = self.master.removeprefix(KUBERNETES)
            url = urlsplit(address if "://" in address else f"https://{address}")
            return [(url.hostname or "", url.port or (80 if url.scheme == "http" else 443))]
        if not re.fullmatch(_STANDALONE, self.master):
            return []
        addresses = [address.rpartition(":") for address in self.master.removeprefix("spark://").split(",")]
        return [(host, int(port)) for host, _, port in addresses]

    def lack(self, *, is_in_pods: bool) -> str | None:
        """Say what these settings lack for their master; None if nothing, as where jobs are pods, which fill it in."""
        if self.master == LOCAL or is_in_pods:
            return None
        is_here = not self.is_on_kubernetes and self.masters and all(host in _HERE for host, _ in self.masters)
        if not is_here and self.driver_host in _HERE:
            return f"also needs spark.driver_host: executors elsewhere cannot reach {self.driver_host}"
        if self.is_on_kubernetes and not self.conf.keys() & set(IMAGES):
            return f"also needs the image of the executors, '{IMAGES[0]}' in spark.conf"
        return None
