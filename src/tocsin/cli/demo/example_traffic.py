"""Lines for the projects of examples/, and what their views must hold: counted here, from the lines themselves."""

from __future__ import annotations

import hashlib
import json
import random
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from datetime import datetime
from typing import Any

from tocsin.dev.generator import window_start

Rows = dict[tuple[tuple[Any, ...], datetime | None], dict[str, Any]]
"""Values of rows, by the values of their key and the start of their window."""


class ExampleTraffic(ABC):
    """The traffic of one example. Same seed, same lines.

    Attributes:
        asks: what to type into another terminal to see the rows in the sink; `{state}` is the state folder.
    """

    source: str
    view: str
    asks: tuple[str, ...] = ()

    def __init__(self, seed: int = 0) -> None:
        self.count = 0
        self.dice = random.Random(seed)

    def next_line(self, now: datetime) -> bytes:
        """Write the next line, with the time `now`."""
        self.count += 1
        return self._write(now, f"{now:%Y-%m-%dT%H:%M:%S.%f}Z").encode()

    @abstractmethod
    def rows(self) -> Rows:
        """Return what the view must hold of the lines so far."""

    @abstractmethod
    def _write(self, now: datetime, time: str) -> str:
        """Write a line."""


class WordTraffic(ExampleTraffic):
    """Lines of text."""

    source, view = "lines", "word_counts"
    asks = (
        'psql "$(cat {state}/postgres/address)" -c '
        '"SELECT * FROM windowed_counts ORDER BY time_window DESC, count DESC LIMIT 10"',
    )
    _TEXT = "the bell rings and a river of lines runs on Élan übermut kafka spark stream alarm night watch"

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self._counts: Counter[tuple[tuple[Any, ...], datetime | None]] = Counter()

    def rows(self) -> Rows:
        """See `ExampleTraffic`."""
        return {place: {"count": count} for place, count in self._counts.items()}

    def _write(self, now: datetime, time: str) -> str:
        known = self._TEXT.split()
        words = [known[int(len(known) * self.dice.random() ** 2)] for _ in range(self.dice.randrange(3, 9))]
        self._counts.update(((word.lower(),), window_start(now)) for word in words)
        return f"{time} writer{self.dice.randrange(4)} {self.dice.choice([' ', ', ', ' - ']).join(words)}!"


class RouteTraffic(ExampleTraffic):
    """Requests, as Heroku's router logs them."""

    source, view = "router", "route_metrics"
    asks = ('redis-cli -u "$(cat {state}/redis/address)" HGETALL routes',)
    _PATHS = ("/", "/cart", "/checkout", "/search", "/items/4711", "/login", "/help")
    _STATUSES = (200, 200, 200, 200, 200, 304, 404, 503)

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self._figures: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._statuses: Counter[tuple[str, str]] = Counter()

    def rows(self) -> Rows:
        """See `ExampleTraffic`."""
        fields: dict[tuple[str, str], Any] = {}
        for (path, name), values in self._figures.items():
            name_of_hash, total = f"{_digest(path)}::{name}", sum(values)
            figures = {"sum": total, "count": len(values), "average": total / len(values)}
            fields |= {(name_of_hash, field): value for field, value in figures.items()}
            fields["routes", _digest(path)] = path
        fields |= {(f"{_digest(path)}::statuses", status): count for (path, status), count in self._statuses.items()}
        return {(place, None): {"value": value} for place, value in fields.items()}

    def _write(self, now: datetime, time: str) -> str:
        path, status = self.dice.choice(self._PATHS), self.dice.choice(self._STATUSES)
        connect, service = self.dice.randrange(4), round(self.dice.lognormvariate(3.5, 0.8))
        self._figures[path, "connect"].append(connect)
        self._figures[path, "service"].append(service)
        self._statuses[path, str(status)] += 1
        return (
            f'<158>1 {time} host heroku router - at=info method=GET path="{path}" host=shop.example.com '
            f"request_id={self.count} dyno=web.1 connect={connect}ms service={service}ms status={status} "
            f"bytes={self.dice.randrange(200, 9000)} protocol=https"
        )


class StockTraffic(ExampleTraffic):
    """Sales and restocks of stores."""

    source, view = "stock_movements", "inventory"
    _STORES, _ITEMS = ("berlin", "hamburg", "köln", "münchen"), ("chair", "desk", "lamp", "shelf", "sofa")

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self._stock: Counter[tuple[str, str]] = Counter()

    def rows(self) -> Rows:
        """See `ExampleTraffic`."""
        return {(place, None): {"stock": stock} for place, stock in self._stock.items()}

    def _write(self, now: datetime, time: str) -> str:
        place = self.dice.choice(self._STORES), self.dice.choice(self._ITEMS)
        quantity = self.dice.randrange(1, 4)
        kind = "sale" if self._stock[place] >= quantity else "restock"
        quantity = quantity if kind == "sale" else self.dice.randrange(20, 40)
        self._stock[place] += -quantity if kind == "sale" else quantity
        fields = {"store": place[0], "item": place[1], "timestamp": time, "kind": kind, "quantity": quantity}
        return json.dumps(fields)


class CounterTraffic(ExampleTraffic):
    """Counters of instances, which grow, and restart from 0 now and then."""

    source, view = "counters", "instance_totals"
    asks = (
        "curl -G \"$(sed 's/write/query/' {state}/influx/address)\" "
        '--data-urlencode "q=SELECT * FROM instance_totals ORDER BY time DESC LIMIT 10"',
    )
    _METRICS, _INSTANCES = ("errors", "jobs", "requests"), tuple(f"web.{number}" for number in range(1, 6))

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self._values: Counter[tuple[str, str]] = Counter()

    def rows(self) -> Rows:
        """See `ExampleTraffic`."""
        found: Rows = {}
        for (metric, _), value in self._values.items():
            total = found.setdefault(((metric,), None), {"total": 0, "instances": 0})
            total["total"] += value
            total["instances"] += 1
        return found

    def _write(self, now: datetime, time: str) -> str:
        metric, instance = self.dice.choice(self._METRICS), self.dice.choice(self._INSTANCES)
        if self.dice.random() < 0.01:
            self._values[metric, instance] = 0
        self._values[metric, instance] += self.dice.randrange(1, 20)
        return f"metric: {metric} | instance: {instance} | timestamp: {time} | value: {self._values[metric, instance]}"


EXAMPLES: dict[str, type[ExampleTraffic]] = {
    "words": WordTraffic,
    "routes": RouteTraffic,
    "inventory": StockTraffic,
    "instances": CounterTraffic,
}


def compare(expected: Rows, found: Rows) -> list[str]:
    """Say how the rows of a view differ from the `expected` ones; columns that are not expected do not count."""
    return [
        f"{place}: {found.get(place, 'no row')} instead of {expected.get(place, 'no row')}"
        for place in sorted({*expected, *found}, key=str)
        if place not in found or place not in expected or not _agree(expected[place], found[place])
    ]


def _agree(expected: dict[str, Any], found: dict[str, Any]) -> bool:
    return all(_number(found.get(name)) == _number(value) for name, value in expected.items())


def _number(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError):
        return value


def _digest(path: str) -> str:
    return hashlib.sha256(path.encode()).hexdigest()
