"""`python -m bench.nab --nab FOLDER`: `unusual_metric` on the Numenta Anomaly Benchmark, scored by its published rule.

FOLDER is a checkout of the benchmark. All its files are events of one source, a file a series, and go through the
code of `tocsin run` at once, with one set of parameters. Findings must equal those of `step` in plain Python. The
scorer is first checked: it must repeat the published scores of four detectors from their published anomaly scores.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bench.figures import table
from examples.metrics.detectors import unusual_metric
from tocsin import Event
from tocsin.cases.case_report import FileReport, FileRequest
from tocsin.cases.spark.case_lab import open_lab
from tocsin.declare.settings import Settings
from tocsin.setup.paths import here

_PROBATION, _PROBATION_MOST = 0.15, 5_000
_KNOWN = "realKnownCause/"
_PEERS = ("randomCutForest", "numenta", "contextOSE", "windowedGaussian")
_LIMITS = (1.01, 1.02, 1.03, 1.04, 1.05, 1.06, 1.08, 1.1, 1.15, 1.2)

Alarms = Mapping[str, Sequence[int]]
"""The rows of each series at which a detector alarms."""


@dataclass(frozen=True)
class Profile:
    """What counts how much: each missed window, and each alarm outside of windows; a window found at once counts 1."""

    name: str
    missed: float
    false: float


PROFILES = (
    Profile("standard", 1, 0.11),
    Profile("reward_low_FP_rate", 1, 0.22),
    Profile("reward_low_FN_rate", 2, 0.11),
)


@dataclass(frozen=True)
class Series:
    """One file of the benchmark.

    Attributes:
        name: its folder and name.
        times, values: of its rows, the times taken as UTC.
        windows: the first and last row of each labelled window, in order.
    """

    name: str
    times: Sequence[datetime]
    values: Sequence[float]
    windows: Sequence[tuple[int, int]]


def read_series(nab: Path, prefixes: tuple[str, ...] = ("",)) -> list[Series]:
    """Read the files whose names begin so, in the order of their names."""
    labels = json.loads((nab / "labels" / "combined_windows.json").read_text(encoding="utf-8"))
    found = []
    for name in sorted(name for name in labels if name.startswith(prefixes)):
        with (nab / "data" / name).open(encoding="utf-8") as lines:
            rows = [(_moment(row["timestamp"]), float(row["value"])) for row in csv.DictReader(lines)]
        times = [at for at, _ in rows]
        windows = [(times.index(_moment(begin)), times.index(_moment(end))) for begin, end in labels[name]]
        found.append(Series(name, times, [value for _, value in rows], windows))
    return found


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


# --- the published rule (Lavin and Ahmad 2015) ------------------------------------------------------------------------


def normalised(series: Iterable[Series], alarms: Alarms, profile: Profile) -> float:
    """Score alarms; none at all has 0, and one at the begin of each window, and no other, 100."""
    chosen = list(series)
    windows = sum(len(one.windows) for one in chosen)
    raw = sum(_raw(one, alarms[one.name], profile) for one in chosen)
    return 100 * (raw + profile.missed * windows) / (windows * (1 + profile.missed))


def _raw(series: Series, rows: Sequence[int], profile: Profile) -> float:
    """In a window the first alarm counts, the later the less; one outside costs less just behind one."""
    probation = math.floor(_PROBATION * min(len(series.times), _PROBATION_MOST))
    best = dict.fromkeys(series.windows, -profile.missed)
    false = 0.0
    for row in rows:
        if row < probation:
            continue
        inside = next((window for window in series.windows if window[0] <= row <= window[1]), None)
        if inside:
            place = (row - inside[1] - 1) / (inside[1] - inside[0] + 1)
            best[inside] = max(best[inside], _sigmoid(place) / _sigmoid(-1))
        else:
            before = [window for window in series.windows if window[1] < row]
            false += _sigmoid((row - before[-1][1]) / (before[-1][1] - before[-1][0])) if before else -1
    return sum(best.values()) + profile.false * false


def _sigmoid(place: float) -> float:
    """1 long before the end of a window, 0 at its end, -1 from three of its lengths behind it."""
    return -1.0 if place > 3 else 2 / (1 + math.exp(5 * place)) - 1


def _published(nab: Path, series: Sequence[Series], peer: str) -> dict[str, dict[str, list[int]]]:
    """Read at which rows a peer alarms at the threshold published for each profile; that was chosen on all files."""
    thresholds = json.loads((nab / "config" / "thresholds.json").read_text(encoding="utf-8"))[peer]
    alarms: dict[str, dict[str, list[int]]] = {profile.name: {} for profile in PROFILES}
    for one in series:
        folder, _, file = one.name.partition("/")
        with (nab / "results" / peer / folder / f"{peer}_{file}").open(encoding="utf-8") as lines:
            scores = [float(row["anomaly_score"]) for row in csv.DictReader(lines)]
        for profile, rows in alarms.items():
            least = thresholds[profile]["threshold"] - 5.1e-13  # scores are published with twelve digits
            rows[one.name] = [row for row, score in enumerate(scores) if score >= least]
    return alarms


# --- our detector -----------------------------------------------------------------------------------------------------


def _plainly(series: Sequence[Series], limit: float) -> dict[str, list[tuple[int, float]]]:
    """Take each series through `step`, as a loop in Python; returns rows and scores of the findings."""
    shipped, unusual_metric.LIMIT = unusual_metric.LIMIT, limit
    try:
        return {one.name: _steps(one) for one in series}
    finally:
        unusual_metric.LIMIT = shipped


def _steps(series: Series) -> list[tuple[int, float]]:
    state, found = unusual_metric.Past(), []
    # Of one time, events come in the order of the file; a few files go back by an hour when clocks did.
    for row in sorted(range(len(series.times)), key=lambda row: series.times[row]):
        event = Event(series.times[row], value=series.values[row])
        state, findings = unusual_metric.step(series.name, state, event)
        found += [(row, one.score or 0.0) for one in findings if (one.score or 0.0) > unusual_metric.LIMIT]
    return found


def _by_tocsin(series: Sequence[Series], folder: Path) -> FileReport:
    """Run the shipped detector on all series at once, as `tocsin run` does."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "metrics.json"
    with file.open("w", encoding="utf-8") as lines:
        for one in series:
            for at, value in zip(one.times, one.values, strict=True):
                moment = at.isoformat()
                lines.write(json.dumps({"series": one.name, "timestamp": moment, "value": value}) + "\n")
    settings = Settings(state=folder / "state", project=here().root / "examples" / "metrics")
    with open_lab() as lab:
        return lab.run_on_file(settings, FileRequest("unusual_metric", file, 10_000), print)


