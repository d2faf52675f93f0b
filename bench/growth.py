"""What grows with detectors, records, partitions, keys and days, one at a time, and where it bends.

`python -m bench growth` writes what it measured to `docs/run/growth.json` and draws `docs/run/growth.svg` from it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from bench import backfill, drain
from bench.chart import Panel, drawn
from bench.figures import Goal, Spread, table
from bench.latency import Plan
from bench.load import Backlog
from bench.past import Past, day_before
from bench.rig import Rig
from bench.six import BROKER, ENGINE, Burden, carry, memory
from bench.systems import TOCSIN, tocsin
from tocsin.setup.paths import here

_RARE = 0.01
_FEW = 4
_BACKLOG = 1_000_000
_DAY_ROWS = 250_000
_BENT = 2.0
BURDENS = {
    "detectors": [Burden(count, failing=_RARE) for count in (1, 2, 4, 8, 12, 24, 48)],
    "records a second": [Burden(_FEW, rate, _RARE) for rate in (30, 290, 1_000, 3_000)],
    "partitions": [Burden(_FEW, failing=_RARE, partitions=count) for count in (1, 4, 16)],
}
KEYS = (1_000, 10_000, 100_000, 1_000_000)
DAYS = (1, 7, 30, 60)
FILE = Path("docs/run/growth.json")
PICTURE = FILE.with_suffix(".svg")


@dataclass(frozen=True)
class Point:
    """What was measured at one size.

    Attributes:
        axis: what grows, a key of `BURDENS`, `keys in a window` or `days`.
        size: of it.
        cpu: of a core in percent while a stream is carried, all detectors, engine and broker; else CPU-seconds of all.
        broker: the part of the broker.
        memory: MB, without the broker.
        milliseconds: from a line to its finding, the 95th percentile; of a backlog or of days, until all is done.
    """

    axis: str
    size: int
    cpu: float
    broker: float
    memory: float
    milliseconds: float


def measure(rig: Rig, plan: Plan) -> list[Point]:
    """Let one thing grow after the other; about forty minutes."""
    found = []
    for axis, burdens in BURDENS.items():
        found += [_shown(_carried(rig, plan, axis, burden)) for burden in burdens]
    found += [_shown(_drained(rig, users)) for users in KEYS]
    return [*found, *(_shown(_backfilled(rig, days)) for days in DAYS)]


def _shown(point: Point) -> Point:
    print(point, flush=True)
    return point


def _carried(rig: Rig, plan: Plan, axis: str, burden: Burden) -> Point:
    carried = carry(rig, plan, burden)
    own = sum(carried.timed[name].cpu for name in (*burden.names, ENGINE))
    broker = carried.timed[BROKER].cpu
    times = Spread.of([time for name in burden.names for time in carried.timed[name].appended])
    size = {"detectors": burden.detectors, "records a second": burden.rate, "partitions": burden.partitions}[axis]
    return Point(axis, size, 100 * (own + broker), 100 * broker, memory(carried, burden).pss / 1e6, times.p95)


def _drained(rig: Rig, users: int) -> Point:
    """A million logins of one window: what its keys cost."""
    backlog = Backlog(_BACKLOG, 9, users=users, alpha=0.05)
    text = (here().root / "detectors" / f"{drain.DETECTOR}.py").read_text(encoding="utf-8")
    site = rig.site(f"keys{users}", {drain.DETECTOR: text}, lies_in_the_past=True)
    truth, before = drain.fill(rig, site, backlog), rig.broker.cpu_seconds()
    found = drain.drained(rig, site, tocsin(drain.DETECTOR), backlog, truth)
    if found.wrong:
        raise RuntimeError(f"{found.wrong} windows of {TOCSIN} are wrong at {users} users")
    broker = rig.broker.cpu_seconds() - before
    milliseconds = 1000 * (found.seconds - found.start)
    return Point(
        "keys in a window",
        len(truth),
        found.cpu - found.cpu_of_start + broker,
        broker,
        found.memory.pss / 1e6,
        milliseconds,
    )


def _backfilled(rig: Rig, days: int) -> Point:
    past = Past(day_before(datetime.now(UTC), days), days, _DAY_ROWS)
    spent = backfill.backfilled(rig.folder / "growth", past)
    return Point("days", days, spent.cpu, 0.0, spent.rss / 1e6, 1000 * spent.seconds)


def report(found: Sequence[Point]) -> tuple[str, list[Goal]]:
    """The table; keeps figures and picture in the docs."""
    at = f"{datetime.now(UTC):%Y-%m-%d}"
    root = here().root
    (root / FILE).write_text(
        json.dumps({"at": at, "points": [asdict(point) for point in found]}, indent=1) + "\n", encoding="utf-8"
    )
    (root / PICTURE).write_text(picture(root / FILE), encoding="utf-8")
    return table([asdict(point) | {"CPU for one more": slope} for point, slope in _slopes(found)]), []


def picture(file: Path) -> str:
    """Draw the figures of `file`, as SVG: a row an axis, with CPU, memory and time."""
    points = [Point(**point) for point in json.loads(file.read_text(encoding="utf-8"))["points"]]
    panels = []
    for axis in dict.fromkeys(point.axis for point in points):
        own = [point for point in points if point.axis == axis]
        cpu, time, unit = ("CPU, % of a core", "p95, ms", 1) if axis in BURDENS else ("CPU, s", "done after, s", 1000)
        panels += [
            Panel(f"{axis}: {cpu}", [(point.size, point.cpu) for point in own]),
            Panel(f"{axis}: memory, MB", [(point.size, point.memory) for point in own]),
            Panel(f"{axis}: {time}", [(point.size, point.milliseconds / unit) for point in own]),
        ]
    return drawn(panels, columns=3)


def _slopes(found: Sequence[Point]) -> list[tuple[Point, str]]:
    """Beside each point what one more took since the one before, marked where that is twice as much as at first."""
    slopes, first = list[tuple[Point, str]](), dict[str, float]()
    for before, point in zip([None, *found], found, strict=False):
        if before is None or before.axis != point.axis:
            slopes.append((point, ""))
            continue
        slope = (point.cpu - before.cpu) / (point.size - before.size)
        at_first = first.setdefault(point.axis, slope)
        slopes.append((point, f"{slope:.3g}{' bends' if slope > _BENT * at_first > 0 else ''}"))
    return slopes
