"""Look at what there is to rebuild a view from: sealed days, and what Kafka still holds."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.names import rebuild_job
from tocsin.declare.model.source import Source
from tocsin.declare.model.view import ViewSpec
from tocsin.declare.settings import Settings
from tocsin.history.backfill.backfill_planning import Sealed, inputs, reason_blocked
from tocsin.history.day_status import published_days, why_not
from tocsin.history.day_versions import DayVersion
from tocsin.history.kafka_reach import KafkaReach, find_reach
from tocsin.history.landing_ledger import read_ledger
from tocsin.history.places import IMPORTED, Places, begin, end
from tocsin.history.seal_planning import oldest_kept
from tocsin.platform.kafka.reader import TopicReader
from tocsin.platform.kafka.topic_set import Position, place_of
from tocsin.platform.kafka.topics import remove_topics
from tocsin.platform.lock import Lock, LockHeld, try_lead
from tocsin.views.rebuild.rebuild_request import is_requested, log_refusal, read_draft, remove_draft, request_rebuild


@dataclass(frozen=True)
class RebuildLook:
    """A view as declared, and what it would be rebuilt from now.

    `sealed` are the readable days of its source. The stream has to read its part from `offsets` on; these are empty if
    history computes nothing.
    """

    spec: ViewSpec
    source: Source
    plan: RebuildPlan
    sealed: Mapping[date, DayVersion]
    offsets: Position

    @property
    def rows(self) -> dict[date, int]:
        """Count the events of each day that history computes."""
        return {day: self.sealed[day].facts.rows for day in self.plan.days}


def look_at(settings: Settings, name: str) -> RebuildLook:
    """Look at the view `name`.

    Raises:
        ConfigError: there is no such view, or its file is broken; a retry does not help.
        BrokenLedger: an entry of the ledger of landing cannot be read.
        TransientError: Kafka, a topic or the catalogue of history is missing; a retry helps.
    """
    catalog = read_catalog(settings.project)
    spec = catalog.view(name)
    source = catalog.source(spec.sources[0])
    is_windowed = spec.computed.window is not None
    recent = [] if is_windowed else [table for table in spec.tables if catalog.table(table).history is not None]
    sealed = published_days(settings, source) if is_from_history(spec) and not recent else {}
    with TopicReader(settings, rebuild_job(name), settings.names.events(source.name)) as topic:
        reach = find_reach(topic, source, read_ledger(Places.of(settings, source.name))) if sealed else KafkaReach()
        plan = plan_rebuild(spec, _stock(settings, source, sealed, reach))
        if recent:
            plan = RebuildPlan(why_none=f"the rows of table '{recent[0]}' of older days are not known to its job")
        starts = {} if plan.since is None else topic.since(plan.since - source.max_ahead)
    if plan.days:
        _check_topic(settings, name)
    offsets = {place_of(topic.name, p): max(reach.first.get(p, 0), at) for p, at in starts.items()}
    return RebuildLook(spec, source, plan, sealed, offsets)


def lock_rebuild(settings: Settings, name: str) -> Lock:
    """Let nobody else rebuild the view `name`; LockHeld while somebody does, and a retry helps once that has ended."""
    try:
        return try_lead(settings, settings.checkpoint(rebuild_job(name)) / "lock")
    except LockHeld as error:
        error.args = (f"{name} is being rebuilt already: {error}",)
        raise


def rebuild_by_kafka(settings: Settings, name: str) -> None:
    """Let the view `name` be computed anew by Kafka alone; a build that was being drafted from history is given up.

    Raises:
        LockHeld: see `lock_rebuild`.
        OSError: the state folder cannot be written.
        TransientError: Kafka cannot be reached; a retry helps.
    """
    with lock_rebuild(settings, name):
        give_up(settings, name)
        request_rebuild(settings.state, name)


def give_up(settings: Settings, name: str) -> None:
    """Forget the draft of the view `name`; its rows go when the next build takes over. TransientError without Kafka."""
    draft = read_draft(settings.state, name)
    if draft is not None and not is_requested(settings.state, name, draft):  # else the job of the view reads them
        with log_refusal():
            remove_topics(settings, settings.names.rebuild(name, draft.build))
    remove_draft(settings.state, name)


def _stock(settings: Settings, source: Source, sealed: Mapping[date, DayVersion], reach: KafkaReach) -> EventStock:
    return EventStock(
        sealed=Sealed(
            versions={day: version.version for day, version in sealed.items()},
            why_not=why_not(settings, source),
        ),
        imported={day for day, version in sealed.items() if any(run.startswith(IMPORTED) for run in version.runs)},
        kept_from=oldest_kept(datetime.now(UTC), timedelta(days=source.history_days)).date(),
        kafka_since=reach.since,
        now=datetime.now(UTC),
    )


def _check_topic(settings: Settings, name: str) -> None:
    with TopicReader(settings, rebuild_job(name), settings.names.view(name)) as rows:
        if not rows.partitions():
            raise TransientError(f"topic {rows.name} does not exist yet; it comes with the first start of the jobs")


SEVERAL = "days of history are of one source, and it reads several. What Kafka no longer has is not in it"
_DAY = timedelta(days=1)


@dataclass(frozen=True)
class RebuildPlan:
    """The parts of a rebuild.

    Attributes:
        days: that history computes, in order, each with the versions of the days that it is made of.
        since: windows that start from then on, or events without windows, are the stream's, UTC; None if all are, so
            that history computes nothing.
    """

    days: Mapping[date, str] = field(default_factory=dict)
    since: datetime | None = None
    lacking: Mapping[date, str] = field(default_factory=dict)
    why_none: str = ""


@dataclass(frozen=True)
class EventStock:
    """The events of a source that there are.

    Attributes:
        imported: those of them with events that never were in Kafka.
        kafka_since: Kafka holds all events of then and later, UTC; None if it holds all that it ever had.
    """

    sealed: Sealed
    imported: Collection[date]
    kept_from: date
    kafka_since: datetime | None
    now: datetime


def plan_rebuild(spec: ViewSpec, stock: EventStock) -> RebuildPlan:
    """Plan the rebuild of the view `spec`, as declared."""
    if not is_from_history(spec):
        return RebuildPlan(why_none=SEVERAL)
    wanted = first_day(spec, stock.kept_from, stock.now)
    readable = [day for day in sorted(stock.sealed.versions) if day >= wanted]
    if not readable:
        return RebuildPlan(why_none="no day that it needs is sealed and published")
    first, kafka = begin(readable[0]), stock.kafka_since
    needed = [end(day) for day in readable if day in stock.imported]
    needed += [kafka] if kafka is not None and kafka > first else []
    if not needed:
        return RebuildPlan(why_none="Kafka still holds all events of the days that are sealed")
    since = _boundary(spec, stock, max(needed))
    own = [first.date() + _DAY * n for n in range(-(-(since - first) // _DAY))]
    cut = [day for day in own if end(day) > since or not _can_compute(spec, stock, day)]
    lacking = {day: _why(spec, stock, day, since) for day in cut}
    days = {day: "+".join(stock.sealed.versions[it] for it in inputs(day, spec)) for day in own if day not in lacking}
    if not days:
        return RebuildPlan(why_none=f"no day can be computed whole: {first.date()} {lacking[first.date()]}")
    return RebuildPlan(days, since, lacking)


def is_from_history(spec: ViewSpec) -> bool:
    """Return whether days of history can be read for the view, as declared: they are of one source."""
    return len(spec.sources) == 1


def first_day(spec: ViewSpec, kept_from: date, now: datetime) -> date:
    """Find the first day with rows that the view keeps: a window goes `keep` after its end."""
    length = spec.computed.window
    if spec.keep is None or length is None:
        return kept_from
    return max(kept_from, (now - spec.keep - length).date())


def _boundary(spec: ViewSpec, stock: EventStock, since: datetime) -> datetime:
    """Move `since`, from which on Kafka has all, as far as sealed days reach without a break."""
    while _can_compute(spec, stock, since.date()):
        since = end(since.date())
    return since


def _can_compute(spec: ViewSpec, stock: EventStock, day: date) -> bool:
    return stock.sealed.versions.keys() >= {*inputs(day, spec)}


def _why(spec: ViewSpec, stock: EventStock, day: date, since: datetime) -> str:
    why = reason_blocked(day, spec, stock.sealed)
    return why if end(day) <= since else f"Kafka has it from {since:%H:%M:%S} UTC on only, and it {why}"
