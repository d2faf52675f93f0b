"""Read one finished batch out of Spark's progress JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class BatchProgress:
    """One finished batch.

    Attributes:
        batch_id: of the checkpoint.
        run_id: changes with every start of the query.
        rows_in: records read, without ticks where those are counted (see `tocsin.sparkjob.events.count_ticks`).
        rows_out: records written; 0 where the sink does not count.
        dropped_late: rows that stateful operators dropped because of the watermark.
        watermark: in force during the batch, UTC; None without one, and while it stands at its beginning.
        latest_event: the latest event time of the batch, UTC; None without a watermark, or without rows.
        end_offsets: topic to partition to next offset, committed with the batch.
        latest_offsets: ends of the topics as the batch saw them; empty when unknown.
        observed: figures of `observe()`, by the name of the observation and of the column.
    """

    batch_id: int
    run_id: str
    rows_in: int
    rows_out: int
    dropped_late: int
    watermark: datetime | None
    latest_event: datetime | None
    end_offsets: dict[str, dict[int, int]]
    latest_offsets: dict[str, dict[int, int]]
    observed: dict[str, dict[str, Any]]

    def next_watermark(self, delay_seconds: float) -> datetime | None:
        """Compute the watermark of the next batch with this delay: nothing older counts after this batch."""
        reached = None if self.latest_event is None else self.latest_event - timedelta(seconds=delay_seconds)
        return max((moment for moment in (self.watermark, reached) if moment is not None), default=None)


def parse_progress(text: str) -> BatchProgress:
    """Read the progress in the JSON of a `QueryProgressEvent`."""
    event = json.loads(text)
    read = event.get("numInputRows", sum(source.get("numInputRows", 0) for source in event["sources"]))
    ticks = event.get("observedMetrics", {}).get("ticks", {}).get("ticks") or 0
    operators = event.get("stateOperators", [])
    return BatchProgress(
        batch_id=event["batchId"],
        run_id=event["runId"],
        rows_in=max(0, read - ticks),
        rows_out=max(0, event.get("sink", {}).get("numOutputRows") or 0),
        dropped_late=sum(operator.get("numRowsDroppedByWatermark", 0) for operator in operators),
        watermark=_moment(event.get("eventTime", {}).get("watermark")),
        latest_event=_moment(event.get("eventTime", {}).get("max")),
        end_offsets=_offsets(event, "endOffset"),
        latest_offsets=_offsets(event, "latestOffset"),
        observed=event.get("observedMetrics", {}),
    )


def listen(session: SparkSession, take: Callable[[BatchProgress], None]) -> None:
    """Hand the progress of every query of `session` to `take`, on a thread of py4j.

    It goes around PySpark's listener, which fetches an event field by field and looks a class up by its bare name for
    each observation. With 280 archives on the class path that kept a core busy for 100 to 200 ms at the end of each
    batch, just when the next one is planned.
    """
    gateway: Any = session.sparkContext._gateway
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]  # py4j has no types
    wrapper = gateway.jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper
    session.streams._jsqm.addListener(wrapper(_Receiver(take)))


class _Receiver:
    """Spark calls it; an event is a Java object."""

    def __init__(self, take: Callable[[BatchProgress], None]) -> None:
        self._take = take

    # The names of the interface.

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing."""

    def onQueryProgress(self, event: Any) -> None:
        """Take the progress of a finished batch."""
        self._take(parse_progress(event.progress().json()))

    def onQueryIdle(self, event: Any) -> None:
        """Do nothing."""

    def onQueryTerminated(self, event: Any) -> None:
        """Do nothing: whoever runs the query asks it for its exception."""

    class Java:
        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)


def _moment(text: str | None) -> datetime | None:
    moment = datetime.fromisoformat(text) if text else _EPOCH
    return None if moment <= _EPOCH else moment


def _offsets(event: dict[str, Any], key: str) -> dict[str, dict[int, int]]:
    """Read the offsets of all Kafka sources; Spark writes them as JSON, or as JSON in a text."""
    found: dict[str, dict[int, int]] = {}
    for source in event["sources"]:
        offset = source.get(key)
        if not source["description"].startswith("Kafka"):
            continue
        topics = json.loads(offset) if isinstance(offset, str) else offset or {}
        found |= {
            topic: {int(partition): int(end) for partition, end in ends.items()} for topic, ends in topics.items()
        }
    return found
