"""Let everything of the catalogue go wrong, round after round, and write the table of docs/faults.md.

`python -m tests.faults --rounds 4` runs the tests of each fault four times; `--only F1 F3` those of some.
`--tally FILE ...` counts instead what test runs have shown that were made already, by their JUnit files.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

from tests.faults.catalogue import FAULTS, Fault

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
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


def run_round(faults: Iterable[Fault]) -> Tally:
    """Run the tests of `faults` once."""
    with tempfile.TemporaryDirectory() as scratch:
        junit = Path(scratch) / "junit.xml"
        tests = dict.fromkeys(test for fault in faults for test in fault.tests)
        command = [sys.executable, "-m", "pytest", "-v", f"--junitxml={junit}", *tests]
        subprocess.run(command, cwd=PAGE.parents[1], check=False)
        return outcomes(junit)


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
    parser.add_argument("--rounds", type=int, default=4, help="of each fault (default 4, which are 100 in all)")
    parser.add_argument("--only", nargs="+", metavar="F", help="names of faults; the page is left as it is")
    parser.add_argument("--tally", nargs="+", type=Path, metavar="FILE", help="count what these JUnit files show")
    given = parser.parse_args()
    chosen = [fault for fault in FAULTS if given.only is None or fault.name in given.only]
    tally: Tally = Counter()
    for file in given.tally or ():
        tally += outcomes(file)
    for number in range(0 if given.tally else given.rounds):
        print(f"round {number + 1} of {given.rounds}", flush=True)
        tally += run_round(chosen)
    made = table(chosen, tally, f"{datetime.now(UTC):%Y-%m-%d}, two cores")
    print(made)
    if given.only is None:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), made), encoding="utf-8")
    return 1 if any(tally[test, FAILED] for fault in chosen for test in fault.tests) else 0


if __name__ == "__main__":
    raise SystemExit(main())
