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

import dataclasses
import functools
import json
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple


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
        evidence: up to 10 samples: events, or anything that JSON can hold.
    """

    score: float | None
    context: Mapping[str, Any] = field(default_factory=dict)
    evidence: Sequence[Any] = ()


_PLAIN: dict[Any, tuple[type, ...]] = {str: (str,), int: (int,), bool: (bool,), float: (float, int)}
_ENCODER = json.JSONEncoder(separators=(",", ":"))


class _Coder(NamedTuple):
    """Both ways of one type; `encode` raises TypeError for a value of another."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


class StateCodec:
    """Writes and reads states of one type, a dataclass whose fields all have defaults and may include `timer`."""

    def __init__(self, state_type: type, names: dict[str, Any]) -> None:
        """Read the field types; `names` are those of its module. TypeError if a state cannot hold one."""
        hints = typing.get_type_hints(state_type, names)
        self._type = state_type
        self._coders = {field.name: _coder(hints[field.name]) for field in dataclasses.fields(state_type)}
        self.has_timer = "timer" in self._coders

    def new(self) -> Any:
        """Make the state of an entity that is new."""
        return self._type()

    def encode(self, state: object) -> str:
        """Write `state`; TypeError if it or one of its fields is of another type."""
        if type(state) is not self._type:
            raise TypeError(f"the state must be of type {self._type.__name__}, not {type(state).__name__}")
        return _ENCODER.encode(self._values(state))

    def decode(self, text: str) -> Any:
        """Read what `encode` has written; fields that have come in since have their defaults."""
        return self._build(json.loads(text))

    def as_coder(self) -> _Coder:
        """Return both ways of a state that is a field of another one, as an object of JSON."""
        return _Coder(self._field, self._build)

    def _field(self, state: object) -> dict[str, Any]:
        if type(state) is not self._type:
            raise TypeError(f"must be {self._type.__name__}, not {type(state).__name__}")
        return self._values(state)

    def _values(self, state: object) -> dict[str, Any]:
        values = {}
        for name, coder in self._coders.items():
            try:
                values[name] = coder.encode(getattr(state, name))
            except TypeError as error:
                raise TypeError(f"{self._type.__name__}.{name} {error}") from None
        return values

    def _build(self, values: dict[str, Any]) -> Any:
        coders = self._coders
        return self._type(**{name: coders[name].decode(value) for name, value in values.items()})


def _coder(hint: Any) -> _Coder:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return StateCodec(hint, vars(sys.modules[hint.__module__])).as_coder()
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in _PLAIN:
        return _Coder(functools.partial(_plain, hint), float if hint is float else _same)
    if hint is datetime:
        return _Coder(_time, datetime.fromisoformat)
    if origin is list and len(arguments) == 1:
        of = _coder(arguments[0])
        return _Coder(functools.partial(_list, of.encode), lambda values: [of.decode(value) for value in values])
    if origin is dict and arguments[:1] == (str,):
        of = _coder(arguments[1])
        decode = of.decode
        return _Coder(functools.partial(_dict, of.encode), lambda values: {k: decode(v) for k, v in values.items()})
    if origin in (typing.Union, types.UnionType) and len(arguments) == 2 and type(None) in arguments:
        of = _coder(next(argument for argument in arguments if argument is not type(None)))
        encode_some, decode_some = of
        return _Coder(
            lambda value: None if value is None else encode_some(value),
            lambda value: None if value is None else decode_some(value),
        )
    raise TypeError(f"{hint} is no type of a state; it can hold str, int, float, bool, datetime, states of "
                    "tocsin.stats, lists and dicts of these by str, each perhaps None")  # fmt: skip


def _same(value: Any) -> Any:
    return value


def _plain(kind: type, value: Any) -> Any:
    if type(value) in _PLAIN[kind]:
        return value
    raise TypeError(f"must be {kind.__name__}, not {type(value).__name__}")


def _time(value: Any) -> str:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).isoformat()
    raise TypeError(f"must be a datetime with a time zone, not {value!r}")


def _list(encode: Callable[[Any], Any], value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"must be a list, not {type(value).__name__}")
    return [encode(item) for item in value]


def _dict(encode: Callable[[Any], Any], value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(type(name) is str for name in value):
        raise TypeError(f"must be a dict by str, not {value!r:.60}")
    return {name: encode(item) for name, item in value.items()}
