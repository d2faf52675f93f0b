from dataclasses import replace
from pathlib import Path

import pytest

from tocsin.supervision.model import Condition, History, Past
from tocsin.supervision.news import News, news, read_news, write_news

JOB = "detector:bad"


def stands(condition: Condition, reason: str = "why") -> History:
    return History(jobs={JOB: Past(condition=condition, reason=reason)})


def told(*conditions: Condition) -> list[str]:
    """What people get when a job goes through `conditions`, each seen three times, and all is delivered at once."""
    kept: dict[str, News] = {}
    names = []
    for now, condition in enumerate(conditions):
        for moment in (now, now + 0.3, now + 0.6):
            kept = news(stands(condition), kept, moment)
            names += [one.name for one in kept.values() if not one.told]
            kept = {job: replace(one, told=True) for job, one in kept.items()}
    return [name.split("__")[0] for name in names]


@pytest.mark.parametrize(
    "failing", [Condition.CRASH_LOOP, Condition.MISCONFIGURED, Condition.LOCKED, Condition.NO_ROOM]
)
def test_each_failing_condition_is_told_once(failing: Condition) -> None:
    assert told(Condition.FINE, Condition.RESTARTING, failing) == [failing.replace(" ", "-")]


def test_what_restarts_is_nobody_s_business() -> None:
    assert told(Condition.FINE, Condition.RESTARTING, Condition.FINE) == []


def test_a_restart_is_no_recovery() -> None:
    assert told(Condition.CRASH_LOOP, Condition.RESTARTING, Condition.CRASH_LOOP) == ["crash-loop"]


def test_after_a_recovery_it_is_told_again() -> None:
    assert told(Condition.CRASH_LOOP, Condition.FINE, Condition.CRASH_LOOP) == ["crash-loop", "crash-loop"]


def test_another_failing_condition_is_told_too() -> None:
    assert told(Condition.CRASH_LOOP, Condition.MISCONFIGURED) == ["crash-loop", "misconfigured"]


def told_of_quarantine(*ratios: float) -> list[str]:
    """What people get when such shares of what comes in go to quarantine, ten minutes apart; all is delivered."""
    kept: dict[str, News] = {}
    reasons = []
    for look, ratio in enumerate(ratios):
        much = {JOB: f"{ratio:.0%}"} if ratio > 0.05 else {}
        kept = news(stands(Condition.FINE), kept, 600.0 * look, much)
        reasons += [one.reason for one in kept.values() if not one.told]
        kept = {job: replace(one, told=True) for job, one in kept.items()}
    return reasons


def test_much_in_quarantine_is_told_once_also_when_it_comes_and_goes() -> None:
    assert told_of_quarantine(0.0, 0.3, 0.4, 0.0, 0.2, 0.0, 0.0, 0.0, 0.0, 0.5) == ["30%"]


def test_after_an_hour_without_it_much_in_quarantine_is_told_again() -> None:
    assert told_of_quarantine(0.3, *[0.0] * 6, 0.4) == ["30%", "40%"]


def test_a_restart_is_no_end_of_much_in_quarantine_and_a_crash_loop_is_told_beside_it() -> None:
    much = {JOB: "30%"}
    kept = news(stands(Condition.FINE), {}, 0.0, much)
    assert news(stands(Condition.RESTARTING), kept, 60.0, {}) == kept
    (loop,) = news(stands(Condition.CRASH_LOOP), kept, 60.0, much).values()
    assert loop.condition is Condition.CRASH_LOOP


def test_the_same_news_has_the_same_name_until_it_is_told() -> None:
    """Whoever tells it may fail, and try again with the next look."""
    first = news(stands(Condition.CRASH_LOOP, "4 failures"), {}, 1_800_000_000.25)
    again = news(stands(Condition.CRASH_LOOP, "5 failures"), first, 1_800_000_060.0)
    assert again == first
    much = news(stands(Condition.FINE), {}, 1_800_000_000.25, {JOB: "30%"})
    assert much[JOB].name == news(stands(Condition.FINE), much, 1_800_000_060.0, {JOB: "40%"})[JOB].name
    assert first[JOB].name == "crash-loop__detector:bad__2027-01-15T08:00:00.250+00:00"


def test_a_job_that_is_gone_has_no_news() -> None:
    assert news(History(), news(stands(Condition.CRASH_LOOP), {}, 1.0), 2.0) == {}


def test_news_outlive_the_process(tmp_path: Path) -> None:
    standing = news(stands(Condition.NO_ROOM), {}, 5.5)
    write_news(tmp_path, standing)
    assert read_news(tmp_path) == standing
    (tmp_path / "supervision" / "news.json").write_text("?")
    assert read_news(tmp_path) == {}
