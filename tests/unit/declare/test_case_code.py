"""Cases are no part of a version, nor of what a job runs; whatever else reads them is."""

import ast
from pathlib import Path

import pytest

from tocsin.declare.code.case_code import case_kinds, case_names, without_cases
from tocsin.declare.declaration import read_spec

HEAD = '''"""Bursts."""
from math import floor
from tocsin import {names}

LIMIT = 3
{more}

@detector(source="logins", entity="user_id", window="10 seconds", levels=Levels(email=50), owner="a@example.com",
          runbook="r", stage="live")
def detect(events):
    return events.limit(floor(LIMIT))
'''
PLAIN = HEAD.format(names="Levels, detector", more="")
CASED = HEAD.format(names="Case, Levels, at, detector, email", more="")
CASES = '\nCASES = [Case("a", events=at("12:00"), expect=[email(user_id="a")])]\n'


def version(tmp_path: Path, text: str) -> str:
    path = tmp_path / "bursts.py"
    path.write_text(text)
    return read_spec(path).version


@pytest.mark.parametrize(
    "text",
    [
        CASED + CASES,
        CASED + CASES.replace('"a", events', '"b", events'),
        CASED + CASES.replace("CASES =", "CASES: list[Case] ="),
        CASED + CASES + 'CASES += [Case("b", events=at("12:01"), expect=[])]\n',
        CASED + '\nBURST = at("12:00")\nTWICE = BURST.repeat(2)\n' + CASES.replace('at("12:00")', "TWICE"),
        CASED + '\ndef burst(n):\n    return at("12:00").repeat(n)\n' + CASES.replace('at("12:00")', "burst(3)"),
        PLAIN + "\nimport tocsin\nCASES = [tocsin.Case('a', events=tocsin.at('12:00'), expect=[])]\n",
        PLAIN + "\nCASES = [{'at': 1}]\n",
        CASED + CASES.replace('"12:00"', "str(LIMIT)").replace("str(LIMIT)", '"1" + str(floor(LIMIT))'),
    ],
)
def test_cases_and_what_only_they_use_leave_the_version_as_it_is(tmp_path: Path, text: str) -> None:
    assert version(tmp_path, text) == version(tmp_path, PLAIN)


@pytest.mark.parametrize(
    "text",
    [
        CASED + CASES + "\nfloor = len(CASES)\n",
        CASED.replace("LIMIT = 3", "LIMIT = 4") + CASES,
        CASED + "\nfirst, second = 1, 2\n" + CASES,
        CASED + '\nBURST = at("12:00")\nBURST = BURST.repeat(2)\n' + CASES.replace('at("12:00")', "BURST"),
        CASED.replace("events.limit", "at(events).limit") + CASES,
    ],
)
def test_what_the_detector_may_see_counts(tmp_path: Path, text: str) -> None:
    assert version(tmp_path, text) != version(tmp_path, PLAIN)


def test_what_is_left_runs() -> None:
    text = CASED + '\nBURST = at("12:00")\n' + CASES.replace('at("12:00")', "BURST")
    left = without_cases(ast.parse(text))
    assert "BURST" not in ast.unparse(left) and "CASES" not in ast.unparse(left) and "Case" not in ast.unparse(left)
    exec(compile(left, "bursts.py", "exec"), {})


@pytest.mark.parametrize(
    ("cases", "kinds"),
    [
        ("CASES = []", (False, False)),
        ("CASES = [Case('a', events=x, expect=[email()])]", (True, False)),
        ("CASES = [Case('a', events=x, expect=[])]", (False, True)),
        ("CASES = [Case('a', x, []), Case('b', x, [email()])]", (True, True)),
        ("CASES = [Case('a', events=x, expect=[]), Case('b', events=x, expect=[1])]", (True, True)),
        ("CASES = [Case(n, events=x, expect=e) for n, e in many]", (True, True)),
        ("CASES = [tocsin.Case('a', events=x, expect=())]", (False, True)),
        ("", (False, False)),
    ],
)
def test_it_is_told_from_the_text_which_kinds_of_cases_there_are(cases: str, kinds: tuple[bool, bool]) -> None:
    assert case_kinds(ast.parse(cases)) == kinds


def test_names_stand_in_the_text() -> None:
    tree = ast.parse("CASES = [Case('a', events=x, expect=[]), Case(name, events=x, expect=[]), Case('b', expect=[])]")
    assert case_names(tree) == ["a", "b"]
