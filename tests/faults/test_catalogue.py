"""The catalogue of faults names tests that exist, and its table says what these have shown."""

import ast
from pathlib import Path

import pytest

from tests.faults.__main__ import FAILED, PASSED, SKIPPED, Tally, outcomes, rounds_of, table, written
from tests.faults.catalogue import FAULTS, Fault

ROOT = Path(__file__).parents[2]
RAIN, HAIL = "tests/e2e/test_rain.py::test_rain", "tests/e2e/test_rain.py::test_hail"
ONE = Fault("F1", "it rains", "nobody is wet", (RAIN, HAIL))


def test_each_named_test_exists() -> None:
    named = {test for fault in FAULTS for test in fault.tests}
    there = {
        f"{path}::{node.name}"
        for path in {test.partition("::")[0] for test in named}
        for node in ast.parse((ROOT / path).read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
    assert named - there == set()


def test_each_fault_has_a_number_of_its_own_and_a_row_on_the_page() -> None:
    assert [fault.name for fault in FAULTS] == [f"F{number}" for number in range(1, len(FAULTS) + 1)]
    page = (ROOT / "docs" / "understand" / "faults.md").read_text()
    assert [fault.name for fault in FAULTS if f"| {fault.name} | {fault.what} | {fault.must} |" not in page] == []


def test_junit_is_counted_by_test_whatever_its_parameters(tmp_path: Path) -> None:
    file = tmp_path / "junit.xml"
    cases = "".join(
        f'<testcase classname="tests.e2e.test_rain" name="{name}">{inside}</testcase>'
        for name, inside in [("test_rain[1]", ""), ("test_rain[2]", "<failure/>"), ("test_hail", "<skipped/>")]
    )
    file.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    assert outcomes(file) == {(RAIN, PASSED): 1, (RAIN, FAILED): 1, (HAIL, SKIPPED): 1}


def test_rounds_are_those_of_the_test_that_ran_least_and_a_skipped_one_has_not_run() -> None:
    both = table([ONE], Tally({(RAIN, PASSED): 4, (HAIL, PASSED): 2, (HAIL, FAILED): 1}), "today")
    assert "| F1 | it rains | nobody is wet | 3 | 1 |" in both
    assert "| not run | 0 |" in table([ONE], Tally({(RAIN, PASSED): 4, (HAIL, SKIPPED): 4}), "today")


def test_a_run_goes_on_behind_the_rounds_that_are_kept_and_a_skipped_one_is_none(tmp_path: Path) -> None:
    for name, inside in (("F1-1", ""), ("F1-2", "<failure/>"), ("F1-3", "<skipped/>"), ("F10-1", "")):
        (tmp_path / f"{name}.xml").write_text(f'<x><testcase classname="x" name="y">{inside}</testcase></x>')
    assert rounds_of(ONE, tmp_path) == 2


def test_the_table_takes_its_place_and_leaves_the_rest() -> None:
    page = "# Title\n<!-- table: begin -->\nold\n<!-- table: end -->\nrest\n"
    assert written(page, "new\n") == page.replace("old", "new")
    with pytest.raises(AssertionError, match="no place"):
        written("# Title\n", "new\n")
