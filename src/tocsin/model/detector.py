"""The contract of a detector: one file, `detectors/<name>.py`; the file name is its identity.

A detector is a pure function from events to scored windows, with a literal decorator in front of it::

    @detector(source="logins", entity="user_id", window="10 seconds", levels=Levels(email=50, urgent=100),
              owner="security@example.com", runbook="docs/runbooks/failed_logins.md", stage="live")
    def detect(events: DataFrame) -> DataFrame:
        failures = events.where("action = 'login failed'")
        return failures.groupBy("window", "user_id").agg(F.count("*").alias("score"))

What `detect` receives: the declared columns of the source, `event_time` (timestamp, UTC), `ingested_at`, and `window`
(struct of start and end) unless `window=None`. Duplicates are gone, the watermark is set.

What `detect` returns: the entity columns, `window` (unless `window=None`), `score` (a number; higher is more
anomalous), and if it likes `event_time_max` (timestamp), `evidence` (up to 10 samples) and further columns, which
become the context of the finding.
Rows whose entity or score is null are counted and left out.

The declaration is read with `ast` (see `tocsin.project.declaration`); nothing imports a detector to learn about it.
Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_Detect = TypeVar("_Detect", bound=Callable[..., Any])


class Stage(StrEnum):
    """The stage of a detector between its first draft and its end.

    draft never runs; shadow runs, stores findings and notifies nobody; live notifies; retired is stopped.
    """

    DRAFT = "draft"
    SHADOW = "shadow"
    LIVE = "live"
    RETIRED = "retired"

    @property
    def runs(self) -> bool:
        """Return whether a detector in this stage has a job."""
        return self in (Stage.SHADOW, Stage.LIVE)


class ScoreKind(StrEnum):
    """The kind of a score: one that cannot fall back while its window is open, or one that can.

    A rising score (count, sum of non-negatives, max, distinct count) rings at the crossing. A final one (average,
    ratio, percentile, "fewer than") is emitted when its window closes.
    """

    RISING = "rising"
    FINAL = "final"


@dataclass(frozen=True, kw_only=True)
class Levels:
    """The limits of a score. A level is reached when the score is strictly above its limit.

    Attributes:
        email: above it, an e-mail when the window has closed; None for a detector that only pages.
        urgent: above it, a page at the crossing; None for a detector that never pages.
    """

    email: float | None = None
    urgent: float | None = None

    def __post_init__(self) -> None:
        if self.email is None and self.urgent is None:
            raise ValueError("Levels needs a limit: email=, urgent= or both")
        if self.email is not None and self.urgent is not None and self.urgent < self.email:
            raise ValueError(f"urgent={self.urgent:g} is below email={self.email:g}; urgent is the higher limit")

    def reached(self, score: float) -> str | None:
        """The highest level that `score` reaches: "urgent", "email" or None."""
        if self.urgent is not None and score > self.urgent:
            return "urgent"
        return "email" if self.email is not None and score > self.email else None

    def limit(self, level: str) -> float:
        """The limit of `level`, which must be declared."""
        limit = self.urgent if level == "urgent" else self.email
        if limit is None:
            raise ValueError(f"no limit is declared for level '{level}'")
        return limit

    @property
    def lowest(self) -> float:
        """The limit below which nothing is a finding."""
        return min(limit for limit in (self.email, self.urgent) if limit is not None)

    @property
    def highest(self) -> float:
        """The limit above which only the size of the score is news."""
        return max(limit for limit in (self.email, self.urgent) if limit is not None)


@dataclass(frozen=True, kw_only=True)
class DetectorSpec:
    """The declaration in a detector's file, as the platform reads it.

    Attributes:
        name: the file name without `.py`.
        path: the file.
        source: name of the source whose events it reads.
        entity: columns that say who or what a finding is about.
        window: length of the tumbling window; None for a per-event detector.
        slide: distance between window starts; None for tumbling windows.
        levels: limits of the score.
        owner: e-mail address that alerts go to.
        runbook: path or address of what to do when it fires.
        stage: see Stage.
        score: declared kind of the score; None when it is to be derived from the plan.
        dedup_period: findings of one entity within it belong to one alert.
        page_within: an older window never notifies at once.
        notify: False makes its findings signals, which never notify.
        memory: bytes that its job may hold resident, Python and JVM together; one that takes more is restarted. None
            for no limit.
        tables: names of the tables that it joins; see `tocsin.model.table`.
        title: first line of the docstring.
        doc: the whole docstring.
        version: see `tocsin.project.declaration.version_of`.
    """

    name: str
    path: Path
    source: str
    entity: tuple[str, ...]
    window: timedelta | None
    levels: Levels
    owner: str
    runbook: str
    stage: Stage
    slide: timedelta | None = None
    score: ScoreKind | None = None
    dedup_period: timedelta = field(default=timedelta(hours=1))
    page_within: timedelta = field(default=timedelta(minutes=15))
    notify: bool = True
    memory: int | None = None
    tables: tuple[str, ...] = ()
    title: str
    doc: str
    version: str

    @property
    def keeps_state(self) -> bool:
        """Return whether it remembers events, so that duplicates can be dropped: not without a window."""
        return self.window is not None


class Tables(Protocol):
    """What `detect`, `flow` and `view` receive as their second argument if they declare `tables=[...]`."""

    def join(
        self, events: Any, table: str, how: Literal["left", "inner"] = "left", on: dict[str, str] | None = None
    ) -> Any:
        """Add to each event the row of `table` that holds at its `event_time`: one at most, so no event is doubled.

        Added are the columns of the table besides its key, and `<table>_since`, the time from which the row holds; all
        null for an event without a row, which how="inner" leaves out.

        Args:
            events: a DataFrame with `event_time` and the columns of the key.
            table: its name.
            how: "left" or "inner".
            on: columns of the table's key to columns of `events`, where they are called otherwise.

        Raises:
            ConfigError: the table is not declared in `tables=[...]`, or columns are missing, of another type or there
                already; a retry does not help.
        """


def detector(  # noqa: PLR0913 - a declaration names each of its keys
    *,
    source: str,
    entity: str | list[str],
    levels: Levels,
    owner: str,
    runbook: str,
    stage: str,
    window: str | None,
    **options: str | bool | list[str],
) -> Callable[[_Detect], _Detect]:
    """Mark `detect` as the function of this file's detector; it stays an ordinary, testable function.

    All arguments are literals, because they are read without importing the file. Durations are written as
    "10 seconds" or "1 hour", sizes as "900 MB" or "1.5 GB". The meaning of each is that of the attribute of
    `DetectorSpec` with its name; `options` are `slide`, `score`, `dedup_period`, `page_within`, `notify`, `memory` and
    `tables`.    Unknown ones are refused when the file is read.
    """

    def mark(function: _Detect) -> _Detect:
        return function

    return mark


def reach(spec: DetectorSpec, until: datetime) -> timedelta:
    """Measure how far windows that begin before `until` look beyond it: not at all where one ends just then.

    Windows begin at multiples of their slide since 1970, as Spark's do. Those that follow one another and divide a day
    end with it.
    """
    if spec.window is None:
        return timedelta(0)
    follow = spec.slide in (None, spec.window)
    return timedelta(0) if follow and (until - _EPOCH) % spec.window == timedelta(0) else spec.window
