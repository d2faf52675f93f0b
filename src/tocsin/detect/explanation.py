"""Explain the declaration of a detector: each key with its value, where that comes from, and its meaning in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from enum import StrEnum

from pydantic import BaseModel

from tocsin.declare.declaration import written_keywords
from tocsin.declare.keywords import DETECTOR
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.durations import exact_text
from tocsin.declare.model.source import Source

NONE = "none"


class ValueOrigin(StrEnum):
    """The place that a value of an explanation comes from."""

    DECLARED = "declared"
    DEFAULT = "default"
    DERIVED = "derived"


class ExplainedKey(BaseModel, frozen=True):
    """One thing that holds for a detector.

    Attributes:
        origin: declared (in the file), default, or derived (it follows from the rest).
    """

    key: str
    value: str
    origin: ValueOrigin
    meaning: str


class DetectorExplanation(BaseModel, frozen=True):
    """All that holds for one detector."""

    name: str
    doc: str
    path: str
    keys: list[ExplainedKey]


class KeywordMeaning(BaseModel, frozen=True):
    """One keyword of `@detector`: its name, what one writes, the default (None where it is required), the meaning."""

    name: str
    form: str
    default: str | None
    meaning: str


def keyword_meanings() -> list[KeywordMeaning]:
    """List the keywords of `@detector`, those that are required first."""
    fields = DETECTOR.keywords.model_fields.items()
    found = [
        KeywordMeaning(
            name=field.alias or name,
            form=field.title or "",
            default=None if field.is_required() else _shown(field.default),
            meaning=field.description or "",
        )
        for name, field in fields
    ]
    return sorted(found, key=lambda keyword: keyword.default is not None)


def explained(
    spec: DetectorSpec, sources: Sequence[Source], planned: Sequence[tuple[str, str, str]] = ()
) -> DetectorExplanation:
    """Explain `spec`, which reads `sources`; `planned` is what its plan says besides: keys, values and meanings."""
    written = written_keywords(spec.path)
    keys = [
        ExplainedKey(
            key=keyword.name,
            value=written.get(keyword.name) or keyword.default or NONE,
            origin=ValueOrigin.DECLARED if keyword.name in written else ValueOrigin.DEFAULT,
            meaning=keyword.meaning,
        )
        for keyword in keyword_meanings()
    ]
    keys += [
        ExplainedKey(key=key, value=value, origin=ValueOrigin.DERIVED, meaning=meaning)
        for key, value, meaning in (*_derived(spec, sources), *planned)
    ]
    return DetectorExplanation(name=spec.name, doc=spec.doc, path=str(spec.path), keys=keys)


def _derived(spec: DetectorSpec, sources: Sequence[Source]) -> Iterator[tuple[str, str, str]]:
    yield "version", spec.version, "of the code and of all keys that may change what it finds; other keys keep it"
    for source in sources:
        late = "of the source: an event that comes so long after later ones may be left out"
        yield "lateness", f"{exact_text(source.lateness)} ({source.name})", late
    yield "history", *_history(spec)
    yield "state", *_state(spec)
    if spec.keeps_state:
        rebuilt = "where the change needs a new state, which `tocsin plan` tells; a change of levels alone keeps it"
        yield "state after a change", f"from the last {exact_text(spec.memory_span)}", rebuilt


def _history(spec: DetectorSpec) -> tuple[str, str]:
    if spec.stream_only:
        return "never", f"it {spec.stream_only}"
    return "each night", "a backfill runs it on sealed days too (not with session windows: docs/run/backfills.md)"


def _state(spec: DetectorSpec) -> tuple[str, str]:
    if spec.forget_after is not None:
        return "one for each entity", f"forgotten {exact_text(spec.forget_after)} after the last event of the entity"
    if spec.window is None:
        return NONE, "each event is judged by itself"
    closed = "one is forgotten when it has closed: the lateness after its end, by event time"
    if spec.expect is not None and spec.expect.seen_within is not None:
        return "the open windows and who was seen", f"{closed}; an entity, when {exact_text(spec.looks_back)} are over"
    return "the open windows", closed


def _shown(default: object) -> str:
    if isinstance(default, timedelta):
        return exact_text(default)
    return NONE if default in (None, ()) else str(default)