def _rows(found: Mapping[str, Sequence[tuple[int, float]]]) -> dict[str, list[int]]:
    return {name: [row for row, _ in rows] for name, rows in found.items()}


def _halves(series: Sequence[Series]) -> tuple[list[Series], list[Series]]:
    """Deal the files of each folder out in turn, in the order of their names."""
    halves: tuple[list[Series], list[Series]] = ([], [])
    places: dict[str, int] = {}
    for one in series:
        folder = one.name.partition("/")[0]
        places[folder] = place = places.get(folder, -1) + 1
        halves[place % 2].append(one)
    return halves


def _check_scorer(nab: Path, series: Sequence[Series], peers: Mapping[str, Mapping[str, Alarms]]) -> None:
    final = json.loads((nab / "results" / "final_results.json").read_text(encoding="utf-8"))
    for peer, alarms in peers.items():
        for profile in PROFILES:
            ours = normalised(series, alarms[profile.name], profile)
            assert math.isclose(ours, final[peer][profile.name], abs_tol=1e-6), (peer, profile.name, ours)


def _check_findings(
    report: FileReport, series: Sequence[Series], plain: Mapping[str, Sequence[tuple[int, float]]]
) -> None:
    times = {one.name: one.times for one in series}
    expected = sorted((name, times[name][row], score) for name, rows in plain.items() for row, score in rows)
    found = sorted((str(one.entity["series"]), one.moment, one.score) for one in report.findings)
    assert found == expected, "tocsin run and plain Python differ"


def main() -> None:
    """Print the tables."""
    given = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    given.add_argument("--nab", type=Path, required=True, help="a checkout of the Numenta Anomaly Benchmark")
    nab = given.parse_args().nab
    series = read_series(nab)
    peers = {peer: _published(nab, series, peer) for peer in _PEERS}
    _check_scorer(nab, series, peers)
    even, odd = _halves(series)
    known = [one for one in series if one.name.startswith(_KNOWN)]
    others = [one for one in series if one not in known]
    parts = {"all": series, "even": even, "odd": odd, "realKnownCause": known, "others": others}
    tried: dict[float, Alarms] = {limit: _rows(_plainly(series, limit)) for limit in _LIMITS}
    rows: list[dict[str, object]] = []
    for profile in PROFILES:
        ways = {f"unusual_metric > {limit:g}": alarms for limit, alarms in tried.items()}
        for name, alarms in {**ways, **{peer: peers[peer][profile.name] for peer in peers}}.items():
            scores = {part: normalised(chosen, alarms, profile) for part, chosen in parts.items()}
            rows.append({"profile": profile.name, "detector": name, **scores})
        for tuning, reported in (("odd", "even"), ("even", "odd"), ("others", "realKnownCause")):
            limit = max(_LIMITS, key=lambda limit: normalised(parts[tuning], tried[limit], profile))
            score = normalised(parts[reported], tried[limit], profile)
            rows.append({"profile": profile.name, "detector": f"> {limit:g}, chosen on {tuning}", reported: score})
    print(table(rows), flush=True)
    report = _by_tocsin(series, here().bench / "nab")
    _check_findings(report, series, _plainly(series, unusual_metric.LIMIT))
    print(f"\n{report.rows:,} rows, {report.total} findings in {report.seconds:.0f} s, equal to those of plain Python")


if __name__ == "__main__":
    main()
