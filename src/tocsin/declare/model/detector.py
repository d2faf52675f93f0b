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

The other form, `step`, takes one event after the other: see `tocsin.declare.model.steps`.

The declaration is read with `ast` (see `tocsin.declare.declaration`); nothing imports a detector to learn about it.
Standard library only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, TypeVar

from tocsin.declare.model.durations import longest, parse_duration

FINDINGS_OF = "findings."
"""The beginning of the name of a source that is made of the findings of a detector, whose name follows."""
MODELS_OF = "model."
"""The beginning of the name of a table that holds the models of a detector, whose name follows."""
Span = tuple[datetime, datetime]
"""The windows that begin from the first time up to, not including, the second."""
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


@dataclass(frozen=True, repr=False)
class Entities:
    """Those that are to have a score of at least `minimum` in each window; a finding scores what is missing.

    They are listed in `names`; or they are the keys of `table` that hold from the start of a window to its end; or
    those for which `detect` had a row in an earlier window that began at most `seen_within` before it.
    """

    names: tuple[tuple[str, ...], ...]
    minimum: float = 1
    table: str = ""
    seen_within: timedelta | None = None

    def __init__(
        self,
        names: list[str] | list[list[str]] | None = None,
        minimum: float = 1,
        *,
        table: str = "",
        seen_within: str | timedelta | None = None,
    ) -> None:
        """Raises ValueError where the declaration makes no sense."""
        rows = tuple((name,) if isinstance(name, str) else tuple(name) for name in names or ())
        if [names is not None, bool(table), seen_within is not None].count(True) != 1:
            forms = 'Entities(["web.1"]), Entities(table="instances") or Entities(seen_within="7 days")'
            raise ValueError(f"says in one way who is expected: {forms}")
        if names is not None and len(set(rows)) < max(len(rows), 1):
            none = "expects no entity, so nothing could ever be missing; name at least one"
            raise ValueError("names an entity twice" if rows else none)
        if minimum <= 0:
            raise ValueError(f"minimum={minimum:g} is always reached; it must be above 0")
        within = parse_duration(seen_within) if isinstance(seen_within, str) else seen_within
        self.__dict__.update(names=rows, minimum=minimum, table=table, seen_within=within)

    def __repr__(self) -> str:
        """Write what is declared: the version of a detector is made of it, so keys that came later may not show."""
        later = "".join(f", {name}={value!r}" for name in ("table", "seen_within") if (value := getattr(self, name)))
        return f"Entities(names={self.names!r}, minimum={self.minimum!r}{later})"


