"""What differs is told: from what a case expects, and from one way to the next."""

from datetime import UTC, datetime, timedelta
from typing import Any

from tocsin import Case, at, email, urgent
from tocsin.cases.case_report import CaseFinding, CaseOutcome, Way, case_lines, judge

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


def found(user: str, level: str, score: float, *, second: int = 0, **fields: Any) -> dict[str, CaseFinding]:
    start = NOON + timedelta(seconds=second)
    id_ = f"{user}{second}"
    one = CaseFinding(
        finding_id=id_, entity={"user_id": user}, level=level, score=score, start=start,
        end=start + timedelta(seconds=10), **fields,
    )  # fmt: skip
    return {id_: one}


def case(*expect: Any) -> Case:
    return Case("c", events=at("12:00:00"), expect=list(expect))


def told(one: Case, **ways: dict[str, CaseFinding]) -> list[tuple[list[str], str, str]]:
    problems = judge(one, {Way(name.replace("_", "-")): findings for name, findings in ways.items()})
    return [([one.way, *one.others], one.expected, one.found) for one in problems]


def test_exactly_the_expected_findings_pass() -> None:
    both = found("a", "email", 60) | found("a", "urgent", 120, second=10)
    loose = case(email(user_id="a"), urgent(user_id="a", window="12:00:10", score=120))
    assert told(loose, batch=both, one_batch=both) == []
    assert told(case(), batch={}) == []


def test_an_open_window_does_not_take_the_finding_of_a_named_one() -> None:
    both = found("a", "email", 60) | found("a", "email", 70, second=10)
    assert told(case(email(user_id="a"), email(user_id="a", window="12:00:00")), batch=both) == []


def test_what_is_missing_what_is_too_much_and_what_is_another_one() -> None:
    expected = case(email(user_id="a", window="12:00:00", score=60), email(user_id="b"))
    ways = told(expected, batch=found("a", "urgent", 160) | found("z", "email", 51))
    assert ways == [
        (["batch"], "email  user_id=a  window at 12:00:00  score 60",
         "urgent  user_id=a  12:00:00 to 12:00:10  score 160"),
        (["batch"], "email  user_id=b", ""),
        (["batch"], "", "email  user_id=z  12:00:00 to 12:00:10  score 51"),
    ]  # fmt: skip


def test_one_difference_in_several_ways_is_told_once() -> None:
    assert told(case(), batch=found("a", "email", 60), shuffled=found("a", "email", 60)) == [
        (["batch", "shuffled"], "", "email  user_id=a  12:00:00 to 12:00:10  score 60")
    ]


def test_a_way_that_differs_from_the_first_is_told_even_where_the_case_leaves_it_open() -> None:
    expected = case(email(user_id="a"))
    assert told(expected, batch=found("a", "email", 60), restarted=found("a", "email", 61)) == [
        (["restarted"], "email  user_id=a  12:00:00 to 12:00:10  score 60 (as in batch)",
         "email  user_id=a  12:00:00 to 12:00:10  score 61")
    ]  # fmt: skip


def test_a_lower_bound_agrees_within_one_rung() -> None:
    expected = case(urgent(user_id="a", score=150))
    exact = found("a", "urgent", 150)
    assert told(expected, batch=exact, real_time=found("a", "urgent", 146, at_least=True)) == []
    assert told(expected, batch=exact, real_time=found("a", "urgent", 120, at_least=True)) != []
    assert told(expected, batch=exact, real_time=found("a", "urgent", 160, at_least=True)) != []


def test_a_failure_shows_timeline_window_and_difference() -> None:
    outcome = CaseOutcome(
        name="c", file="detectors/d.py", line=7, timeline=["12:00:00  user_id='a'  x 60"],
        windows=["12:00:00 to 12:00:10  60 events"], problems=judge(case(), {Way.BATCH: found("a", "email", 60)}),
    )  # fmt: skip
    assert list(case_lines("d", outcome)) == [
        "FAILED d: c (detectors/d.py:7)",
        "  events   12:00:00  user_id='a'  x 60",
        "  windows  12:00:00 to 12:00:10  60 events",
        "  batch:",
        "    expected nothing",
        "    found    email  user_id=a  12:00:00 to 12:00:10  score 60",
    ]
