"""Read one batch: a finished one out of Spark's progress, one that has begun out of its checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from tocsin.declare.model.durations import EPOCH
from tocsin.platform.kafka.topic_set import Position, position_of
from tocsin.platform.storage.stored_path import StoredPath


@dataclass(frozen=True, kw_only=True)
class BatchProgress:
    """One finished batch.

    Attributes:
        run_id: changes with every start of the query.
        rows_in: records read, without ticks where those are counted (see `tocsin.spark.events.count_ticks`).
        rows_out: records written; 0 where the sink does not count.
        dropped_late: rows that stateful operators dropped because of the watermark.
        watermark: in force during the batch, UTC; None without one, and while it stands at its beginning.
        latest_event: the latest event time of the batch, UTC; None without a watermark, without rows, and where several
            sources are read: their watermark is that of the slowest.
        end_offsets: next offset of each place, committed with the batch.
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
    end_offsets: Position
    latest_offsets: Position
    observed: dict[str, dict[str, Any]]

    def next_watermark(self, delay_seconds: float) -> datetime | None:
        """Compute the watermark of the next batch with this delay: nothing older counts after this batch."""
        reached = None if self.latest_event is None else self.latest_event - timedelta(seconds=delay_seconds)
        return max((moment for moment in (self.watermark, reached) if moment is not None), default=None)


def parse_progress(text: str) -> BatchProgress:
    """Read the progress in the JSON of a `QueryProgressEvent`."""
    event = json.loads(text)
    read = event.get("numInputRows", sum(source.get("numInputRows", 0) for source in event["sources"]))
    observed = event.get("observedMetrics", {})
    ticks = sum(figures.get("ticks") or 0 for name, figures in observed.items() if name.partition(":")[0] == "ticks")
    operators = event.get("stateOperators", [])
    sources = [source for source in event["sources"] if source["description"].startswith("Kafka")]
    return BatchProgress(
        batch_id=event["batchId"],
        run_id=event["runId"],
        rows_in=max(0, read - ticks),
        rows_out=max(0, event.get("sink", {}).get("numOutputRows") or 0),
        dropped_late=sum(operator.get("numRowsDroppedByWatermark", 0) for operator in operators),
        watermark=_moment(event.get("eventTime", {}).get("watermark")),
        latest_event=_moment(event.get("eventTime", {}).get("max")) if len(sources) == 1 else None,
        end_offsets=_offsets(sources, "endOffset"),
        latest_offsets=_offsets(sources, "latestOffset"),
        observed=observed,
    )


def batches_in(folder: StoredPath) -> set[int]:
    """List the batches of which there is a file in `folder`, "offsets" or "commits" of a checkpoint."""
    return {int(path.name) for path in folder.glob("[0-9]*") if path.name.isdigit()}


def offsets_of(query: StoredPath, batch: int) -> Position:
    """Read the next offset of each place after `batch`, which the checkpoint `query` says has begun."""
    offsets: Position = {}
    for source in _begun(query, batch)[2:]:  # one line for each; a topic that two read counts as far as both have
        if source.startswith("{"):
            for place, offset in position_of(json.loads(source)).items():
                offsets[place] = min(offset, offsets.get(place, offset))
    return offsets


def watermark_of(query: StoredPath, batch: int) -> datetime | None:
    """Read the watermark of `batch`, UTC: it emits the windows that ended by then; None without one or without a batch.

    Spark writes it before the batch begins, and runs a batch that did not end again with the same one.
    """
    written = _begun(query, batch)
    millis = json.loads(written[1]).get("batchWatermarkMs", 0) if written else 0
    return EPOCH + timedelta(milliseconds=millis) if millis > 0 else None


def _begun(query: StoredPath, batch: int) -> list[str]:
    """Read the lines that are written before `batch` begins; none before that."""
    path = query / "offsets" / str(batch)
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


@dataclass(frozen=True)
class Ended:
    """The run `run_id` has ended: no progress of it follows."""

    run_id: str


def listen(session: SparkSession, take: Callable[[BatchProgress | Ended], None]) -> None:
    """Hand the progress of every query of `session`, and at last its end, to `take`, on a thread of py4j.

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

    def __init__(self, take: Callable[[BatchProgress | Ended], None]) -> None:
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
        """Take the end; whoever runs the query asks it for its exception."""
        self._take(Ended(event.runId().toString()))

    class Java:
        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)


def _moment(text: str | None) -> datetime | None:
    moment = datetime.fromisoformat(text) if text else EPOCH
    return None if moment <= EPOCH else moment


def _offsets(sources: list[dict[str, Any]], key: str) -> Position:
    """Read the offsets of all Kafka sources; Spark writes them as JSON, or as JSON in a text.

    A topic that two of them read counts as far as both have.
    """
    found: Position = {}
    for source in sources:
        offset = source.get(key)
        for place, end in position_of(json.loads(offset) if isinstance(offset, str) else offset or {}).items():
            found[place] = min(end, found.get(place, end))
    return found
