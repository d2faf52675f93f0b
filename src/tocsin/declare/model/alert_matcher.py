"""Which alerts a silence mutes, a route sends somewhere, or a wider alert inhibits: one form for all of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict

Level = Literal["email", "urgent"]


def _as_tuple(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else (value,)


Patterns = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]
"""One pattern or several."""


@dataclass(frozen=True)
class AlertLabels:
    """The side of an alert that matchers look at."""

    detector: str
    owner: str
    level: str
    entity: Mapping[str, str]
    tags: tuple[str, ...] = ()


class AlertMatcher(BaseModel):
    """A choice of alerts: every field that is given must fit, and of a field one of its values.

    Names and values are shell patterns (`payments_*`), which mind case; a text such as `[::1]` is also one of itself.
    Without any field it takes every alert.

    Attributes:
        entity: by column, patterns of its value; a column that an alert has not got does not fit.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    detector: Patterns = ()
    owner: Patterns = ()
    level: Annotated[tuple[Level, ...], BeforeValidator(_as_tuple)] = ()
    entity: dict[str, Patterns] = {}
    tags: Patterns = ()

    @property
    def takes_all(self) -> bool:
        """Whether it takes every alert, also by patterns that say nothing (`*`, `?*`), or by naming every level."""
        given = [self.detector, self.owner, self.tags, *self.entity.values()]
        levels = not self.level or {*self.level} == {*get_args(Level)}
        return levels and all(not patterns or any(map(_says_nothing, patterns)) for patterns in given)

    def matches(self, labels: AlertLabels) -> bool:
        """Return whether it takes an alert with `labels`."""
        return (
            _fits(self.detector, labels.detector)
            and _fits(self.owner, labels.owner)
            and (not self.level or labels.level in self.level)
            and all(name in labels.entity and _fits(own, labels.entity[name]) for name, own in self.entity.items())
            and (not self.tags or any(_fits(self.tags, tag) for tag in labels.tags))
        )

    def includes(self, other: AlertMatcher) -> bool:
        """Return whether it surely takes every alert that `other` takes."""
        return (
            all(_includes(getattr(self, name), getattr(other, name)) for name in ("detector", "owner", "tags"))
            and (not self.level or {*self.level} >= {*(other.level or get_args(Level))})
            and all(name in other.entity and _includes(own, other.entity[name]) for name, own in self.entity.items())
        )

    @property
    def text(self) -> str:
        """Say it in words, such as `detector failed_*, user mallory`."""
        parts = [(name, getattr(self, name)) for name in ("detector", "owner", "level", "tags")]
        parts += list(self.entity.items())
        shown = [(name, [value if value.strip() else repr(value) for value in values]) for name, values in parts]
        return ", ".join(f"{name} {' or '.join(values)}" for name, values in shown if values) or "every alert"


def _says_nothing(pattern: str) -> bool:
    return "*" in pattern and not pattern.strip("*?")


def _fits(patterns: tuple[str, ...], value: str) -> bool:
    return not patterns or value in patterns or any(fnmatchcase(value, pattern) for pattern in patterns)


def _includes(wide: tuple[str, ...], narrow: tuple[str, ...]) -> bool:
    if not wide or "*" in wide:
        return True
    return bool(narrow) and all(any(_covers(pattern, other) for pattern in wide) for other in narrow)


def _covers(pattern: str, other: str) -> bool:
    """`*` in `other` stands for anything, which `*` in `pattern` takes, but `?` and `[...]` do not."""
    sure = not any(letter in pattern for letter in "?[") or not any(letter in other for letter in "*?[")
    return pattern == other or (sure and fnmatchcase(other, pattern))


class Inhibition(BaseModel):
    """A wider alert that mutes narrower ones while it is not resolved, such as the outage of a source its detectors'.

    Attributes:
        same: columns of the entity that must be equal in both; none if empty.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    wider: AlertMatcher
    narrower: AlertMatcher
    same: tuple[str, ...] = ()

    def mutes(self, narrower: AlertLabels, wider: AlertLabels) -> bool:
        """Return whether the alert `wider`, which is another one, mutes `narrower`."""
        equal = all(name in wider.entity and wider.entity[name] == narrower.entity.get(name) for name in self.same)
        return equal and self.wider.matches(wider) and self.narrower.matches(narrower)
