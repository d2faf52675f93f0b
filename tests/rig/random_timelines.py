"""Make timelines at random from those of a detector's cases: no finding is expected of them, but all ways must agree.

Events are moved, to the edges of windows too, left out, repeated, given to other entities, and changed in their values.
The values are those that the cases name, which lie around the limits, and numbers close to them.

`python -m tests.rig.random_timelines PROJECT COUNT` runs so many for each detector of a project that has cases, and
prints what the ways differ in, as JSON; in a process of its own, since it starts Spark.
"""

import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tocsin.cases.case_events import starts_of
from tocsin.cases.case_language import Case, CaseEvent, Timeline
from tocsin.cases.case_report import Way
from tocsin.cases.mutation import has_cases
from tocsin.cases.spark.case_lab import open_lab
from tocsin.cases.spark.prepared_case import read_cases
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.durations import MICROSECOND
from tocsin.declare.model.source import Source
from tocsin.declare.settings import load_settings

MOST_EVENTS = 160
"""Of one timeline; those of a longer case are a stretch of it."""


@dataclass(frozen=True)
class _Known:
    """What changes are made of: the detector, its source, and the values of each column in all of its cases."""

    spec: DetectorSpec
    source: Source
    values: Mapping[str, list[Any]]


def random_cases(cases: Sequence[Case], spec: DetectorSpec, source: Source, count: int, seed: int) -> list[Case]:
    """Make `count` cases out of `cases`, the same ones for the same `seed`; raw lines stay as they are written."""
    written = [(case, case.written()) for case in cases]
    values: dict[str, list[Any]] = {}
    for event in (event for _, events in written for event in events):
        for name, value in event.columns.items():
            if value not in values.setdefault(name, []):
                values[name].append(value)
    known, made = _Known(spec, source, values), []
    for number in range(count):
        chance = random.Random(f"{seed} {number}")
        case, events = chance.choice(written)
        changed = _changed(chance, events, known)
        timeline = Timeline(case.place, lambda changed=changed: changed)  # type: ignore[misc]  # binds it now
        made.append(replace(case, name=f"timeline {number} of seed {seed}", events=timeline, expect=[]))
    return made


def _changed(chance: random.Random, events: Sequence[CaseEvent], known: _Known) -> list[CaseEvent]:
    first = chance.randrange(max(1, len(events) - MOST_EVENTS + 1))
    changed = list(events[first : first + MOST_EVENTS])
    steps: list[Callable[[random.Random, CaseEvent, _Known], list[CaseEvent]]] = [
        _left_out, _moved, _moved, _at_an_edge, _repeated, _given_away, _said_otherwise, _said_otherwise,
    ]  # fmt: skip
    for step in chance.sample(steps, chance.randrange(1, 5)):
        share = chance.choice((0.1, 0.3, 0.7))
        parts = [step(chance, one, known) if chance.random() < share else [one] for one in changed]
        changed = [one for part in parts for one in part][: 2 * MOST_EVENTS]
    return changed if any(not event.is_tick for event in changed) else list(events[first : first + MOST_EVENTS])


def _left_out(_chance: random.Random, _event: CaseEvent, _known: _Known) -> list[CaseEvent]:
    return []


def _moved(chance: random.Random, event: CaseEvent, known: _Known) -> list[CaseEvent]:
    """Move it by up to the length of a window, or of a minute."""
    if event.time is None:
        return [event]
    longest = (known.spec.window or timedelta(minutes=1)) // MICROSECOND
    return [replace(event, time=event.time + chance.randrange(-longest, longest + 1) * MICROSECOND)]


def _at_an_edge(chance: random.Random, event: CaseEvent, known: _Known) -> list[CaseEvent]:
    """Move it to the start of a window that holds it, or to the last moment before."""
    if event.time is None or known.spec.window is None or event.is_tick:
        return [event]
    start = chance.choice(starts_of(event.time, known.spec) or [event.time])
    return [replace(event, time=start - chance.randrange(2) * MICROSECOND)]


def _repeated(chance: random.Random, event: CaseEvent, _known: _Known) -> list[CaseEvent]:
    if event.time is None:
        return [event]
    return [event, replace(event, time=event.time + chance.choice((0, 1, 1_000_000)) * MICROSECOND)]


def _given_away(chance: random.Random, event: CaseEvent, known: _Known) -> list[CaseEvent]:
    """Make it one of another entity: of those in the cases, or of one that is not in them."""
    columns = dict(event.columns)
    for name in (name for name in known.spec.entity if name in columns):
        value = chance.choice(known.values[name])
        columns[name] = f"{value}2" if isinstance(value, str) and chance.random() < 0.3 else value
    return [replace(event, columns=columns)]


def _said_otherwise(chance: random.Random, event: CaseEvent, known: _Known) -> list[CaseEvent]:
    """Change one of its values: to another one of the cases, to a number close by, or to none where that may be."""
    names = [name for name in event.columns if name not in known.spec.entity and name != known.source.event_time]
    if not names:
        return [event]
    name = chance.choice(names)
    value = chance.choice(known.values[name])
    if name in known.source.optional and chance.random() < 0.2:
        value = None
    elif type(value) is int:
        value += chance.choice((-1, 0, 1))
    elif type(value) is float:
        value += chance.choice((-0.5, 0.0, 0.5))
    return [replace(event, columns={**event.columns, name: value})]


def disagreements(project: Path, count: int, seed: int = 1) -> dict[str, list[str]]:
    """Run `count` timelines for each detector of `project` that has cases; by detector, what the ways differ in."""
    settings = load_settings(project)
    catalog = read_catalog(settings.project)

    def read_random(spec: DetectorSpec) -> list[Case]:
        return random_cases(read_cases(spec), spec, catalog.only_source(spec), count, seed)

    with (
        patch("tocsin.cases.spark.case_run.read_cases", read_random),
        patch("tocsin.cases.spark.case_run.CaseRun._add_boundaries", lambda _: None),
        patch("tocsin.cases.case_report._unexpected", lambda *_: []),
        open_lab() as lab,
    ):
        names = [name for name, spec in sorted(catalog.detectors.items()) if has_cases(spec)]
        found: dict[str, list[str]] = {}
        for outcome in lab.run(settings, names, list(Way)).detectors:
            assert outcome.faults or len(outcome.cases) == count, outcome
            problems = ((case, one) for case in outcome.cases for one in case.problems)
            found[outcome.detector] = outcome.faults + [
                f"{case.name} of line {case.line}: {one}" for case, one in problems
            ]
    return found


if __name__ == "__main__":
    print(json.dumps(disagreements(Path(sys.argv[1]), int(sys.argv[2]))))
