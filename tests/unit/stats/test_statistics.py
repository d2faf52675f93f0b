"""The statistics equal those of reference packages, and bad input does what their docstrings say."""

import math
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from scipy import stats as reference

from tocsin.stats import Baseline, Cusum, Ewma, Seasonal, Values, entropy, hour_of_week, peer_scores, robust_z

RANDOM = random.Random(20261128)
SERIES = [RANDOM.gauss(20, 4) for _ in range(200)]
MISSING = (None, math.nan, math.inf, -math.inf)
# Montgomery, Introduction to Statistical Quality Control, table 9.1: the mean is 10 and then 11, the deviation 1.
MONTGOMERY = (9.45, 7.99, 9.29, 11.66, 12.16, 10.18, 8.04, 11.46, 9.2, 10.34, 9.03, 11.47, 10.51, 9.4, 10.08, 9.37,
              10.62, 10.31, 8.52, 10.84, 10.9, 9.33, 12.29, 11.5, 10.6, 11.08, 10.38, 11.62, 11.31, 10.52)  # fmt: skip


@pytest.mark.parametrize("weight", [0.03, 0.5, 1.0])
def test_an_ewma_is_that_of_pandas(weight: float) -> None:
    past = Ewma()
    expected = pd.Series(SERIES).ewm(alpha=weight)
    for value, mean, variance in zip(SERIES, expected.mean(), expected.var(bias=True), strict=True):
        past = past.add(value, weight=weight)
        assert (past.mean, past.variance) == pytest.approx((mean, variance), rel=1e-9, abs=1e-9)
    assert past.score(30, least=0.1) == pytest.approx((30 - past.mean) / max(math.sqrt(past.variance), 0.1))


def test_a_cusum_is_that_of_the_textbook() -> None:
    sums = [Cusum()]
    for value in MONTGOMERY:
        sums.append(sums[-1].add(value - 10, slack=0.5))
    assert [round(sums[number].up, 2) for number in (1, 4, 10, 20, 29, 30)] == [0.0, 1.16, 0.0, 0.34, 5.28, 5.3]
    assert [round(sums[number].down, 2) for number in (1, 2, 3, 7)] == [0.05, 1.56, 1.77, 1.46]
    assert [number for number, one in enumerate(sums) if one.score > 5] == [29, 30]


def test_a_robust_z_is_that_of_scipy() -> None:
    middle, scale = np.median(SERIES), reference.median_abs_deviation(SERIES, scale="normal")
    mad = float(reference.median_abs_deviation(SERIES))
    assert robust_z(40, float(middle), mad, least=0.1) == pytest.approx((40 - middle) / scale)
    assert peer_scores(SERIES, least=0.1) == pytest.approx(list((np.array(SERIES) - middle) / scale))
    slot = Baseline()
    for value in SERIES:
        slot = slot.add(7, value, last=200).add(8, 0)
    assert slot.score(7, 40, least=0.1) == pytest.approx((40 - middle) / scale)
    assert slot.score("8", 1, least=0.5) == 2
    assert slot.slots["8"] == [0.0] * 8


def test_a_seasonal_forecast_is_that_of_statsmodels() -> None:
    # ExponentialSmoothing(..., seasonal="add", seasonal_periods=3) of statsmodels 0.15.0 from the same start.
    expected = (10, 20, 30, 10.1, 20.39, 30.851, 11.3359, 21.01531, 30.975479, 12.502461, 23.361392, 33.298902)
    past = Seasonal(3, 20.0, {"0": -10.0, "1": 0.0, "2": 10.0})
    for number, value in enumerate((10, 20, 31, 13, 22, 30, 12, 25, 36, 15, 24, 33)):
        assert past.forecast(number % 3) == pytest.approx(expected[number], abs=1e-6)
        past = past.add(number % 3, value, level_weight=0.1, season_weight=0.3)
    assert past.score(0, 30, least=0.1) == past.residual.score(30 - (past.forecast(0) or 0), least=0.1) != 0
    assert past.score(3, 30, least=0.1) == 0


