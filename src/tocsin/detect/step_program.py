"""Run `step` and `on_timer` of a detector's file: one call, with a time limit, and what is wrong with its result."""

from __future__ import annotations

import dataclasses
import inspect
import signal
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any

from tocsin.declare.code.step_signature import ON_TIMER, STEP, TIMER
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.steps.step_contract import Event, StateCodec, StepFinding
from tocsin.spark.declared_function import line_of, load_module

CALL_SECONDS = 10.0
"""Longest call of `step`; its event is left out then."""

STATE_BYTES = 1_048_576
"""Longest state of one entity, as JSON."""

_AGAIN_SECONDS = 1.0
_LONGEST = 300

Key = str | tuple[str, ...]
Made = tuple[str, Any, list[StepFinding]]
"""The result of a call: the next state as JSON, the timer that it sets, and the findings."""


class StepFault(Exception):
    """One call that cannot count: why, with file and line where there is one."""


class _Overrun(BaseException):
    """Raised inside a call that takes too long; no `except Exception` of its own catches it."""


class StepProgram:
    """The code of one detector."""

    def __init__(self, path: Path, text: bytes) -> None:
        """Run `text`. ConfigError if that fails, takes too long, or its state has a type that cannot be stored."""
        module = load_module(path, text)
        self._path = path
        self._step: Callable[..., Any] = getattr(module, STEP)
        self._on_timer: Callable[..., Any] | None = getattr(module, ON_TIMER, None)
        try:
            annotation = list(inspect.signature(self._step).parameters.values())[1].annotation
            state_type = getattr(module, annotation) if isinstance(annotation, str) else annotation
            self.codec = StateCodec(state_type, vars(module))
            self.codec.new()
        except Exception as error:
            raise ConfigError.one(path, f"the type of its state cannot be used: {error}", key=STEP) from error
        self._limit = _Limit()

    def step(self, key: Key, snapshot: str | None, event: Event) -> Made:
        """Call `step` with a copy of the state. StepFault if it fails, takes too long, or returns something else."""
        state = self.codec.new() if snapshot is None else self.codec.decode(snapshot)
        return self._call(self._step, key, state, event)

    def on_timer(self, key: Key, snapshot: str, at: datetime) -> Made:
        """Call `on_timer` with a copy of the state, whose timer is None; returns and raises as `step`."""
        assert self._on_timer is not None, "a state with a timer has an on_timer, as the declaration was checked"
        return self._call(self._on_timer, key, self.codec.decode(self.without_timer(snapshot)), at)

    def without_timer(self, snapshot: str) -> str:
        """Return the state `snapshot` with its timer set to None."""
        return self.codec.encode(dataclasses.replace(self.codec.decode(snapshot), timer=None))

    def fault(self, what: str) -> StepFault:
        """Make the fault of a call that has returned something wrong."""
        return StepFault(self._told(None, what))

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Made:
        try:
            try:
                self._limit.arm()
                result = function(*arguments)
            finally:
                self._limit.disarm()
            return self._checked(function.__name__, arguments[0], result)
        except StepFault:
            raise
        except _Overrun as error:
            self._limit.disarm()  # it may have come just before the first
            raise StepFault(self._told(error, f"did not finish within {CALL_SECONDS:g} s")) from None
        except (Exception, SystemExit) as error:
            raise StepFault(self._told(error, f"{type(error).__name__}: {error}")) from error

    def _checked(self, name: str, key: object, result: object) -> Made:
        if not (isinstance(result, tuple) and len(result) == 2):
            raise self.fault(f"{name} must return (state, findings), not {result!r:.60}")
        state, found = result
        if not isinstance(found, Sequence) or not all(isinstance(finding, StepFinding) for finding in found):
            raise self.fault(f"{name} must return a list of StepFinding, not {found!r:.60}")
        try:
            snapshot = self.codec.encode(state)
        except TypeError as error:
            raise self.fault(f"{name} returned a state that cannot be stored: {error}") from None
        if len(snapshot) > STATE_BYTES:
            what = f"the state of {key!r:.80} has grown to {len(snapshot):,} bytes"
            raise self.fault(f"{what}; at most {STATE_BYTES:,} can be kept")
        return snapshot, getattr(state, TIMER, None), list(found)

    def _told(self, error: BaseException | None, what: str) -> str:
        line = None if error is None else line_of(error, self._path)
        place = f"{self._path.parent.name}/{self._path.name}"
        return f"{place}:{line}: {what}"[:_LONGEST] if line else f"{place}: {what}"[:_LONGEST]


class _Limit:
    """Breaks off what runs between `arm` and `disarm` once it takes longer than `CALL_SECONDS`."""

    def __init__(self) -> None:
        # No limit where signals cannot interrupt: in threads of a test.
        self._is_on = threading.current_thread() is threading.main_thread()
        self._is_armed = self._is_ready = False

    def arm(self) -> None:
        """Begin to count; it costs one call of the system."""
        if self._is_on:
            if not self._is_ready:
                signal.signal(signal.SIGALRM, self._break_off)
                self._is_ready = True
            self._is_armed = True
            # Again and again: a bare `except:` inside a loop catches the first one.
            signal.setitimer(signal.ITIMER_REAL, CALL_SECONDS, _AGAIN_SECONDS)

    def disarm(self) -> None:
        self._is_armed = False
        if self._is_on:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _break_off(self, _: int, frame: FrameType | None) -> None:
        if self._is_armed:
            raise _Overrun
