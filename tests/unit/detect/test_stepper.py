"""`step` over the events of one entity: order, timers, forgetting, and what happens when a call goes wrong."""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tocsin.declare.model.detector import Levels
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.finding import finding_id
from tocsin.detect import step_program
from tocsin.detect.stepper import MOST_FAULTS, UNTOLD, KeyState, PlacedEvent, StepOutcome, Stepper, StepTask

SECOND = 1_000_000
START = datetime(2026, 1, 1, tzinfo=UTC)
BASE = int(START.timestamp()) * SECOND
HEAD = """
from dataclasses import dataclass, field
from datetime import datetime, timedelta
import sys
from tocsin import StepFinding

@dataclass(frozen=True)
class Seen:
    count: int = 0
    names: list[str] = field(default_factory=list)
    timer: datetime | None = None
"""
COUNT = (
    HEAD
    + """
def step(key, state: Seen, event):
    return Seen(state.count + 1), [StepFinding(state.count + 1, {"amount": event.amount}, [event])]
"""
)


def stepper(code: str = COUNT, *, levels: Levels | None = None, entity: tuple[str, ...] = ("user",)) -> Stepper:
    columns = {"user": "string", "amount": "double", "seen": "timestamp", "n": "int"}
    chosen = levels or Levels(email=0, urgent=2)
    return Stepper(StepTask("d", "v", entity, chosen, Path("detectors/d.py"), code.encode(), 60 * SECOND, columns))


def event(second: float, offset: int = 0, **columns: object) -> PlacedEvent:
    return PlacedEvent(BASE + round(second * SECOND), "raw.x", 0, offset, json.dumps(columns))


def run(
    one: Stepper, *events: PlacedEvent, until: float | None = None, kept: KeyState | None = None
) -> list[StepOutcome]:
    kept = kept or KeyState()
    outcomes = [outcome for each in events for outcome in one.take(("ann",), kept, each)]
    return outcomes + ([] if until is None else list(one.pass_time(("ann",), kept, BASE + round(until * SECOND))))


def scores(outcomes: list[StepOutcome]) -> list[float]:
    return [json.loads(outcome.record[1])["score"] for outcome in outcomes if outcome.record is not None]


def faults(outcomes: list[StepOutcome]) -> list[str]:
    return [outcome.fault for outcome in outcomes if outcome.fault]


def test_a_finding_has_the_identity_of_its_event() -> None:
    (outcome,) = run(stepper(), event(1, 7, amount=2.5, seen="2026-01-01T00:00:00.000000Z"))
    assert outcome.record is not None
    key, value = outcome.record
    assert key == finding_id("d", {"user": "ann"}, None, None, "raw.x/0/7")
    found = json.loads(value)
    assert (found["entity"], found["level"], found["limit"]) == ({"user": "ann"}, "email", 0.0)
    assert found["discriminator"] == "raw.x/0/7"
    assert found["event_time_max"] == "2026-01-01T00:00:01Z"
    assert found["context"] == {"amount": 2.5}
    moments = {"seen": "2026-01-01T00:00:00.000000Z", "event_time": "2026-01-01T00:00:01.000000Z"}
    assert found["evidence"] == [{"amount": 2.5, **moments}], "null columns are left out"
    assert not {"origin", "run_id"} & found.keys()


def test_levels_apply_to_each_score_strictly() -> None:
    outcomes = run(stepper(levels=Levels(email=1, urgent=2)), *(event(second, second) for second in range(1, 5)))
    assert [json.loads(o.record[1])["level"] for o in outcomes if o.record] == ["email", "urgent", "urgent"]


@pytest.mark.parametrize(("gap", "expected"), [(59.999999, [1, 2]), (60, [1, 1])])
def test_an_entity_is_forgotten_after_a_time_without_events(gap: float, expected: list[float]) -> None:
    assert scores(run(stepper(), event(0), event(gap))) == expected


def test_a_key_of_several_columns_is_a_tuple() -> None:
    one = stepper(
        HEAD + 'def step(key, state: Seen, event):\n    return state, [StepFinding(1, {"key": list(key)})]',
        entity=("a", "b"),
    )
    (outcome,) = list(one.take(("x", "y"), KeyState(), event(0)))
    assert outcome.record is not None
    assert json.loads(outcome.record[1])["context"] == {"key": ["x", "y"]}
    assert json.loads(outcome.record[1])["entity"] == {"a": "x", "b": "y"}


