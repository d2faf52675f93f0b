"""Make records of the findings topic of what `step` has found, within the bounds of a finding."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tocsin.declare.model.detector import Levels
from tocsin.declare.model.finding import CUT, MAX_EVIDENCE, Finding, finding_id
from tocsin.declare.model.sizes import SAMPLE_BYTES, shortened
from tocsin.declare.model.steps.step_contract import Event, StepFinding

_SPLICED = {"origin", "run_id"}


class StepRecords:
    """Makes the records of one detector. They lack `origin` and `run_id`, which the run that writes them adds."""

    def __init__(self, name: str, version: str, entity: tuple[str, ...], levels: Levels) -> None:
        self._name, self._version, self._entity, self._levels = name, version, entity, levels

    def best(self, found: Sequence[StepFinding]) -> StepFinding | None:
        """Choose the highest finite score: all of `found` share one identity. TypeError if a score is not a number."""
        return max((finding for finding in found if _is_number(finding.score)), key=_score, default=None)

    def record(self, key: tuple[str, ...], at: datetime, place: str, found: StepFinding) -> tuple[str, str] | None:
        """Make finding_id and JSON of `found` for the entity `key` at the event, or timer, `place`; None below a limit.

        Raises a TypeError or ValueError if its evidence or context cannot be written as JSON.
        """
        score = _score(found)
        level = self._levels.reached(score)
        if level is None:
            return None
        entity = dict(zip(self._entity, key, strict=True))
        evidence, context = bounded(found.evidence, found.context)
        finding = Finding(
            finding_id=finding_id(self._name, entity, None, None, place),
            detector=self._name,
            version=self._version,
            entity=entity,
            level=level,
            score=score,
            limit=float(self._levels.limit(level)),
            evidence=evidence,
            context=context,
            event_time_max=at,
            discriminator=place,
        )
        return finding.finding_id, finding.model_dump_json(exclude_none=True, exclude=_SPLICED)


def bounded(evidence: Sequence[Any], context: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Cut what is too long for a finding, as `tocsin.detect.spark.findings` does; the context says what was cut."""
    samples = [_plain(event) for event in evidence[:MAX_EVIDENCE]]
    short = [event for event in samples if _length(event) <= SAMPLE_BYTES]
    cut = ["evidence"] if len(short) < len(samples) else []
    kept = {}
    for name, value in context.items():
        plain = _plain(value)
        if isinstance(plain, str):
            kept[name] = shortened(plain)
        elif _length(plain) <= SAMPLE_BYTES:
            kept[name] = plain
        else:
            cut.append(name)
    return short, kept | ({CUT: cut} if cut else {})


def _is_number(score: object) -> bool:
    if score is None:
        return False
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise TypeError(f"a score must be a number, not {score!r:.60}")
    return math.isfinite(score)


def _score(found: StepFinding) -> float:
    return float(found.score or 0)


def _length(plain: Any) -> int:
    return len(json.dumps(plain, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass"))


def _plain(value: Any) -> Any:
    match value:
        case None | str() | bool() | int():
            plain: Any = value
        case float():
            plain = value if math.isfinite(value) else None
        case datetime():
            plain = f"{value.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
        case Event():
            plain = {name: _plain(item) for name, item in vars(value).items() if item is not None}
        case Mapping():
            plain = {str(name): _plain(item) for name, item in value.items()}
        case Sequence():
            plain = [_plain(item) for item in value]
        case _:
            raise TypeError(f"{type(value).__name__} is nothing that a finding can hold")
    return plain
