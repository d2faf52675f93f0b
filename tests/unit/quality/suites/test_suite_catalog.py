"""Suites: what is read, and that every fault is told at once, with its place and the nearest valid name."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.rig.samples.visits import VISITS, expect, faults, write
from tocsin.declare.catalog import read_catalog
from tocsin.quality.suites.suite_catalog import faults_of_suites, read_suites
from tocsin.quality.verdict import Severity

ROOT = Path(__file__).parents[4]
BETWEEN = "column_values_to_be_between"


def told(project: Path) -> list[str]:
    return [str(fault).partition("visits.")[2] for fault in faults(project)]


def test_the_shipped_suites_are_good() -> None:
    catalog = read_catalog(ROOT)
    assert faults_of_suites(ROOT, catalog.sources) == []
    suites = read_suites(ROOT, catalog.source("logins"))
    assert {rule.name for rule in suites.rows} >= {"known_action"}
    assert all(rule.meaning for rule in (*suites.day.rules, *suites.findings.rules))


def test_a_source_without_suites_expects_nothing(tmp_path: Path) -> None:
    suites = read_suites(tmp_path, VISITS)
    assert (suites.rows, suites.day.rules, suites.findings.rules) == ((), (), ())


def test_a_rule_is_read_with_all_that_it_says(tmp_path: Path) -> None:
    entry = expect(BETWEEN, "warning", column="amount", min_value=0, max_value=9.5, strict_max=True, mostly=None)
    write(tmp_path, "rows", entry | {"description": "Prices end at 9.49"})
    rule = read_suites(tmp_path, VISITS).rows[0]
    assert (rule.name, rule.rule.severity, rule.rule.meaning) == (
        "amount_between",
        Severity.WARNING,
        "Prices end at 9.49",
    )
    assert rule.rule.limit == "at least 0 and less than 9.5"
    assert (rule.refuses, rule.warns, rule.mostly) == (False, True, 1.0)


# What is written, where the fault is told, what it says.
WRONG_ROWS: dict[str, tuple[Any, str]] = {
    "unknown expectation": (
        expect("column_values_to_be_in_sett", column="page", value_set=["a"]),
        "type: 'expect_column_values_to_be_in_sett' is not an expectation supported here"
        " (docs/write/quality.md lists them); did you mean 'expect_column_values_to_be_in_set'?",
    ),
    "not for rows": (expect("column_mean_to_be_between", column="amount", max_value=1), "type: expect_column_mean"),
    "not needed": (
        expect("column_values_to_be_of_type", column="page", type_="str"),
        "what the source's file declares",
    ),
    "unknown column": (
        expect("column_values_to_not_be_null", column="pages"),
        "kwargs.column: 'pages' is not a column of the source; did you mean 'page'?",
    ),
    "column that is no text": (expect("column_values_to_not_be_null", column=3), "kwargs.column: 3 is not a column"),
    "unknown column, whose type its values would need": (
        expect("column_values_to_be_in_set", column="pages", value_set=["a"]),
        "'pages' is not a column of the source; did you mean 'page'?",
    ),
    "unknown column of times": (
        expect(BETWEEN, column="att", min_value="2026-01-31"),
        "'att' is not a column of the source; did you mean 'at'?",
    ),
    "moment before the first year": (expect(BETWEEN, column="at", min_value="0001-01-01T00:00+05:00"), "holds times"),
    "nothing between": (expect(BETWEEN, column="tries", min_value=5, max_value=5, strict_max=True), "leaves no value"),
    "set of POSIX": (
        expect("column_values_to_match_regex", column="page", regex="[[:alpha:]]"),
        "is not a regular expression: Possible nested set",
    ),
    "unknown argument": (
        expect("column_values_to_not_be_null", column="page", mostlyy=0.5),
        "kwargs.mostlyy: is not an argument of this expectation; did you mean 'mostly'?",
    ),
    "missing argument": (expect("column_values_to_be_in_set", column="page"), "kwargs.value_set: is missing"),
    "no limit": (expect(BETWEEN, column="amount"), "kwargs: needs min_value or max_value"),
    "limit of the wrong type": (
        expect(BETWEEN, column="amount", max_value="9"),
        "max_value: must be a number, not '9'",
    ),
    "limit that is true": (expect(BETWEEN, column="amount", max_value=True), "must be a number, not True"),
    "limit of a time": (expect(BETWEEN, column="at", min_value=5), "write one such as 2026-01-31T00:00:00Z, not 5"),
    "limits the wrong way": (expect(BETWEEN, column="tries", min_value=5, max_value=4), "is below min_value: 4 < 5"),
    "band of a text": (expect(BETWEEN, column="page", max_value=4), "'page' is a string; this expectation is about"),
    "pattern of a number": (expect("column_values_to_match_regex", column="tries", regex="1"), "'tries' is a int"),
    "broken pattern": (
        expect("column_values_to_match_regex", column="page", regex="(a"),
        "is not a regular expression",
    ),
    "pattern of Python": (expect("column_values_to_match_regex", column="page", regex="(?P<n>a)"), "is used by Java"),
    "values of another type": (
        expect("column_values_to_be_in_set", column="tries", value_set=[1, "2"]),
        "value_set: holds '2', which is no int",
    ),
    "no values": (expect("column_values_to_be_in_set", column="tries", value_set=[]), "value_set: must be a list"),
    "set of times": (
        expect("column_values_to_be_in_set", column="at", value_set=["x"]),
        "cannot be a set of times",
    ),
    "length that is no number": (
        expect("column_value_lengths_to_be_between", column="page", max_value=2.5),
        "max_value: must be a whole number from 0 on, not 2.5",
    ),
    "share above 1": (
        expect("column_values_to_not_be_null", column="page", mostly=1.5),
        "mostly: must be a number above 0",
    ),
    "flag that is none": (expect(BETWEEN, column="tries", max_value=1, strict_max="yes"), "must be true or false"),
    "columns that differ": (
        expect("column_pair_values_to_be_equal", column_A="page", column_B="tries"),
        "column_B: 'tries' is a int, 'page' a string; they cannot be compared",
    ),
    "unknown choice": (
        expect("column_pair_values_to_be_equal", column_A="page", column_B="visitor", ignore_row_if="both_missing"),
        "ignore_row_if: must be both_values_are_missing",
    ),
    "parameter": (
        expect(BETWEEN, column="tries", max_value={"$PARAMETER": "usual_rows"}),
        "rules for rows cannot use $PARAMETER",
    ),
    "unknown severity": (
        expect("column_values_to_not_be_null", "criticl", column="page"),
        "severity: must be 'critical', 'warning' or 'info', not 'criticl'; did you mean 'critical'?",
    ),
    "unknown key": (
        expect("column_values_to_not_be_null", column="visitor") | {"severty": "info"},
        "severty: is not a key of a suite; did you mean 'severity'?",
    ),
    "name of the wrong form": (expect("column_values_to_not_be_null", name="a,b", column="page"), "meta.name: must be"),
    "no arguments": ({"type": "expect_column_values_to_not_be_null"}, "kwargs: is missing"),
    "no type": ({"kwargs": {}}, "expectations[0].type: is missing"),
    "no object": ("expect_column", "expectations[0]: must be keys with values, not 'expect_column'"),
}


@pytest.mark.parametrize("name", WRONG_ROWS)
def test_a_fault_is_told_with_its_place(tmp_path: Path, name: str) -> None:
    entry, what = WRONG_ROWS[name]
    write(tmp_path, "rows", entry)
    assert len(told(tmp_path)) == 1
    assert what in told(tmp_path)[0]


def test_all_faults_of_all_files_are_told_at_once_with_their_lines(tmp_path: Path) -> None:
    path = write(tmp_path, "rows", *[entry for entry, _ in WRONG_ROWS.values() if "type" in entry], name="other")
    write(tmp_path, "day", expect(BETWEEN, column="row", min_value=1))
    write(tmp_path, "findings", expect("column_values_to_be_unique", column="id"))
    found = faults(tmp_path)
    assert len(found) == (len(WRONG_ROWS) - 2) + 1 + 1 + 1
    lines = path.read_text().splitlines()
    for fault in found:
        if fault.where == str(path) and fault.line is not None:
            assert '"type"' in lines[fault.line - 1]
    assert sum(fault.line is None for fault in found) == 1, "the name of the suite"


def test_two_rules_need_two_names(tmp_path: Path) -> None:
    twice = [expect("column_values_to_be_in_set", column="page", value_set=[value]) for value in ("a", "b")]
    write(tmp_path, "rows", *twice)
    assert ["page_in_set: is the name of 2 rules" in text for text in told(tmp_path)] == [True, True]
    write(tmp_path, "rows", twice[0], twice[1] | {"meta": {"name": "other"}})
    assert told(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", "is not JSON"),
        ('{"name": "visits.rows", "expectations": [NaN]}', "NaN is no number of JSON"),
        ('{"name": "visits.rows", "expectations": [1%s]}' % ("0" * 400), "has more than 64 bits; write"),
        ('{"name": "visits.rows", "expectations": [], "expectations": []}', '"expectations" is written twice'),
        ("[]", "must be keys with values, not []"),
        ('{"name": "visits.rows"}', "expectations: is missing"),
        ('{"name": "visits.rows", "expectations": [], "expectation": []}', "did you mean 'expectations'?"),
        ('{"name": "visits.row", "expectations": []}', "name: must be 'visits.rows', as the file, not 'visits.row'"),
    ],
)
def test_a_file_that_is_no_suite_is_told(tmp_path: Path, text: str, what: str) -> None:
    write(tmp_path, "rows").write_text(text)
    assert [what in fault for fault in told(tmp_path)] == [True]


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        (
            expect(BETWEEN, column="page.nul_ratio", max_value=1),
            "not a figure of the profile; did you mean 'page.null_ratio'",
        ),
        (
            expect("column_values_to_not_be_null", column="page"),
            "not a figure of the profile; did you mean 'page.nulls'",
        ),
        (expect(BETWEEN, column="last_even", max_value={"$PARAMETER": "day_end"}), "did you mean 'last_event'?"),
        (expect(BETWEEN, column="page.null_ratio", max_value=5), "a share, from 0 to 1, not 5; write 5 % as 0.05"),
        (expect(BETWEEN, column="completeness", min_value=95), "a share, from 0 to 1, not 95"),
        (expect(BETWEEN, column="rows", mostly=0.5, min_value=1), "has no effect on the profile, which has one row"),
        (
            expect(BETWEEN, column="last_event", max_value={"$PARAMETER": "usual_rows"}),
            "is a number, the column holds times",
        ),
        (expect(BETWEEN, column="rows", max_value={"$PARAMETER": "day_end"}), "is a time; use it alone"),
        (expect(BETWEEN, column="rows", max_value={"$PARAMETER": "usual_row * 2"}), "did you mean 'usual_rows'?"),
        (
            expect(BETWEEN, column="rows", max_value={"$PARAMETER": "max(usual_rows)"}),
            "is not arithmetic on parameters",
        ),
        (expect(BETWEEN, column="rows", max_value={"$PARAMETER": "2 * 3"}), "names no parameter"),
        (expect(BETWEEN, column="rows", max_value={"$PARAMETER": 5}), "$PARAMETER must be a text"),
        (expect("table_row_count_to_be_between", min_value=1), "cannot be used in a suite of stage day"),
    ],
)
def test_faults_of_a_suite_for_the_day(tmp_path: Path, entry: dict[str, Any], what: str) -> None:
    write(tmp_path, "day", entry)
    assert [what in fault for fault in told(tmp_path)] == [True], told(tmp_path)


def test_a_suite_whose_source_was_removed_is_to_be_removed_too(tmp_path: Path) -> None:
    write(tmp_path, "day")
    (fault,) = faults_of_suites(tmp_path, {})
    assert fault.where.endswith(".day.json")
    assert (
        fault.what
        == "there is no source 'visits'; if you have removed it, remove this file too (docs/write/sources.md)"
    )


def test_a_suite_for_the_day_says_how_bad_drift_is(tmp_path: Path) -> None:
    write(tmp_path, "day", meta={"drift": "warning", "great_expectations_version": "1.24.1"})
    assert read_suites(tmp_path, VISITS).day.half is Severity.WARNING
    write(tmp_path, "day", meta={"drift": "none"})
    write(tmp_path, "rows", meta={"drift": "warning"})
    assert told(tmp_path) == [
        "rows.json: meta.drift: belongs to the suite for the day",
        "day.json: meta.drift: must be 'critical', 'warning' or 'info', not 'none'",
    ]


def test_the_day_knows_the_figures_of_the_rules_for_rows(tmp_path: Path) -> None:
    write(
        tmp_path, "rows", expect("column_values_to_be_in_set", "warning", "known_page", column="page", value_set=["a"])
    )
    write(
        tmp_path,
        "day",
        expect(BETWEEN, column="known_page.violation_ratio", max_value={"$PARAMETER": "usual_rows / 2"}),
    )
    assert told(tmp_path) == []


def test_a_file_that_belongs_to_nothing_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "expectations"
    folder.mkdir()
    for name in ("visit.rows.json", "visits.row.json", "notes.txt", "broken.rows.json", ".hidden"):
        (folder / name).write_text("{}")
    found = {
        fault.where.rpartition("/")[2]: fault for fault in faults_of_suites(tmp_path, {"visits": VISITS}, {"broken"})
    }
    assert found.keys() == {"visit.rows.json", "visits.row.json", "notes.txt"}
    assert found["visit.rows.json"].nearest == "visits"
    assert found["visits.row.json"].nearest == "rows"


def test_what_is_read_goes_to_great_expectations_unchanged() -> None:
    suites = read_suites(ROOT, read_catalog(ROOT).source("logins"))
    written = json.loads((ROOT / "expectations/logins.day.json").read_text())["expectations"]
    for rule, entry in zip(suites.day.rules, written, strict=True):
        assert rule.as_gx() == {key: entry[key] for key in ("type", "kwargs", "severity", "meta")}


def test_no_part_of_the_room_loads_great_expectations_before_it_judges() -> None:
    names = [f"tocsin.quality.{path.stem}" for path in (ROOT / "src/tocsin/quality").glob("[!_]*.py")]
    assert len(names) > 5
    code = f"import sys, {', '.join(names)}; print({{'great_expectations', 'pandas', 'pyspark'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "set()\n"
