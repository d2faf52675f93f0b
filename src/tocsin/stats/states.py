"""States of statistics that take one value after the other. JSON of them is in checkpoints: add fields, remove none."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tocsin.stats.functions import finite, in_deviations, median_and_mad, robust_z


@dataclass(frozen=True)
class Ewma:
    """An exponentially weighted moving mean and variance.

    Roberts, Control Chart Tests Based on Geometric Moving Averages, 1959; the variance is that of Finch, Incremental
    Calculation of Weighted Mean and Variance, 2009. The first value is the mean, with a variance of zero.
    """

    count: int = 0
    mean: float = 0.0
    variance: float = 0.0

    def add(self, value: float | None, *, weight: float) -> Ewma:
        """Add `value`; `weight` is the share of the newest one, above 0 and up to 1: 1/30 remembers some 30 values.

        The first values count alike, until there are as many as `weight` remembers. ValueError for another weight.
        """
        number, share = finite(value), _newest_share(weight, self.count + 1)
        if number is None:
            return self
        change = number - self.mean
        variance = (1 - share) * (self.variance + share * change * change)
        return Ewma(self.count + 1, self.mean + share * change, variance)

    def score(self, value: float | None, *, least: float, after: int = 10) -> float:
        """Score how far `value` lies above the mean, in standard deviations of at least `least`; below is negative.

        Returns 0.0 until `after` values were added, and for a missing value.
        """
        number = finite(value)
        if number is None or self.count < max(after, 1):
            return 0.0
        return in_deviations(number - self.mean, math.sqrt(self.variance), least)


@dataclass(frozen=True)
class Cusum:
    """Cumulative sums, up and down, which find a small change that lasts (Page, Continuous Inspection Schemes, 1954).

    `up` and `down` are in standard deviations. 5 is the limit of textbooks, with a slack of 0.5 (Montgomery,
    Introduction to Statistical Quality Control). After an alarm begin anew with `Cusum()`, else it lasts.
    """

    up: float = 0.0
    down: float = 0.0

    def add(self, score: float | None, *, slack: float = 0.5) -> Cusum:
        """Add the `score` of a value, as `Ewma.score` gives it, less the `slack` that is no change.

        A missing score changes nothing. ValueError for a negative slack.
        """
        if not slack >= 0:
            raise ValueError(f"slack must not be negative, but is {slack}")
        number = finite(score)
        if number is None:
            return self
        return Cusum(max(0.0, self.up + number - slack), max(0.0, self.down - number - slack))

    @property
    def score(self) -> float:
        """The larger of both sums."""
        return max(self.up, self.down)


@dataclass(frozen=True)
class Baseline:
    """The usual value of each slot, such as an hour of the week, by the median and the MAD of its last values.

    One value in two may be anything without moving either (Hampel, The Influence Curve and Its Role in Robust
    Estimation, 1974). The state has `last` numbers per slot: 8 weeks of all hours of the week are 1,344, some 20 KB.
    """

    slots: dict[str, list[float]] = field(default_factory=dict)

    def add(self, slot: int | str, value: float | None, *, last: int = 8) -> Baseline:
        """Add `value` to the `last` ones of its slot. ValueError if `last` is less than one."""
        if last < 1:
            raise ValueError(f"last must be at least 1, not {last}")
        number = finite(value)
        if number is None:
            return self
        return Baseline({**self.slots, str(slot): [*self.slots.get(str(slot), []), number][-last:]})

    def score(self, slot: int | str, value: float | None, *, least: float, after: int = 3) -> float:
        """Score `value` by `robust_z` against its slot; 0.0 while that has fewer than `after` values."""
        values = self.slots.get(str(slot), [])
        if len(values) < max(after, 1):
            return 0.0
        return robust_z(value, *median_and_mad(values), least=least)


@dataclass(frozen=True)
class Seasonal:
    """A forecast by a level and a season, and how far values lie from it: additive Holt-Winters without a trend.

    Winters, Forecasting Sales by Exponentially Weighted Moving Averages, 1960, in the form of Hyndman and
    Athanasopoulos, Forecasting: Principles and Practice. The state has one number per slot, and five besides. Slots are
    named, not counted, so a gap in the series moves nothing.
    """

    count: int = 0
    level: float = 0.0
    season: dict[str, float] = field(default_factory=dict)
    residual: Ewma = field(default_factory=Ewma)

    def forecast(self, slot: int | str) -> float | None:
        """Forecast the next value of `slot`; None before its first one."""
        change = self.season.get(str(slot))
        return None if change is None else self.level + change

    def add(
        self, slot: int | str, value: float | None, *, level_weight: float = 0.1, season_weight: float = 0.3
    ) -> Seasonal:
        """Add `value`. Both weights are shares of the newest value, above 0 and up to 1; ValueError for others.

        The level takes the first value of a slot into its plain mean, so the first season is learned roughly.
        """
        _newest_share(level_weight, 1), _newest_share(season_weight, 1)
        number, forecast = finite(value), self.forecast(slot)
        if number is None:
            return self
        if forecast is None:
            level = self.level + (number - self.level) / (self.count + 1)
            return Seasonal(self.count + 1, level, {**self.season, str(slot): number - level}, self.residual)
        error = number - forecast
        season = {**self.season, str(slot): self.season[str(slot)] + season_weight * error}
        residual = self.residual.add(error, weight=level_weight)
        return Seasonal(self.count + 1, self.level + level_weight * error, season, residual)

    def score(self, slot: int | str, value: float | None, *, least: float, after: int = 10) -> float:
        """Score the residual of `value`, how far it lies above the forecast, by `Ewma.score` among the last residuals.

        Returns 0.0 until the slot has a value and `after` residuals are known.
        """
        number, forecast = finite(value), self.forecast(slot)
        if number is None or forecast is None:
            return 0.0
        return self.residual.score(number - forecast, least=least, after=after)


@dataclass(frozen=True)
class Values:
    """The counts of the values that were seen, such as the countries of a user, to find rare and new ones."""

    counts: dict[str, int] = field(default_factory=dict)

    def add(self, value: str | None, *, most: int = 1000) -> Values:
        """Count `value`. Of more than `most` different ones the rarest is forgotten, the oldest first.

        None changes nothing. ValueError if `most` is less than one.
        """
        if most < 1:
            raise ValueError(f"most must be at least 1, not {most}")
        if value is None:
            return self
        counts = dict(self.counts)
        if value not in counts:
            while len(counts) >= most:
                del counts[min(counts, key=counts.__getitem__)]
        return Values({**counts, value: counts.get(value, 0) + 1})

    def is_new(self, value: str | None) -> bool:
        """Return whether `value` was never seen; False for None, and for the very first value."""
        return bool(self.counts) and value is not None and value not in self.counts

    def rarity(self, value: str | None) -> float:
        """Score how surprising `value` is, in bits: 1 for what comes every second time, 10 for one in a thousand.

        The logarithm of its share, after one is added to each count and one value to those seen (Laplace's rule of
        succession). 0.0 for None, and for the very first value.
        """
        if value is None or not self.counts:
            return 0.0
        total = sum(self.counts.values()) + len(self.counts) + 1
        return math.log2(total / (self.counts.get(value, 0) + 1))


def _newest_share(weight: float, count: int) -> float:
    """Compute the share of the newest of `count` values of which each weighs `1 - weight` of the next one."""
    if not 0 < weight <= 1:
        raise ValueError(f"weight must be above 0 and at most 1, not {weight}")
    return 1.0 if weight == 1 else weight / -math.expm1(count * math.log1p(-weight))
