"""Finish what the version of a flow that ran last had begun, so that one version alone makes what is made of an event.

A version that ends in the middle of a batch has written events of it, and the next one reads that batch again. What
both write has the same identity and counts once; what one of them alone writes, at other positions, would count too. So
all that the last version may have read since its last commit is made once more by its own code, and left out by this.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta

import structlog
from py4j.protocol import Py4JJavaError
from pydantic import BaseModel, Field
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from tocsin.declare.declaration import read_flow
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.flow import FlowSpec
from tocsin.declare.model.job_report import JobState
from tocsin.declare.settings import Settings
from tocsin.platform import state_file
from tocsin.platform.code_versions import kept_file, kept_versions
from tocsin.platform.failures import in_a_line
from tocsin.platform.kafka.topic_set import Position, as_json, partition_of
from tocsin.platform.storage.job_folders import stored_folder
from tocsin.platform.storage.stored_path import modified_at
from tocsin.spark.declared_function import DeclaredFunction
from tocsin.spark.query.poison import Read
from tocsin.spark.query.work import Run
from tocsin.spark.session import read_topics

_FILE = "begins.json"
_LATE = timedelta(seconds=15)
"""A batch takes so much longer than it is meant to; what hangs for longer is ended."""

Write = Callable[[DeclaredFunction, Read], None]

log = structlog.get_logger()


class Begin(BaseModel, frozen=True):
    """The place where a version begins; events before `offsets` were made by a version before."""

    version: str = ""
    offsets: Position = Field(default_factory=dict)


def begin_version(run: Run, spec: FlowSpec, committed: Position, write: Write) -> Position:
    """Finish what another version had begun; returns the offsets before which `spec` leaves out what it reads again.

    `run` is of the job, which alone writes the checkpoint by now; `committed` is empty before the first batch.

    Raises:
        TransientError: Kafka cannot be reached; a retry helps.
        OSError: the state folder cannot be written.
    """
    note = stored_folder(run.settings, run.job) / _FILE
    if not committed:  # it begins with the first event, also where the topic was made anew
        note.unlink(missing_ok=True)
        return {}
    begin = state_file.read(note, Begin, Begin())
    last = max(kept_versions(run.settings, run.job), key=lambda version: version.last_at, default=None)
    if last is not None and last.version != spec.version:
        own = begin.offsets if begin.version == last.version else {}
        starts = {place: max(offset, own.get(place, 0)) for place, offset in committed.items()}
        begin = Begin(version=spec.version, offsets=_finish(run, spec, last.version, starts, write))
        state_file.write(note, Begin, begin)
    mine = begin.offsets if begin.version == spec.version else {}
    return {place: offset for place, offset in mine.items() if offset > committed.get(place, 0)}


def forget_topics(settings: Settings, job: str, topics: Collection[str]) -> None:
    """Leave out nothing of recreated `topics`: what a version before has made was of the former ones.

    OSError if the state folder cannot be written.
    """
    note = stored_folder(settings, job) / _FILE
    begin = state_file.read(note, Begin, Begin())
    left = {place: offset for place, offset in begin.offsets.items() if partition_of(place)[0] not in topics}
    if left != begin.offsets:
        state_file.write(note, Begin, begin.model_copy(update={"offsets": left}))


def _finish(run: Run, spec: FlowSpec, version: str, starts: Position, write: Write) -> Position:
    """Let `version` make what it may have read from `starts` on; returns up to where that was, or could be, done."""
    first, ends = run.topics.bounds()
    starts = {place: max(offset, starts.get(place, 0)) for place, offset in first.items()}
    read = _read_by(run, ends)
    ends = {place: max(starts[place], min(end, read[place])) for place, end in ends.items()}
    if ends == starts:
        return starts
    log.info("finishing the batch of another version", version=version, starts=starts, ends=ends)
    run.reporter.update(state=JobState.WAITING, reason=f"finishes what version {version} had begun")
    path = kept_file(run.settings, run.job, version)
    try:
        last = read_flow(path)
        if ({*last.sources}, last.to, last.tables) != ({*spec.sources}, spec.to, spec.tables):
            raise ConfigError.one(path, f"reads, joins or writes something else than {spec.path}")
        write(DeclaredFunction(path, "flow"), _between(run, starts, ends))
    except (ConfigError, FileNotFoundError, PySparkException, Py4JJavaError) as error:
        run.topics.bounds()  # if Kafka is away, the other version is not to blame
        log.warning("not finished by its version", version=version, error=in_a_line(error))
        return starts
    return ends


def _between(run: Run, starts: Position, ends: Position) -> Read:
    def read(topics: Sequence[str]) -> DataFrame:
        both = [
            {p: offset for p, offset in offsets.items() if partition_of(p)[0] in topics} for offsets in (starts, ends)
        ]
        options = {"startingOffsets": as_json(both[0]), "endingOffsets": as_json(both[1]), "includeHeaders": "true"}
        return read_topics(run.spark.read, run.settings, run.job, topics, **options)

    return read


def _read_by(run: Run, ends: Position) -> Position:
    """Return offsets that the last process of the job cannot have read: `ends`, if it was there a moment ago."""
    commits = (stored_folder(run.settings, run.job) / "query" / "commits").glob("[0-9]*")
    last = max((modified_at(path) for path in commits), default=datetime.now(UTC).timestamp())
    moment = datetime.fromtimestamp(last, UTC)
    moment += timedelta(seconds=run.settings.spark.ingest_trigger_seconds) + _LATE
    return ends if moment > datetime.now(UTC) else run.topics.since(moment)
