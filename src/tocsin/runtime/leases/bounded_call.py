"""Bound the time of a call: a server that stands still never answers, and its socket stays open."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from tocsin.model.errors import TransientError

_Value = TypeVar("_Value")


def within(seconds: float, call: Callable[[], _Value]) -> _Value:
    """Return what `call` returns, or raise what it raises.

    Raises:
        TransientError: it has not answered in time. It may still go on, in a thread that ends with the process.
    """
    answers: list[_Value] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="bounded call", daemon=True)
    thread.start()
    thread.join(max(0.0, seconds))
    if errors:
        raise errors[0]
    if not answers:
        raise TransientError(f"no answer within {seconds:.1f} s")
    return answers[0]
