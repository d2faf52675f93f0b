"""Lines of one template that come far more often than in the last half hour (a loop of errors, retries, an outage).

Catches: a surge of one message of one program within a minute, whatever numbers and names of things are in it.
Misses: messages that are new: the first ten minutes of a template are its past; and surges that grow over hours.
When it fires, look first at: the line in the context, and whether other templates of the program fire too.

The score is how far the lines of a minute lie above their exponentially weighted mean, in standard deviations, which
are never less than those of lines that come at random.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import sqrt
from typing import Any

from tocsin import Case, Event, Levels, StepFinding, at, detector, email, urgent
from tocsin.stats import Ewma

MINUTE = timedelta(minutes=1)
LEAST_MINUTES = 10
WEIGHT = 1 / 30


@dataclass(frozen=True)
class Past:
    minute: datetime | None = None
    lines: int = 0
    line: str = ""
    usual: Ewma = Ewma()
    timer: datetime | None = None


@detector(source="templates", entity=["program", "template"], window=None, forget_after="1 day",
          levels=Levels(email=6, urgent=20), owner="platform@example.com", runbook="docs/runbooks/template_surge.md",
          stage="live")  # fmt: skip
def step(key: tuple[str, str], state: Past, event: Event) -> tuple[Past, list[StepFinding]]:
    minute = event.event_time.replace(second=0, microsecond=0)
    if state.minute != minute:
        idle = 0 if state.minute is None else (minute - state.minute) // MINUTE - 1
        for _ in range(idle):
            state = replace(state, usual=state.usual.add(0, weight=WEIGHT))
        state = replace(state, minute=minute, lines=0, timer=minute + MINUTE - timedelta(microseconds=1))
    return replace(state, lines=state.lines + 1, line=event.line[:200]), []


def on_timer(key: tuple[str, str], state: Past, at: datetime) -> tuple[Past, list[StepFinding]]:
    usual = state.usual
    score = usual.score(state.lines, least=sqrt(max(usual.mean, 1)), after=LEAST_MINUTES)
    facts = {"lines": state.lines, "usual": round(usual.mean, 1), "line": state.line}
    return replace(state, usual=usual.add(state.lines, weight=WEIGHT)), [StepFinding(score, facts)]


ENTITY: dict[str, Any] = {"program": "billing", "template": "timeout after <*> ms"}
FOUR = at("12:00:05", line="timeout after 3000 ms", **ENTITY).repeat(4, every="10 seconds")
PAST = FOUR.repeat(10, every="1 minute")
NEXT = at("12:10:01", line="timeout after 9 ms", **ENTITY)
CASES = [
    # After four lines in each minute the deviation is two lines: 16 lie six of them above the mean, 44 lie twenty.
    Case("16 lines", events=PAST.then(NEXT.repeat(16, every="1 second")), expect=[]),
    Case(
        "17 lines, up to the end of the minute",
        events=PAST.then(NEXT.repeat(16, every="1 second")).then(after="43.999999 seconds"),
        expect=[email(window="12:10:59.999999", score=6.5, **ENTITY)],
    ),
    Case("44 lines", events=PAST.then(NEXT.repeat(44, every="1 second")), expect=[email(score=20, **ENTITY)]),
    Case("45 lines", events=PAST.then(NEXT.repeat(45, every="1 second")), expect=[urgent(score=20.5, **ENTITY)]),
    Case(
        "45 lines in the tenth minute",
        events=FOUR.repeat(9, every="1 minute").then(at("12:09:01", line="timeout", **ENTITY).repeat(45)),
        expect=[],
    ),
    Case(
        "twelve lines, when forty silent minutes are a part of the past",
        events=PAST.then(at("12:50:01", line="timeout", **ENTITY).repeat(12)),
        expect=[email(**ENTITY)],
    ),
    Case(
        "sixty lines, when every other minute had thirty",
        events=at("12:00:01", line="timeout", **ENTITY)
        .repeat(30, every="1 second")
        .repeat(10, every="2 minutes")
        .then(at("12:20:01", line="timeout", **ENTITY).repeat(60)),
        expect=[],
    ),
]