def test_of_several_findings_at_one_event_the_highest_counts() -> None:
    code = (
        HEAD + "def step(key, state: Seen, event):\n    return state, [StepFinding(score) for score in (1, 3, None, 2)]"
    )
    assert scores(run(stepper(code), event(0))) == [3]
    code = HEAD + "def step(key, state: Seen, event):\n    return state, [StepFinding(None), StepFinding(float('nan'))]"
    (outcome,) = run(stepper(code), event(0))
    assert outcome.is_unscored


TIMED = (
    HEAD
    + """
def step(key, state: Seen, event):
    return Seen(state.count + 1, timer=event.event_time + timedelta(seconds=event.n)), []

def on_timer(key, state, at):
    assert state.timer is None
    again = at + timedelta(seconds=10) if state.count < 5 else None
    return Seen(state.count + 1, timer=again), [StepFinding(state.count)]
"""
)


def test_a_timer_fires_after_the_events_of_its_moment_and_before_later_ones() -> None:
    outcomes = run(stepper(TIMED), event(0, 0, n=5), event(5, 1, n=5), event(9.5, 2, n=30))
    assert scores(outcomes) == [], "each event sets it anew"
    outcomes = run(stepper(TIMED), event(0, 0, n=5), event(5.000001, 1, n=30))
    assert scores(outcomes) == [1]
    assert (outcomes[0].at, outcomes[0].place) == (BASE + 5 * SECOND, f"timer/0/{BASE + 5 * SECOND}")


def test_a_timer_may_set_the_next_one_until_the_entity_is_forgotten() -> None:
    assert scores(run(stepper(TIMED), event(0, 0, n=5), until=4.9)) == []
    assert scores(run(stepper(TIMED), event(0, 0, n=5), until=5)) == [1]
    assert scores(run(stepper(TIMED), event(0, 0, n=5), until=1000)) == [1, 2, 3, 4, 5]
    endless = TIMED.replace("if state.count < 5 else None", "")
    assert scores(run(stepper(endless), event(0, 0, n=5), until=1000)) == [1, 2, 3, 4, 5, 6], "at 5, 15, ... 55 s"


def test_what_is_kept_can_be_written_at_any_moment() -> None:
    events = [event(second, second, n=7, amount=1.0) for second in (0, 3, 11, 12, 30, 95, 96)]
    whole = run(stepper(TIMED), *events, until=200)
    kept, pieces = KeyState(), []
    for one in events:
        pieces += run(stepper(TIMED), one, kept=kept)
        kept = KeyState(**json.loads(json.dumps(asdict(kept))))
    assert pieces + run(stepper(TIMED), until=200, kept=kept) == whole
    assert len(whole) > 5


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("    return 1 / event.n, []", "detectors/d.py:15: ZeroDivisionError: division by zero"),
        ("    return state", "step must return (state, findings), not Seen("),
        ("    return state, [1]", "step must return a list of StepFinding, not [1]"),
        ("    return None, []", "the state must be of type Seen, not NoneType"),
        ("    return Seen('1'), []", "Seen.count must be int, not str"),
        ("    return Seen(names=('a',)), []", "Seen.names must be a list, not tuple"),
        ("    return Seen(names=['x' * 1_100_000]), []", "the state of 'ann' has grown to 1,100,0"),
        ("    return state, [StepFinding('high')]", "a score must be a number, not 'high'"),
        ("    return state, [StepFinding(1, {'who': {1, 2}})]", "set is nothing that a finding can hold"),
        ("    a = []; a.append(a)\n    return state, [StepFinding(1, {'who': a})]", "a finding that cannot be written"),
        ("    return state, [StepFinding(1, {'who': '\\ud800'})]", "a finding that cannot be written"),
        ("    return Seen(timer=datetime(2026, 1, 1)), []", "Seen.timer must be a datetime with a time zone"),
        ("    return Seen(timer=event.event_time - timedelta(seconds=1)), []", "which is too early"),
        ("    return Seen(timer=event.event_time + timedelta(seconds=60)), []", "by when the entity is forgotten"),
        ("    return state, [StepFinding(event.ammount)]", "an event has no column 'ammount' (it has: amount"),
        ("    event.n = 3\n    return state, []", "an event cannot be changed"),
        ("    sys.exit(0)", "SystemExit: 0"),
    ],
)  # fmt: skip
def test_an_event_that_goes_wrong_is_left_out_and_the_next_one_finds_the_state_as_it_was(body: str, what: str) -> None:
    good = "  return Seen(state.count + 1), [StepFinding(state.count + 1)]"
    code = f"{HEAD}\ndef step(key, state: Seen, event):\n  if event.n == 0:\n{body}\n{good}\n"
    code += "\ndef on_timer(key, state, at):\n    return state, []\n"
    outcomes = run(stepper(code), event(0, 0, n=1), event(1, 1, n=0), event(2, 2, n=2))
    (fault,) = faults(outcomes)
    assert what in fault
    assert fault.startswith("detectors/d.py")
    assert scores(outcomes) == [1, 2]


