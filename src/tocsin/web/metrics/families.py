"""Make families of figures in the form of Prometheus: base units, `_total` for counters, few labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

Sample = tuple[Sequence[str], float]  # the values of the labels, and the figure


def gauge(name: str, text: str, labels: Sequence[str], samples: Iterable[Sample]) -> Metric:
    """Make a family of figures that rise and fall."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, figure in samples:
        family.add_metric(values, figure)
    return family


def counter(name: str, text: str, labels: Sequence[str], samples: Iterable[Sample]) -> Metric:
    """Make a family of figures that only rise; `name` is without `_total`."""
    family = CounterMetricFamily(name, text, labels=labels)
    for values, figure in samples:
        family.add_metric(values, figure)
    return family


def moments(name: str, text: str, labels: Sequence[str], samples: Iterable[tuple[Sequence[str], datetime]]) -> Metric:
    """Make a family of moments, in seconds since 1970; their age is `time()` minus that."""
    return gauge(name, text, labels, ((values, moment.timestamp()) for values, moment in samples))
