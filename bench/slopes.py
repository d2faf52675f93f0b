"""What one more detector takes: differences between few and more detectors, and between few and more records."""

from __future__ import annotations

from statistics import fmean

from bench.figures import Goal, table
from bench.latency import Plan, Timed
from bench.rig import Rig
from bench.six import BROKER, INGEST, Burden
from bench.six import measure as measure_at_once

_BUSY, _CALM = 290, 30
_RARE = 0.01
FEW, MORE, IDLE = Burden(2, _BUSY, _RARE), Burden(6, _BUSY, _RARE), Burden(6, _CALM, _RARE)

Found = dict[Burden, dict[str, Timed]]


def measure(rig: Rig, plan: Plan) -> Found:
    """Two detectors, six, and six with a tenth of the records; one login of a hundred is found."""
    return {burden: measure_at_once(rig, plan, burden) for burden in (FEW, MORE, IDLE)}


def report(found: Found) -> tuple[str, list[Goal]]:
    """What each takes, as measured, and the slopes; no goals."""
    rows = [
        {
            "detectors": burden.detectors, "lines a second": burden.rate,
            "CPU % of a detector": 100 * _cpu(found, burden),
            "of the ingest": 100 * timed[INGEST].cpu, "of the broker": 100 * timed[BROKER].cpu,
            "PSS MB of a detector": fmean(timed[name].memory.pss for name in burden.names) / 1e6,
        }
        for burden, timed in found.items()
    ]  # fmt: skip
    by_record = (_cpu(found, MORE) - _cpu(found, IDLE)) / (_BUSY - _CALM)
    added = MORE.detectors - FEW.detectors
    pss = _pss(found, MORE) - _pss(found, FEW)
    broker = found[MORE][BROKER].cpu - found[FEW][BROKER].cpu
    slopes = [
        {"one more detector": "CPU % without records", "takes": 100 * (_cpu(found, IDLE) - _CALM * by_record)},
        {"one more detector": "CPU % for each 100 records a second", "takes": 100 * 100 * by_record},
        {"one more detector": f"CPU % of the broker, at {_BUSY} records a second", "takes": 100 * broker / added},
        {"one more detector": "MB (PSS)", "takes": pss / added / 1e6},
    ]
    return f"{table(rows)}\n\n{table(slopes)}", []


def _cpu(found: Found, burden: Burden) -> float:
    """CPU of one detector, seconds per second."""
    return fmean(found[burden][name].cpu for name in burden.names)


def _pss(found: Found, burden: Burden) -> float:
    """Bytes of all detectors together; pages that they share count once."""
    return sum(found[burden][name].memory.pss for name in burden.names)
