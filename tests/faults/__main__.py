"""Let everything of the catalogue go wrong, round after round, and write the table of docs/understand/faults.md.

`python -m tests.faults --rounds 4` runs the tests of each fault four times; `--only F1 F3` those of some. What has run
is kept in .tocsin/faults, by the last commit that changed the code or its tests: a run that was cut off, or that
`--minutes` has ended, goes on where it was. `--tally FILE ...` counts instead what other test runs have shown, by their
JUnit files.
"""

import argparse
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import product
from math import inf
from pathlib import Path
from xml.etree import ElementTree

from tests.faults.catalogue import FAULTS, Fault

ROOT = Path(__file__).parents[2]
PROVEN = {"src", "spark_jobs", "dags", "detectors", "examples", "expectations", "sources", "locks", "tests"}
"""Folders of what the rounds prove: after a change there they begin anew."""
PAGE = ROOT / "docs" / "understand" / "faults.md"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"

Tally = Counter[tuple[str, str]]
"""How often a test (as the catalogue names it) has ended in which way."""


def outcomes(junit: Path) -> Tally:
    """Count how each test of a JUnit file has ended.

    Raises:
        OSError: it cannot be read.
        ElementTree.ParseError: it is no JUnit file, or its run was cut off.
    """
    found: Tally = Counter()
    for case in ElementTree.parse(junit).iter("testcase"):  # written by our own pytest
        path = case.get("classname", "").replace(".", "/") + ".py"
        test = f"{path}::{case.get('name', '').partition('[')[0]}"
        kinds = {child.tag for child in case}
        found[test, FAILED if kinds & {"failure", "error"} else SKIPPED if "skipped" in kinds else PASSED] += 1
    return found


def rounds_of(fault: Fault, folder: Path) -> int:
    """Count the kept rounds of `fault`; one of which a test was skipped is run again."""
    shown = [outcomes(file) for file in folder.glob(f"{fault.name}-*.xml")]
    return sum(SKIPPED not in {outcome for _, outcome in one} for one in shown)


def run(fault: Fault, junit: Path) -> Tally:
    """Run the tests of `fault` once, and keep what they show in `junit`; nothing if the run is cut off."""
    command = [sys.executable, "-m", "pytest", "-v", f"--junitxml={junit}", *fault.tests]
    subprocess.run(command, cwd=ROOT, check=False)
    return outcomes(junit) if junit.exists() else Tally()


def kept() -> Path:
    """Return the folder of what this code has shown; what is not committed has another."""
    code = sorted(PROVEN)
    commit, changes = (
        subprocess.run(["git", *words, "--", *code], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
        for words in (["log", "-1", "--format=%h"], ["status", "--porcelain"])
    )
    return ROOT / ".tocsin" / "faults" / f"{commit.strip()}{'-changed' if changes else ''}"


def table(faults: Iterable[Fault], tally: Tally, on: str) -> str:
    """The table of a run: for each fault its rounds, which are those of the test of it that ran least."""
    lines = [f"Last run: {on}.\n", "| | what goes wrong | what must hold | rounds | failed |", "|---|---|---|---|---|"]
    for fault in faults:
        rounds = min(tally[test, PASSED] + tally[test, FAILED] for test in fault.tests)
        failed = sum(tally[test, FAILED] for test in fault.tests)
        lines.append(f"| {fault.name} | {fault.what} | {fault.must} | {rounds or 'not run'} | {failed} |")
    return "\n".join(lines) + "\n"


def written(page: str, new: str) -> str:
    """`page` with `new` in the place of its table."""
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, f"{PAGE} has no place for the table"
    return f"{before}{BEGIN}{new}{END}{after}"


def main() -> int:
    """Run or count, write the page, and fail if a fault did what it must not."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--rounds", type=int, default=4, help="of each fault (default 4, a hundred in all)")
    parser.add_argument("--minutes", type=float, default=inf, help="after which no test is begun; the next run goes on")
    parser.add_argument("--only", nargs="+", metavar="F", help="names of faults; the page is left as it is")
    parser.add_argument("--tally", nargs="+", type=Path, metavar="FILE", help="count what these JUnit files show")
    given = parser.parse_args()
    chosen = [fault for fault in FAULTS if given.only is None or fault.name in given.only]
    folder, until = kept(), time.monotonic() + given.minutes * 60
    tally = sum(map(outcomes, given.tally or sorted(folder.glob("*.xml"))), Tally())
    for number, fault in product(range(0 if given.tally else given.rounds), chosen):
        if rounds_of(fault, folder) <= number and time.monotonic() < until:
            print(f"{fault.name}, round {number + 1} of {given.rounds}", flush=True)
            tally += run(fault, folder / f"{fault.name}-{datetime.now(UTC):%Y%m%dT%H%M%S}.xml")
    made = table(chosen, tally, f"{datetime.now(UTC):%Y-%m-%d}, two cores")
    print(made)
    if given.only is None:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), made), encoding="utf-8")
    return 1 if any(tally[test, FAILED] for fault in chosen for test in fault.tests) else 0


if __name__ == "__main__":
    raise SystemExit(main())
