"""The settings of Spark jobs."""

from __future__ import annotations

from pydantic import Field

from tocsin.project.setting_blocks import SettingBlock


class SparkSettings(SettingBlock):
    """The options of Spark jobs.

    Attributes:
        trigger_seconds: checkpoint cadence of a detector in real-time mode, 5 at least. Longer is a better p99, and
            more replay after a crash.
        ingest_trigger_seconds: the same for an ingest (5 at least).
        heap_mb: JVM heap of a streaming job.
        memory_mb: the most that a streaming job may hold resident, Python and JVM together: one that takes more is
            restarted. 1500 more than the heap when None, and 150 more for each partition above eight. A detector or
            view may declare its own, `memory="900 MB"`.
        shuffle_partitions: partitions of state; fixed for the life of a checkpoint.
        drain_offsets_per_trigger: records of one micro-batch while a backlog drains.
        archive: whether to use an AppCDS archive of Spark's classes, made by set-up.
    """

    trigger_seconds: int = Field(default=60, ge=5, le=300)
    ingest_trigger_seconds: int = Field(default=15, ge=5, le=300)
    heap_mb: int = Field(default=512, ge=512)
    memory_mb: int | None = Field(default=None, ge=512)
    shuffle_partitions: int = Field(default=1, ge=1, le=64)
    drain_offsets_per_trigger: int = Field(default=200_000, ge=1000)
    archive: bool = True
