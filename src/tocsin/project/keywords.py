"""The keywords of `@detector`, `@flow` and `@view`; their meaning is that of the attributes of their specs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, StrictBool, ValidationInfo, field_validator

from tocsin.model.detector import DetectorSpec, Levels, ScoreKind, Stage
from tocsin.model.flow import FlowSpec
from tocsin.model.view import SinkKind, ViewSpec
from tocsin.project.validation import Address, Duration, Text, as_list

Spec = DetectorSpec | FlowSpec | ViewSpec

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([MG])B")
_TABLE = "^[a-z][a-z0-9_]{0,62}$"


def _size(value: object) -> int:
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    size = round(float(match[1]) * (1e9 if match[2] == "G" else 1e6)) if match else 0
    if size <= 0:
        raise ValueError(f"must be a size such as '900 MB' or '1.5 GB', not {value!r}")
    return size


def _limit(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"must be a number, not {value!r}")
    return value


def _limits(limits: dict[str, Any]) -> Levels:
    return Levels(**limits)


def _slide(slide: timedelta | None, others: ValidationInfo) -> timedelta | None:
    window = others.data.get("window", slide)
    if slide is not None and (window is None or slide > window):
        raise ValueError("needs a window at least as long as itself")
    return slide


Size = Annotated[int, BeforeValidator(_size)]
Columns = Annotated[tuple[Text, ...], BeforeValidator(as_list), Field(min_length=1)]
Slide = Annotated[Duration | None, AfterValidator(_slide)]
Limits = Annotated[dict[Literal["email", "urgent"], Annotated[Any, AfterValidator(_limit)]], AfterValidator(_limits)]


class _Declared(BaseModel, extra="forbid"):
    tables: Annotated[tuple[Text, ...], BeforeValidator(as_list)] = ()


class _Detector(_Declared):
    source: Text
    entity: Columns
    window: Duration | None
    levels: Limits
    owner: Address
    runbook: Text
    stage: Stage
    slide: Slide = None
    score: ScoreKind | None = None
    dedup_period: Duration = DetectorSpec.dedup_period
    page_within: Duration = DetectorSpec.page_within
    notify: StrictBool = True
    memory: Size | None = None


class _Flow(_Declared):
    source: Text
    to: Text
    owner: Address
    stage: Stage


class _View(_Declared):
    source: Text
    key: Columns
    window: Duration | None
    owner: Address
    stage: Stage
    slide: Slide = None
    sink: SinkKind = ViewSpec.sink
    table: Annotated[str, Field(pattern=_TABLE)] = ""
    keep: Duration | None = None
    total: Annotated[tuple[Text, ...], BeforeValidator(as_list)] = ()
    memory: Size | None = None

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
        word: name of its decorator.
        function: name of the function under it.
        spec: what is made of it.
        keywords: of the decorator.
        meaning: those of them that may change the results.
        doc: what its docstring says.
    """

    word: str
    function: str
    spec: Callable[..., Spec]
    keywords: type[BaseModel]
    meaning: tuple[str, ...]
    doc: str


DETECTOR = DeclaredKind(
    word="detector",
    function="detect",
    spec=DetectorSpec,
    keywords=_Detector,
    meaning=("source", "entity", "window", "slide", "levels", "score"),
    doc="what it catches, what it misses and where to look first",
)
FLOW = DeclaredKind(
    word="flow",
    function="flow",
    spec=FlowSpec,
    keywords=_Flow,
    meaning=("source", "to"),
    doc="what it makes of its source",
)
VIEW = DeclaredKind(
    word="view",
    function="view",
    spec=ViewSpec,
    keywords=_View,
    meaning=("source", "key", "window", "slide", "total"),
    doc="what its rows say",
)
