"""What a file with `step` must look like, told before anything runs."""

from datetime import timedelta
from pathlib import Path

import pytest

from tocsin.declare.declaration import read_spec
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.errors import ConfigError

GOOD = '''"""Places."""
from dataclasses import dataclass, field
from datetime import datetime
from tocsin import Event, Levels, StepFinding, detector, stats
from tocsin.stats import Ewma


@dataclass(frozen=True)
class Seen:
    place: str = ""
    times: dict[str, list[datetime]] = field(default_factory=dict)
    usual: Ewma = Ewma()
    hours: dict[str, stats.Seasonal] = field(default_factory=dict)
    timer: datetime | None = None


@detector(source="doors", entity="user", window=None, forget_after="30 days", levels=Levels(email=0),
          owner="a@example.com", runbook="docs/r.md", stage="live")
def step(key: str, state: Seen, event: Event) -> tuple[Seen, list[StepFinding]]:
    return state, []


def on_timer(key, state, at):
    return state, []
'''


def read(tmp_path: Path, text: str = GOOD) -> DetectorSpec:
    path = tmp_path / "places.py"
    path.write_text(text)
    return read_spec(path)


def test_a_detector_with_step_keeps_state_and_forgets(tmp_path: Path) -> None:
    spec = read(tmp_path)
    assert (spec.function, spec.forget_after, spec.window) == ("step", timedelta(days=30), None)
    assert spec.keeps_state
    assert spec.window_text == "none: one event after the other, forgotten after 30 days, 0:00:00"


def test_the_version_follows_the_code_the_levels_and_what_is_forgotten(tmp_path: Path) -> None:
    spec = read(tmp_path)
    other = {
        "levels": read(tmp_path, GOOD.replace("email=0", "email=1")),
        "owner": read(tmp_path, GOOD.replace("a@example", "b@example")),
        "memory": read(tmp_path, GOOD.replace('"30 days"', '"20 days"')),
        "field": read(tmp_path, GOOD.replace('place: str = ""', 'place: str | None = ""')),
        "code": read(tmp_path, GOOD.replace("return state, []\n\n", "return Seen(), []\n\n")),
    }
    assert {name for name, one in other.items() if one.version != spec.version} == {"levels", "memory", "field", "code"}
    assert {name for name, one in other.items() if one.code != spec.code} == {"field", "code"}


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (', forget_after="30 days"', "", 'forget_after: is missing: step needs it, as in forget_after="30 days"'),
        ('source="doors"', 'source=["doors", "gates"]', "source: must be one source with step"),
        ("window=None", 'window="5 minutes"', "window: must be None with step"),
        ("window=None", 'window=None, score="rising"', "score: cannot be used with step"),
        ("event: Event)", "event: Event, tables)", "step: must take (key, state, event)"),
        ("def step(key: str, state: Seen", "def step(key: str, state", "step: must have the type of its state"),
        ("@dataclass(frozen=True)\n", "", "step: must have the type of its state, a @dataclass of this file"),
        ('place: str = ""', "place: str", "Seen.place: needs a default"),
        ('place: str = ""', "place: set[str] = None", "Seen.place: cannot be stored as set[str]"),
        ('place: str = ""', "place: dict[int, str] = None", "Seen.place: cannot be stored as dict[int, str]"),
        ("timer: datetime | None", "timer: float | None", "Seen.timer: must be `datetime | None`"),
        ("def on_timer", "def on_time", "Seen.timer: is set for nothing: the file has no on_timer(key, state, at)"),
        ("    timer: datetime | None = None\n", "", "on_timer: is never called: Seen has no field `timer"),
        ("(key, state, at)", "(key, state)", "on_timer: must take (key, state, at)"),
        ("def step(", "def detect(", "forget_after: belongs to step; detect has a window"),
        ("]:\n    return state, []", "]:\n    return Seen(open('x').read()), []", "step: open reads or writes files"),
        ("at):\n    return state", "at):\n    datetime.now()\n    return state", "step: datetime.now reads the clock"),
    ],
)  # fmt: skip
def test_each_fault_has_its_line(tmp_path: Path, old: str, new: str, what: str) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, GOOD.replace(old, new))
    told = [str(fault).removeprefix(str(tmp_path / "places.py")) for fault in caught.value.faults]
    assert any(what in one for one in told), told
    assert all(one[1:2].isdigit() for one in told)
