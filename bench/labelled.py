"""`python -m bench.labelled --data FOLDER`: detectors of `bench/siem` on days of which the attacks are known.

FOLDER is a checkout of the AIT Alert Data Set (Landauer and others 2024): alerts of Wazuh, Suricata and AMiner in eight
simulated networks, each attacked in ten kinds of steps. All goes through Tocsin's own commands. The limit is chosen
on the earlier days, for so many alerts a day of all networks, and reported on the later ones, which are of other
networks. What the models judge they have not seen. `isolated_alerts` needs scikit-learn; without it, it is left out.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import subprocess
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.detection import judged
from bench.figures import table
from tocsin.alerts.evaluation.scoring import LimitQuality
from tocsin.setup.paths import here

_EARLIER, _LATER = ("2022-01-17", "2022-01-24"), ("2022-01-25", "2022-02-08")
"""The first week is left to the models; four networks end with the 24th, the other four begin with the 25th."""
_APART = 3600
"""So many seconds without a record of an attack end an incident."""

Rows = Iterator[tuple[str, dict[str, str]]]
"""Networks and rows."""


def read(data: Path) -> Rows:
    """Read the archive of the data set."""
    with zipfile.ZipFile(data / "alerts_csv" / "alerts_csv.zip") as archive:
        for name in sorted(name for name in archive.namelist() if name.endswith("_alerts.txt")):
            network = Path(name).name.removesuffix("_alerts.txt")
            with archive.open(name) as lines:
                yield from ((network, row) for row in csv.DictReader(io.TextIOWrapper(lines, "utf-8")))


def incidents(rows: Rows) -> list[dict[str, str]]:
    """Join the records of each step of an attack on a host that are less than an hour apart."""
    times: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for network, row in rows:
        if row["event_label"] != "-":
            times[network, row["host"], row["event_label"]].append(int(row["time"]))
    return [
        {"network": network, "host": host, "from": _moment(first), "to": _moment(last + 1)}
        for (network, host, _), moments in times.items()
        for first, last in _spans(sorted(moments))
    ]


def _spans(moments: list[int]) -> Iterable[tuple[int, int]]:
    begins = [0, *(place for place in range(1, len(moments)) if moments[place] - moments[place - 1] > _APART)]
    ends = [*(place - 1 for place in begins[1:]), len(moments) - 1]
    return [(moments[begin], moments[end]) for begin, end in zip(begins, ends, strict=True)]


def _moment(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _write(path: Path, columns: list[str], rows: Iterable[dict[str, str]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.DictWriter(lines, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


def _tocsin(folder: Path, *words: str) -> str:
    """Run a command; CalledProcessError if it fails, which says why on standard error."""
    environment = os.environ | {"TOCSIN_PROJECT": str(here().root / "bench" / "siem"), "TOCSIN_STATE": str(folder)}
    command = [sys.executable, "-m", "tocsin.cli", *words]
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def _evaluate(folder: Path, detector: str, days: tuple[str, str], *words: str) -> dict[str, Any]:
    labels = ("--labels", str(folder / "incidents.csv"), "--from", days[0], "--to", days[1], "--json")
    found: dict[str, Any] = json.loads(_tocsin(folder, "evaluate", detector, *labels, *words))
    return found


def main() -> None:
    """Print the table."""
    given = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    given.add_argument("--data", type=Path, required=True, help="a checkout of the AIT Alert Data Set")
    given.add_argument("--alerts-a-day", default="5", help="which the limit leaves on the earlier days (default 5)")
    given.add_argument(
        "--folder", type=Path, default=here().bench / "labelled", help="state; kept, so days are sealed once"
    )
    arguments = given.parse_args()
    folder = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "incidents.csv", ["network", "host", "from", "to"], incidents(read(arguments.data)))
    events = ({"network": network} | row for network, row in read(arguments.data))
    past = _write(folder / "siem.csv", ["time", "network", "host", "short"], events)
    print(_tocsin(folder, "history", "import", "--source", "siem", "--seal", str(past)))
    rows = []
    for detector in ("many_alerts", *(["isolated_alerts"] if find_spec("sklearn") else []), "rare_alerts"):
        earlier = _evaluate(folder, detector, _EARLIER, "--alerts-a-day", arguments.alerts_a_day)
        later = _evaluate(folder, detector, _LATER, "--limits", str(earlier["chosen"]))
        for days, found in (("earlier", earlier), ("later", later)):
            (quality,) = (one for one in found["ladder"] if one["limit"] == earlier["chosen"])
            rows.append(judged(days, detector, LimitQuality(**quality)))
    print(table(rows))


if __name__ == "__main__":
    main()