@dataclass(frozen=True, init=False)
class Model:
    """A model that `train` makes of past features, and by which `score` judges those of windows that have closed.

    What does not decide which models there are is left out of its text, of which the version is made.

    Attributes:
        days: so many sealed days of features are given to `train`.
        every: a model is trained for each so many days, and holds from the first of them on.
        before: for days before the first model of a stream: "train" one as of their day, or "refuse" them.
        min_rows: the gate refuses a model that was trained on fewer rows.
        max_change: it refuses one that finds so many times more, or less, in recent days than the model before.
        timeout: longest time of one training.
        memory: most memory of one training, in bytes.
    """

    days: int
    every: timedelta
    before: Literal["train", "refuse"] = field(repr=False)
    min_rows: int = field(repr=False)
    max_change: float = field(repr=False)
    timeout: timedelta = field(repr=False)
    memory: int = field(repr=False)

    def __init__(  # noqa: PLR0913 - the keywords of a declaration
        self,
        *,
        days: int = 60,
        every: timedelta | str = timedelta(days=1),
        before: Literal["train", "refuse"] = "train",
        min_rows: int = 100,
        max_change: float = 10.0,
        timeout: timedelta | str = timedelta(hours=1),
        memory: int | str = 2_000_000_000,
    ) -> None:
        """Texts as files have them are for these files alone: what is declared is read from them without running."""
        given = {name: value for name, value in locals().items() if name != "self"}
        self.__dict__.update(given)


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What a job gets on a Spark cluster, `memory` in bytes; None stands for what the settings say."""

    executors: int | None = None
    cores: int | None = None
    memory: int | None = None


@dataclass(frozen=True, kw_only=True)
class DetectorSpec:
    """The declaration in a detector's file, as the platform reads it.

    The meaning of the other attributes is that of the keywords with their names (`source` for `sources`): see
    docs/write/reference.md, or `tocsin.declare.keywords`.

    Attributes:
        memory: in bytes.
    """

    name: str
    path: Path
    sources: tuple[str, ...]
    entity: tuple[str, ...]
    window: timedelta | None
    levels: Levels
    owner: str
    runbook: str
    stage: Stage
    slide: timedelta | None = None
    time_zone: str = ""
    score: ScoreKind | None = None
    expect: Entities | None = None
    dedup: tuple[str, ...] = ()
    dedup_period: timedelta = field(default=timedelta(hours=1))
    page_within: timedelta = field(default=timedelta(minutes=15))
    notify: bool = True
    false_positives: str = ""
    tags: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    memory: int | None = None
    resources: Resources | None = None
    isolation: bool = False
    environment: str = ""
    latency: str = ""
    tables: tuple[str, ...] = ()
    forget_after: timedelta | None = None
    model: Model | None = None
    title: str
    doc: str
    version: str
    code: str = ""

    def without_limits(self) -> DetectorSpec:
        """Give the declaration by which every score is a finding."""
        return replace(self, levels=Levels(email=-sys.float_info.max))

    @property
    def keeps_state(self) -> bool:
        """Return whether it remembers events, so that duplicates can be dropped."""
        return self.window is not None or self.has_step

    @property
    def has_step(self) -> bool:
        """Return whether its function is `step`, and not `detect`."""
        return self.forget_after is not None

    @property
    def model_table(self) -> str:
        """The name of the table of its models; empty without."""
        return "" if self.model is None else f"{MODELS_OF}{self.name}"

    @property
    def function(self) -> str:
        """The name of its function."""
        return "step" if self.has_step else "detect"

    @property
    def window_text(self) -> str:
        """Say in words which events make a finding."""
        if self.has_step:
            return f"none: one event after the other, forgotten after {self.forget_after}"
        if self.window is None:
            return "none: each event by itself"
        return f"{self.window}, in {self.time_zone}" if self.time_zone else str(self.window)

    @property
    def memory_span(self) -> timedelta:
        """The longest time between two events that can make one finding."""
        return longest(self) + self.looks_back

    @property
    def looks_back(self) -> timedelta:
        """The longest time before a window, or an event, from which something is remembered."""
        seen = self.expect.seen_within if self.expect is not None else None
        return self.forget_after or seen or timedelta(0)

    @property
    def has_one_source(self) -> bool:
        """Return whether it reads one source alone, as cases do."""
        return len(self.sources) == 1

    @property
    def read_detectors(self) -> tuple[str, ...]:
        """The detectors whose findings it reads."""
        return tuple(name.removeprefix(FINDINGS_OF) for name in self.sources if name.startswith(FINDINGS_OF))

    @property
    def stream_only(self) -> str:
        """Say why its declaration keeps it from days of history; empty if it does not."""
        if not self.has_one_source:
            return f"reads several sources ({', '.join(self.sources)}), and days of history are of one"
        if self.read_detectors:
            return f"reads the findings of {self.read_detectors[0]}, and days of history hold events"
        return ""


def detector(  # noqa: PLR0913 - a declaration names each of its keys
    *,
    source: str | list[str],
    entity: str | list[str],
    levels: Levels,
    owner: str,
    runbook: str,
    stage: str,
    window: str | None,
    **options: str | bool | list[str] | dict[str, int | str] | Entities | Model,
) -> Callable[[_Detect], _Detect]:
    """Mark `detect` or `step` as the function of this file's detector; it stays an ordinary, testable function.

    All arguments are literals, because they are read without importing the file. Durations are written as
    "10 seconds" or "1 hour", sizes as "900 MB" or "1.5 GB". docs/write/reference.md tells the meaning of each, and all
    `options`. Unknown ones are refused when the file is read.
    """

    def mark(function: _Detect) -> _Detect:
        return function

    return mark