def test_a_timer_that_goes_wrong_does_not_fire_again() -> None:
    code = TIMED.replace("assert state.timer is None", "1 / 0")
    outcomes = run(stepper(code), event(0, 0, n=5), event(20, 1, n=30), until=30)
    assert [fault.partition(": ")[2] for fault in faults(outcomes)] == ["ZeroDivisionError: division by zero"]
    soon = TIMED.replace("timedelta(seconds=10)", "timedelta(microseconds=1)")
    assert "too early; at the earliest to 2026-01-01 00:00:06" in faults(run(stepper(soon), event(0, n=5), until=9))[0]


def test_a_loop_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_program, "CALL_SECONDS", 0.05)
    monkeypatch.setattr(step_program, "_AGAIN_SECONDS", 0.05)
    loop = """
def step(key, state: Seen, event):
    while event.n:
        try:
            sum(range(100))
        except:
            pass
    return Seen(state.count + 1), [StepFinding(1)]
"""
    # A bare except catches the first interruption; the second one comes outside of it, sooner or later.
    outcomes = run(stepper(HEAD + loop), event(0, 0, n=0), event(1, 1, n=1), event(2, 2, n=0))
    assert scores(outcomes) == [1, 1]
    assert "did not finish within 0.05 s" in faults(outcomes)[0]


def test_many_faults_are_counted_and_some_of_them_told() -> None:
    one = stepper(HEAD + "def step(key, state: Seen, event):\n    raise ValueError(event.n)")
    outcomes = run(one, *(event(second, second) for second in range(MOST_FAULTS + 5)))
    assert [outcome.fault == UNTOLD for outcome in outcomes] == [False] * MOST_FAULTS + [True] * 5


def test_a_state_may_hold_states_of_statistics() -> None:
    head = HEAD.replace("count: int = 0", "count: int = 0\n    past: dict[str, Seasonal] = field(default_factory=dict)")
    code = """
from tocsin.stats import Seasonal

def step(key, state: Seen, event):
    past = state.past.get("a", Seasonal())
    if event.amount == 0:
        past = "nothing"
    score = past.score(0, event.amount, least=1, after=2)
    return Seen(past={"a": past.add(0, event.amount)}), [StepFinding(score)]
"""
    kept = KeyState()
    outcomes = run(stepper(head + code), *(event(second, amount=1.0) for second in range(3)), kept=kept)
    assert scores(run(stepper(head + code), event(5, amount=4.0), kept=kept)) == [3]
    assert outcomes == [] and json.loads(kept.snapshot or "")["past"]["a"]["residual"]["count"] == 3
    broken = code.replace('past = "nothing"', "return Seen(past={'a': 7}), []")
    (fault,) = faults(run(stepper(head + broken), event(6, amount=0.0), kept=kept))
    assert fault.endswith("a state that cannot be stored: Seen.past must be Seasonal, not int")


def test_a_file_that_cannot_be_used_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be imported: ZeroDivisionError"):
        run(stepper("1 / 0"), event(0))
    with pytest.raises(ConfigError, match=r"the type of its state cannot be used: .*set.* is no type of a state"):
        run(stepper(COUNT.replace("count: int", "count: set").replace("event):", "event: int):").replace(
            "key, state,", "key, state: Seen,")), event(0))  # fmt: skip


def test_times_and_nan_are_read_as_the_stream_writes_them() -> None:
    code = (
        HEAD
        + "def step(key, state: Seen, event):\n    nan = event.amount != event.amount\n"
        + "    return state, [StepFinding(1, {'t': event.seen, 'nan': nan})]"
    )
    (outcome,) = run(stepper(code), event(0, seen="2026-01-01T00:00:00.250000Z", amount="NaN"))
    assert outcome.record is not None
    assert json.loads(outcome.record[1])["context"] == {"t": "2026-01-01T00:00:00.250000Z", "nan": True}


def test_an_event_of_a_time_that_python_does_not_know_is_left_out() -> None:
    late = event(0, seen="+10000-01-01T00:00:00.000000Z")
    outcomes = run(stepper(), late, PlacedEvent(10**18, "raw.x", 0, 1, "{}"))
    assert len(faults(outcomes)) == 2
    assert all("the event cannot be read in Python" in fault for fault in faults(outcomes))


def test_a_column_may_have_any_name() -> None:
    assert scores(run(stepper(), event(0, **{"self": 1, "name": 2}))) == [1]
