"""The second form of a detector, for logic that SQL cannot say: plain Python, one event of one entity after the other.

::

    @dataclass(frozen=True)
    class LastLogin:
        country: str = ""

    @detector(source="logins", entity="user_id", window=None, forget_after="30 days", levels=Levels(email=0), ...)
    def step(key: str, state: LastLogin, event: Event) -> tuple[LastLogin, list[StepFinding]]:
        is_new = state.country not in ("", event.country)
        return LastLogin(event.country), [StepFinding(1, {"before": state.country})] if is_new else []

`step` is called for the events of each entity in the order of their time, and returns the next state and the findings
of this event. `state` is `LastLogin()` for an entity that is new, or had no event for `forget_after`. `key` is the
entity as text, or a tuple of texts if the entity has several columns.

A state with the field `timer: datetime | None` sets a timer by it: once event time has passed it, `on_timer(key, state,
at)` is called, which returns the same as `step`.

With `tables=["segments"]` the event also has the columns of the row that held at its time: `event.segment`, and
`event.segments_since`, from when it held; None for an event without a row. The key has the names that it has in events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


class Event:
    """One event, read only: `event_time` (UTC) and, as attributes, the columns of its source and of joined tables.

    They are None where there is no value.
    """

    def __init__(self, /, event_time: datetime, **columns: Any) -> None:
        self.__dict__.update(columns, event_time=event_time)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"an event has no column '{name}' (it has: {', '.join(sorted(self.__dict__))})")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("an event cannot be changed")

    __delattr__ = __setattr__  # type: ignore[assignment]  # takes no value, and refuses all the same

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Event) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # its columns are no key

    def __repr__(self) -> str:
        return f"Event({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


@dataclass(frozen=True)
class StepFinding:
    """A finding of `step` about the entity, at this event.

    Attributes:
        score: a number; higher is more anomalous. Below the limits it is no finding; None is counted and left out.
        context: further facts, by name.
        evidence: up to 10 samples: events, or anything that JSON can hold.
    """

    score: float | None
    context: Mapping[str, Any] = field(default_factory=dict)
    evidence: Sequence[Any] = ()
