"""Look at what there is to rebuild a view from: sealed days, and what Kafka still holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.names import rebuild_job
from tocsin.declare.model.source import Source
from tocsin.declare.model.view import ViewSpec
from tocsin.declare.settings import Settings
from tocsin.history.backfill.backfill_planning import Sealed
from tocsin.history.day_status import published_days, why_not
from tocsin.history.day_versions import DayVersion
from tocsin.history.kafka_reach import KafkaReach, find_reach
from tocsin.history.landing_ledger import read_ledger
from tocsin.history.places import IMPORTED, Places
from tocsin.history.seal_planning import oldest_kept
from tocsin.platform.kafka.reader import TopicReader
from tocsin.platform.kafka.topic_set import Position, place_of
from tocsin.platform.kafka.topics import remove_topics
from tocsin.platform.lead import try_lead
from tocsin.platform.lock import Lock, LockHeld
from tocsin.views.rebuild.rebuild_planning import EventStock, RebuildPlan, is_from_history, plan_rebuild
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