@pytest.mark.parametrize("values", [[7], [1, 1, 2], list("kq3v9z00"), [*range(9), 3]])
def test_entropy_is_that_of_scipy(values: list[object]) -> None:
    counts = pd.Series(values).value_counts()
    expected = float(reference.entropy(counts, base=2))
    assert entropy(values) == pytest.approx(expected)
    assert entropy(dict(counts)) == pytest.approx(expected)


def test_values_seen_less_are_rarer() -> None:
    seen = Values()
    for value in ["ls"] * 6 + ["cat"]:
        seen = seen.add(value)
    assert [seen.is_new(value) for value in ("ls", "nc", None)] == [False, True, False]
    # Laplace: seven values and one for each of three, ls, cat and another one, make ten.
    assert [seen.rarity(value) for value in ("ls", "cat", "nc", None)] == pytest.approx(
        [math.log2(10 / 7), math.log2(10 / 2), math.log2(10), 0]
    )
    assert seen.add("nc", most=2).counts == {"ls": 6, "nc": 1}
    assert Values().add("a").add("b").add("c", most=2).counts == {"b": 1, "c": 1}


def test_an_hour_of_the_week_is_that_of_the_zone() -> None:
    sunday = datetime(2026, 3, 29, 23, 30, tzinfo=UTC)
    assert hour_of_week(sunday) == 167
    assert hour_of_week(sunday.astimezone(ZoneInfo("Europe/Berlin"))) == 1


STATES: list[tuple[Any, Callable[[Any, Any], Any], Callable[[Any, Any], float]]] = [
    (Ewma, lambda it, value: it.add(value, weight=0.1), lambda it, value: it.score(value, least=0.5)),
    (Cusum, lambda it, value: it.add(value), lambda it, value: it.score),
    (Baseline, lambda it, value: it.add(3, value), lambda it, value: it.score(3, value, least=0.5)),
    (Seasonal, lambda it, value: it.add(3, value), lambda it, value: it.score(3, value, least=0.5)),
]


@pytest.mark.parametrize(("kind", "add", "score"), STATES, ids=["Ewma", "Cusum", "Baseline", "Seasonal"])
def test_bad_values_change_nothing_and_huge_ones_stay_finite(
    kind: Any, add: Callable[[Any, Any], Any], score: Callable[[Any, Any], float]
) -> None:
    state = kind()
    assert [score(state, value) for value in (*MISSING, 5)] == [0.0] * 5
    assert all(add(state, value) == state for value in MISSING)
    for _ in range(20):
        state = add(state, 0)
    assert all(add(state, value) == state for value in MISSING)
    if kind is not Cusum:
        assert [score(state, value) for value in (*MISSING, 0, 3)] == [0.0] * 5 + [6.0]
    for huge in (1e308, -1e308, 10**400):
        state = add(state, huge)
        assert math.isfinite(score(state, 1e308))
    assert "inf" not in repr(state) and "nan" not in repr(state)


@pytest.mark.parametrize(("call", "what"), [
    (lambda: Ewma().add(1, weight=-0.1), "weight must be above 0"),
    (lambda: Ewma().add(1, weight=math.nan), "weight must be above 0"),
    (lambda: Seasonal().add(1, 1, season_weight=1.1), "weight must be above 0"),
    (lambda: Cusum().add(1, slack=-1), "slack must not be negative"),
    (lambda: Baseline().add(1, 1, last=0), "last must be at least 1"),
    (lambda: Values().add("a", most=0), "most must be at least 1"),
    (lambda: robust_z(1, 1, 0, least=0), "least must be above zero"),
    (lambda: entropy({"a": -1}), "counts must be numbers from zero on"),
])  # fmt: skip
def test_parameters_out_of_range_raise(call: Callable[[], object], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        call()


def test_a_group_with_bad_values_or_few_members_scores_zero() -> None:
    assert peer_scores([1, 1, None, 1, 1, math.nan, 4], least=1.5) == [0, 0, 0, 0, 0, 0, 2]
    assert peer_scores([1, 1, 1, 9], least=1) == [0, 0, 0, 0]
    assert peer_scores([], least=1, after=0) == []
    assert (entropy([]), entropy(""), entropy([None, "a"]), entropy({"a": 0})) == (0, 0, 0, 0)
