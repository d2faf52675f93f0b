"""What one more detector takes: how many share an engine, from one to forty-eight, and how many records come."""

from __future__ import annotations

from collections.abc import Callable

from bench.figures import Goal, table
from bench.latency import Plan
from bench.rig import Rig
from bench.six import BROKER, ENGINE, INGEST, Burden, Carried, carry, memory

_BUSY, _CALM = 290, 30
_RARE = 0.01
GROWTH = [Burden(count, _BUSY, _RARE) for count in (1, 2, 4, 8, 12, 24, 48)]
CALM = Burden(12, _CALM, _RARE)

Found = dict[Burden, Carried]


def measure(rig: Rig, plan: Plan) -> Found:
    """Carry one detector and more, and twelve with a tenth of the records; one login of a hundred is found."""
    return {burden: carry(rig, plan, burden) for burden in (*GROWTH, CALM)}


def report(found: Found) -> tuple[str, list[Goal]]:
    """What all take, as measured, and the slopes; no goals."""
    rows = [
        {
            "detectors": burden.detectors, "lines a second": burden.rate,
            "CPU % of the detectors": 100 * _cpu(burden, carried), "of the ingest": 100 * carried.timed[INGEST].cpu,
            "of the broker": 100 * carried.timed[BROKER].cpu, "PSS MB of the detectors": _pss(burden, carried),
            "run after s": carried.ready_seconds,
        }
        for burden, carried in found.items()
    ]  # fmt: skip
    few, many = GROWTH[2], GROWTH[-2]
    added, busy = (
        many.detectors - few.detectors,
        next(burden for burden in GROWTH if burden.detectors == CALM.detectors),
    )
    by_record = (_cpu(busy, found[busy]) - _cpu(CALM, found[CALM])) / (_BUSY - _CALM) / CALM.detectors
    broker = found[many].timed[BROKER].cpu - found[few].timed[BROKER].cpu
    slopes = [
        {"one more detector": f"CPU %, at {_BUSY} records a second", "takes": 100 * _slope(found, _cpu)},
        {"one more detector": "CPU % for each 100 records a second", "takes": 100 * 100 * by_record},
        {"one more detector": f"CPU % of the broker, at {_BUSY} records a second", "takes": 100 * broker / added},
        {"one more detector": "MB (PSS)", "takes": _slope(found, _pss)},
    ]
    return f"{table(rows)}\n\n{table(slopes)}", []


def _slope(found: Found, of: Callable[[Burden, Carried], float]) -> float:
    few, many = GROWTH[2], GROWTH[-2]
    return (of(many, found[many]) - of(few, found[few])) / (many.detectors - few.detectors)


def _cpu(burden: Burden, carried: Carried) -> float:
    """CPU of all detectors and their engine, seconds per second."""
    return sum(carried.timed[name].cpu for name in (*burden.names, ENGINE))


def _pss(burden: Burden, carried: Carried) -> float:
    """MB of all detectors and their engine together; pages that they share count once."""
    return memory(carried, burden).pss / 1e6
