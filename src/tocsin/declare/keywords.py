"""The keywords of `@detector`, `@flow` and `@view`.

Those of a detector say here, once, what they take and mean: `tocsin explain` and docs/write/reference.md show it.
The meaning of the others is that of the attributes of their specs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    StrictBool,
    StrictInt,
    ValidationInfo,
    field_validator,
)

from tocsin.declare.blocks.spark_settings import Latency
from tocsin.declare.model.detector import (
    FINDINGS_OF,
    DetectorSpec,
    Entities,
    Levels,
    Model,
    Resources,
    ScoreKind,
    Stage,
)
from tocsin.declare.model.detector_guide import link_of
from tocsin.declare.model.durations import zone_of
from tocsin.declare.model.flow import FlowSpec
from tocsin.declare.model.view import ViewSpec
from tocsin.declare.sinks import check_sink
from tocsin.declare.validation import LEAST_MEMORY, Address, Duration, Size, Text, as_list

Spec = DetectorSpec | FlowSpec | ViewSpec

_DAY = timedelta(days=1)
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,49}")
_LONGEST_REFERENCE = 300
_ENVIRONMENT = "^[a-z][a-z0-9_-]{0,62}$"
_TABLE = "^[a-z][a-z0-9_]{0,62}$"


def _limit(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < sys.float_info.max:
        raise ValueError(f"must be a number, not {value!r:.40}")
    return value


def _limits(limits: dict[str, Any]) -> Levels:
    return Levels(**limits)


def _different(names: tuple[str, ...], fold: Callable[[str], str] = str) -> tuple[str, ...]:
    folded = [fold(name) for name in names]
    twice = [name for name in names if folded.count(fold(name)) > 1]
    if twice:
        raise ValueError(f"names '{twice[0]}' twice")
    return names


def _slide(slide: timedelta | None, others: ValidationInfo) -> timedelta | None:
    window = others.data.get("window", slide)
    if slide is not None and (window is None or slide > window):
        raise ValueError("needs a window at least as long as itself")
    return slide


def _time_zone(name: str, others: ValidationInfo) -> str:
    zone_of(name)
    if others.data.get("window", _DAY) != _DAY or others.data.get("slide") is not None:
        raise ValueError('needs window="1 day", without slide=')
    return name


def _tag(tag: str) -> str:
    if not _TAG.fullmatch(tag):
        raise ValueError(f"must be short words such as account-takeover or T1110, not {tag!r}")
    return tag


def _reference(text: str) -> str:
    if not text.isprintable() or len(text) > _LONGEST_REFERENCE or ("://" in text and not link_of(text)):
        kinds = "an address with https://, a technique of MITRE ATT&CK such as T1110.001, or a text in one line"
        raise ValueError(f"must be {kinds}, up to {_LONGEST_REFERENCE} characters, not {text[:80]!r}")
    return text


_OF_FINDINGS = ("window", "score", "evidence", "event_time_max")
ADDED_MEANING = ("expect", "tables", "forget_after", "time_zone", "model")
"""Further keywords that may change the results; a file without them keeps its version."""


def _columns(names: tuple[str, ...]) -> tuple[str, ...]:
    return _different(names, str.lower)  # as Spark, which ignores case


Columns = Annotated[tuple[Text, ...], BeforeValidator(as_list), AfterValidator(_columns), Field(min_length=1)]
SourceNames = Annotated[
    tuple[Text, ...], BeforeValidator(as_list), AfterValidator(_different), Field(min_length=1, alias="source")
]
Tags = Annotated[
    tuple[Annotated[Text, AfterValidator(_tag)], ...],
    BeforeValidator(as_list), AfterValidator(_different), Field(max_length=20),
]  # fmt: skip
References = Annotated[
    tuple[Annotated[Text, AfterValidator(_reference)], ...],
    BeforeValidator(as_list), AfterValidator(_different), Field(max_length=20),
]  # fmt: skip
Slide = Annotated[Duration | None, AfterValidator(_slide)]
Limits = Annotated[dict[Literal["email", "urgent"], Annotated[Any, AfterValidator(_limit)]], AfterValidator(_limits)]


def _key(form: str, meaning: str, default: Any = ...) -> Any:
    return Field(default, title=form, description=meaning)


class _Declared(BaseModel, extra="forbid"):
    tables: Annotated[tuple[Text, ...], BeforeValidator(as_list)] = _key(
        "list of texts",
        "tables to join, by their names in tables/; detect then takes (events, tables), step gets their columns with"
        " the event",
        (),
    )
    environment: Annotated[str, Field(pattern=_ENVIRONMENT)] = _key(
        "name",
        "the environment that its process and Python workers run in, with the packages of environments/NAME.in"
        " (docs/write/packages.md); that of Tocsin unless declared",
        "",
    )


class _Expected(BaseModel, extra="forbid"):
    names: list[Text] | list[list[Text]] | None = None
    table: Text | Literal[""] = ""
    seen_within: Duration | None = None
    minimum: Annotated[Any, AfterValidator(_limit)] = Entities.minimum


_MODEL = Model()


class _Model(BaseModel, extra="forbid"):
    days: Annotated[StrictInt, Field(ge=1, le=1000)] = _MODEL.days
    every: Duration = _MODEL.every
    before: Literal["train", "refuse"] = _MODEL.before
    min_rows: Annotated[StrictInt, Field(ge=1)] = _MODEL.min_rows
    max_change: Annotated[float, Field(gt=1)] = _MODEL.max_change
    timeout: Annotated[Duration, Field(ge=timedelta(seconds=1))] = _MODEL.timeout
    memory: Annotated[Size, Field(ge=LEAST_MEMORY)] = _MODEL.memory


def _model(declared: _Model | None, others: ValidationInfo) -> Model | None:
    if declared is None:
        return None
    if declared.every < _DAY or declared.every % _DAY:
        raise ValueError('every= is a number of whole days or weeks, such as "1 week"')
    if others.data.get("window", declared) is None:
        raise ValueError("needs a window: its features are those of windows that have closed")
    for key in ("expect", "score"):
        if others.data.get(key) is not None:
            raise ValueError(f"goes without {key}=: the model gives the score, of windows that have closed")
    if len(sources := others.data.get("sources", ())) > 1 or any(name.startswith(FINDINGS_OF) for name in sources):
        raise ValueError("needs one source with sealed history, which it is trained on")
    return Model(**dict(declared))


class _Resources(BaseModel, extra="forbid"):
    executors: Annotated[StrictInt, Field(ge=1, le=1000)] | None = None
    cores: Annotated[StrictInt, Field(ge=1, le=1000)] | None = None
    memory: Annotated[Size, Field(ge=LEAST_MEMORY)] | None = None


def _resources(declared: _Resources | None) -> Resources | None:
    return None if declared is None else Resources(**dict(declared))


OnCluster = Annotated[_Resources | None, AfterValidator(_resources)]


def _entities(expected: _Expected | None, others: ValidationInfo) -> Entities | None:
    if expected is None:
        return None
    declared = Entities(expected.names, expected.minimum, table=expected.table, seen_within=expected.seen_within)
    columns = len(others.data.get("entity", ())) or len(next(iter(declared.names), ()))
    if any(len(name) != columns for name in declared.names):
        what = f"{columns} text" if columns == 1 else f"{columns} texts"
        raise ValueError(f"needs {what} for each entity, for each of its columns one")
    if others.data.get("window", declared) is None:
        raise ValueError("needs a window, in which events are to come")
    if declared.seen_within is not None and others.data.get("slide") is not None:
        raise ValueError("seen_within goes with windows that follow one another, without slide=")
    if declared.seen_within is not None and declared.seen_within < others.data.get("window", timedelta(0)):
        raise ValueError("seen_within must be at least as long as the window")
    if others.data.get("score") is not None:
        raise ValueError("goes without score=: what is missing is always final")
    if (levels := others.data.get("levels")) is not None and levels.highest >= declared.minimum:
        what = f"can miss {declared.minimum:g} at most, so a limit of {levels.highest:g} is never exceeded"
        raise ValueError(f"{what}; raise minimum= or lower levels=")
    return declared


def _entity(columns: tuple[str, ...]) -> tuple[str, ...]:
    if own := [column for column in columns if column.lower() in _OF_FINDINGS]:
        raise ValueError(f"'{own[0]}' belongs to each finding, and says neither who nor what it is about")
    if odd := [column for column in columns if "." in column or "`" in column]:
        raise ValueError(f"'{odd[0]}' is not a column name; give that column another with alias()")
    return columns


def _dedup(columns: tuple[str, ...], others: ValidationInfo) -> tuple[str, ...]:
    entity = others.data.get("entity", columns)
    if unknown := [column for column in _different(columns) if column not in entity]:
        raise ValueError(f"names '{unknown[0]}', which is no column of the entity ({', '.join(entity)})")
    return columns


class _Detector(_Declared):
    sources: SourceNames = _key(
        "text or list of texts",
        "sources whose events it reads, by their names in sources/; findings.NAME for what the detector NAME finds",
    )
    entity: Annotated[Columns, AfterValidator(_entity)] = _key(
        "text or list of texts", "columns that say who or what a finding is about"
    )
    window: Duration | None = _key(
        "duration or None",
        "length of the window in which events are counted; None for step, and to judge each event by itself",
    )
    levels: Limits = _key(
        "Levels(email=50, urgent=100)",
        "limits of the score, one or both; a level is reached strictly above its limit: an e-mail when the window has "
        "closed, an urgent message at once",
    )
    owner: Address = _key("e-mail address", "address that alerts go to")
    runbook: Text = _key("text", "path or address of what to do when it fires")
    stage: Stage = _key(
        "draft, shadow, live or retired",
        "draft and retired do not run; shadow stores findings and notifies nobody; live notifies",
    )
    slide: Slide = _key("duration", "distance between the starts of windows; without it they follow one another", None)
    time_zone: Annotated[str, AfterValidator(_time_zone)] = _key(
        "place or offset",
        'for window="1 day": the clock by which days begin at midnight, such as "Europe/Berlin", where a day has 23 '
        'or 25 hours when the clock changes, or "+05:30"; without it days are those of UTC',
        "",
    )
    score: ScoreKind | None = _key(
        "rising or final",
        "a rising score cannot fall while its window is open and notifies at the crossing, a final one can and is "
        "known when the window has closed; without it Spark's plan tells",
        None,
    )
    expect: Annotated[_Expected | None, AfterValidator(_entities)] = _key(
        'Entities(["web.1"], minimum=5)',
        "entities that are to have a score of at least the minimum in each window; a finding scores what is missing; "
        'Entities(table="instances") takes the keys of a table, Entities(seen_within="7 days") those seen in that time',
        None,
    )
    dedup: Annotated[tuple[Text, ...], BeforeValidator(as_list), AfterValidator(_dedup)] = _key(
        "text or list of texts",
        "columns of the entity that tell alerts apart: entities that agree in them share an alert; all unless declared",
        (),
    )
    dedup_period: Duration = _key(
        "duration",
        "findings within it, from the first one, belong to one alert; a later one opens another alert",
        DetectorSpec.dedup_period,
    )
    page_within: Duration = _key(
        "duration",
        "a window that ended longer ago notifies nobody at once, but in a summary of what was delayed",
        DetectorSpec.page_within,
    )
    notify: StrictBool = _key("True or False", "False makes its findings signals, which never notify", True)
    false_positives: Text | Literal[""] = _key(
        "text", "what is harmless although it fires, and how to tell; shown with each alert", ""
    )
    tags: Tags = _key(
        "text or list of texts",
        "short words such as account-takeover or T1110, shown with each alert; routes and silences choose by them",
        (),
    )
    references: References = _key(
        "text or list of texts",
        "what to read about it: addresses, techniques of MITRE ATT&CK (T1110.001 becomes its link), or texts; shown "
        "with each alert",
        (),
    )
    memory: Annotated[Size, Field(ge=LEAST_MEMORY)] | None = _key(
        "size such as 900 MB",
        "what its job may hold, Python and JVM together; one that takes more is restarted; the setting "
        "spark.memory_mb unless declared, which is about 2 GB",
        None,
    )
    resources: OnCluster = _key(
        '{"executors": 4, "cores": 2, "memory": "1 GB"}',
        "what it gets on a Spark cluster (docs/run/cluster.md): how many executors, with how many cores and how much"
        " heap; what is left out is as in the setting spark.resources",
        None,
    )
    isolation: StrictBool = _key(
        "True or False",
        "True gives its job a JVM of its own; without it the job shares the JVM of an engine (docs/run/engines.md)",
        False,
    )
    latency: Latency | Literal[""] = _key(
        '"10 ms", "100 ms" or "1 s"',
        "the time from a raw record to its finding to aim at: the longer, the less CPU its job takes; the setting"
        " spark.latency unless declared",
        "",
    )
    model: Annotated[_Model | None, AfterValidator(_model)] = _key(
        'Model(days=60, every="1 week")',
        "makes a score of the features that detect returns, by the functions train and score of the file"
        " (docs/write/models.md)",
        None,
    )
    forget_after: Duration | None = _key(
        "duration", "for step, which needs it: the state of an entity begins anew after so long without an event", None
    )


class _Flow(_Declared):
    sources: SourceNames
    to: Text
    owner: Address
    stage: Stage
    isolation: StrictBool = False
    latency: Latency | Literal[""] = ""


class _View(_Declared):
    sources: SourceNames
    key: Columns
    window: Duration | None
    owner: Address
    stage: Stage
    slide: Slide = None
    sink: Annotated[str, AfterValidator(check_sink)] = ViewSpec.sink
    table: Annotated[str, Field(pattern=_TABLE)] = ""
    keep: Duration | None = None
    total: Annotated[tuple[Text, ...], BeforeValidator(as_list)] = ()
    memory: Annotated[Size, Field(ge=LEAST_MEMORY)] | None = None
    resources: OnCluster = None
    isolation: StrictBool = False
    latency: Latency | Literal[""] = ""

    @field_validator("total")
    @classmethod
    def _is_part_of_the_key(cls, total: tuple[str, ...], others: ValidationInfo) -> tuple[str, ...]:
        key = others.data.get("key", ())
        if key and total and not set(total) < set(key):
            raise ValueError(f"must be some columns of the key ({', '.join(key)}), and not all of them")
        if total and others.data.get("window") is not None:
            raise ValueError("needs window=None: it is a sum over the latest rows, whatever their time")
        return total


@dataclass(frozen=True, kw_only=True)
class DeclaredKind:
    """One kind of declaration in a Python file.

    Attributes:
        meaning: those of the `keywords` of the decorator that may change the results.
    """

    word: str
    functions: tuple[str, ...]
    spec: Callable[..., Spec]
    keywords: type[BaseModel]
    meaning: tuple[str, ...]
    doc: str


DETECTOR = DeclaredKind(
    word="detector",
    functions=("detect", "step"),
    spec=DetectorSpec,
    keywords=_Detector,
    meaning=("sources", "entity", "window", "slide", "levels", "score"),
    doc="what it catches, what it misses and where to look first",
)
FLOW = DeclaredKind(
    word="flow",
    functions=("flow",),
    spec=FlowSpec,
    keywords=_Flow,
    meaning=("sources", "to"),
    doc="what it makes of its source",
)
VIEW = DeclaredKind(
    word="view",
    functions=("view",),
    spec=ViewSpec,
    keywords=_View,
    meaning=("sources", "key", "window", "slide", "total"),
    doc="what its rows say",
)
